"""A plan of DreamDDP for people, and for programs."""

from collections.abc import Mapping, Sequence
from typing import Any

from dilojax.simulate import _dreamddp
from dilojax.simulate import _profile


def dreamddp_report(
  units: Sequence[_profile.Unit],
  *,
  every: int,
  start_rule: str = 'physical',
  fills: bool = False,
) -> dict[str, Any]:
  """Plans a round, and predicts the times, as plain JSON values.

  Args:
    units: The units, in the order of the backward pass.
    every: Number of steps per round, at least 1.
    start_rule: As in :func:`plan_dreamddp`.
    fills: As in :func:`plan_dreamddp`.

  Returns:
    `steps`, each with its `units`, those `extra`, `reduce_s` of both, and
    `wait_s`; `seconds_per_step` of the methods; `turns` as a config has them;
    and the arguments.

  Raises:
    ValueError: If an argument is out of range.
  """
  given: dict[str, Any] = {'every': every, 'start_rule': start_rule}
  plan = _dreamddp.plan_dreamddp(units, **given, fills=fills)
  reduce = {unit.name: unit.reduce or 0.0 for unit in units}
  waits = _dreamddp.waits(units, plan.turns)
  steps = [
    {
      'units': list(turn),
      'extra': list(extra),
      'reduce_s': sum(reduce[name] for name in (*extra, *turn)),
      'wait_s': wait,
    }
    for turn, extra, wait in zip(plan.turns, plan.extra, waits)
  ]
  return {
    **given,
    'fills': fills,
    'backward_s': sum(unit.backward for unit in units),
    'steps': steps,
    'turns': '; '.join(' '.join(turn) for turn in plan.turns),
    'seconds_per_step': _dreamddp.step_seconds(units, **given),
  }


def dreamddp_table(report: Mapping[str, Any]) -> str:
  """Writes what :func:`dreamddp_report` returns as Markdown.

  Args:
    report: The report.

  Returns:
    A table of the steps of a round, and one of the methods.
  """
  steps = [
    (
      str(number),
      ' '.join(step['units']),
      ' '.join(step['extra']),
      f'{step["reduce_s"]:.6f}',
      f'{step["wait_s"]:.6f}',
    )
    for number, step in enumerate(report['steps'], start=1)
  ]
  header = ('step', 'averages', 'again', 'on the link (s)', 'waits (s)')
  if not report['fills']:
    drop = lambda line: (*line[:2], *line[3:])
    header, steps = drop(header), [drop(line) for line in steps]
  methods = [
    (name, f'{seconds:.6f}')
    for name, seconds in report['seconds_per_step'].items()
  ]
  return '\n'.join(
    [
      *_markdown(header, steps),
      '',
      *_markdown(('method', 'seconds per step'), methods),
      '',
      f'Backward pass: {report["backward_s"]:.6f} s; forward passes are in none'
      ' of these.',
    ]
  )


def _markdown(header, lines):
  widths = [max(map(len, column)) for column in zip(header, *lines)]
  join = lambda line: '| ' + ' | '.join(map(str.ljust, line, widths)) + ' |'
  return [join(header), join(['-' * n for n in widths]), *map(join, lines)]
