"""What happens when: events in the order of a virtual clock."""

from collections.abc import Mapping, Sequence
import heapq
import operator
from typing import Any, NamedTuple


class Event(NamedTuple):
  """Something that happens at a time.

  Attributes:
    time: When, in seconds.
    kind: What.
    worker: Of which worker, or which server.
    round: A number that travels along, such as that of a round.
  """

  time: float
  kind: str
  worker: int
  round: int = 0


class Queue:
  """Events that are taken out in order, so that runs repeat exactly.

  The earliest comes first; of equally early ones the kind that stands first in
  `kinds`, then the smallest worker, then what was put in first. Time does not
  run backwards: an event before the last one that was taken out is refused. At
  infinity is what never happens; it comes last.

  Args:
    kinds: The kinds of events, in the order of ties.

  Raises:
    ValueError: If a kind is there twice, or there is none.

  Examples:
    >>> from dilojax import simulate
    >>> queue = simulate.Queue(['arrival', 'merge'])
    >>> queue.push(2.0, 'merge', worker=0)
    >>> queue.push(2.0, 'arrival', worker=1)
    >>> queue.push(2.0, 'arrival', worker=0, round=7)
    >>> queue.pop()
    Event(time=2.0, kind='arrival', worker=0, round=7)
    >>> [queue.pop().kind for _ in range(len(queue))]
    ['arrival', 'merge']
  """

  def __init__(self, kinds: Sequence[str]):
    if isinstance(kinds, str) or not kinds or len(set(kinds)) < len(kinds):
      raise ValueError(
        f'`kinds` must be a list of different names, got {kinds!r}.'
      )
    self._kinds = tuple(kinds)
    self._ranks = {kind: rank for rank, kind in enumerate(kinds)}
    # Time, rank of the kind, worker, number of the push: these decide.
    self._heap: list[tuple[float, int, int, int, Event]] = []
    self._count = 0
    self._now = 0.0

  @property
  def now(self) -> float:
    """When the last event was that was taken out, 0 before the first."""
    return self._now

  def __len__(self) -> int:
    """Number of events to come."""
    return len(self._heap)

  def push(self, time: float, kind: str, worker: int, round: int = 0):
    """Puts an event in.

    Args:
      time: When, in seconds: at `now` or later.
      kind: What: one of `kinds`.
      worker: Of which worker.
      round: A number that travels along.

    Raises:
      ValueError: If `time` is NaN, below 0 or in the past, or the kind or the
        worker cannot be.
    """
    if kind not in self._ranks:
      raise ValueError(
        f'`kind` must be one of {", ".join(self._kinds)}, got {kind!r}.'
      )
    if not time >= self._now:  # NaN is not.
      raise ValueError(
        f'`time` must be at least {self._now}, the time of the last event, got'
        f' {time}.'
      )
    worker = operator.index(worker)
    if worker < 0:
      raise ValueError(f'`worker` must be at least 0, got {worker}.')
    event = Event(float(time), kind, worker, operator.index(round))
    entry = event.time, self._ranks[kind], worker, self._count, event
    heapq.heappush(self._heap, entry)
    self._count += 1

  def peek(self) -> Event:
    """Returns the next event, and leaves it there.

    Raises:
      ValueError: If there is none.
    """
    if not self._heap:
      raise ValueError('The queue has no event left.')
    return self._heap[0][-1]

  def pop(self) -> Event:
    """Takes the next event out, and moves `now` to it.

    Raises:
      ValueError: If there is none.
    """
    if not self._heap:
      raise ValueError('The queue has no event left.')
    entry = heapq.heappop(self._heap)
    self._now = entry[0]
    return entry[-1]

  def to_json(self) -> dict[str, Any]:
    """Returns all there is to know, as what JSON can hold.

    Times are hexadecimal, and so exact, infinity included.
    """
    return {
      'kinds': list(self._kinds),
      'now': self._now.hex(),
      'count': self._count,
      'events': [
        [time.hex(), rank, worker, number, event.round]
        for time, rank, worker, number, event in sorted(self._heap)
      ],
    }

  @classmethod
  def from_json(cls, saved: Mapping[str, Any]) -> 'Queue':
    """Returns a queue that goes on as the one that was saved.

    Args:
      saved: What :meth:`to_json` returned, through JSON or not.

    Returns:
      The queue.

    Raises:
      ValueError: If it is no such thing.

    Examples:
      >>> from dilojax import simulate
      >>> queue = simulate.Queue(['arrival'])
      >>> queue.push(0.1, 'arrival', worker=3)
      >>> simulate.Queue.from_json(queue.to_json()).pop() == queue.pop()
      True
    """
    wrong = lambda why: ValueError(
      f'`saved` must be what `to_json` returned: {why}.'
    )
    try:
      queue = cls(saved['kinds'])
      queue._now = float.fromhex(saved['now'])
      queue._count = operator.index(saved['count'])
      kinds = dict(enumerate(queue._kinds))
      for time, *numbers in saved['events']:
        rank, worker, number, round = map(operator.index, numbers)
        event = Event(float.fromhex(time), kinds[rank], worker, round)
        queue._heap.append((event.time, rank, worker, number, event))
    except (KeyError, TypeError, ValueError) as error:
      raise wrong(repr(error)) from error
    if (
      not queue._now >= 0
      or len({entry[3] for entry in queue._heap}) < len(queue._heap)
      or not all(
        time >= queue._now and worker >= 0 and 0 <= number < queue._count
        for time, _, worker, number, _ in queue._heap
      )
    ):
      raise wrong(f'got a time or an event that cannot be, of {dict(saved)}')
    heapq.heapify(queue._heap)
    return queue
