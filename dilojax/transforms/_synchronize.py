"""The link between replicas: local steps until all land on a shared value."""

import dataclasses
import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from dilojax import schedule as schedule_lib
from dilojax.transforms import _checks
from dilojax.transforms import _merge
from dilojax.transforms import _reduce
from dilojax.transforms import _send
from dilojax.transforms import _sharing


class SynchronizeState(NamedTuple):
  """State of :func:`synchronize`.

  Attributes:
    step: Number of inner steps taken, an int32 scalar. Shared.
    anchor: Parameters at the last synchronization, in float32. Shared.
    send: State of `send`. Private to a replica.
    reduce: State of `reduce`. Shared.
    outer: State of `outer`. Shared.
    arrived: Reduced pseudo-gradient on its way, in float32; empty without a
      delay. Shared.
    relayed: Means of the rows that this replica owns, between the two
      collectives of a mean of messages; empty without them. Private to a
      replica.
    launched: Params at the last launch; empty unless a delayed merge needs
      them. Private to a replica.
    plan: Schedule and kind of landing; no arrays.
  """

  step: jax.Array
  anchor: optax.Params
  send: optax.OptState
  reduce: optax.OptState
  outer: optax.OptState
  arrived: optax.Updates
  relayed: Any
  launched: optax.Params
  plan: Any

  # The attributes above once more, for `replica_axes`.
  SHARING = {
    'step': _sharing.EVERYWHERE,
    'anchor': _sharing.REDUCED,
    'send': _sharing.PRIVATE,
    'reduce': _sharing.REDUCED,
    'outer': _sharing.REDUCED,
    'arrived': _sharing.REDUCED,
    'relayed': _sharing.PRIVATE,
    'launched': _sharing.PRIVATE,
    'plan': _sharing.EVERYWHERE,
  }


def synchronize(
  outer: optax.GradientTransformation,
  *,
  every: int,
  reduce: optax.GradientTransformation,
  send: optax.GradientTransformation = optax.identity(),
  offset: int | None = None,
  delay: int = 0,
  merge: _merge.Merge = _merge.overwrite(),
  start: int = 0,
) -> optax.GradientTransformationExtraArgs:
  r"""Lands all replicas on a shared value, once per round.

  The last link of a chain: it sees the updates of the inner optimizer, so it
  knows where the replica :math:`\theta_k` is about to land. In the steps
  `offset`, `offset + every`, ..., counted from 1, the displacement from the
  anchor :math:`\theta` is launched as a pseudo-gradient. `delay` steps later
  `outer` moves the anchor, and the replica lands on a merge of its own params
  :math:`\theta_k`, those at the launch :math:`y_k`, and the new anchor:

  .. math::

    \bar\Delta &= \mathrm{reduce}_k(\mathrm{send}(\theta - y_k)), \\
    \theta &\leftarrow \theta + \mathrm{outer}(\bar\Delta), \\
    \theta_k &\leftarrow \mathrm{merge}(\theta_k, y_k, \theta).

  In all other steps the updates pass unchanged. All communication happens in
  `reduce`. Schedules inside `outer` count synchronizations. The arithmetic is
  in float32 at least, whatever the dtype of the params.

  Args:
    outer: Optimizer of the anchor. It gets the reduced pseudo-gradient as
      updates and the anchor as params.
    every: Number of inner steps per round, at least 1.
    reduce: Turns the replicas' messages into one, such as :func:`mean_over`.
    send: Turns a pseudo-gradient into a message, such as compression.
    offset: First step with a launch, from 1 to `every`, which is the default.
      Fragments with different offsets take turns.
    delay: Number of inner steps that a message is on its way, less than
      `every`. A mean of encoded messages takes two collectives: the second
      starts when half of the delay is over.
    merge: How a new anchor enters the replica: :func:`overwrite`,
      :func:`mix`, :func:`delta`, or a function of three trees of params, in
      float32: the replica's now, the replica's at launch, and the anchor's.
    start: Steps before the first round, in which the replicas are kept equal
      by other means, as in :func:`post_local`. After the last of them the
      anchor is taken: the replicas land on their mean, `outer` rests.

  Returns:
    An :class:`optax.GradientTransformationExtraArgs`. Its `update` accepts
    `step`, the number of this inner step as a Python int, counted from 1. The
    decision then falls while tracing, and quiet steps compile without a
    branch. With `final=True` beside it, this step ends the training: what is
    in flight lands, and a last synchronization takes place unless one just
    did. Other extra arguments reach `send`, `reduce` and `outer`.

  Raises:
    ValueError: If `every`, `offset`, `delay`, `start` or `step` is out of
      range, or another argument is of another kind; in `update`, if `params`
      is missing, or `reduce` returns messages that are still encoded.

  Examples:
    One replica that gains half of its displacement in each round:

    >>> import jax, jax.numpy as jnp, optax, dilojax as dx
    >>> link = dx.synchronize(optax.sgd(0.5), every=2, reduce=optax.identity())
    >>> tx = optax.chain(optax.sgd(0.1), link)
    >>> params = jnp.array(1.0)
    >>> state = tx.init(params)
    >>> for _ in range(2):
    ...   grads = jax.grad(jnp.square)(params)
    ...   updates, state = tx.update(grads, state, params)
    ...   params = optax.apply_updates(params, updates)
    ...   print(f'{params:.2f}')
    0.80
    0.82

  References:
    Douillard et al., `DiLoCo: Distributed Low-Communication Training of
    Language Models <https://arxiv.org/abs/2311.08105>`_, 2023

    Douillard et al., `Streaming DiLoCo with overlapping communication
    <https://arxiv.org/abs/2501.18512>`_, 2025

  .. note::
    Optax adds updates to params, so a replica lands one rounding away from
    the anchor. The next displacement starts at the anchor: nothing builds up.
    :func:`apply_updates` lands exactly.
  """
  schedule = _checked_schedule(every, offset, delay, start)
  _checks.check_transformation('outer', outer)
  _checks.check_transformation('reduce', reduce)
  _checks.check_transformation('send', send)
  _checks.check_merge('merge', merge)
  overwrites = getattr(merge, 'overwrites', False)
  keeps_launched = delay > 0 and getattr(merge, 'needs_launched', True)
  steps = _reduce.phases(reduce)
  send, reduce, outer = map(
    optax.with_extra_args_support, (send, reduce, outer)
  )
  if getattr(merge, 'needs_schedule', False):
    merge = functools.partial(merge, schedule=schedule)

  def init_fn(params):
    _checks.check_inexact(params)
    # A copy, so that params and state can both be donated. In float32, since
    # a narrow anchor would lose the small shifts of a slow outer optimizer.
    anchor = _wide(params)
    send_state, reduce_state = send.init(anchor), reduce.init(anchor)
    relayed = ()
    if delay > 1 and steps is not None:
      relayed = steps.place(anchor, send_state, reduce_state) or ()
    relay = -(-delay // 2) if jax.tree.leaves(relayed) else 0
    late = _sharing.is_late(reduce_state)
    if late and delay:
      raise ValueError(
        f'`delay` must be 0 with a reduction that comes a round late, got'
        f' {delay}: messages have the whole round to arrive.'
      )
    return SynchronizeState(
      step=jnp.zeros([], jnp.int32),
      anchor=anchor,
      send=send_state,
      reduce=reduce_state,
      outer=outer.init(anchor),
      arrived=optax.tree.zeros_like(anchor) if delay else (),
      relayed=relayed,
      launched=jax.tree.map(jnp.array, params) if keeps_launched else (),
      plan=_sharing.Plan(
        dataclasses.replace(schedule, relay=relay, late=late),
        overwrites and _sharing.presence(reduce_state) is None,
      ),
    )

  def update_fn(
    updates, state, params=None, *, step=None, final=False, **extra_args
  ):
    if params is None:
      raise ValueError(
        '`synchronize` measures displacement: pass `params` to `update`.'
      )
    _checks.check_step(step, final)

    plan = state.plan

    def reduced(replica, state, reduce_update=reduce.update):
      """Sends the displacement, and returns what arrives."""
      pseudo_grad = optax.tree.sub(state.anchor, replica)
      message, send_state = send.update(
        pseudo_grad, state.send, state.anchor, **extra_args
      )
      arrived, reduce_state = reduce_update(
        message, state.reduce, state.anchor, **extra_args
      )
      if reduce_update is reduce.update:
        _checks.check_decoded(arrived)
      if (present := _sharing.presence(reduce_state)) is not None:
        # The next displacement has all of this one, if it did not arrive.
        send_state = _send.kept_unless(present, send_state, state.send)
      return arrived, state._replace(send=send_state, reduce=reduce_state)

    def towards(target):
      landing = optax.tree.sub(target, params)
      return optax.tree.cast_like(landing, updates)

    def landed(replica, launched, arrived, state):
      """Moves the anchor, and makes the updates end at the merge."""
      shift, outer_state = outer.update(
        arrived, state.outer, state.anchor, **extra_args
      )
      anchor = optax.apply_updates(state.anchor, shift)
      target = merge(_wide(replica), _wide(launched), anchor)
      if (present := _sharing.presence(state.reduce)) is not None:
        keep = lambda new, old: jnp.where(present, new, old)
        target = jax.tree.map(keep, target, _wide(replica))
      return towards(target), state._replace(anchor=anchor, outer=outer_state)

    def stay(updates, state):
      return jax.tree.map(_sharing.agreeing, updates, params), state

    def begin(updates, state):
      replica = optax.apply_updates(params, updates)
      displacement = optax.tree.sub(state.anchor, replica)
      # The plain mean of the replicas: nothing is lost, and nothing is late.
      mean = _reduce.plain_mean(displacement, _sharing.names_of(state.reduce))
      anchor = optax.tree.sub(state.anchor, mean)
      return towards(anchor), state._replace(anchor=anchor)

    def meet(updates, state):
      replica = optax.apply_updates(params, updates)
      arrived, state = reduced(replica, state)
      return landed(replica, replica, arrived, state)

    def launch(updates, state):
      replica = optax.apply_updates(params, updates)
      if keeps_launched:
        state = state._replace(launched=replica)
      if steps is not None and plan.schedule.relay:
        met, state = reduced(replica, state, steps.meet)
        return updates, state._replace(relayed=met)
      arrived, state = reduced(replica, state)
      arrived = optax.tree.cast_like(arrived, state.anchor)
      return updates, state._replace(arrived=arrived)

    def relay(updates, state):
      if steps is not None:
        # Without a barrier the second collective could start at the launch, and
        # the compiler waits for the first in order to do so.
        updates, met = jax.lax.optimization_barrier((updates, state.relayed))
        arrived = steps.share(met, state.anchor)
        arrived = optax.tree.cast_like(arrived, state.anchor)
        state = state._replace(arrived=arrived)
      return updates, state

    def land(updates, state):
      replica = optax.apply_updates(params, updates)
      launched = state.launched if keeps_launched else replica
      return landed(replica, launched, state.arrived, state)

    events = {'launch': launch, 'land': land} if delay else {'launch': meet}
    if plan.schedule.relay:
      events['relay'] = relay
    if start:
      events['start'] = begin
    if step is None:
      # A branch, not a select: quiet steps must not communicate. No two
      # events fall on one step, so the sum is the number of the branch.
      count = state.step + 1
      due = {
        'launch': schedule.launches(count),
        'relay': plan.schedule.relays(count),
        'land': schedule.lands(count),
        'start': schedule.starts(count),
      }
      index = sum(
        number * due[name].astype(jnp.int32)
        for number, name in enumerate(events, start=1)
      )
      branches = (stay, *events.values())
      updates, state = jax.lax.switch(index, branches, updates, state)
    elif final:
      ends = {'start': begin, 'relay': relay, 'land': land, 'meet': meet}
      for name in plan.schedule.final_events(step, plan.overwrites):
        updates, state = ends[name](updates, state)
    else:
      for name in plan.schedule.events(step):
        updates, state = events.get(name, stay)(updates, state)
    return updates, state._replace(step=state.step + 1)

  return optax.GradientTransformationExtraArgs(init_fn, update_fn)


def _wide(params):
  """Copies params in float32, or in their own dtype if that is wider."""
  widen = lambda leaf: jnp.array(
    leaf, jnp.promote_types(jnp.result_type(leaf), jnp.float32)
  )
  return jax.tree.map(widen, params)


def _checked_schedule(every, offset, delay, start):
  offset = every if offset is None else offset
  named = {'every': every, 'offset': offset, 'delay': delay, 'start': start}
  for name, value in named.items():
    if not _checks.is_int(value):
      raise ValueError(f'`{name}` must be an int, got {value!r}.')
  if every < 1:
    raise ValueError(f'`every` must be at least 1, got {every}.')
  if not 1 <= offset <= every:
    raise ValueError(
      f'`offset` must be from 1 to `every` ({every}), got {offset}.'
    )
  if delay < 0:
    raise ValueError(f'`delay` must be at least 0, got {delay}.')
  if delay >= every:
    raise ValueError(
      f'`delay` ({delay}) reaches the next launch: choose less than `every`'
      f' ({every}), or a larger `every`.'
    )
  if start < 0:
    raise ValueError(f'`start` must be at least 0, got {start}.')
  return schedule_lib.Schedule(every, offset, delay, start)
