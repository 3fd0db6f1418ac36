"""Which inner step has which event: for links, loop and simulators."""

from collections.abc import Callable, Iterator, Sequence
import dataclasses
import functools
import itertools
from typing import Any, NamedTuple


@dataclasses.dataclass(frozen=True)
class Schedule:
  """When a link communicates, in inner steps counted from 1.

  The methods take an int, or an array of ints, and use no branch: the same
  line decides while tracing and while running.

  Attributes:
    every: Number of inner steps per round.
    offset: First launch, counted from `start`; from 1 to `every`.
    delay: Number of inner steps from a launch to its landing.
    start: Step in which the anchor is taken. Nothing is launched until then.
    stop: Last step with a launch, or None.
    relay: Number of inner steps from a launch to the second of two
      collectives; 0 if one will do.
    late: Whether a landing is with what arrived in the round before, so that
      messages have a whole round to arrive in.

  Examples:
    >>> schedule = Schedule(every=5, offset=2, delay=1)
    >>> [step for step in range(1, 14) if schedule.launches(step)]
    [2, 7, 12]
    >>> [step for step in range(1, 14) if schedule.lands(step)]
    [3, 8, 13]
  """

  every: int
  offset: int
  delay: int = 0
  start: int = 0
  stop: int | None = None
  relay: int = 0
  late: bool = False

  def launches(self, step):
    """Tells whether messages leave after this step."""
    age = step - self.start - self.offset
    due = (age >= 0) & (age % self.every == 0)
    return due if self.stop is None else due & (step <= self.stop)

  def lands(self, step):
    """Tells whether the replica lands on what was launched."""
    return self.launches(step - self.delay)

  def relays(self, step):
    """Tells whether means leave their owners after this step."""
    return self.launches(step - self.relay) & (self.relay > 0)

  def starts(self, step):
    """Tells whether the first anchor is taken after this step."""
    return (step == self.start) & (self.start > 0)

  def in_flight(self, step: int) -> bool:
    """Tells whether something launched by this step has yet to land."""
    return any(self.launches(step - age) for age in range(self.delay))

  def relay_pends(self, step: int) -> bool:
    """Tells whether a mean is between its two collectives after a step."""
    return any(self.launches(step - age) for age in range(self.relay))

  def rests(self, step: int) -> bool:
    """Tells whether a program can end after this step and wait for nothing."""
    if self.late:
      return not self.num_launches(step) or bool(self.launches(step + 1))
    return not self.in_flight(step)

  def num_launches(self, step: int) -> int:
    """Counts the launches in the steps 1 to `step`."""
    last = step if self.stop is None else min(step, self.stop)
    return max(0, (last - self.start - self.offset) // self.every + 1)

  def num_landings(self, step: int) -> int:
    """Counts the landings in the steps 1 to `step`."""
    return self.num_launches(step - self.delay)

  def num_messages(self, step: int) -> int:
    """Counts what a replica sends in the steps 1 to `step`."""
    return self.num_launches(step) + (0 < self.start <= step)

  def events(self, step: int) -> tuple[str, ...]:
    """Names what happens after this step; empty when it is quiet."""
    happens = (
      ('start', self.starts(step)),
      ('launch', self.launches(step)),
      ('relay', self.relays(step)),
      ('land', self.lands(step)),
    )
    return tuple(name for name, does in happens if does)

  def final_events(self, step: int, overwrites: bool) -> tuple[str, ...]:
    """Names what ends the training after this step, in order.

    Args:
      step: The last step.
      overwrites: Whether a landing leaves nothing of the replica's own params.

    Returns:
      `'start'`: the anchor is taken. `'relay'` and `'land'`: what is in flight
      goes on, and lands. `'meet'`: a launch that lands at once.
    """
    if self.start and step <= self.start:
      return ('start',)
    ages = (age for age in range(self.delay) if self.launches(step - 1 - age))
    age = next(ages, None)
    if age is None:
      # One more takes in what would arrive in the next round.
      return ('meet', 'meet') if self.late else ('meet',)
    relay = ('relay',) if age < self.relay else ()
    # After an overwrite nothing is left to send.
    return (*relay, 'land') if overwrites else (*relay, 'land', 'meet')


class Run(NamedTuple):
  """Consecutive inner steps in which the same happens.

  Attributes:
    kind: Events of every link, in order; equal kinds compile to one program.
    step: A step that stands for all of them, to trace.
    num_steps: Number of steps.
  """

  kind: tuple[tuple[str, ...], ...]
  step: int
  num_steps: int


def segments(
  schedules: Sequence[Schedule],
  first: int,
  last: int,
  *,
  is_stop: Callable[[int], bool],
  max_steps: int,
) -> Iterator[tuple[Run, ...]]:
  """Cuts the steps from `first` to `last` into programs.

  A segment ends where the host wants the state, where the last message in
  flight has landed, before a launch that has a round to arrive in, or after
  `max_steps`. Launch, delayed steps and landing thus stand in one program
  whenever they fit.

  Args:
    schedules: One per link.
    first: First step, from 1.
    last: Last step.
    is_stop: Tells whether the host wants the state after a step.
    max_steps: Greatest number of steps in a segment, at least 1.

  Yields:
    The runs of each segment.
  """
  kinds = functools.lru_cache(maxsize=4096)(
    lambda step: tuple(schedule.events(step) for schedule in schedules)
  )

  def ends(step, num_steps):
    if step == last or is_stop(step) or num_steps == max_steps:
      return True
    if any(s.late and s.launches(step + 1) for s in schedules):
      return True
    settles = any(kinds(step)) and kinds(step + 1) != kinds(step)
    flies = lambda s: s.in_flight(step) or (s.late and s.launches(step))
    return settles and not any(map(flies, schedules))

  segment: list[int] = []
  for step in range(first, last + 1):
    segment.append(step)
    if ends(step, len(segment)):
      yield tuple(
        Run(kind, *_first_and_count(steps))
        for kind, steps in itertools.groupby(segment, kinds)
      )
      segment = []


def _first_and_count(steps: Any) -> tuple[int, int]:
  steps = list(steps)
  return steps[0], len(steps)
