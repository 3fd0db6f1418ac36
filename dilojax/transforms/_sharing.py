"""What the replicas share, told by the states of the links."""

from collections.abc import Iterator, Sequence
import dataclasses
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from dilojax import schedule as schedule_lib
from dilojax import wire

# What a field of a state is; each class of ours has these in `SHARING`.
EVERYWHERE = 'everywhere'  # One value for all replicas.
REDUCED = 'reduced'  # One value along the axes that `reduce` averages over.
PRIVATE = 'private'  # One value for each replica.
NESTED = 'nested'  # A state that tells by itself.


class Traffic(NamedTuple):
  """What a replica sends and gets in a reduction.

  Attributes:
    op: The collective that moves the message, in XLA's words.
    nbytes: Bytes of the message.
    result_nbytes: Bytes of the mean that comes back in a second collective,
      or 0.
  """

  op: str
  nbytes: int
  result_nbytes: int = 0


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

  Any static object with these members serves as well.

  Attributes:
    names: Names of the mapped axes.
  """

  names: tuple[str, ...]

  def traffic(self, leaves: Sequence[Any], codec: wire.Codec | None) -> Traffic:
    """Counts what a replica sends, given abstract leaves and their format."""
    size = lambda codec: sum(codec.nbytes(leaf.shape) for leaf in leaves)
    sent = nbytes(leaves) if codec is None else size(codec)
    return Traffic('all-reduce', sent)


@jax.tree_util.register_static
@dataclasses.dataclass(frozen=True)
class Varies:
  """Says that what a link returns differs between replicas. Has no leaves."""


@jax.tree_util.register_static
@dataclasses.dataclass(frozen=True)
class WireForm:
  """Says in which format the messages of a link travel. Has no leaves.

  Attributes:
    codec: The format.
  """

  codec: wire.Codec


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
  named = {names_along(node) for node in states(state) if is_link(node)} - {()}
  if axis_name is None and len(named) > 1:
    raise ValueError(
      'The links of this optimizer average over different axes,'
      f' {sorted(named)}: say which one `axis_name` asks about.'
    )
  axes = lambda node: _axes(node, axis_name, 0)
  return jax.tree.map(axes, state, is_leaf=is_link)


def _axes(state, axis_name, default):
  """Answers for the links in a state; the rest is as `default` says."""
  if not any(map(is_link, jax.tree.leaves(state, is_leaf=is_link))):
    return default

  def axes(node):
    if not is_link(node):
      return default
    agrees = axis_name in (None, *(names_along(node) or (axis_name,)))
    shared = None if agrees and not _varies(node) else 0
    answers = {
      EVERYWHERE: lambda _: None,
      REDUCED: lambda field: _axes(field, axis_name, shared),
      PRIVATE: lambda _: 0,
      NESTED: lambda field: _axes(field, axis_name, 0),
    }
    fields = node._asdict()
    return type(node)(
      **{name: answers[node.SHARING[name]](fields[name]) for name in fields}
    )

  return jax.tree.map(axes, state, is_leaf=is_link)


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
  for node in states(state):
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


def mark_of(state: optax.OptState, kind: type) -> Any:
  """Returns the static object of a type in a state, or None."""
  found = [mark for mark in marks(state) if isinstance(mark, kind)]
  return found[-1] if found else None


def is_late(state: optax.OptState) -> bool:
  """Tells whether a reduction returns what arrived in the round before."""
  nodes = [node for node in states(state) if is_link(node)]
  return any(getattr(node, 'IS_LATE', False) for node in nodes)


def presence(state: optax.OptState) -> jax.Array | None:
  """Returns whether this replica took part in a reduction, if that says so."""
  nodes = [node for node in states(state) if is_link(node)]
  found = [node.present for node in nodes if hasattr(node, 'present')]
  return found[-1] if found else None


def has_private_anchor(state: optax.OptState) -> bool:
  """Tells whether replicas have anchors of their own, as under gossip."""
  nodes = (node for node in states(state) if hasattr(node, 'anchor'))
  return any(map(_varies, nodes))


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
  for node in states(state):
    if hasattr(node, 'anchor'):
      params = _over(params, node.anchor)
  return params


def codec_of(state: optax.OptState) -> wire.Codec | None:
  """Returns the wire format that a state says messages have, if any."""
  form = mark_of(state, WireForm)
  return form and form.codec


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
  if not jnp.size(value):
    return own.astype(value.dtype)  # No selection is left of no elements.
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

  def put(node, own):
    if is_masked(node):
      return own
    if not _in_parts(node):
      return node.astype(own.dtype)
    if all(map(is_masked, node.parts)):
      return own
    return node.cut.join([*map(put, node.parts, node.cut.split(own))])

  whole = lambda node: is_masked(node) or _in_parts(node)
  return jax.tree.map(put, anchor, params, is_leaf=whole)


def _in_parts(node):
  """Tells whether this is a leaf of params of which a link has some parts."""
  return hasattr(node, 'cut')


def is_link(node: Any) -> bool:
  return hasattr(node, 'SHARING')


def is_route(node: Any) -> bool:
  return hasattr(node, 'traffic')


def states(state: optax.OptState) -> Iterator[Any]:
  is_ours = lambda node: is_link(node) or is_route(node)
  nodes = jax.tree.leaves(state, is_leaf=is_ours)
  return (node for node in nodes if is_ours(node))


def marks(state: optax.OptState) -> Iterator[Any]:
  """Yields the static objects in a state, wherever they are."""
  is_mark = lambda node: is_route(node) or isinstance(node, WireForm | Varies)
  nodes = jax.tree.leaves(state, is_leaf=is_mark)
  return (node for node in nodes if is_mark(node))


def names_of(reduce_state: optax.OptState) -> tuple[str, ...]:
  """Returns the axes that a reduction says it averages over."""
  routes = filter(is_route, marks(reduce_state))
  return tuple(dict.fromkeys(name for each in routes for name in each.names))


def names_along(node: Any) -> tuple[str, ...]:
  """Returns the axes that the reduction of a link says it averages over."""
  return names_of(getattr(node, 'reduce', ()))


def _varies(node: Any) -> bool:
  """Tells whether what the reduction of a link returns differs."""
  found = marks(getattr(node, 'reduce', ()))
  return any(isinstance(mark, Varies) for mark in found)


def nbytes(leaves: Sequence[Any]) -> int:
  """Returns the bytes of abstract leaves as they are."""
  return sum(leaf.size * leaf.dtype.itemsize for leaf in leaves)
