"""When workers are down, and when they are back."""

import bisect
from collections.abc import Callable, Iterable, Sequence
import math
from typing import NamedTuple

from dilojax.simulate import _exchanges
from dilojax.simulate import _speeds

# Outages that are drawn at once.
_BLOCK = 32


class Outage(NamedTuple):
  """A time in which a worker is down.

  Attributes:
    start: When it crashes.
    end: When it is back; infinity if it never is.
  """

  start: float
  end: float


class Crashes(NamedTuple):
  """When each worker is down.

  Attributes:
    num_workers: Number of workers.
    first: Takes the number of a worker, and the start and the end of an
      interval. Returns the first outage in the interval, which may have begun
      before, or None. The end does not belong to the interval; an interval
      whose end is its start is that moment.
  """

  num_workers: int
  first: Callable[[int, float, float], Outage | None]


def listed_crashes(
  num_workers: int, outages: Iterable[tuple[int, float, float]] = ()
) -> Crashes:
  """Takes crashes from a list.

  Args:
    num_workers: Number of workers.
    outages: Worker, when it crashes, and when it is back, in any order. Without
      any, nobody crashes.

  Returns:
    The crashes.

  Raises:
    ValueError: If a worker is not there, an outage does not end after it
      starts, or two of a worker are not apart.

  Examples:
    >>> from dilojax import simulate
    >>> crashes = simulate.listed_crashes(2, [(1, 10.0, 15.0)])
    >>> crashes.first(1, 8.0, 12.0)
    Outage(start=10.0, end=15.0)
    >>> crashes.first(1, 15.0, 20.0) is crashes.first(0, 8.0, 12.0) is None
    True
  """
  _exchanges.check_count('num_workers', num_workers)
  by_worker: list[list[Outage]] = [[] for _ in range(num_workers)]
  for worker, start, end in outages:
    _speeds.check_worker(num_workers, worker)
    if not 0 <= start < end:
      raise ValueError(
        '`outages` must start at 0 or later and end after they start, got'
        f' {(worker, start, end)}.'
      )
    by_worker[worker].append(Outage(float(start), float(end)))
  for worker, mine in enumerate(by_worker):
    mine.sort()
    for one, other in zip(mine, mine[1:]):
      if other.start <= one.end:
        raise ValueError(
          f'`outages` of a worker must be apart, got {tuple(one)} and'
          f' {tuple(other)} for worker {worker}: make them one.'
        )

  def first(worker, start, end):
    _check_interval(num_workers, worker, start, end)
    return _first(by_worker[worker], start, end)

  return Crashes(num_workers, first)


def random_crashes(
  num_workers: int,
  *,
  mean_up: float | Sequence[float],
  mean_down: float | Sequence[float],
  seed: int = 0,
) -> Crashes:
  """Draws crashes: times up and times down take turns, from a time up.

  Both are exponential. The outages of a worker are a function of its number
  and `seed`; they are kept as far as somebody has asked, which takes memory
  and time in proportion to their number, and changes nothing.

  Args:
    num_workers: Number of workers.
    mean_up: Mean seconds up; one for each worker, or one for all.
    mean_down: Mean seconds down, likewise.
    seed: Seed.

  Returns:
    The crashes.

  Raises:
    ValueError: If an argument is out of range, or has another length.

  Examples:
    >>> from dilojax import simulate
    >>> crashes = simulate.random_crashes(2, mean_up=3600.0, mean_down=60.0)
    >>> outage = crashes.first(0, 0.0, float('inf'))
    >>> crashes.first(0, outage.start, outage.end) == outage
    True
  """
  _exchanges.check_count('num_workers', num_workers)
  means = []
  for name, mean in (('mean_up', mean_up), ('mean_down', mean_down)):
    each = _speeds.per_worker(name, mean, num_workers)
    for value in each:
      _speeds.check_above_zero(name, value)
    means.append(each)
  _speeds.check_seed(seed)
  drawn: list[list[Outage]] = [[] for _ in range(num_workers)]

  def first(worker, start, end):
    _check_interval(num_workers, worker, start, end)
    if math.isinf(start):
      raise ValueError(f'`start` must be finite, got {start}.')
    mine = drawn[worker]
    while not mine or mine[-1].end <= start:
      block = len(mine) // _BLOCK
      random = _speeds.generator(seed, _speeds.OUTAGES, worker, block)
      now = mine[-1].end if mine else 0.0
      for up, down in random.standard_exponential((_BLOCK, 2)):
        crash = now + float(up) * means[0][worker]
        now = crash + float(down) * means[1][worker]
        mine.append(Outage(crash, now))
    return _first(mine, start, end)

  return Crashes(num_workers, first)


def _first(outages, start, end):
  """Returns the first outage in an interval, of a list in order."""
  at = bisect.bisect_right(outages, start, key=lambda outage: outage.end)
  if at == len(outages):
    return None
  found = outages[at]
  return found if found.start < end or found.start <= start else None


def _check_interval(num_workers, worker, start, end):
  """Refuses an interval that is none."""
  _speeds.check_worker(num_workers, worker)
  if not 0 <= start <= end:
    raise ValueError(
      f'`start` and `end` must be at least 0 and in order, got {start} and'
      f' {end}.'
    )
