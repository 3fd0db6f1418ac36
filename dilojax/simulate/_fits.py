"""Power laws, fitted to what was measured or published."""

from collections.abc import Callable, Sequence
import math
from typing import NamedTuple

import numpy as np

Numbers = Sequence[float] | np.ndarray


class PowerLaw(NamedTuple):
  r"""The law :math:`y = A x_1^{\alpha_1} x_2^{\alpha_2} \cdots`.

  Attributes:
    scale: The factor :math:`A`.
    exponents: The exponents :math:`\alpha_i`, one per input.
  """

  scale: float
  exponents: tuple[float, ...]

  def __call__(self, *inputs: float) -> float:
    """Returns the law's value.

    Examples:
      >>> PowerLaw(3.0, (2.0, -1.0))(2.0, 4.0)
      3.0
    """
    powers = (x**exponent for x, exponent in zip(inputs, self.exponents))
    return self.scale * math.prod(powers)


def fit_power_law(values: Numbers, *inputs: Numbers) -> PowerLaw:
  r"""Fits a power law by least squares of the logarithm.

  .. math::

    \min_{A, \alpha} \sum_j
    \Big(\log y_j - \log A - \sum_i \alpha_i \log x_{ij}\Big)^2

  Args:
    values: What was measured, above 0.
    *inputs: What it depends on, above 0: each a sequence as long as `values`.

  Returns:
    The law.

  Raises:
    ValueError: If lengths differ, a number is not above 0, or there are too
      few different points to tell the exponents.

  Examples:
    >>> sizes, replicas = [1e6, 1e7, 1e8, 1e8], [1, 2, 1, 4]
    >>> losses = [20 * n**-0.1 * m**0.01 for n, m in zip(sizes, replicas)]
    >>> law = fit_power_law(losses, sizes, replicas)
    >>> round(law.scale, 6), [round(each, 6) for each in law.exponents]
    (20.0, [-0.1, 0.01])
  """
  logs, design = _logarithms(values, inputs)
  found = np.linalg.lstsq(design, logs, rcond=None)[0]
  return PowerLaw(math.exp(found[0]), tuple(map(float, found[1:])))


def rounding_margin(
  function: Callable[[np.ndarray], float], values: Numbers, half_width: float
) -> float:
  """Returns how far rounded inputs can move a result, at most.

  To first order: each input is moved by itself, up and down, and the greater
  changes add up.

  Args:
    function: Function of an array such as `values` that returns a number.
    values: The inputs, as printed.
    half_width: Half a unit of the last digit that they are printed with.

  Returns:
    The largest change of the result.

  Raises:
    ValueError: If `half_width` is below 0.

  Examples:
    >>> ratio = lambda values: values[0] / values[1]
    >>> print(f'{rounding_margin(ratio, [4.0, 2.0], half_width=0.1):.3f}')
    0.155
  """
  if not half_width >= 0:
    raise ValueError(f'`half_width` must be at least 0, got {half_width}.')
  values = np.asarray(values, float)
  result, margin = function(values), 0.0
  for index in np.ndindex(values.shape):
    changes = []
    for shift in (-half_width, half_width):
      moved = values.copy()
      moved[index] += shift
      changes.append(abs(function(moved) - result))
    margin += max(changes)
  return float(margin)


def _logarithms(values, inputs):
  """Returns the logarithms of the values, and the matrix of the fit."""
  rows = [np.asarray(row, float) for row in (values, *inputs)]
  names = ('values', *(f'inputs[{i}]' for i in range(len(inputs))))
  for name, row in zip(names, rows):
    if row.ndim != 1 or len(row) != len(rows[0]):
      raise ValueError(
        f'`{name}` must be a sequence of {len(rows[0])} numbers, as `values`,'
        f' got shape {row.shape}.'
      )
    # Neither NaN nor infinity.
    if not np.all((row > 0) & (row < np.inf)):
      raise ValueError(
        f'`{name}` must be above 0 and finite, got {row.tolist()}.'
      )
  design = np.stack([np.ones_like(rows[0]), *map(np.log, rows[1:])], axis=1)
  rank = np.linalg.matrix_rank(design)
  if rank < design.shape[1]:
    raise ValueError(
      f'`inputs` must vary, each in its own way, to tell {len(inputs)}'
      f' exponents and a scale, got points of rank {rank}: give more of them.'
    )
  return np.log(rows[0]), design
