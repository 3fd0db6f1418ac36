"""Worker times that are drawn: tails of all weights, and steps without end."""

from collections.abc import Callable, Sequence
import math

import numpy as np

from dilojax.simulate import _exchanges
from dilojax.simulate import _speeds

# A step as long as this, some 32 years, ends after everything else.
LONGEST = 1e9


def log_normal_times(
  base: Sequence[float],
  *,
  log_std: float | Sequence[float],
  scale: float | Sequence[float] = 1.0,
  longest: float = LONGEST,
  seed: int = 0,
) -> _speeds.WorkerTimes:
  r"""Draws steps whose times have a log-normal part.

  .. math::

    b_k + s_k e^{\sigma_k z}, \qquad z \sim \mathcal{N}(0, 1),

  with mean :math:`b_k + s_k e^{\sigma_k^2 / 2}`. Base 0 and scale
  :math:`T / v_k` spread the steps of a worker around those of
  :func:`fixed_times`.

  Args:
    base: Seconds :math:`b_k` of each worker that are in every step.
    log_std: Standard deviation :math:`\sigma_k` of the logarithm; one for each
      worker, or one for all.
    scale: Median :math:`s_k` of what comes on top, likewise.
    longest: Most seconds that come on top in a step.
    seed: Seed.

  Returns:
    The times.

  Raises:
    ValueError: If an argument is out of range, or has another length.

  Examples:
    >>> from dilojax import simulate
    >>> times = simulate.log_normal_times([0.0, 1.0], log_std=0.0, scale=2.0)
    >>> times.steps(1, 0, 3).tolist()
    [3.0, 3.0, 3.0]
  """
  draw_logs = np.random.Generator.standard_normal
  return _exponential(base, 'log_std', log_std, scale, longest, seed, draw_logs)


def log_cauchy_times(
  base: Sequence[float],
  *,
  log_scale: float | Sequence[float],
  scale: float | Sequence[float] = 1.0,
  longest: float = LONGEST,
  seed: int = 0,
) -> _speeds.WorkerTimes:
  r"""Draws steps whose times have a log-Cauchy part.

  .. math::

    b_k + \min(s_k e^{\gamma_k c}, \ell), \qquad c \sim \mathrm{Cauchy}(0, 1)

  These tails are so heavy that no moment exists and the exponential overflows:
  hence the limit :math:`\ell`, which is put on the exponent. Every draw is
  finite.

  Args:
    base: Seconds :math:`b_k` of each worker that are in every step.
    log_scale: Scale :math:`\gamma_k` of the logarithm; one for each worker, or
      one for all.
    scale: Median :math:`s_k` of what comes on top, likewise.
    longest: Most seconds :math:`\ell` that come on top in a step.
    seed: Seed.

  Returns:
    The times.

  Raises:
    ValueError: If an argument is out of range, or has another length.

  Examples:
    >>> from dilojax import simulate
    >>> times = simulate.log_cauchy_times([1.0], log_scale=1e3, longest=60.0)
    >>> print(f'{times.steps(0, 0, 1000).max():.1f}')
    61.0

  References:
    Maranjyan et al., `MindFlayer SGD: Efficient Parallel SGD in the Presence
    of Heterogeneous and Random Worker Compute Times
    <https://arxiv.org/abs/2410.04285>`_, 2024
  """
  draw_logs = np.random.Generator.standard_cauchy
  return _exponential(
    base, 'log_scale', log_scale, scale, longest, seed, draw_logs
  )


def half_normal_times(
  base: Sequence[float],
  *,
  variance: float | Sequence[float],
  seed: int = 0,
) -> _speeds.WorkerTimes:
  r"""Draws steps whose times have the absolute value of a normal part.

  .. math::

    b_k + |z|, \qquad z \sim \mathcal{N}(0, \sigma_k^2),

  with mean :math:`b_k + \sigma_k \sqrt{2 / \pi}`.

  Args:
    base: Seconds :math:`b_k` of each worker that are in every step.
    variance: Variance :math:`\sigma_k^2`; one for each worker, or one for all.
    seed: Seed.

  Returns:
    The times.

  Raises:
    ValueError: If an argument is out of range, or has another length.

  Examples:
    >>> from dilojax import simulate
    >>> simulate.half_normal_times([3.0], variance=0.0).seconds(0, 0, 4)
    12.0
  """
  bases = _bases(base)
  variances = _speeds.per_worker('variance', variance, len(bases))
  stds = [math.sqrt(value) for value in variances]
  _speeds.check_seed(seed)

  def draw(worker, round, num_steps):
    random = _speeds.generator(seed, _speeds.TIMES, worker, round)
    return bases[worker] + stds[worker] * abs(random.standard_normal(num_steps))

  return _speeds.from_draw(len(bases), draw)


def ringleader_times(num_workers: int, *, seed: int = 0) -> _speeds.WorkerTimes:
  """Draws the times of Ringleader's experiments.

  Those of :func:`half_normal_times`: the bases are 1, 2, ..., one for each
  worker, in random order; worker k, from 0, has the variance k + 1.

  Args:
    num_workers: Number of workers, 100 in the paper.
    seed: Seed, of the order as well.

  Returns:
    The times, in a unit of their own.

  Raises:
    ValueError: If an argument is out of range.

  Examples:
    >>> from dilojax import simulate
    >>> simulate.ringleader_times(1).seconds(0, 0, 1) >= 1.0
    True

  References:
    Maranjyan and Richtárik, `Ringleader ASGD: The First Asynchronous SGD with
    Optimal Time Complexity under Data Heterogeneity
    <https://arxiv.org/abs/2509.22860>`_, 2025
  """
  _exchanges.check_count('num_workers', num_workers)
  _speeds.check_seed(seed)
  random = _speeds.generator(seed, _speeds.ORDER, 0, 0)
  base = 1.0 + random.permutation(num_workers)
  variance = [worker + 1.0 for worker in range(num_workers)]
  return half_normal_times(base.tolist(), variance=variance, seed=seed)


def bernoulli_times(
  base: Sequence[float],
  *,
  probability: float | Sequence[float],
  stall: float = math.inf,
  seed: int = 0,
) -> _speeds.WorkerTimes:
  """Draws steps that stall with some probability.

  Args:
    base: Seconds of a step of each worker that does not stall.
    probability: Probability of a stall in each step; one for each worker, or
      one for all.
    stall: Seconds that a stall adds. At infinity, the default, the step never
      ends, and no round with such a step does.
    seed: Seed.

  Returns:
    The times.

  Raises:
    ValueError: If an argument is out of range, or has another length.

  Examples:
    >>> from dilojax import simulate
    >>> times = simulate.bernoulli_times([1.0, 1.0], probability=[0.0, 1.0])
    >>> times.seconds(0, 0, 5), times.seconds(1, 0, 5)
    (5.0, inf)

  References:
    Maranjyan et al., `MindFlayer SGD: Efficient Parallel SGD in the Presence
    of Heterogeneous and Random Worker Compute Times
    <https://arxiv.org/abs/2410.04285>`_, 2024
  """
  bases = _bases(base)
  chances = _speeds.per_worker('probability', probability, len(bases), most=1.0)
  if not _exchanges.is_number(stall) or not stall >= 0:
    raise ValueError(f'`stall` must be at least 0, or infinity, got {stall!r}.')
  _speeds.check_seed(seed)

  def draw(worker, round, num_steps):
    random = _speeds.generator(seed, _speeds.TIMES, worker, round)
    stalls = random.random(num_steps) < chances[worker]
    return np.where(stalls, bases[worker] + stall, bases[worker])

  return _speeds.from_draw(len(bases), draw)


def _exponential(
  base: Sequence[float],
  name: str,
  spread: float | Sequence[float],
  scale: float | Sequence[float],
  longest: float,
  seed: int,
  draw_logs: Callable[..., np.ndarray],
) -> _speeds.WorkerTimes:
  """Draws a base and the exponential of something random, up to a limit."""
  bases = _bases(base)
  spreads = _speeds.per_worker(name, spread, len(bases))
  scales = _speeds.per_worker('scale', scale, len(bases))
  for value in scales:
    _speeds.check_above_zero('scale', value)
  _speeds.check_above_zero('longest', longest)
  _speeds.check_seed(seed)

  def draw(worker, round, num_steps):
    random = _speeds.generator(seed, _speeds.TIMES, worker, round)
    logs = spreads[worker] * draw_logs(random, num_steps)
    # The limit goes on the exponent: nothing overflows on the way.
    logs = np.minimum(logs, math.log(longest / scales[worker]))
    return bases[worker] + scales[worker] * np.exp(logs)

  return _speeds.from_draw(len(bases), draw)


def _bases(base):
  """Returns the bases of the workers as a list, or refuses them."""
  bases = list(base)
  if not bases:
    raise ValueError('`base` must have seconds for each worker, got none.')
  return _speeds.per_worker('base', bases, len(bases))
