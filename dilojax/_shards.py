"""Links that run shard by shard, inside replicas that span several devices."""

import math
from typing import Any

import jax
import jax.numpy as jnp
import optax

from dilojax import replicas
from dilojax import transforms


def over_shards(tx: Any, placement: replicas.Placement) -> Any:
  """Runs a link shard by shard where a replica is spread over devices.

  Blocks of a message then lie within shards: nothing is gathered inside a
  replica to encode or decode it, and each device sends its own shard. For
  links that treat entries or blocks alike, such as :func:`dilojax.encode` and
  a mean of messages, not for those that look at whole leaves.

  Args:
    tx: A transformation or a :class:`dilojax.Reduction`, whose `update` gets
      params of the updates' structure.
    placement: Where the replicas are.

  Returns:
    The same kind of thing, to be used inside :func:`replicas.over_replicas`.
  """
  mesh = placement.mesh
  if mesh.shape[replicas.FSDP] * mesh.shape[replicas.TENSOR] == 1:
    return tx

  def cut(tree, params):
    """Returns specs: messages are cut along their rows, the rest as params."""
    is_encoded = lambda node: isinstance(node, transforms.Encoded)
    if any(map(is_encoded, jax.tree.leaves(tree, is_leaf=is_encoded))):
      return rows(params)
    return whole(tree)

  def whole(tree):
    spec = lambda leaf: jax.P(*replicas.inner_spec(jnp.shape(leaf), mesh))
    return jax.tree.map(spec, tree)

  def rows(params):
    return jax.tree.map(lambda leaf: jax.P(_shards(leaf, mesh)), params)

  def groups(params):
    """Groups leaves as :func:`dilojax.mean_over` does, shard by shard."""
    found: dict[Any, list[Any]] = {}
    for leaf in jax.tree.leaves(params):
      found.setdefault(frozenset(_shards(leaf, mesh)), []).append(leaf)
    return list(found.values())

  def met_specs(params):
    return tuple(jax.P(_shards(group[0], mesh)) for group in groups(params))

  def over(fn, in_specs, out_specs):
    return jax.shard_map(
      fn,
      axis_names=set(replicas.INSIDE),
      in_specs=in_specs,
      out_specs=out_specs,
    )

  def step(fn, out_specs):
    """Wraps a step that takes and returns a state."""

    def update_fn(updates, state, params=None, **extra_args):
      body = lambda updates, state, params, extra_args: fn(
        updates, state, params, **extra_args
      )
      args = (updates, state, params, extra_args)
      in_specs = (cut(updates, params), *map(whole, args[1:]))
      outs = (out_specs(state)(params), whole(state))
      return over(body, in_specs, outs)(*args)

    return update_fn

  if not isinstance(tx, transforms.Reduction):
    encodes = lambda state: transforms.codec_of(state) is not None
    out_specs = lambda state: rows if encodes(state) else whole
    update = optax.with_extra_args_support(tx).update
    return optax.GradientTransformationExtraArgs(
      tx.init, step(update, out_specs)
    )
  update = step(tx.update, lambda state: whole)
  if tx.meet is None:
    return transforms.Reduction(tx.init, update)

  def share(met, params):
    specs = (met_specs(params), whole(params))
    return over(tx.share, specs, whole(params))(met, params)

  def place(params, *states):
    # As many rows as all shards have together.
    places = []
    for group in groups(params):
      local = list(map(_shard_like(mesh), group))
      of_shard = jax.eval_shape(lambda local: tx.place(local, *states), local)
      count = math.prod(mesh.shape[name] for name in _shards(group[0], mesh))
      zeros = lambda leaf, count=count: jnp.zeros(
        (count * leaf.shape[0], *leaf.shape[1:]), leaf.dtype
      )
      places += jax.tree.map(zeros, of_shard or ())
    return tuple(places)

  meet = step(tx.meet, lambda state: met_specs)
  return transforms.Reduction(tx.init, update, meet, share, place)


def _shards(leaf, mesh):
  """Returns the names of the axes over which a leaf is cut, in order."""
  spec = replicas.inner_spec(jnp.shape(leaf), mesh)
  return tuple(name for name in spec if name is not None)


def _shard_like(mesh):
  """Returns a function from a leaf to the abstract form of its shard."""

  def of(leaf):
    spec = replicas.inner_spec(leaf.shape, mesh)
    cut = lambda length, name: length // (mesh.shape[name] if name else 1)
    shape = tuple(map(cut, leaf.shape, spec))
    return jax.ShapeDtypeStruct(shape, leaf.dtype)

  return of
