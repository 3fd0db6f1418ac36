"""How long replicas wait for one another, with random times."""

import math
from typing import NamedTuple

import numpy as np


def log_normal_sigma(std_over_mean: float) -> float:
  r"""Returns the spread of the logarithm of a log-normal time.

  .. math::

    \sigma = \sqrt{\log(1 + (s / m)^2)}

  Args:
    std_over_mean: Standard deviation :math:`s` over mean :math:`m`.

  Returns:
    The standard deviation :math:`\sigma` of the logarithm.

  Raises:
    ValueError: If `std_over_mean` is below 0.

  Examples:
    >>> round(log_normal_sigma(1.0), 4)
    0.8326
  """
  if not 0 <= std_over_mean < math.inf:
    raise ValueError(
      f'`std_over_mean` must be at least 0 and finite, got {std_over_mean}.'
    )
  return math.sqrt(math.log1p(std_over_mean**2))


def pair_exchange_time(std_over_mean: float) -> float:
  r"""Returns how long two messages take that travel at once, on average.

  The greater of two independent log-normal times, in units of their mean:

  .. math::

    E[\max(t_1, t_2)] / E[t] = 1 + \mathrm{erf}(\sigma / 2)

  Args:
    std_over_mean: Standard deviation of a message's time over its mean.

  Returns:
    The expected time of an exchange, from 1 to 2.

  Raises:
    ValueError: If `std_over_mean` is below 0.

  Examples:
    >>> round(pair_exchange_time(1.0), 4)
    1.4439

  References:
    `NoLoCo: No-all-reduce Low Communication Training Method for Large Models
    <https://arxiv.org/abs/2506.10911>`_, 2025
  """
  return 1 + math.erf(log_normal_sigma(std_over_mean) / 2)


def tree_all_reduce_time(num_replicas: int) -> float:
  r"""Returns how long a tree's all-reduce takes, in times of a message.

  :math:`2 \log_2 n` messages of :math:`n` replicas follow one another: up the
  tree, and down.

  Args:
    num_replicas: Number of replicas, at least 1.

  Returns:
    The expected time, if no message waits for a slower one.

  Raises:
    ValueError: If `num_replicas` is below 1.

  Examples:
    >>> tree_all_reduce_time(1024)
    20.0
  """
  if not num_replicas >= 1:
    raise ValueError(f'`num_replicas` must be at least 1, got {num_replicas}.')
  return 2 * math.log2(num_replicas)


class Waiting(NamedTuple):
  """Time of a training in which messages take none.

  Attributes:
    all: If all wait for the slowest, in each round.
    pairs: If each waits for a partner, drawn anew in each round: mean over
      replicas.
    alone: If none waits: mean over replicas.
  """

  all: float
  pairs: float
  alone: float


def waiting_times(
  num_replicas: int,
  *,
  every: int,
  num_rounds: int,
  log_mean: float = 1.0,
  log_variance: float = 0.5,
  seed: int = 0,
) -> Waiting:
  """Plays a training whose inner steps take log-normal times.

  All three see the same times. Whoever waits starts the next round when its
  partners do, so that in pairs, too, a slow replica holds up others, later.

  Args:
    num_replicas: Number of replicas, even.
    every: Number of inner steps per round, at least 1.
    num_rounds: Number of rounds, at least 1.
    log_mean: Mean of the logarithm of a step's time.
    log_variance: Variance of the logarithm of a step's time.
    seed: Seed of times and pairs.

  Returns:
    The times until the last round has ended.

  Raises:
    ValueError: If an argument is out of range.

  Examples:
    >>> waiting_times(2, every=10, num_rounds=3, log_variance=0.0, log_mean=0.0)
    Waiting(all=30.0, pairs=30.0, alone=30.0)

  References:
    `NoLoCo: No-all-reduce Low Communication Training Method for Large Models
    <https://arxiv.org/abs/2506.10911>`_, 2025
  """
  if num_replicas < 2 or num_replicas % 2:
    raise ValueError(
      f'`num_replicas` must be even and at least 2, got {num_replicas}: one'
      ' would be left without a partner.'
    )
  for name, count in (('every', every), ('num_rounds', num_rounds)):
    if count < 1:
      raise ValueError(f'`{name}` must be at least 1, got {count}.')
  if not log_variance >= 0:
    raise ValueError(f'`log_variance` must be at least 0, got {log_variance}.')
  random = np.random.default_rng(seed)
  sigma = math.sqrt(log_variance)
  everyone, alone = 0.0, 0.0
  clocks = np.zeros(num_replicas)
  for _ in range(num_rounds):
    steps = random.lognormal(log_mean, sigma, (every, num_replicas))
    times = steps.sum(axis=0)
    everyone += times.max()
    alone += times.mean()
    pairs = random.permutation(num_replicas).reshape(-1, 2)
    ends = (clocks + times)[pairs].max(axis=1)
    clocks[pairs] = ends[:, None]
  return Waiting(float(everyone), float(clocks.mean()), float(alone))
