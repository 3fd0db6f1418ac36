"""The planner of DreamDDP: which layers to average in which step."""

from collections.abc import Sequence
import functools
import itertools
import math
from typing import NamedTuple

from dilojax.simulate import _profile

START_RULES = ('physical', 'released')

# Share of all communication that the released planner says ASC-WFBP exposes.
_EXPOSED = 0.6
# As in the released planner: times count in units of 10 ns.
_DIGITS = 8


class Plan(NamedTuple):
  """Which units are averaged in which step of a round.

  Attributes:
    turns: Names of the units of every step, in the order of the backward pass.
    extra: Names of the units that each step averages once more, before those,
      since the link would be idle.
    wait: Seconds per round that the replicas wait for the link, by the rule
      that the plan was made with; :func:`waits` tells them step by step.
  """

  turns: tuple[tuple[str, ...], ...]
  extra: tuple[tuple[str, ...], ...]
  wait: float


def plan_dreamddp(
  units: Sequence[_profile.Unit],
  *,
  every: int,
  start_rule: str = 'physical',
  fills: bool = False,
) -> Plan:
  r"""Plans a round in which averaging hides behind the backward passes.

  In the order of the backward pass, unit :math:`i` is ready at
  :math:`F_i = b_1 + \ldots + b_i`, and the pass ends at :math:`E`. There is
  one link, which sends one unit after the other. In each step units are sent
  while they end in time; at the first that would not, both ways are tried: to
  send it all the same, and wait, or to leave it to the next step. The last
  step sends all that is left. Of all plans that send the units in this order,
  each once per round, none waits less, by the physical rule. Parts without
  anything to average take no part, nor does their time.

  Args:
    units: The units, in the order of the backward pass.
    every: Number of steps per round, at least 1.
    start_rule: When a unit :math:`i` starts if the link is free from
      :math:`h`. `'physical'`: at :math:`\max(h, F_i)`. `'released'`: as the
      released planner searches, at :math:`h + b_{i+1}` where
      :math:`h < F_i`. It does not in the last step.
    fills: Whether to average units again, while the link waits for the first
      of a step.

  Returns:
    The plan.

  Raises:
    ValueError: If an argument is out of range.

  Examples:
    >>> from dilojax import simulate
    >>> times = {'head': (1.0, 1.0), 'body': (1.0, 2.0), 'embed': (1.0, 3.0)}
    >>> units = [simulate.Unit(name, *each) for name, each in times.items()]
    >>> plan = simulate.plan_dreamddp(units, every=2)
    >>> plan.turns, plan.wait
    ((('head', 'body'), ('embed',)), 4.0)

  References:
    Tang et al., `DreamDDP: Accelerating Data Parallel Distributed LLM Training
    with Layer-wise Scheduled Partial Synchronization
    <https://arxiv.org/abs/2502.11058>`_, 2025
  """
  sent = _sent(units, every)
  if start_rule not in START_RULES:
    raise ValueError(
      f'`start_rule` must be one of {", ".join(START_RULES)}, got'
      f' {start_rule!r}.'
    )
  ready, end = _ready(sent), sum(unit.backward for unit in sent)
  rule = _physical if start_rule == 'physical' else _released

  @functools.cache
  def best(first: int, num_left: int) -> tuple[float, tuple[int, ...]]:
    """Returns the least wait, and where each step but the last stops."""
    if num_left == 1:
      return _exposed(sent, ready, range(first, len(sent))), ()
    free = ready[first] if first < len(sent) else 0.0
    for i in range(first, len(sent)):
      start = rule(sent, ready, end, i, free)
      free = start + _seconds(sent[i])
      if free <= end:
        continue
      wait, stops = best(i + 1, num_left - 1)
      here = (free - end + wait, (i + 1, *stops))
      if i == first:
        return here
      wait, stops = best(i, num_left - 1)
      return min(here, (wait, (i, *stops)), key=lambda option: option[0])
    return 0.0, (len(sent),) * (num_left - 1)

  wait, stops = best(0, every)
  plan = _as_plan(sent, (*stops, len(sent)), wait)
  return _filled(sent, plan) if fills else plan


def plan_plsgd(units: Sequence[_profile.Unit], *, every: int) -> Plan:
  r"""Plans a round in which each step averages as many units.

  Steps have :math:`\lceil n / H \rceil` consecutive units, the last may have
  fewer, or none.

  Args:
    units: The units, in the order of the backward pass.
    every: Number :math:`H` of steps per round, at least 1.

  Returns:
    The plan; its wait is by the physical rule.

  Raises:
    ValueError: If an argument is out of range.

  Examples:
    >>> from dilojax import simulate
    >>> units = [simulate.Unit(name, 1.0, 1.0) for name in 'abcde']
    >>> simulate.plan_plsgd(units, every=4).turns
    (('a', 'b'), ('c', 'd'), ('e',), ())
  """
  sent = _sent(units, every)
  size = math.ceil(len(sent) / every)
  stops = [min(len(sent), size * step) for step in range(1, every + 1)]
  plan = _as_plan(sent, stops, 0.0)
  return plan._replace(wait=sum(waits(units, plan.turns)))


def waits(
  units: Sequence[_profile.Unit], turns: Sequence[Sequence[str]]
) -> tuple[float, ...]:
  """Returns how long each step of a round waits for the link.

  Args:
    units: The units, in the order of the backward pass.
    turns: Names of the units that each step averages, each as soon as it is
      ready and the link is free, in the order of the backward pass.

  Returns:
    Seconds from the end of the backward pass to that of the last transfer.

  Raises:
    ValueError: If `turns` has other names than `units`.
  """
  sent = _sent(units, len(turns))
  place = {unit.name: number for number, unit in enumerate(sent)}
  unknown = [name for turn in turns for name in turn if name not in place]
  if unknown:
    raise ValueError(
      f'`turns` must have names of units that are averaged, got {unknown}.'
    )
  ready = _ready(sent)
  return tuple(
    _exposed(sent, ready, sorted(place[name] for name in turn))
    for turn in turns
  )


def step_seconds(
  units: Sequence[_profile.Unit],
  *,
  every: int,
  start_rule: str = 'physical',
  num_steps: int = 1000,
) -> dict[str, float]:
  r"""Predicts the seconds per step of five methods.

  With :math:`B` and :math:`C` the sums of backward and all-reduce times, and
  :math:`a = \lceil N / H \rceil - 1` rounds that are paid in :math:`N` steps,

  ========  ==================================================================
  ssgd      :math:`B + C`
  asc_wfbp  :math:`B + 0.6\, C`, a constant of the released planner
  flsgd     :math:`B + C a / N`
  plsgd     :math:`B` and the mean wait of a step of :func:`plan_plsgd`
  dreamddp  :math:`B + W a / N`, with the wait W of :func:`plan_dreamddp`
  ========  ==================================================================

  Forward passes are in none of them. The constant makes little of comparisons
  with `asc_wfbp`.

  Args:
    units: The units, in the order of the backward pass.
    every: Number :math:`H` of steps per round, at least 1.
    start_rule: As in :func:`plan_dreamddp`.
    num_steps: Number :math:`N` of steps to average over. A round is paid in
      the step after it, so that the last is not.

  Returns:
    Seconds, by the names above.

  Raises:
    ValueError: If an argument is out of range.
  """
  if num_steps < 1:
    raise ValueError(f'`num_steps` must be at least 1, got {num_steps}.')
  plan = plan_dreamddp(units, every=every, start_rule=start_rule)
  backward = sum(unit.backward for unit in units)
  reduce = sum(map(_seconds, units))
  paid = (math.ceil(num_steps / every) - 1) / num_steps
  return {
    'ssgd': backward + reduce,
    'asc_wfbp': backward + _EXPOSED * reduce,
    'flsgd': backward + reduce * paid,
    'plsgd': backward + plan_plsgd(units, every=every).wait / every,
    'dreamddp': backward + plan.wait * paid,
  }


def _filled(sent, plan):
  """Adds what the link can send before the first unit of each step."""
  ready = _ready(sent)
  place = {unit.name: number for number, unit in enumerate(sent)}
  extra = []
  for turn in plan.turns:
    # A step of its own units has until the first of them is ready.
    first = place[turn[0]] if turn else len(sent)
    limit = ready[first] if turn else ready[-1]
    again, free = [], 0.0
    for i in range(first):
      free = max(free, ready[i]) + _seconds(sent[i])
      if free > limit:
        break
      again.append(sent[i].name)
    extra.append(tuple(again))
  return plan._replace(extra=tuple(extra))


def _as_plan(sent, stops, wait):
  names = [unit.name for unit in sent]
  turns = tuple(
    tuple(names[start:stop]) for start, stop in itertools.pairwise((0, *stops))
  )
  return Plan(turns, ((),) * len(turns), wait)


def _exposed(sent, ready, numbers):
  """Returns the wait for units that are sent one after the other."""
  free = 0.0
  for i in numbers:
    free = max(free, ready[i]) + _seconds(sent[i])
  return max(0.0, free - ready[-1])


def _physical(sent, ready, end, i, free):
  del sent, end
  return max(free, ready[i])


def _released(sent, ready, end, i, free):
  """Starts a unit that is not ready later by the next one's backward time."""
  if free >= ready[i]:
    return free
  return free + sent[i + 1].backward if i + 1 < len(sent) else end


def _ready(sent):
  return list(itertools.accumulate(unit.backward for unit in sent))


def _seconds(unit):
  return unit.reduce or 0.0


def _sent(units, every):
  """Returns the units that are averaged, rounded; checks all arguments."""
  if not isinstance(every, int) or isinstance(every, bool) or every < 1:
    raise ValueError(f'`every` must be an int of at least 1, got {every!r}.')
  _profile.check_units(units)
  return [
    unit._replace(
      backward=round(unit.backward, _DIGITS), reduce=round(unit.reduce, _DIGITS)
    )
    for unit in units
    if unit.reduce is not None
  ]
