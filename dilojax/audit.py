"""What the compiled programs of a run communicate, and what they ought to."""

from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np

from dilojax import _claims
from dilojax import _position
from dilojax import _segment
from dilojax import build
from dilojax import evaluate
from dilojax import replicas
from dilojax import train
from dilojax._claims import Total as Total
from dilojax._collectives import Collective as Collective
from dilojax._collectives import axes as axes
from dilojax._collectives import collectives as collectives
from dilojax._overlap import Between as Between
from dilojax._report import Program as Program
from dilojax._report import Report as Report
from dilojax._report import Row as Row
from dilojax._report import as_json as as_json
from dilojax._report import table as table


def audit(
  config: build.Config,
  devices: Sequence[jax.Device],
  *,
  notify: Callable[[str], None] = lambda text: None,
) -> Report:
  """Compiles what a run would run, and reads what it communicates.

  Nothing is computed: the devices need not be there. What counts:

  - A replica's message is the operand of an all-reduce, an all-to-all, a
    permutation, or of an all-gather of messages. A device that holds several
    replicas sums before an all-reduce, and the sum counts as the message of
    each; whatever else it sends is divided among them.
  - Where a mean comes back in a second collective, as after an all-to-all, the
    result of the all-gather counts as well.
  - Everything that a device sends counts, its own share included, whatever way
    it takes; the bytes of a replica are those of its devices. An all-reduce
    that became a reduce-scatter and an all-gather counts once.
  - A mean over several axes counts on each of them.
  - What evaluation sends is listed, and counts on neither side.

  Args:
    config: As in `configs/`.
    devices: Devices to compile for, such as those of a topology.
    notify: Takes what a person should know.

  Returns:
    The report.

  Raises:
    ValueError: See :func:`dilojax.build.make`. If replicas along an axis share
      a device, so that there is nothing to see.
  """
  setup = _on_devices(build.resolve(config), devices)
  placement = setup.placement
  for axis, count in placement.num_replicas.items():
    if count > 1 and placement.mesh.shape[axis] == 1:
      raise ValueError(
        f'`target`: all {count} replicas along {axis!r} share a device, and'
        ' nothing would be sent. Choose more devices'
        f' ({placement.mesh.size} now), or fewer with `mesh.fsdp`.'
      )
  links = build.links(setup)
  segments = _segments(setup, links)
  axes_of = _position.state_axes(setup)
  state = replicas.like(_claims.one_replica(setup), placement, axes_of)
  inner_step = _segment.make_step(setup.model, setup.tx, setup.accumulate)
  programs, totals = [], []
  sent: dict[str, list] = {axis: [] for axis in placement.num_replicas}
  for of_pattern in segments.values():
    name = _name(of_pattern[0], len(links))
    notify(f'Compiles: {name}.')
    program = _segment.make_program(setup, axes_of, inner_step, of_pattern[0])
    arguments = (*state, *_arguments(setup, of_pattern[0]))
    lengths = _loop_lengths(of_pattern[0])
    found = collectives(_compiled(program, *arguments), lengths)
    rows = _rows(found, setup, links, lengths)
    first = of_pattern[0].num_steps
    programs.append(Program(name, len(of_pattern), first, rows))
    for axis, of_axis in sent.items():
      for segment in of_pattern:
        of_axis.append(
          _claims.sent(found, axis, setup, links, _loop_lengths(segment))
        )
  notify('Compiles: evaluation.')
  programs.append(_evaluation(setup, state, axes_of, links))
  for axis, of_axis in sent.items():
    totals.append(_claims.total(axis, setup, links, of_axis))
  return Report(
    dict(placement.mesh.shape),
    setup.num_steps,
    max((link.schedule.every for link in links), default=1),
    tuple(programs),
    tuple(totals),
  )


def _on_devices(config, devices):
  """Builds a run with its replicas on these devices.

  The rest does not depend on devices, and is built as if there were one.
  """
  mesh = config['mesh']
  alone = {'num_devices': 1, 'fsdp': 1, 'tensor': 1}
  setup = build.make({**config, 'mesh': alone})
  placement = replicas.place(
    setup.placement.num_replicas,
    mesh['num_devices'] or None,
    fsdp=mesh['fsdp'] or None,
    tensor=mesh['tensor'],
    devices=devices,
  )
  tx = build.make_optimizer(config, placement)
  return setup._replace(placement=placement, tx=tx)


def _segments(setup, links) -> dict[tuple, list[_segment.Segment]]:
  """Returns the segments of the whole run by the program that they run."""
  logs = train.log_steps(setup, links)
  periods = (setup.eval_every, setup.checkpoint_every)
  is_stop = lambda step: (
    logs(step) or any(step % every == 0 for every in periods)
  )
  found: dict[tuple, list[_segment.Segment]] = {}
  for segment in _segment.plan(setup, links, 1, setup.num_steps, is_stop):
    found.setdefault(segment.pattern, []).append(segment)
  return found


def _arguments(setup, segment):
  """Returns the abstract batches and lengths of a segment."""
  place = jax.NamedSharding(setup.placement.mesh, jax.P())
  shape = (len(segment.runs),)
  lengths = jax.ShapeDtypeStruct(shape, np.int32, sharding=place)
  return _segment.abstract_batches(setup), lengths


def _loop_lengths(segment) -> list[int]:
  """Returns the lengths of the loops of a segment's program."""
  return [
    run.num_steps
    for run, (_, is_loop) in zip(segment.runs, segment.pattern[0])
    if is_loop
  ]


def _name(segment, num_links) -> str:
  """Says what a segment does, such as `24 steps, launch, 4 steps, land`."""
  parts = []
  for run in segment.runs:
    events = [
      f'{event} {number}' if num_links > 1 and event != 'final' else event
      for number, each in enumerate(run.kind, start=1)
      for event in ((each,) if isinstance(each, str) else each)
    ]
    steps = f'{run.num_steps} steps' if run.num_steps > 1 else ''
    happens = ' and '.join(events)
    if steps and happens:
      parts.append(f'{steps} with {happens}')
    else:
      parts.append(steps or happens or '1 step')
  return ', '.join(parts)


def _compiled(program: Any, *arguments: Any) -> jax.stages.Compiled:
  return program.lower(*arguments).compile()


def _evaluation(setup, state, axes_of, links):
  program = evaluate.make_evaluate(setup.model, setup.placement, axes_of)
  place = jax.NamedSharding(setup.placement.mesh, jax.P())
  stacked = jax.eval_shape(
    lambda: jax.tree.map(lambda *each: np.stack(each), *setup.heldout)
  )
  heldout = jax.tree.map(
    lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=place),
    stacked,
  )
  found = collectives(_compiled(program, *state, heldout))
  steps, every = setup.num_steps, setup.eval_every
  runs = steps // every + bool(steps % every)
  return Program('evaluation', runs, 0, _rows(found, setup, links, ()))


def _rows(found, setup, links, lengths) -> tuple[Row, ...]:
  """Puts collectives together that are alike, those across replicas first."""
  mesh = setup.placement.mesh
  alike: dict[tuple, list[Collective]] = {}
  for one in found:
    crossed = axes(one, mesh)
    # What blocks stands in a row of its own, and so does what spans loops.
    spans = one.between and (any(one.between[1:]), one.between.steps)
    dtype = '+'.join(sorted(set(one.dtypes)))
    key = (crossed, one.carries, one.op == 'send', dtype)
    if crossed:
      alike.setdefault((*key, one.times(lengths), spans), []).append(one)
  rows = []
  for (crossed, op, is_sent, dtype, times, _), group in alike.items():
    total = sum(_claims.payload(one, crossed, setup, links) for one in group)
    between = [one.between for one in group if one.between is not None]
    rows.append(
      Row(
        crossed,
        op,
        is_sent,
        dtype,
        len(group),
        times,
        round(total * times),
        sum(one.padding for one in group) * times,
        min(between, key=lambda each: each[1:]) if between else None,
      )
    )
  inside = lambda row: not set(row.axes) & set(setup.placement.num_replicas)
  return tuple(sorted(rows, key=lambda row: (inside(row), row.axes, row.op)))
