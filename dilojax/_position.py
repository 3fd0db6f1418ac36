"""Where a training stands: on the devices, and in a checkpoint."""

import pathlib
from typing import Any, NamedTuple

import jax
import numpy as np

from dilojax import _ledger
from dilojax import build
from dilojax import checkpoint
from dilojax import processes
from dilojax import replicas
from dilojax import transforms

EMPTY_WINDOW = {'steps': 0, 'loss': 0.0, 'grad_norm': 0.0, 'skipped': 0}


class Position(NamedTuple):
  """All that a training goes on with, beside what can be computed anew.

  The data has no state of its own: a batch is a function of seed, step and
  replica.

  Attributes:
    step: Inner steps taken.
    params: Params of all replicas.
    opt_state: Optimizer state of all replicas.
    ledger: What each replica has done and sent.
    window: Sums over the steps since the last record.
    seconds: Time spent in training, summed over resumes.
    dropped_tokens: Tokens of replicas that are no longer there.
    ended: Whether the last step ended the training out of schedule.
  """

  step: int
  params: Any
  opt_state: Any
  ledger: _ledger.Ledger
  window: dict[str, float]
  seconds: float
  dropped_tokens: int = 0
  ended: bool = False


def state_axes(setup: build.Setup) -> Any:
  """Returns the axes of params and optimizer state of a run."""
  state = jax.eval_shape(lambda: _init(setup))[1]
  along = lambda name: transforms.replica_axes(state, name)
  return (0, replicas.varying(setup.placement, along))


def start(setup: build.Setup, axes: Any) -> Position:
  """Returns the position before the first step: all replicas are equal."""
  place = lambda: replicas.spread(_init(setup), setup.placement, axes)
  params, opt_state = jax.jit(place)()
  ledger = _ledger.start(setup.placement.total)
  return Position(0, params, opt_state, ledger, dict(EMPTY_WINDOW), 0.0)


def save(folder: pathlib.Path, position: Position, setup: build.Setup) -> None:
  """Saves a position; its arrays may be donated afterwards."""
  meta = {
    'inside': _inside(setup),
    'ledger': position.ledger,
    'window': position.window,
    'seconds': position.seconds,
    'dropped_tokens': position.dropped_tokens,
    'ended': position.ended,
  }
  state = {
    'params': position.params,
    'opt_state': _without_room(position.opt_state, position.step),
  }
  keep = setup.keep_checkpoints
  checkpoint.save(folder, position.step, state, meta, keep=keep)


def restore(
  folder: pathlib.Path, step: int, setup: build.Setup, axes: Any
) -> Position:
  """Restores a position onto the devices and the replicas of a run.

  Raises:
    ValueError: See :func:`dilojax.checkpoint.restore` and
      :func:`dilojax.checkpoint.resize`.
  """
  placement = setup.placement
  meta = checkpoint.read_meta(folder, step)
  num_saved, num_wanted = len(meta['ledger']), placement.total
  if num_saved != num_wanted and len(placement.num_replicas) > 1:
    raise ValueError(
      f'`levels` must have as many replicas as were saved ({num_saved}), got'
      f' {num_wanted}: a hierarchy cannot be resized.'
    )
  if meta['ended'] and step < setup.num_steps:
    raise ValueError(
      f'`num_steps` cannot be raised to {setup.num_steps}: the run ended after'
      f' step {step} by landing early what was in flight. Train anew, or end'
      ' a run between a landing and a launch to extend it.'
    )
  _check_relays(step, setup, meta)
  params, opt_state = like = jax.eval_shape(lambda: _init(setup))
  whole = replicas.like(like, placement, axes)[1]
  like = (params, _without_room(opt_state, step))
  if num_saved == num_wanted:
    like = replicas.like(like, placement, axes)
    state, _ = checkpoint.restore(folder, step, _named(*like))
    params, opt_state = state['params'], state['opt_state']
  else:
    # Everything on the host, with the replicas that were saved.
    old = replicas.with_replicas(like, axes, {replicas.AXIS: num_saved})
    state, _ = checkpoint.restore(folder, step, _named(*old))
    state = checkpoint.resize(state['params'], state['opt_state'], num_wanted)
    wanted = replicas.shardings(state, placement, axes)
    params, opt_state = processes.put(state, wanted)
  dropped = sum(row['tokens'] for row in meta['ledger'][num_wanted:])
  return Position(
    step,
    params,
    _with_room(opt_state, whole),
    _ledger.resize(meta['ledger'], num_wanted),
    meta['window'],
    meta['seconds'],
    meta['dropped_tokens'] + dropped,
    meta['ended'],
  )


def _init(setup):
  params = setup.model.init(jax.random.key(setup.seed))
  return params, setup.tx.init(params)


def _inside(setup):
  """Returns the sizes of the axes inside a replica."""
  return {name: setup.placement.mesh.shape[name] for name in replicas.INSIDE}


def _check_relays(step, setup, meta):
  """Rows of a mean belong to owners: they cannot be read by others."""
  ends = [
    link.schedule.relay
    for link in build.links(setup)
    if link.schedule.relay_pends(step)
  ]
  saved = {'num_replicas': len(meta['ledger']), **meta.get('inside', {})}
  now = {'num_replicas': setup.placement.total, **_inside(setup)}
  if ends and any(saved[name] != now[name] for name in saved):
    raise ValueError(
      f'`num_replicas` and `mesh` must be as they were saved after step {step},'
      f' {saved}, got {now}: a mean is between its two collectives. Train'
      f' {max(ends)} steps as before, and change them after those.'
    )


def _has_room(node):
  return hasattr(node, 'relayed')


def _without_room(opt_state, step):
  """Leaves out the room for what is between two collectives, if unused.

  Its size depends on the axes inside a replica, and these may change.
  """

  def leave_out(node):
    if not _has_room(node) or node.plan.schedule.relay_pends(step):
      return node
    return node._replace(relayed=())

  return jax.tree.map(leave_out, opt_state, is_leaf=_has_room)


def _with_room(opt_state, whole):
  """Puts zeros where :func:`_without_room` has left out something."""

  def zeros(leaf):
    return processes.put(np.zeros(leaf.shape, leaf.dtype), leaf.sharding)

  def put(node, like):
    if not _has_room(node) or jax.tree.leaves(node.relayed):
      return node
    return node._replace(relayed=jax.tree.map(zeros, like.relayed))

  return jax.tree.map(put, opt_state, whole, is_leaf=_has_room)


def _named(params, opt_state):
  return {'params': params, 'opt_state': opt_state}
