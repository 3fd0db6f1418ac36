"""Trainings on a virtual clock: from a config to the summary."""

from collections.abc import Callable, Mapping
import functools
import pathlib
import time
import types
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from dilojax import _clock
from dilojax import _records
from dilojax import _segment
from dilojax import _signals
from dilojax import asynchronous
from dilojax import checkpoint
from dilojax import evaluate
from dilojax import metrics
from dilojax import train as train_lib
from dilojax import workdir


def train(
  setup: _clock.Setup,
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
    NonFiniteError: If a loss is not finite.
    Interrupted: If a signal came. The state is saved.
    ValueError: If the checkpoint does not fit, or cannot be read.
  """
  checkpoints, finished = folder / workdir.CHECKPOINTS, folder / workdir.SUMMARY
  params = jax.jit(setup.model.init)(jax.random.key(setup.seed))
  loop = asynchronous.Loop(setup.system, params, setup.devices)
  saved = checkpoint.steps(checkpoints)
  spent = 0.0
  if saved:
    spent = _restore(loop, params, checkpoints, saved[-1])
    if _step(setup, loop) >= setup.num_steps and finished.exists():
      notify(f'The run in {str(folder)!r} has finished.')
      return workdir.read_json(finished)
    notify(f'Continues from step {saved[-1]} in {str(folder)!r}.')
  timing = {**timing, 'state': clock()}
  finished.unlink(missing_ok=True)
  records = sink(saved[-1] if saved else 0)
  try:
    spent = _run(setup, loop, checkpoints, records, timing, spent, clock)
  finally:
    records.close()
  if _step(setup, loop) < setup.num_steps:
    raise train_lib.Interrupted(
      f'Stopped after step {_step(setup, loop)}, which is saved. The same'
      ' command goes on from there.'
    )
  summary = _summary(setup, loop, folder, timing, spent)
  workdir.write_json(finished, summary)
  return summary


def measure(setup: _clock.Setup, seconds: float) -> dict[str, float]:
  """Trains for some seconds, and keeps nothing.

  Returns:
    As :func:`dilojax._estimate.measure`.
  """
  params = jax.jit(setup.model.init)(jax.random.key(setup.seed))
  loop = asynchronous.Loop(setup.system, params, setup.devices)
  evaluated, marks = _make_evaluate(setup), []
  for moved in loop.advance():
    if moved:
      jax.block_until_ready(loop.state.servers[0].params)
      marks.append((loop.state.counts.merged_steps, time.monotonic()))
      is_over = marks[-1][1] - marks[0][1] > seconds
      if is_over or _step(setup, loop) >= setup.num_steps:
        break
  (first, begin), (last, end) = marks[0], marks[-1]
  evaluated(loop.state.servers[0].params)
  began = time.monotonic()
  evaluated(loop.state.servers[0].params)
  evaluation = time.monotonic() - began
  step = (end - begin) * setup.num_workers / max(last - first, 1)
  return {
    'step': step,
    'evaluation': evaluation,
    'all': end - begin + evaluation,
  }


def _run(setup, loop, checkpoints, records, timing, spent, clock):
  """Trains to the end, or to a signal; returns the seconds spent."""
  evaluated = _make_evaluate(setup)
  begin, step = spent - clock(), _step(setup, loop)
  old = saved = step
  seen = (begin + clock(), loop.state.counts.steps)
  with _signals.caught() as is_signalled:
    for moved in loop.advance():
      stops = is_signalled()
      if not moved and not stops:
        continue
      step = _step(setup, loop)
      ends = step >= setup.num_steps
      crossed = functools.partial(_crossed, old, step, ends)
      if crossed(setup.log_every):
        timing.setdefault('first_segment', clock())
        now = (begin + clock(), loop.state.counts.steps)
        record = _train_record(setup, loop, step, seen, now)
        records.write({**_budgets(setup, loop, step, now[0]), **record})
        seen = now
      if crossed(setup.eval_every):
        budgets = _budgets(setup, loop, step, begin + clock())
        records.write({**budgets, **evaluated(loop.state.servers[0].params)})
      if step > saved and (crossed(setup.checkpoint_every) or stops):
        _save(setup, loop, checkpoints, step, begin + clock())
        saved = step
      old = step
      if ends or stops:
        break
    else:
      raise ValueError(
        f'After step {step} no worker comes back: raise `crashes.mean_up`, or'
        ' choose times that end.'
      )
  return begin + clock()


def _crossed(old, step, ends, every):
  """Tells whether a multiple of `every`, or the end, came since a step."""
  return step > old and (step // every > old // every or ends)


def _step(setup, loop):
  """Returns the inner steps per worker that are part of the params.

  The last update may bring more than were left.
  """
  merged = loop.state.counts.merged_steps // setup.num_workers
  return min(merged, setup.num_steps)


def _budgets(setup, loop, step, seconds):
  counts, per_step = loop.state.counts, _segment.tokens_per_step(setup)
  sent = loop.bytes
  return {
    'step': step,
    'tokens': counts.steps * per_step,
    'tokens_merged': counts.merged_steps * per_step,
    'bytes_sent': max(row['bytes_sent'] for row in _ledger(setup, loop)),
    'bytes_inside': sent['inside'],
    'bytes_between': sent['between'],
    'updates': loop.state.servers[0].version,
    'virtual_seconds': loop.now,
    'seconds': seconds,
  }


def _ledger(setup, loop):
  """Says what each worker has done and sent."""
  rows, per_step = [], _segment.tokens_per_step(setup)
  for worker, running in zip(setup.system.workers, loop.state.workers):
    rounds = running.first // worker.num_steps
    rows.append(
      {
        'steps': running.first,
        'tokens': running.first * per_step,
        'synchronizations': rounds,
        'bytes_sent': rounds * loop.nbytes,
      }
    )
  return rows


def _train_record(setup, loop, step, seen, now):
  """Names the means since the last record; they are taken."""
  taken, loop.state.measured = loop.state.measured, []
  steps = np.array([count for count, _ in taken], np.float64)
  losses = np.array([float(values['loss']) for _, values in taken])
  if not np.isfinite(losses).all():
    raise _records.NonFiniteError(
      f'Before step {step}: a loss is not finite. The newest checkpoint is as'
      ' it was: go on at a lower rate, --config.inner.peak_lr=...'
      ' --change=inner.peak_lr.',
      step,
    )
  tokens = (now[1] - seen[1]) * _segment.tokens_per_step(setup)
  return {
    'train/loss': float((steps * losses).sum() / max(steps.sum(), 1)),
    'train/lr': float(setup.lr[min(step, setup.num_steps) - 1]),
    'train/tokens_per_second': tokens / max(now[0] - seen[0], 1e-9),
  }


def _make_evaluate(setup):
  """Returns a function from params to the metrics of an evaluation."""
  stacked = jax.tree.map(lambda *each: np.stack(each), *setup.heldout)

  @jax.jit
  def program(params, batches):
    each = jax.lax.map(
      lambda batch: setup.model.evaluate(params, batch), batches
    )
    return jax.tree.map(jnp.mean, each)

  def evaluated(params):
    found = jax.device_get(program(params, stacked))
    return evaluate.named({'anchor': found}, setup.dataset.bytes_per_token)

  return evaluated


def _save(setup, loop, checkpoints, step, seconds):
  arrays, meta = loop.save()
  present = [sorted(each) for each in arrays['servers'].values()]
  meta = {'loop': meta, 'present': present, 'seconds': seconds}
  checkpoint.save(checkpoints, step, arrays, meta, keep=setup.keep_checkpoints)


def _restore(loop, params, checkpoints, step):
  """Restores the newest state; returns the seconds spent until then."""
  meta = checkpoint.read_meta(checkpoints, step)
  like, _ = loop.save()
  for serving, names in zip(like['servers'].values(), meta['present']):
    for name in names:
      serving.setdefault(name, params)
  place = jax.sharding.SingleDeviceSharding(jax.devices()[0])
  abstract = jax.tree.map(
    lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=place),
    like,
  )
  arrays, _ = checkpoint.restore(checkpoints, step, abstract)
  loop.restore(arrays, meta['loop'])
  return meta['seconds']


def _summary(setup, loop, folder, timing, seconds):
  """Says what the run came to."""
  recorded = metrics.read(folder / workdir.METRICS)
  final = [record for record in recorded if 'eval/anchor/loss' in record][-1]
  params = jax.eval_shape(setup.model.init, jax.random.key(0))
  counts = loop.state.counts
  return {
    'steps': setup.num_steps,
    'num_params': sum(leaf.size for leaf in jax.tree.leaves(params)),
    'flops_per_example': setup.model.flops,
    'evaluated': 'params of the last server',
    'final': final,
    'replicas': _ledger(setup, loop),
    'virtual_seconds': loop.now,
    'rounds': counts.rounds,
    'lost_rounds': counts.lost_rounds,
    'dropped_steps': counts.dropped_steps,
    'corpus': {
      'name': setup.dataset.name,
      'fingerprint': setup.dataset.fingerprint,
      **setup.dataset.facts,
    },
    'placement': {'num_workers': setup.num_workers},
    'seconds': seconds,
    'timing': timing,
  }
