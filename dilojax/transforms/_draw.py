"""Random entries of arrays, drawn without looking at all of them."""

from collections.abc import Sequence
import itertools
import math

import jax
import jax.numpy as jnp
import numpy as np

PATTERNS = ('independent', 'partition', 'fresh_partition')
NUM_ROUNDS = 8
# Odd multipliers of a common integer hash.
_FIRST, _SECOND = np.uint32(0x85EBCA6B), np.uint32(0xC2B2AE35)


def num_drawn(size: int, fraction: float, pattern: str) -> int:
  """Returns how many entries of a leaf are drawn, at least 1 if it has any."""
  if pattern == 'independent':
    return min(size, max(1, round(fraction * size)))
  return -(-size // num_parts(fraction))


def num_parts(fraction: float) -> int:
  """Returns the number of parts of a partition."""
  # A third of ten is not to have a part for what floats miss.
  return math.ceil(1 / fraction - 1e-9)


def entries(
  key: jax.Array,
  number: int | jax.Array,
  sizes: Sequence[int],
  fraction: float,
  pattern: str,
) -> list[jax.Array | None]:
  """Returns the entries of a draw, or None for all in order, of each leaf.

  Args:
    key: Key of all draws.
    number: Number of this draw, from 0.
    sizes: Numbers of entries of the leaves.
    fraction: Share of the entries.
    pattern: How they are drawn.

  Returns:
    Different int32 numbers for each leaf. A last part may be shorter: it is
    filled up with the leaf's size.
  """
  counts = [num_drawn(size, fraction, pattern) for size in sizes]
  if pattern == 'independent':
    key, part = jax.random.fold_in(key, number), 0
    chosen = [n for n, size in enumerate(sizes) if counts[n] < size]
  else:
    parts = num_parts(fraction)
    part = number % parts
    if pattern == 'fresh_partition':
      key = jax.random.fold_in(key, number // parts)
    chosen = [n for n, size in enumerate(sizes) if parts > 1 and size]
  found: list[jax.Array | None] = [None] * len(sizes)
  if chosen:
    of = lambda values: [values[n] for n in chosen]
    positions = [part * count + jnp.arange(count) for count in of(counts)]
    for n, drawn in zip(chosen, shuffled(key, positions, of(sizes))):
      found[n] = drawn
  return found


def shuffled(
  key: jax.Array, positions: Sequence[jax.Array], sizes: Sequence[int]
) -> list[jax.Array]:
  r"""Returns where random permutations, one per leaf, put some positions.

  The cost is that of the positions, not of the sizes: to sort ten million
  entries in every inner step would cost more than the step. A Feistel network
  permutes the numbers below a power of two; what leaves the range goes through
  it again until it is back. The turn at the end makes each entry exactly as
  likely as any other.

  Args:
    key: Key of the permutations.
    positions: Different int32 numbers for each leaf.
    sizes: Numbers of entries, from 1 to :math:`2^{31} - 1`.

  Returns:
    Different int32 entries for each leaf; for positions from its size on,
    that size.
  """
  key_network, key_turn = jax.random.split(key)
  bits = np.array([max(2, (size - 1).bit_length()) for size in sizes])
  # One network for all leaves: one for each would take long to compile.
  leaf = jnp.concatenate(
    [jnp.full(each.shape, n) for n, each in enumerate(positions)]
  )
  seeds = jax.random.bits(key_network, (NUM_ROUNDS, len(sizes)), jnp.uint32)
  turns = jax.random.randint(key_turn, (len(sizes),), 0, np.array(sizes))
  here = lambda values: jnp.asarray(values, jnp.uint32)[leaf]
  size, shift = here(np.array(sizes)), here(bits // 2)
  low_mask, high_mask = (
    here(2 ** (bits // 2) - 1),
    here(2 ** (-(-bits // 2)) - 1),
  )

  def mixed(pair, halves):
    low, high = halves
    high ^= _hashed(low ^ seeds[2 * pair][leaf]) & high_mask
    low ^= _hashed(high ^ seeds[2 * pair + 1][leaf]) & low_mask
    return low, high

  def again(carry):
    numbers, is_back = carry
    low, high = jax.lax.fori_loop(
      0, NUM_ROUNDS // 2, mixed, (numbers & low_mask, numbers >> shift)
    )
    numbers = jnp.where(is_back, numbers, (high << shift) | low)
    return numbers, numbers < size

  start = jnp.concatenate(list(positions)).astype(jnp.uint32)
  inside = start < size
  # A stranger would never come back.
  carry = jnp.where(inside, start, 0), jnp.zeros_like(inside)
  numbers, _ = jax.lax.while_loop(
    lambda carry: ~jnp.all(carry[1]), again, carry
  )
  numbers = jnp.where(inside, (numbers + here(turns)) % size, size)
  ends = list(itertools.accumulate(each.size for each in positions))
  return jnp.split(numbers.astype(jnp.int32), ends[:-1])


def take(leaf: jax.Array, entries: jax.Array | None) -> jax.Array:
  """Returns the values of some entries; 0 where there is no such entry."""
  if entries is None:
    return leaf.reshape(-1)
  # Along its own axes: flat, it would be gathered inside a replica.
  leaf = leaf if leaf.ndim else leaf[None]
  index = _coordinates(entries, leaf.shape)
  return leaf.at[index].get(mode='fill', fill_value=0)


def put(
  leaf: jax.Array, entries: jax.Array | None, values: jax.Array
) -> jax.Array:
  """Sets some entries, and drops what there is no entry for."""
  if entries is None:
    return values.reshape(leaf.shape)
  lifted = leaf if leaf.ndim else leaf[None]
  index = _coordinates(entries, lifted.shape)
  return lifted.at[index].set(values, mode='drop').reshape(leaf.shape)


def _coordinates(
  entries: jax.Array, shape: Sequence[int]
) -> tuple[jax.Array, ...]:
  """Returns the indices of entries along each axis of an array.

  Unlike :func:`jax.numpy.unravel_index` it leaves the first index out of range
  where the entry is, so that it is dropped.
  """
  found = []
  for length in reversed(shape[1:]):
    entries, index = jnp.divmod(entries, length)
    found.append(index)
  return (entries, *reversed(found))


def _hashed(numbers):
  numbers ^= numbers >> np.uint32(16)
  numbers *= _FIRST
  numbers ^= numbers >> np.uint32(13)
  numbers *= _SECOND
  return numbers ^ (numbers >> np.uint32(16))
