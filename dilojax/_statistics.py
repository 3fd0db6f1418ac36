"""Means over seeds, and what they can tell from noise."""

from collections.abc import Mapping, Sequence
import math
import statistics
from typing import NamedTuple

from scipy import special


class Estimate(NamedTuple):
  """A mean of independent values.

  Attributes:
    mean: The mean; NaN without values.
    error: Its standard error; NaN with fewer than two values.
    n: Number of values.
  """

  mean: float
  error: float
  n: int


def estimate(values: Sequence[float]) -> Estimate:
  """Returns the mean and its standard error.

  Examples:
    >>> estimate([1.0, 3.0])
    Estimate(mean=2.0, error=1.0, n=2)
  """
  n = len(values)
  if not all(map(math.isfinite, values)) or not n:
    return Estimate(math.nan, math.nan, n)
  error = statistics.stdev(values) / math.sqrt(n) if n > 1 else math.nan
  return Estimate(statistics.fmean(values), error, n)


def p_above(of: Estimate, limit: float = 0.0) -> float:
  r"""Returns how likely noise alone puts a mean so far above a limit.

  The one-sided t-test of :math:`\mu > \mathrm{limit}` against
  :math:`\mu \le \mathrm{limit}`; given differences of pairs, the paired one.

  Args:
    of: Mean and error of the values.
    limit: What the mean is compared with.

  Returns:
    The p-value; NaN with fewer than two values. Without any spread it is 0, 1,
    or 1/2 if the mean is the limit.

  Examples:
    >>> f'{p_above(estimate([1.0, 3.0])):.4f}'  # Of a Cauchy variable above 2.
    '0.1476'
  """
  if of.n < 2 or math.isnan(of.mean):
    return math.nan
  distance = of.mean - limit
  if not of.error:
    return 0.5 if not distance else float(distance < 0)
  return float(special.stdtr(of.n - 1, -distance / of.error))


def p_below(of: Estimate, limit: float = 0.0) -> float:
  """Returns how likely noise alone puts a mean so far below a limit."""
  return p_above(Estimate(-of.mean, of.error, of.n), -limit)


def p_apart(of: Estimate) -> float:
  """Returns how likely noise alone puts a mean so far from zero."""
  return 2 * min(p_above(of), p_below(of))


def pairs(
  first: Mapping[int, float], second: Mapping[int, float]
) -> list[tuple[float, float]]:
  """Returns the values of the keys that both have, in the order of the keys.

  Examples:
    >>> pairs({0: 1.0, 2: 3.0}, {2: 4.0, 1: 5.0})
    [(3.0, 4.0)]
  """
  return [(first[key], second[key]) for key in sorted(first) if key in second]
