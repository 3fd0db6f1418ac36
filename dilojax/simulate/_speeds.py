"""How long a worker's inner steps take: fixed, or as they were measured."""

from collections.abc import Callable, Sequence
import csv
import math
import os
import pathlib
from typing import Any, NamedTuple

import numpy as np

from dilojax.simulate import _exchanges

ROUNDINGS = ('floor', 'ceil')
ORDERS = ('cycled', 'drawn')
# Each kind of draw has a stream of its own, so that one seed serves all.
TIMES, ORDER, OUTAGES = range(3)


class WorkerTimes(NamedTuple):
  """How long the inner steps of each worker take.

  Both functions get the number of a worker, the number of its round, both from
  0, and the number of inner steps in that round. They have no state: the same
  three numbers give the same times, whatever was asked for before.

  Attributes:
    num_workers: Number of workers.
    steps: Returns the seconds of each inner step, as an array. A round that is
      cut short has the steps of the whole one, up to there.
    seconds: Returns the seconds of the round: the sum of its steps.
  """

  num_workers: int
  steps: Callable[[int, int, int], np.ndarray]
  seconds: Callable[[int, int, int], float]


def fixed_times(step_seconds: float, speeds: Sequence[float]) -> WorkerTimes:
  r"""Takes workers whose steps all take the same time.

  A round of :math:`H` steps takes :math:`T H / v_k` seconds.

  Args:
    step_seconds: Seconds :math:`T` of an inner step at speed 1.
    speeds: Speed :math:`v_k` of each worker. They are not normalized: divide
      them by the largest if `step_seconds` is the fastest worker's.

  Returns:
    The times.

  Raises:
    ValueError: If a number is not above 0 and finite, or there is no worker.

  Examples:
    >>> from dilojax import simulate
    >>> simulate.fixed_times(0.25, [1.0, 0.5]).seconds(1, 0, 8)
    4.0
  """
  check_above_zero('step_seconds', step_seconds)
  speeds = check_speeds(speeds)
  num_workers = len(speeds)

  def steps(worker, round, num_steps):
    check_round(num_workers, worker, round, num_steps)
    return np.full(num_steps, step_seconds / speeds[worker])

  def seconds(worker, round, num_steps):
    # Not the sum: equal quotients should be equal times.
    check_round(num_workers, worker, round, num_steps)
    return step_seconds * num_steps / speeds[worker]

  return WorkerTimes(num_workers, steps, seconds)


def measured_times(
  table: Sequence[Sequence[float]], *, order: str = 'cycled', seed: int = 0
) -> WorkerTimes:
  r"""Takes workers whose steps take the times of a table.

  When cycled, round :math:`r` of :math:`H` steps takes the entries :math:`rH`,
  :math:`rH + 1`, ... of the worker's row, which starts again at its end. When
  drawn, each step takes an entry at random, with replacement.

  Args:
    table: Seconds of steps, a row for each worker; rows may differ in length.
      See :func:`read_step_seconds` for such a table in a file.
    order: 'cycled' or 'drawn'.
    seed: Seed of what is drawn.

  Returns:
    The times.

  Raises:
    ValueError: If `order` is another one, a time is not above 0 and finite, or
      a worker has none.

  Examples:
    >>> from dilojax import simulate
    >>> times = simulate.measured_times([[1.0, 1.0, 4.0], [2.0]])
    >>> [times.seconds(0, round, 2) for round in range(3)]
    [2.0, 5.0, 5.0]
  """
  if order not in ORDERS:
    raise ValueError(
      f'`order` must be one of {", ".join(ORDERS)}, got {order!r}.'
    )
  check_seed(seed)
  rows = [list(row) for row in table]
  if not rows or not all(rows):
    raise ValueError(
      '`table` must have a row for each worker, each with a time, got'
      f' {[len(row) for row in rows]} times.'
    )
  for worker, row in enumerate(rows):
    for value in row:
      check_above_zero(f'table[{worker}]', value)
  arrays = [np.asarray(row, np.float64) for row in rows]

  def draw(worker, round, num_steps):
    row = arrays[worker]
    if order == 'cycled':
      return row[(round * num_steps + np.arange(num_steps)) % len(row)]
    random = generator(seed, TIMES, worker, round)
    return row[random.integers(len(row), size=num_steps)]

  return from_draw(len(rows), draw)


def read_step_seconds(path: str | os.PathLike[str]) -> list[list[float]]:
  """Reads the times of workers' steps, for :func:`measured_times`.

  Args:
    path: CSV file with the columns `worker` and `seconds`, below lines that
      start with `#`: a row for each step that was measured, in the order of
      the worker's steps. Workers are numbered from 0, and all have rows.

  Returns:
    A list of seconds for each worker.

  Raises:
    ValueError: If the file is no such table.
  """
  text = pathlib.Path(path).read_text(encoding='utf-8')
  lines = [line for line in text.splitlines() if not line.startswith('#')]
  reader = csv.DictReader(lines)
  columns = reader.fieldnames or ()
  if not {'worker', 'seconds'} <= set(columns):
    raise ValueError(
      f'{path}: times of steps have the columns worker, seconds, got'
      f' {", ".join(columns) or "none"}.'
    )
  found: dict[int, list[float]] = {}
  for number, row in enumerate(reader, start=1):
    try:
      worker, seconds = int(row['worker']), float(row['seconds'])
    except (TypeError, ValueError) as error:
      raise ValueError(
        f'{path}: row {number} must have the number of a worker and seconds:'
        f' {error}.'
      ) from error
    if worker < 0 or not 0 < seconds < math.inf:
      raise ValueError(
        f'{path}: row {number} must have a worker of at least 0 and finite'
        f' seconds above 0, got {worker} and {seconds}.'
      )
    found.setdefault(worker, []).append(seconds)
  if not found or max(found) != len(found) - 1:
    raise ValueError(
      f'{path}: workers must be numbered from 0 without gaps, got'
      f' {sorted(found)}.'
    )
  return [found[worker] for worker in range(len(found))]


def rounds_by_speed(
  every: int, speeds: Sequence[float], *, rounding: str = 'floor'
) -> tuple[int, ...]:
  r"""Gives slow workers fewer inner steps, so that rounds take equally long.

  .. math::

    H_k = \lfloor H v_k / \max v \rfloor
    \quad \text{or} \quad
    H_k = \max(1, \lceil H v_k / \max v \rceil)

  The first is that of the paper, and gives no step at all to workers that are
  more than :math:`H` times as slow as the fastest. That is refused. What is
  within a billionth of an integer counts as that integer, since 3 * 0.1 / 0.3
  is not 1 in floating point.

  Args:
    every: Number :math:`H` of inner steps of the fastest worker, at least 1.
    speeds: Speed :math:`v_k` of each worker, in any unit.
    rounding: 'floor' or 'ceil'.

  Returns:
    The number of inner steps per round of each worker.

  Raises:
    ValueError: If an argument is out of range, or a worker is left without
      steps.

  Examples:
    >>> from dilojax import simulate
    >>> simulate.rounds_by_speed(8, [1.0, 0.7, 0.3])
    (8, 5, 2)
    >>> simulate.rounds_by_speed(8, [1.0, 0.7, 0.3], rounding='ceil')
    (8, 6, 3)

  References:
    Liu et al., `Asynchronous Local-SGD Training for Language Modeling
    <https://arxiv.org/abs/2401.09135>`_, 2024
  """
  _exchanges.check_count('every', every)
  speeds = check_speeds(speeds)
  if rounding not in ROUNDINGS:
    raise ValueError(
      f'`rounding` must be one of {", ".join(ROUNDINGS)}, got {rounding!r}.'
    )
  fastest = max(speeds)
  rounds = []
  for worker, speed in enumerate(speeds):
    share = every * (speed / fastest)
    if math.isclose(share, round(share), rel_tol=1e-9):
      share = float(round(share))
    if rounding == 'ceil':
      rounds.append(max(1, math.ceil(share)))
    elif share < 1:
      raise ValueError(
        f'`speeds` leave worker {worker} without a step: {every} * {speed} /'
        f' {fastest} is below 1. Choose a larger `every`, or `rounding`'
        " 'ceil', which gives it one."
      )
    else:
      rounds.append(math.floor(share))
  return tuple(rounds)


def from_draw(
  num_workers: int, draw: Callable[[int, int, int], np.ndarray]
) -> WorkerTimes:
  """Makes times from a function that returns those of the steps."""

  def steps(worker, round, num_steps):
    check_round(num_workers, worker, round, num_steps)
    return draw(worker, round, num_steps)

  def seconds(worker, round, num_steps):
    return float(steps(worker, round, num_steps).sum())

  return WorkerTimes(num_workers, steps, seconds)


def generator(
  seed: int, stream: int, worker: int, count: int
) -> np.random.Generator:
  """Returns random numbers that depend on these four alone.

  Philox is a function of a key and a counter. Its two low words count what is
  drawn, so that the numbers of two workers or rounds never overlap.
  """
  counter = np.array([0, 0, count, worker], np.uint64)
  key = np.array([seed, stream], np.uint64)
  return np.random.Generator(np.random.Philox(counter=counter, key=key))


def per_worker(name, value, num_workers, most=None):
  """Returns a number for each worker as a list, or refuses them."""
  if _exchanges.is_number(value):
    values = [value] * num_workers
  else:
    values = list(value)
  if len(values) != num_workers:
    raise ValueError(
      f'`{name}` must be one number, or one for each of {num_workers} workers,'
      f' got {len(values)}.'
    )
  for each in values:
    inside = _exchanges.is_number(each) and 0 <= each < math.inf
    if not inside or (most is not None and each > most):
      to = '' if most is None else f' and at most {most:g}'
      raise ValueError(
        f'`{name}` must be finite numbers of at least 0{to}, got {each!r}.'
      )
  return [float(each) for each in values]


def check_round(num_workers: int, worker: Any, round: Any, num_steps: Any):
  """Refuses a round that no worker has."""
  check_worker(num_workers, worker)
  if not _exchanges.is_int(round) or round < 0:
    raise ValueError(f'`round` must be an int of at least 0, got {round!r}.')
  _exchanges.check_count('num_steps', num_steps)


def check_worker(num_workers: int, worker: Any):
  """Refuses a worker that is not there."""
  if not _exchanges.is_int(worker) or not 0 <= worker < num_workers:
    raise ValueError(
      f'`worker` must be an int from 0 to {num_workers - 1}, got {worker!r}.'
    )


def check_speeds(speeds: Sequence[float]) -> list[float]:
  """Returns speeds as a list, or refuses them."""
  speeds = list(speeds)
  if not speeds:
    raise ValueError('`speeds` must have one for each worker, got none.')
  for worker, speed in enumerate(speeds):
    check_above_zero(f'speeds[{worker}]', speed)
  return [float(speed) for speed in speeds]


def check_above_zero(name: str, value: Any):
  """Refuses what is no finite number above 0."""
  if not _exchanges.is_number(value) or not 0 < value < math.inf:
    raise ValueError(
      f'`{name}` must be a finite number above 0, got {value!r}.'
    )


def check_seed(seed: Any):
  """Refuses what is no seed."""
  if not _exchanges.is_int(seed) or not 0 <= seed < 2**64:
    raise ValueError(
      f'`seed` must be an int from 0 to 2**64 - 1, got {seed!r}.'
    )
