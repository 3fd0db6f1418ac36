"""A mean of messages in two collectives: rows meet, and means are shared.

The rows of all messages are dealt out among the replicas. Each gets its share
of the rows of all others, and keeps their means, encoded again: what has met.
A second collective sends these to all.
"""

from collections.abc import Iterable, Sequence
import dataclasses
import math
from typing import Any

import jax
import jax.numpy as jnp

from dilojax import wire as wire_lib
from dilojax.transforms import _messages


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Met:
  """Means of the rows that a replica owns, between two collectives.

  Attributes:
    message: Arrays of the result's format. In a state they have as many rows
      as a single owner would need, of which the first are used.
    codec: Format of the result.
    unit: Values per row of the messages that met.
    rows: Number of rows of these messages together.
  """

  message: Any
  codec: wire_lib.Codec = dataclasses.field(metadata={'static': True})
  unit: int = dataclasses.field(metadata={'static': True})
  rows: int = dataclasses.field(metadata={'static': True})

  def num_values(self, count: int) -> int:
    """Returns the values that each of `count` owners has."""
    return -(-self.rows // count) * self.unit

  def own(self, count: int) -> Any:
    """Returns the rows in use, given the number of owners."""
    rows = -(-self.num_values(count) // self.codec.block_size)
    return jax.tree.map(lambda leaf: leaf[:rows], self.message)

  def padded(self) -> 'Met':
    """Returns it with as many rows as a state has place for."""
    rows = -(-self.num_values(1) // self.codec.block_size)
    message = jax.tree.map(lambda leaf: _padded(leaf, rows), self.message)
    return dataclasses.replace(self, message=message)


def meet(
  messages: Sequence[_messages.Encoded],
  groups: Sequence[Sequence[int]],
  names: Sequence[str],
  result: wire_lib.Codec | None,
  weight: jax.Array | None,
) -> tuple[Met, ...]:
  """Sends every replica its rows of all messages, of which it keeps means.

  Args:
    messages: Encoded leaves, all in one format.
    groups: Numbers of the leaves whose rows stand in one array.
    names: Names of the mapped axes.
    result: Format of the means, or None for that of the messages.
    weight: What this replica counts in a mean, or None.

  Returns:
    The means of the replica's rows, for each group.
  """
  [codec] = {each.codec for each in messages}
  weights = _messages.all_weights(names, weight)
  count = _messages.num_members(names)
  stacked = []
  for numbers in groups:
    rows = [messages[number].message for number in numbers]
    stacked.append(jax.tree.map(lambda *each: jnp.concatenate(each), *rows))
  totals = [len(jax.tree.leaves(each)[0]) for each in stacked]
  dealt = lambda leaf: _padded(leaf, -(-len(leaf) // count) * count).reshape(
    count, -1, *leaf.shape[1:]
  )
  parts, structure = jax.tree.flatten(jax.tree.map(dealt, stacked))
  arrived = jax.tree.unflatten(structure, _messages.to_owners(parts, names))
  met = []
  for message, total in zip(arrived, totals):
    back = result or codec
    one = Met((), back, codec.block_size, total)
    values = _messages.all_decoded(message, codec, (one.num_values(count),))
    mean = _messages.average(values, weights)
    key = _messages.key_of(mean, jax.random.key(0))
    met.append(dataclasses.replace(one, message=back.encode(mean, key)))
  return tuple(met)


def share(
  met: Sequence[Met],
  groups: Sequence[Sequence[int]],
  names: Sequence[str],
  shapes: Sequence[tuple[int, ...]],
) -> list[jax.Array]:
  """Sends the means that each replica has to all.

  Args:
    met: What has met.
    groups: Numbers of the leaves in it.
    names: Names of the mapped axes.
    shapes: Shapes of all leaves.

  Returns:
    The means of the leaves, in float32.
  """
  count = _messages.num_members(names)
  parts, structure = jax.tree.flatten([each.own(count) for each in met])
  arrived = jax.tree.unflatten(structure, _messages.to_all(parts, names))
  means: list[Any] = [None] * len(shapes)
  for message, each, numbers in zip(arrived, met, groups):
    shape = (each.num_values(count),)
    read = lambda own, each=each, shape=shape: each.codec.decode(own, shape)
    values, start = jax.vmap(read)(message).reshape(-1), 0
    for number in numbers:
      size = math.prod(shapes[number])
      means[number] = values[start : start + size].reshape(shapes[number])
      start += -(-size // each.unit) * each.unit
  return means


def place(
  leaves: Sequence[Any],
  codec: wire_lib.Codec,
  result: wire_lib.Codec | None,
) -> tuple[Met, ...]:
  """Returns room for what meets of some leaves, whatever the number of owners.

  Args:
    leaves: Leaves of one group, or their abstract forms.
    codec: Format of their messages.
    result: Format of the means, or None for the same.
  """
  result = result or codec
  rows = sum(-(-leaf.size // codec.block_size) for leaf in leaves)
  met = Met((), result, codec.block_size, rows)
  values = jnp.zeros(met.num_values(1), jnp.float32)
  form = jax.eval_shape(result.encode, values, jax.random.key(0))
  zeros = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), form)
  return (dataclasses.replace(met, message=zeros),)


def grouped(leaves: Iterable[Any], names: Sequence[str]) -> list[list[int]]:
  """Groups leaves by the axes besides `names` along which they vary.

  Rows of the others cannot stand in one array, where they are cut along axes
  inside a replica.
  """
  found: dict[Any, list[int]] = {}
  for number, leaf in enumerate(leaves):
    varying = jax.typeof(leaf).manual_axis_type.varying
    found.setdefault(frozenset(varying) - set(names), []).append(number)
  return list(found.values())


def _padded(leaf, rows):
  missing = rows - leaf.shape[0]
  return jnp.pad(leaf, [(0, missing)] + [(0, 0)] * (leaf.ndim - 1))
