"""The training loop: segments on the devices, records on the host."""

from collections.abc import Callable, Iterator, Mapping, Sequence
import pathlib
import types
from typing import Any, NamedTuple

import numpy as np

from dilojax import _ledger
from dilojax import _position
from dilojax import _records
from dilojax import _segment
from dilojax import _signals
from dilojax import build
from dilojax import checkpoint
from dilojax import data
from dilojax import evaluate
from dilojax import metrics
from dilojax import processes
from dilojax import transforms
from dilojax import workdir
from dilojax._records import NonFiniteError as NonFiniteError


class Interrupted(RuntimeError):
  """A signal ended the training early; its state is saved."""


class Programs(NamedTuple):
  """The compiled programs of a run.

  Attributes:
    axes: Axes of params and optimizer state.
    links: The links that communicate.
    segment: Returns the program of a segment, made when first asked for.
    evaluate: Returns the held-out metrics of a position.
  """

  axes: Any
  links: list[transforms.Link]
  segment: Callable[[_segment.Segment], Callable]
  evaluate: Callable[[_position.Position], dict[str, float]]


def make_programs(setup: build.Setup) -> Programs:
  """Prepares the programs of a run; compiles none."""
  axes = _position.state_axes(setup)
  links = build.links(setup)
  inner_step = _segment.make_step(setup.model, setup.tx, setup.accumulate)
  made: dict[tuple, Callable] = {}

  def segment(segment):
    if segment.pattern not in made:
      made[segment.pattern] = _segment.make_program(
        setup, axes, inner_step, segment
      )
    return made[segment.pattern]

  program = evaluate.make_evaluate(setup.model, setup.placement, axes)
  heldout = evaluate.stack(setup.heldout, setup.placement)

  def evaluated(position):
    found = program(position.params, position.opt_state, heldout)
    return evaluate.record(found, setup.dataset.bytes_per_token)

  return Programs(axes, links, segment, evaluated)


def advance(
  setup: build.Setup,
  programs: Programs,
  position: _position.Position,
  last: int,
  *,
  is_cut: Callable[[int], bool] = lambda step: False,
  is_stop: Callable[[int], bool] = lambda step: False,
  is_cancelled: Callable[[], bool] = lambda: False,
) -> Iterator[tuple[_position.Position, np.ndarray]]:
  """Trains up to the step `last`.

  While a segment runs, the host prepares the batches of the next and reads
  what the one before wrote. At most two are in flight: more of them can
  deadlock on virtual devices of a CPU.

  Args:
    setup: The run.
    programs: Its programs.
    position: Where to start. Its arrays are donated.
    last: Last step.
    is_cut: Tells whether the caller wants to be told after a step.
    is_stop: Tells whether it needs the arrays as well. Those of other
      positions are donated by the time they are yielded.
    is_cancelled: Tells whether to end after the segment that runs.

  Yields:
    The position after each segment, and losses and gradient norms of its
    steps and replicas, `[2, num_replicas, num_steps]`. After the last one the
    arrays are there.
  """
  plan = _segment.plan(
    setup,
    programs.links,
    position.step + 1,
    last,
    lambda step: is_cut(step) or is_stop(step),
  )

  def prepare(_):
    segment = next(plan, None)
    return segment and (segment, _segment.batches(setup, segment))

  waiting, told = None, [False]
  # Several processes stop after the same segment: what one of them wants, all
  # know from the moment at which they read what the segments before wrote.
  is_over = is_cancelled if processes.count() == 1 else lambda: any(told)
  with data.prefetch(prepare, 0) as prepared:
    while not is_over() and (item := next(prepared)):
      segment, batches = item
      params, opt_state, written = programs.segment(segment)(
        position.params, position.opt_state, batches, _segment.lengths(segment)
      )
      if waiting:
        read, told = _read(waiting, is_cancelled)
        yield read
      ledger = _ledger.advance(
        position.ledger,
        programs.links,
        segment.first,
        segment.last,
        tokens_per_step=_segment.tokens_per_step(setup),
        final=segment.final,
      )
      position = position._replace(
        step=segment.last,
        params=params,
        opt_state=opt_state,
        ledger=ledger,
        ended=segment.final and _flies(programs, segment.last),
      )
      waiting = (position, written, segment.num_steps)
      if is_stop(segment.last):
        read, told = _read(waiting, is_cancelled)
        yield read
        waiting = None
  if waiting:
    read, told = _read(waiting, is_cancelled)
    yield read


def train(
  setup: build.Setup,
  folder: pathlib.Path,
  *,
  sink: Callable[[int], metrics.Sink],
  notify: Callable[[str], None],
  clock: Callable[[], float],
  timing: Mapping[str, float] = types.MappingProxyType({}),
) -> dict[str, Any]:
  """Trains, or goes on with the training in a folder, to the end.

  Every process of a run calls it, with the same setup; the first keeps records.

  Args:
    setup: The run.
    folder: The folder of the run, see :func:`dilojax.workdir.opened`.
    sink: Makes the sink of records, given the step to go on from.
    notify: Takes what a person should know.
    clock: Returns the seconds since the command was given.
    timing: What `clock` returned at earlier events, for the summary.

  Returns:
    The summary, which is also written to the folder.

  Raises:
    NonFiniteError: If a loss or gradient is not finite. The state before that
      step is saved.
    Interrupted: If a signal came. The state is saved.
    ValueError: If the checkpoint does not fit, or cannot be read.
  """
  programs = make_programs(setup)
  checkpoints = folder / workdir.CHECKPOINTS
  processes.check_sums(setup.placement.mesh)
  with processes.together('the checkpoints'):
    _check_checkpoints(folder, setup)
  processes.same('checkpoints', checkpoint.steps(checkpoints))
  with processes.together('the restoring of the state'):
    position = _newest(setup, programs, checkpoints, setup.num_steps)
  finished = folder / workdir.SUMMARY
  if position.step == setup.num_steps and (
    processes.from_first(finished.exists, 'a look for the summary')
  ):
    notify(f'The run in {str(folder)!r} has finished.')
    return processes.from_first(
      lambda: workdir.read_json(finished), 'the reading of the summary'
    )
  if position.step:
    notify(f'Continues from step {position.step} in {str(folder)!r}.')
  timing = {**timing, 'state': clock()}
  records = metrics.tee()
  with processes.together('the beginning of the records'):
    if processes.is_first():
      finished.unlink(missing_ok=True)
      records = sink(position.step)
  try:
    position = _run(
      setup, programs, position, checkpoints, records, timing, clock
    )
  except NonFiniteError as error:
    step = _save_before(setup, programs, checkpoints, error.step)
    raise NonFiniteError(
      f'{error} {_advice(step, folder)}', error.step
    ) from None
  finally:
    records.close()
  if position.step < setup.num_steps:
    raise Interrupted(
      f'Stopped after step {position.step}, which is saved. The same command'
      ' goes on from there.'
      if position.step
      else 'Stopped before the first step. The same command starts it.'
    )

  def summarize():
    summary = _records.summary(setup, programs, position, folder, timing)
    workdir.write_json(finished, summary)
    return summary

  return processes.from_first(summarize, 'the writing of the summary')


def _run(setup, programs, position, checkpoints, records, timing, clock):
  """Trains to the end, or to a signal, and returns the position there."""
  begin = position
  spent = position.seconds - clock()
  logs = log_steps(setup, programs.links)
  evaluates, saves = (
    lambda step, every=every: step % every == 0 or step == setup.num_steps
    for every in (setup.eval_every, setup.checkpoint_every)
  )
  window, is_saved, paused = position.window, True, 0.0
  rate = _records.rate(_segment.tokens_per_step(setup), clock)
  with _signals.caught() as is_signalled:
    for position, values in advance(
      setup,
      programs,
      begin,
      setup.num_steps,
      is_cut=logs,
      is_stop=lambda step: evaluates(step) or saves(step),
      is_cancelled=is_signalled,
    ):
      step = position.step
      timing.setdefault('first_segment', clock())
      if not setup.skips:
        _records.check_finite(values, step)
      window = _records.added(window, values)
      budgets = _records.counts(position, spent + clock())
      if logs(step):
        _records.check_window(window, step)
        tokens_per_second = rate(window, paused)
        record = _records.train_record(setup, window, step, tokens_per_second)
        records.write({**budgets, **record})
        window = dict(_position.EMPTY_WINDOW)
      pause = clock()
      if evaluates(step):
        records.write({**budgets, **programs.evaluate(position)})
      position = position._replace(window=window, seconds=spent + clock())
      is_saved = saves(step)
      if is_saved:
        _position.save(checkpoints, position, setup)
      paused += clock() - pause
  if not is_saved:
    _position.save(checkpoints, position, setup)
  return position


def log_steps(
  setup: build.Setup, links: Sequence[transforms.Link]
) -> Callable[[int], bool]:
  """Returns the function that tells whether a record follows a step.

  Every `log_every` steps; while messages are on their way, which a record
  would cut off from the steps that hide them, after they have landed.

  Args:
    setup: The run.
    links: The links that communicate.
  """
  rests = lambda step: all(
    link.overwrites is None or link.schedule.rests(step) for link in links
  )

  def logs(step):
    if step == setup.num_steps:
      return True
    due = step - step % setup.log_every
    if not due:
      return False
    waits = range(due, due + setup.log_every)
    return step == next(filter(rests, waits), due)

  return logs


def _flies(programs, step):
  """Tells whether a message that was launched by a step lands later."""
  return any(
    link.overwrites is not None and link.schedule.in_flight(step)
    for link in programs.links
  )


def _check_checkpoints(folder, setup):
  """Checks that the newest checkpoint is where a training can go on."""
  found = checkpoint.steps(folder / workdir.CHECKPOINTS)
  if found and found[-1] > setup.num_steps:
    raise ValueError(
      f'`num_steps` must be at least {found[-1]}, the step that the run in'
      f' {str(folder)!r} has reached, got {setup.num_steps}.'
    )
  recorded = folder / workdir.METRICS
  if not found and recorded.exists():
    last = max((each['step'] for each in metrics.read(recorded)), default=0)
    # A record may be there a moment before the checkpoint of its step.
    is_lost = last > min(setup.checkpoint_every, setup.num_steps)
    if is_lost or (folder / workdir.SUMMARY).exists():
      raise ValueError(
        f'{str(folder)!r} has records up to step {last}, and no checkpoint:'
        ' somebody has removed them. Put them back, or choose another folder.'
      )


def _newest(setup, programs, checkpoints, last):
  """Returns the newest saved position up to a step, or the first of all."""
  found = [step for step in checkpoint.steps(checkpoints) if step <= last]
  if found:
    return _position.restore(checkpoints, found[-1], setup, programs.axes)
  return _position.start(setup, programs.axes)


def _save_before(setup, programs, checkpoints, step):
  """Saves the state before a step: trains up to it once more.

  To keep a copy at hand would cost memory or time in every step of every
  training; training again costs some in this one, and gives the same bits.
  """
  position = _newest(setup, programs, checkpoints, step - 1)
  begin, window = position, position.window
  logs = log_steps(setup, programs.links)
  for position, values in advance(
    setup, programs, begin, step - 1, is_cut=logs
  ):
    window = _records.added(window, values)
    if logs(position.step):
      window = _position.EMPTY_WINDOW
  if position.step > begin.step:
    position = position._replace(window=dict(window))
    _position.save(checkpoints, position, setup)
  return position.step


def _advice(step, folder):
  if step == 0:
    return 'It is the first step: lower `inner.peak_lr`, or look at the data.'
  return (
    f'The state after step {step} is saved in {str(folder)!r}. Go on at a'
    ' lower rate, --config.inner.peak_lr=... --change=inner.peak_lr, or start'
    ' anew in another folder with --config.non_finite=skip.'
  )


def _read(waiting, is_cancelled):
  """Waits for a segment; returns what it wrote, and which processes stop."""
  position, written, num_steps = waiting
  (losses, norms), told = processes.fetch(
    written, f'the end of step {position.step}', is_cancelled()
  )
  flat = lambda leaf: leaf.reshape(-1, leaf.shape[-1])[:, :num_steps]
  return (position, np.stack([flat(losses), flat(norms)])), told
