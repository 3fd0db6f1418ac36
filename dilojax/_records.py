"""What the host makes of a segment: sums, records, the summary."""

import collections

import jax
import numpy as np

from dilojax import metrics
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


def check_finite(values, last):
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


def check_window(window, last):
  """Raises if every step since the last record was skipped."""
  if not window['steps']:
    raise NonFiniteError(
      f'No step of any replica had finite gradients since the last record'
      f' before step {last}: all {window["skipped"]} were skipped.',
      last + 1,
    )


def added(window, values):
  """Adds the steps of a segment to the sums since the last record."""
  finite = np.isfinite(values).all(axis=0)
  loss, norm = np.where(finite, values, 0.0).astype(np.float64)
  return {
    'steps': window['steps'] + int(finite.sum()),
    'loss': window['loss'] + float(loss.sum()),
    'grad_norm': window['grad_norm'] + float(norm.sum()),
    'skipped': window['skipped'] + int((~finite).sum()),
  }


def counts(position, seconds):
  """Returns the budgets that every record states."""
  ledger = position.ledger
  return {
    'step': position.step,
    'tokens': position.dropped_tokens + sum(row['tokens'] for row in ledger),
    'bytes_sent': max(row['bytes_sent'] for row in ledger),
    'seconds': seconds,
  }


def rate(tokens_per_step, clock):
  """Returns a function of windows that tells the tokens per second.

  Over several windows: the host reads one segment behind, so that the time
  between two readings says little about a single one.
  """
  seen = collections.deque([(clock(), 0)], maxlen=8)

  def rate(window, paused):
    steps = window['steps'] + window['skipped']
    now, total = clock() - paused, seen[-1][1] + steps * tokens_per_step
    seen.append((now, total))
    return (total - seen[0][1]) / max(now - seen[0][0], 1e-9)

  return rate


def train_record(setup, window, step, tokens_per_second):
  """Names the means since the last record, over steps and replicas."""
  count = max(window['steps'], 1)
  record = {
    'train/loss': window['loss'] / count,
    'train/grad_norm': window['grad_norm'] / count,
    'train/lr': setup.lr(step),
    'train/tokens_per_second': tokens_per_second,
  }
  if setup.skips:
    record['train/skipped_steps'] = window['skipped']
  return record


def summary(setup, programs, position, folder, timing):
  """Says what the run came to."""
  recorded = metrics.read(folder / workdir.METRICS)
  final = [
    record
    for record in recorded
    if 'eval/anchor/loss' in record and record['step'] == position.step
  ]
  if not final:
    raise ValueError(
      f'{str(folder / workdir.METRICS)!r} must hold the evaluation of step'
      f' {position.step}: somebody has changed it. Remove the newest checkpoint'
      ' to train its steps again.'
    )
  has_anchor = any(
    link.overwrites is not None and not link.is_anchorless
    for link in programs.links
  )
  single = jax.eval_shape(setup.model.init, jax.random.key(0))
  return {
    'steps': position.step,
    'num_params': sum(leaf.size for leaf in jax.tree.leaves(single)),
    'flops_per_example': setup.model.flops,
    'evaluated': 'anchor' if has_anchor else 'mean of the replicas',
    'final_synchronization': setup.final,
    'final': final[-1],
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
