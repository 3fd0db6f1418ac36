"""What the replicas share, told by the states of the links."""

from collections.abc import Iterator
import dataclasses
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from dilojax import schedule as schedule_lib

# What a field of a state is; each class of ours has these in `SHARING`.
EVERYWHERE = 'everywhere'  # One value for all replicas.
REDUCED = 'reduced'  # One value along the axes that `reduce` averages over.
PRIVATE = 'private'  # One value for each replica.
NESTED = 'nested'  # A state that tells by itself.


@jax.tree_util.register_static
@dataclasses.dataclass(frozen=True)
class Plan:
  """What a state says of its link that no array can. Has no leaves.

  Attributes:
    schedule: When the link communicates.
    overwrites: Whether a landing leaves nothing of the replica's own params.
  """

  schedule: schedule_lib.Schedule
  overwrites: bool = False


@jax.tree_util.register_static
@dataclasses.dataclass(frozen=True)
class SharedOver:
  """Says that what a link returns agrees along some axes. Has no leaves.

  Attributes:
    names: Names of the mapped axes.
  """

  names: tuple[str, ...]


class Link(NamedTuple):
  """A link of an optimizer that communicates.

  Attributes:
    schedule: When it does.
    axis_names: Over which axes; empty if unknown.
    nbytes: Bytes of the message that a replica sends each time.
    overwrites: Whether a landing leaves nothing of the replica's own params.
      None for a link without an anchor.
  """

  schedule: schedule_lib.Schedule
  axis_names: tuple[str, ...]
  nbytes: int
  overwrites: bool | None


def replica_axes(state: optax.OptState, axis_name: str | None = None) -> Any:
  """Tells which parts of an optimizer state the replicas share.

  The one place that knows: placement, specs and copies derive from it.

  Args:
    state: State of any optimizer, with states of this package anywhere in it.
    axis_name: Mapped axis that is asked about. Needed where the links average
      over different axes, as in a hierarchy: an anchor of the first level is
      shared along `host`, and differs along `region`.

  Returns:
    A prefix of `state`: None where replicas share one value, 0 where each has
    its own. These are the `in_axes` and `out_axes` of :func:`jax.vmap`.

  Raises:
    ValueError: If the answer depends on the axis, and none was named.

  Examples:
    >>> import jax.numpy as jnp, optax, dilojax as dx
    >>> tx = dx.synchronize(
    ...   optax.sgd(0.7), every=2, reduce=dx.mean_over('replica')
    ... )
    >>> axes = dx.replica_axes(tx.init(jnp.zeros(3)))
    >>> print(axes.anchor, axes.send)
    None 0
  """
  named = {_names(node) for node in _states(state) if _is_link(node)} - {()}
  if axis_name is None and len(named) > 1:
    raise ValueError(
      'The links of this optimizer average over different axes,'
      f' {sorted(named)}: say which one `axis_name` asks about.'
    )

  def axes(node):
    if not _is_link(node):
      return 0
    names = _names(node)
    agrees = axis_name is None or not names or axis_name in names
    answers = {
      EVERYWHERE: lambda _: None,
      REDUCED: lambda _: None if agrees else 0,
      PRIVATE: lambda _: 0,
      NESTED: lambda field: replica_axes(field, axis_name),
    }
    fields = node._asdict()
    return type(node)(
      **{name: answers[node.SHARING[name]](fields[name]) for name in fields}
    )

  return jax.tree.map(axes, state, is_leaf=_is_link)


def apply_updates(
  params: optax.Params,
  updates: optax.Updates,
  state: optax.OptState,
  *,
  step: int | None = None,
  final: bool = False,
) -> optax.Params:
  r"""Applies updates, and lands exactly on the anchor.

  :func:`optax.apply_updates` adds, and :math:`p + (\theta - p)` misses
  :math:`\theta` by a rounding. Here, whatever the last update made
  *overwrite* is set: after a synchronization the replicas are bitwise equal.

  Args:
    params: Params of a replica.
    updates: What `update` of the optimizer returned for them.
    state: The state that it returned.
    step: The `step` that it was given.
    final: The `final` that it was given.

  Returns:
    The new params, with the dtypes of the old.

  Examples:
    >>> import jax.numpy as jnp, optax, dilojax as dx
    >>> tx = dx.synchronize(optax.sgd(1.0), every=1, reduce=optax.identity())
    >>> params = jnp.array([1e8, 1.0])
    >>> state = tx.init(params)
    >>> updates = jnp.array([-1e8, 0.3])
    >>> updates, state = tx.update(updates, state, params)
    >>> params = dx.apply_updates(params, updates, state)
    >>> bool(jnp.all(params == state.anchor))
    True
  """
  if final and step is None:
    raise ValueError('`final` needs `step`: pass both as to `update`.')
  params = optax.apply_updates(params, updates)
  for node in _states(state):
    if not hasattr(node, 'anchor'):
      continue
    land = lambda params, anchor=node.anchor: jax.tree.map(
      agreeing, _over(params, anchor), params
    )
    if step is None:
      landed = _lands_exactly(node.plan, node.step)
      params = jax.lax.cond(landed, land, lambda params: params, params)
    elif (
      _ends_exactly(node.plan, step)
      if final
      else _lands_exactly(node.plan, step)
    ):
      params = land(params)
  return params


def anchor_of(state: optax.OptState, params: optax.Params) -> optax.Params:
  """Returns the anchor: `params` with all that links have anchored.

  Args:
    state: State of any optimizer.
    params: What to return where there is no anchor, such as the replicas'
      mean. Same structure as the params of the optimizer.

  Returns:
    Params in the dtypes of `params`. Of several anchors of a leaf, as in a
    hierarchy, the last link's stands.
  """
  for node in _states(state):
    if hasattr(node, 'anchor'):
      params = _over(params, node.anchor)
  return params


def links(state: optax.OptState, params: optax.Params) -> list[Link]:
  """Lists the links that communicate, in the order of the chain.

  Args:
    state: State of any optimizer, or its abstract form.
    params: Params of one replica, or their abstract form.

  Returns:
    When, over which axes, and how many bytes each of them sends.
  """
  always = schedule_lib.Schedule(every=1, offset=1)
  found = []
  for node in _states(state):
    if isinstance(node, SharedOver):
      found.append(Link(always, node.names, _nbytes(params), None))
    elif hasattr(node, 'anchor'):
      nbytes = _nbytes(node.anchor)
      plan = node.plan
      found.append(Link(plan.schedule, _names(node), nbytes, plan.overwrites))
    elif hasattr(node, 'link'):
      stop = node.plan.schedule.stop
      for link in links(node.link, params):
        schedule = dataclasses.replace(link.schedule, stop=stop)
        found.append(link._replace(schedule=schedule))
  return found


def reanchored(below: list, above: Any, *, step: int | None, final=False):
  """Gives links the anchor of a link above them, if that has just landed.

  Args:
    below: States of the links; they have the anchor's structure.
    above: State of the link above.
    step: The `step` that the update was given.
    final: The `final` that the update was given.

  Returns:
    The new states of `below`.
  """

  def take(below):
    agree = lambda state: jax.tree.map(agreeing, above.anchor, state.anchor)
    return [state._replace(anchor=agree(state)) for state in below]

  landed = above.plan.schedule.lands(above.step if step is None else step)
  if not below:
    return below
  if step is None:
    return jax.lax.cond(landed, take, lambda below: below, below)
  return take(below) if landed or final else below


def agreeing(value: jax.Array, own: jax.Array) -> jax.Array:
  """Returns `value`, typed as varying along the axes of `own`.

  Both branches of a condition need one type, and `lax.pcast` fails under
  `vmap`. The compiler drops the selection.
  """
  return jnp.where(jnp.array(True), value, own.astype(value.dtype))


def _lands_exactly(plan, step):
  """Tells whether the replica is the anchor after a step."""
  starts = plan.schedule.starts(step)
  return starts | plan.schedule.lands(step) if plan.overwrites else starts


def _ends_exactly(plan, step):
  """Tells whether the replica is the anchor after the last step."""
  starts = 'start' in plan.schedule.final_events(step, plan.overwrites)
  return starts or plan.overwrites


def _over(params, anchor):
  """Puts an anchor over params, where it is not masked."""
  is_masked = lambda node: isinstance(node, optax.MaskedNode)
  put = lambda node, own: own if is_masked(node) else node.astype(own.dtype)
  return jax.tree.map(put, anchor, params, is_leaf=is_masked)


def _is_link(node: Any) -> bool:
  return hasattr(node, 'SHARING')


def _states(state: optax.OptState) -> Iterator[Any]:
  is_ours = lambda node: _is_link(node) or isinstance(node, SharedOver)
  nodes = jax.tree.leaves(state, is_leaf=is_ours)
  return (node for node in nodes if is_ours(node))


def _names(node: Any) -> tuple[str, ...]:
  """Returns the axes that the reduction of a link says it averages over."""
  reduce = getattr(node, 'reduce', ())
  is_over = lambda node: isinstance(node, SharedOver)
  nodes = jax.tree.leaves(reduce, is_leaf=is_over)
  names = [name for node in nodes if is_over(node) for name in node.names]
  return tuple(dict.fromkeys(names))


def _nbytes(tree: Any) -> int:
  return sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(tree))
