"""Which form fits the loss best, given size and replicas?

Table 13 of https://arxiv.org/abs/2503.09799: the average absolute difference of
logarithms that four forms of L(N, M) leave, fitted by the Huber loss of that
difference. The coefficients are not published, nor the width of the Huber loss
(1e-3 here), nor over what is averaged (all of DiLoCo's runs in table 4 here):
only magnitudes compare, hence within 5%, a bound that we chose knowing ours.

    dilojax table experiments/scaling_laws/parametric.py

Expected: 2 of 4 cells agree, none to the last digit. The second and the fourth
form leave a quarter less than in the paper. We do not know why. It is no other
size: those that `residuals.py` counts change our cells by a tenth at most. It
is no hold-out: neither 2.4B, left out of the fit, nor the runs of 4B and 10B of
table 5 give all four. A search that ended early would do it.

In the paper the third form is best; in ours the second and third are level.
"""

from collections.abc import Callable

import numpy as np
from scipy import optimize

from dilojax import exact
from experiments.scaling_laws import loss_fit

NUM_STARTS = 4
WIDTH = 1e-3
MAGNITUDE = 0.05

# Logarithm of the loss, of the logarithms of N and M and of coefficients: a
# factor, an exponent of N, one of M or what else belongs to M, a constant.
FORMS: dict[str, Callable] = {
  'A*N^a*M^b': lambda n, m, p: p[0] + p[1] * n + p[2] * m,
  'A*N^a*M^b+C': lambda n, m, p: np.logaddexp(p[0] + p[1] * n + p[2] * m, p[3]),
  'A*N^(a+b*M)+C': lambda n, m, p: np.logaddexp(
    p[0] + (p[1] + p[2] * np.exp(m)) * n, p[3]
  ),
  'A*N^a+B*M^b+C': lambda n, m, p: np.logaddexp(
    np.logaddexp(p[0] + p[1] * n, p[4] + p[2] * m), p[3]
  ),
}


def compute() -> list[exact.Cell]:
  """Returns the cells of the table."""
  return [
    exact.Cell(
      row['form'], 'residual', residual(row['form']), row['residual'], MAGNITUDE
    )
    for row in loss_fit.read('parametric')
  ]


def residual(form: str, sizes: list[float] | None = None) -> float:
  """Returns the average residual of the best fit of several."""
  sizes = list(loss_fit.SIZES.values()) if sizes is None else sizes
  logs = np.log(loss_fit.losses('joint'))
  n = np.broadcast_to(np.log(sizes)[:, None], logs.shape)
  m = np.broadcast_to(np.log(loss_fit.REPLICAS), logs.shape)
  left = lambda p: (FORMS[form](n, m, p) - logs).ravel()
  random = np.random.default_rng(0)
  low, high = [1, -0.4, -0.01, -2, -4], [8, 0, 0.1, 0.5, 0]
  fits = []
  for _ in range(NUM_STARTS):
    # From afar, squares lead to where the Huber loss has a slope to follow.
    near = optimize.least_squares(
      left, random.uniform(low, high), x_scale='jac'
    )
    fits.append(
      optimize.least_squares(
        left,
        near.x,
        x_scale='jac',
        loss='huber',
        f_scale=WIDTH,
        ftol=1e-12,
        xtol=1e-12,
        gtol=1e-12,
      )
    )
  best = min(fits, key=lambda fit: fit.cost)
  return float(np.abs(left(best.x)).mean())
