"""How well do small models predict the loss of a large one?

The loss columns of table 11 of https://arxiv.org/abs/2503.09799: power laws
fitted to all sizes below 2.4B, one for each number of replicas M or one for
all, and how far they are off at 2.4B: the absolute difference of logarithms.

    dilojax table experiments/scaling_laws/residuals.py

The losses are those of table 4, printed to 0.001: a cell agrees if it differs
by no more than such roundings can do at their worst, with that of the printed
residual. Expected: all 10 cells agree, 6 of them to the last digit.

The sizes are not nominal but counted from table 3, with a vocabulary of 32768
and one matrix for embedding and head: 2.443B, for instance. We chose them for
their agreement. With nominal sizes, as in `loss_fit.py`, every residual is
0.002 smaller, and no cell agrees; and there the counted ones do not fit. The
columns of learning rate and batch rest on sweeps that are not published.
"""

import numpy as np

from dilojax import exact
from experiments.scaling_laws import loss_fit

VOCABULARY = 32_768


def compute(sizes: list[float] | None = None) -> list[exact.Cell]:
  """Returns the cells of the table.

  Args:
    sizes: Number of params of each model of table 4; by default counted.
  """
  sizes = counted_sizes() if sizes is None else sizes
  values = loss_fit.losses('joint')
  rows = {row['m']: row for row in loss_fit.read('residuals')}
  cells = []
  for number, row in rows.items():
    columns = list(range(len(loss_fit.REPLICAS)))
    if number != 'avg':
      columns = [loss_fit.REPLICAS.index(int(number))]
    for kind in ('indep', 'joint'):

      def residual(values, kind=kind, columns=columns):
        return residuals(values, sizes, kind)[columns].mean()

      name = 'average' if number == 'avg' else f'M = {number}'
      cells.append(
        loss_fit.cell(
          name, f'loss, {kind}', residual, values, row[f'loss_{kind}']
        )
      )
  return cells


def residuals(values: np.ndarray, sizes: list[float], kind: str) -> np.ndarray:
  """Returns the residual at the largest size, for each number of replicas."""
  below, largest = values[:-1], sizes[-1]
  if kind == 'joint':
    law = loss_fit.fitted('joint', below, sizes[:-1])
    found = [law(largest, number) for number in loss_fit.REPLICAS]
  else:
    laws = [loss_fit.fitted('', column, sizes[:-1]) for column in below.T]
    found = [law(largest) for law in laws]
  return np.abs(np.log(found) - np.log(values[-1]))


def counted_sizes() -> list[float]:
  """Counts the params of the models of table 4, norms aside."""
  sizes = []
  for row in loss_fit.read('models')[: len(loss_fit.SIZES)]:
    layers, width, inside = (
      int(row[name]) for name in ('layers', 'qkv_dim', 'hidden_dim')
    )
    # Queries, keys, values and their output; an MLP of two matrices.
    layer = 4 * width**2 + 2 * width * inside
    sizes.append(float(layers * layer + VOCABULARY * width))
  return sizes
