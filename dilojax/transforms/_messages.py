"""Encoded leaves, and the collectives that move them."""

from collections.abc import Callable, Sequence
import dataclasses
import functools
import math
import operator
from typing import Any

import jax
import jax.numpy as jnp

from dilojax import wire


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Encoded:
  """A leaf of updates in the form in which it travels.

  Attributes:
    message: Arrays of the codec; their leading axis counts blocks.
    codec: What reads them.
    shape: Shape of the leaf.
  """

  message: Any
  codec: wire.Codec = dataclasses.field(metadata={'static': True})
  shape: tuple[int, ...] = dataclasses.field(metadata={'static': True})

  def decode(self) -> jax.Array:
    """Returns the leaf, in float32."""
    return self.codec.decode(self.message, self.shape)


def is_encoded(node: Any) -> bool:
  """Tells whether a node is a message."""
  return isinstance(node, Encoded)


def encode_tree(
  tree: Any, codec: wire.Codec, key: jax.Array, *, shared_key: bool = False
) -> Any:
  """Encodes every leaf, each with a key of its own.

  Args:
    tree: Leaves of any inexact type.
    codec: The wire format.
    key: For formats that round or choose at random.
    shared_key: Whether all replicas draw alike. Otherwise their draws differ
      wherever their values do.

  Returns:
    The tree, with messages for leaves.
  """
  leaves, structure = jax.tree.flatten(tree)
  messages = []
  for number, leaf in enumerate(leaves):
    own = jax.random.fold_in(key, number)
    own = own if shared_key else key_of(leaf, own)
    messages.append(Encoded(codec.encode(leaf, own), codec, jnp.shape(leaf)))
  return jax.tree.unflatten(structure, messages)


def decoded(tree: Any) -> Any:
  """Decodes whatever is encoded in a tree."""
  read = lambda node: node.decode() if is_encoded(node) else node
  return jax.tree.map(read, tree, is_leaf=is_encoded)


def key_of(leaf: jax.Array, key: jax.Array) -> jax.Array:
  """Returns a key that differs between replicas, as their values do."""
  total = jnp.sum(leaf, dtype=jnp.float32)
  bits = jax.lax.bitcast_convert_type(total, jnp.uint32)
  return jax.random.fold_in(key, bits)


def num_members(names: Sequence[str]) -> int:
  """Returns the number of replicas along mapped axes."""
  return math.prod(jax.lax.axis_size(name) for name in names)


def index_of(names: Sequence[str]) -> jax.Array:
  """Returns the number of this replica, with the last name fastest."""
  index = jnp.zeros([], jnp.int32)
  for name in names:
    index = index * jax.lax.axis_size(name) + jax.lax.axis_index(name)
  return index


def to_all(leaves: list[jax.Array], names: Sequence[str]) -> list[jax.Array]:
  """Sends arrays of every replica to all: `[K, ...]`, shared.

  With several names the replicas are counted with the last one fastest.
  """

  def gather(buffer):
    for name in reversed(names):
      buffer = _all_gather(buffer, name)
    return buffer.reshape(-1, buffer.shape[-1])

  return _fused(gather, leaves, lead=0)


def to_owners(leaves: list[jax.Array], names: Sequence[str]) -> list[jax.Array]:
  """Sends row k of arrays `[K, ...]` to replica k, which gets K such rows."""
  sizes = [jax.lax.axis_size(name) for name in names]

  def exchange(buffer):
    buffer = buffer.reshape(*sizes, buffer.shape[-1])
    for axis, name in enumerate(names):
      buffer = jax.lax.all_to_all(buffer, name, axis, axis)
    return buffer.reshape(-1, buffer.shape[-1])

  return _fused(exchange, leaves, lead=1)


def from_all(
  messages: Sequence[Encoded], names: Sequence[str]
) -> list[list[jax.Array]]:
  """Sends messages of every replica to all, which decode them.

  Returns:
    For each message its K values, in float32.
  """
  parts, structure = jax.tree.flatten([each.message for each in messages])
  arrived = jax.tree.unflatten(structure, to_all(parts, names))
  return [
    all_decoded(message, each.codec, each.shape)
    for message, each in zip(arrived, messages)
  ]


def all_decoded(
  messages: Any, codec: wire.Codec, shape: Sequence[int]
) -> list[jax.Array]:
  """Decodes messages that are stacked along a leading axis."""
  count = jax.tree.leaves(messages)[0].shape[0]
  row = lambda k: jax.tree.map(lambda leaf: leaf[k], messages)
  return [codec.decode(row(k), shape) for k in range(count)]


def as_weight(weight: jax.typing.ArrayLike) -> jax.Array:
  """Returns a weight in float32; what is not above 0 weighs nothing."""
  own = jnp.asarray(weight, jnp.float32)
  return jnp.where(own > 0, own, 0)


def all_weights(
  names: Sequence[str], weight: jax.typing.ArrayLike | None
) -> jax.Array | None:
  """Returns what all replicas weigh, `[K]`, or None if all weigh alike."""
  if weight is None:
    return None
  own = as_weight(weight).reshape(1)
  return to_all([own], names)[0].reshape(-1)


def average(values: list[jax.Array], weights: jax.Array | None) -> jax.Array:
  """Averages values of K replicas, in the same order everywhere."""
  if weights is not None:
    mean = jnp.sum(weights) / len(values)
    shares = weights / jnp.where(mean > 0, mean, 1)
    values = [times(share, value) for share, value in zip(shares, values)]
  return functools.reduce(operator.add, values) / len(values)


def times(share: jax.Array, leaf: jax.Array) -> jax.Array:
  """Multiplies a leaf; a share of 0 leaves nothing, not even NaN."""
  return jnp.where(share > 0, leaf * share, 0).astype(leaf.dtype)


def _all_gather(buffer: jax.Array, name: str) -> jax.Array:
  # Only a checked shard_map has a type for it; plain vmap refuses to be asked.
  if name in jax.typeof(buffer).manual_axis_type.varying:
    return jax.lax.all_gather(buffer, name, to='invarying')
  return jax.lax.all_gather(buffer, name)


def _fused(
  collective: Callable[[jax.Array], jax.Array],
  leaves: list[jax.Array],
  *,
  lead: int,
) -> list[jax.Array]:
  """Moves arrays of a type in one buffer, with `lead` axes kept in front."""
  moved = list(leaves)
  by_type: dict[Any, list[int]] = {}
  for number, leaf in enumerate(leaves):
    if leaf.size:
      # What agrees along axes inside a replica stays apart from what does not.
      varying = jax.typeof(leaf).manual_axis_type.varying
      by_type.setdefault((leaf.dtype, varying), []).append(number)
    elif not lead:
      moved[number] = leaf[None]
  for numbers in by_type.values():
    parts = [leaves[n].reshape(*leaves[n].shape[:lead], -1) for n in numbers]
    ends = [part.shape[-1] for part in parts]
    buffer = parts[0] if len(parts) == 1 else jnp.concatenate(parts, axis=-1)
    buffer = collective(buffer)
    start = 0
    for n, length in zip(numbers, ends):
      piece = buffer[:, start : start + length]
      moved[n] = piece.reshape(-1, *leaves[n].shape[lead:])
      start += length
  return moved
