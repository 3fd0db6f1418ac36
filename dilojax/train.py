"""The training loop: segments on the devices, records on the host."""

from collections.abc import Callable, Generator, Iterator, Mapping
import contextlib
import pathlib
import signal
import threading
import types
from typing import Any, NamedTuple

import jax
import numpy as np

from dilojax import _ledger
from dilojax import _position
from dilojax import _segment
from dilojax import build
from dilojax import checkpoint
from dilojax import data
from dilojax import evaluate
from dilojax import metrics
from dilojax import transforms
from dilojax import workdir


class NonFiniteError(RuntimeError):
  """Losses or gradients were not finite.

  Attributes:
    step: The first such step.
  """

  def __init__(self, message: str, step: int):
    """Takes the message, and the step."""
    super().__init__(message)
    self.step = step


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
  params = jax.eval_shape(setup.model.init, jax.random.key(0))
  state = jax.eval_shape(setup.tx.init, params)
  # One replica along the axes of a link has nobody to send to.
  links = [
    link
    if setup.placement.count(link.axis_names) > 1
    else link._replace(nbytes=0)
    for link in transforms.links(state, params)
  ]
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

  waiting = None
  with data.prefetch(prepare, 0) as prepared:
    while not is_cancelled() and (item := next(prepared)):
      segment, batches = item
      params, opt_state, written = programs.segment(segment)(
        position.params, position.opt_state, batches, _segment.lengths(segment)
      )
      if waiting:
        yield _read(*waiting)
      ledger = _ledger.advance(
        position.ledger,
        programs.links,
        segment.first,
        segment.last,
        tokens_per_step=_segment.tokens_per_step(setup),
        final=segment.final,
      )
      position = position._replace(
        step=segment.last, params=params, opt_state=opt_state, ledger=ledger
      )
      waiting = (position, written, segment.num_steps)
      if is_stop(segment.last):
        yield _read(*waiting)
        waiting = None
  if waiting:
    yield _read(*waiting)


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
  position = _newest(setup, programs, checkpoints, setup.num_steps)
  if position.step:
    notify(f'Continues from step {position.step} in {str(folder)!r}.')
  timing = {**timing, 'state': clock()}
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
    )
  summary = _summary(setup, programs, position, folder, timing)
  workdir.write_json(folder / workdir.SUMMARY, summary)
  return summary


def _run(setup, programs, position, checkpoints, records, timing, clock):
  """Trains to the end, or to a signal, and returns the position there."""
  begin = position
  spent = position.seconds - clock()
  logs, evaluates, saves = (
    lambda step, every=every: step % every == 0 or step == setup.num_steps
    for every in (setup.log_every, setup.eval_every, setup.checkpoint_every)
  )
  window, lap, is_saved = position.window, clock(), True
  with _signals() as is_signalled:
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
        _check_finite(values, step)
      window = _added(window, values)
      counts = _counts(position, spent + clock())
      if logs(step):
        _check_window(window, step)
        records.write(
          {**counts, **_train_record(setup, window, step, clock() - lap)}
        )
        window, lap = dict(_position.EMPTY_WINDOW), clock()
      paused = clock()
      if evaluates(step):
        records.write({**counts, **programs.evaluate(position)})
      position = position._replace(window=window, seconds=spent + clock())
      is_saved = saves(step)
      if is_saved:
        _position.save(checkpoints, position, setup.keep_checkpoints)
      lap += clock() - paused
  if not is_saved:
    _position.save(checkpoints, position, setup.keep_checkpoints)
  return position


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
  logs = lambda step: step % setup.log_every == 0
  for position, values in advance(
    setup, programs, begin, step - 1, is_cut=logs
  ):
    window = _added(window, values)
    if logs(position.step):
      window = _position.EMPTY_WINDOW
  if position.step > begin.step:
    position = position._replace(window=dict(window))
    _position.save(checkpoints, position, setup.keep_checkpoints)
  return position.step


def _check_finite(values, last):
  """Raises if losses or gradient norms of a segment are not finite."""
  is_bad = ~np.isfinite(values).all(axis=0)
  if not is_bad.any():
    return
  number = int(np.flatnonzero(is_bad.any(axis=0))[0])
  replica = int(np.flatnonzero(is_bad[:, number])[0])
  loss, norm = values[:, replica, number]
  step = last - values.shape[2] + 1 + number
  raise NonFiniteError(
    f'Step {step}, replica {replica}: loss {loss}, gradient norm {norm}.', step
  )


def _check_window(window, last):
  """Raises if every step since the last record was skipped."""
  if not window['steps']:
    raise NonFiniteError(
      f'No step of any replica had finite gradients since the last record'
      f' before step {last}: all {window["skipped"]} were skipped.',
      last + 1,
    )


def _added(window, values):
  """Adds the steps of a segment to the sums since the last record."""
  finite = np.isfinite(values).all(axis=0)
  loss, norm = np.where(finite, values, 0.0).astype(np.float64)
  return {
    'steps': window['steps'] + int(finite.sum()),
    'loss': window['loss'] + float(loss.sum()),
    'grad_norm': window['grad_norm'] + float(norm.sum()),
    'skipped': window['skipped'] + int((~finite).sum()),
  }


def _counts(position, seconds):
  """Returns the budgets that every record states."""
  ledger = position.ledger
  return {
    'step': position.step,
    'tokens': sum(row['tokens'] for row in ledger),
    'bytes_sent': max(row['bytes_sent'] for row in ledger),
    'seconds': seconds,
  }


def _train_record(setup, window, step, seconds):
  """Names the means since the last record, over steps and replicas."""
  count = max(window['steps'], 1)
  tokens = (window['steps'] + window['skipped']) * _segment.tokens_per_step(
    setup
  )
  record = {
    'train/loss': window['loss'] / count,
    'train/grad_norm': window['grad_norm'] / count,
    'train/lr': setup.lr(step),
    'train/tokens_per_second': tokens / max(seconds, 1e-9),
  }
  if setup.skips:
    record['train/skipped_steps'] = window['skipped']
  return record


def _advice(step, folder):
  if step == 0:
    return 'It is the first step: lower `inner.peak_lr`, or look at the data.'
  return (
    f'The state after step {step} is saved in {str(folder)!r}. Go on with a'
    ' lower `inner.peak_lr`, or skip such steps: the same command with'
    ' --config.non_finite=skip --change=non_finite.'
  )


def _summary(setup, programs, position, folder, timing):
  """Says what the run came to."""
  recorded = metrics.read(folder / workdir.METRICS)
  final = [record for record in recorded if 'eval/anchor/loss' in record][-1]
  has_anchor = any(link.overwrites is not None for link in programs.links)
  single = jax.eval_shape(setup.model.init, jax.random.key(0))
  return {
    'steps': position.step,
    'num_params': sum(leaf.size for leaf in jax.tree.leaves(single)),
    'flops_per_example': setup.model.flops,
    'evaluated': 'anchor' if has_anchor else 'mean of the replicas',
    'final_synchronization': setup.final,
    'final': final,
    'replicas': position.ledger,
    'links': [
      {
        'every': link.schedule.every,
        'axis_names': list(link.axis_names),
        'bytes_per_message': link.nbytes,
      }
      for link in programs.links
    ],
    'corpus': {
      'name': setup.dataset.name,
      'fingerprint': setup.dataset.fingerprint,
      **setup.dataset.facts,
    },
    'placement': {
      'num_replicas': setup.placement.num_replicas,
      'mesh': dict(setup.placement.mesh.shape),
    },
    'seconds': position.seconds,
    'timing': timing,
  }


@contextlib.contextmanager
def _signals() -> Generator[Callable[[], bool]]:
  """Turns the first SIGINT or SIGTERM into an answer; a second one acts."""
  received = []
  numbers = (signal.SIGINT, signal.SIGTERM)
  if threading.current_thread() is not threading.main_thread():
    yield lambda: False
    return
  previous = {number: signal.getsignal(number) for number in numbers}

  def receive(number, frame):
    del frame
    received.append(number)
    for each, handler in previous.items():
      signal.signal(each, handler)

  for number in numbers:
    signal.signal(number, receive)
  try:
    yield lambda: bool(received)
  finally:
    for number, handler in previous.items():
      signal.signal(number, handler)


def _read(position, written, num_steps):
  """Waits for a segment, and returns what it wrote."""
  losses, norms = jax.device_get(written)
  flat = lambda leaf: leaf.reshape(-1, leaf.shape[-1])[:, :num_steps]
  return position, np.stack([flat(losses), flat(norms)])
