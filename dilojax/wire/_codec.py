"""What every wire format is: blocks in, rows of bytes out, and back."""

from collections.abc import Callable, Sequence
import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from dilojax.wire import _bits

# Blocks below are sent as zeros: some devices flush what is below 2**-126, and
# the smallest magnitude of every format has to stay above that.
TINY = 2.0**-118
ROUNDINGS = ('nearest', 'stochastic')


class Codec(NamedTuple):
  """A wire format: how an array travels.

  The values of an array are flattened in C order and padded with zeros to
  whole blocks. A block becomes a row: the leading axis of every array of a
  message counts blocks, and each row decodes on its own. Rows of zero bytes
  decode to zeros.

  Attributes:
    name: The name of the format.
    encode: Function of an array, and of a key where the format draws random
      numbers. It returns the message, a pytree of arrays as they travel.
    decode: Function of a message and a shape. It returns float32 values and
      drops the padding.
    nbytes: Function of a shape. It returns the exact size of the message.
    block_size: Number of values per block.
  """

  name: str
  encode: Callable[..., Any]
  decode: Callable[[Any, Sequence[int]], jax.Array]
  nbytes: Callable[[Sequence[int]], int]
  block_size: int


def make(
  name: str,
  block_size: int,
  row_nbytes: int,
  encode_rows: Callable[[jax.Array, Any, int], Any],
  decode_rows: Callable[[Any], jax.Array],
  *,
  needs_key: bool = False,
) -> Codec:
  """Makes a codec of functions that work on rows.

  Args:
    name: The name of the format.
    block_size: Number of values per block.
    row_nbytes: Number of bytes of a row of the message.
    encode_rows: Function of float32 values of shape (blocks, block_size), the
      key, and how many values there are without the padding.
    decode_rows: Function of a message. It returns values of that shape.
    needs_key: Whether `encode` draws random numbers.

  Returns:
    The codec.
  """

  def encode(x, key=None):
    if needs_key and key is None:
      raise ValueError(
        f'`key` must be a key for the random numbers of `{name}`, got None:'
        ' pass one from `jax.random.key`.'
      )
    x = jnp.asarray(x)
    if jnp.issubdtype(x.dtype, jnp.complexfloating):
      raise ValueError(
        f'`x` must be real, got {x.dtype}: `{name}` would lose the imaginary'
        ' part. Encode both parts as real arrays.'
      )
    flat = x.astype(jnp.float32).reshape(-1)
    size = flat.size
    padding = -size % block_size
    if padding:
      flat = jnp.pad(flat, (0, padding))
    rows = flat.reshape(flat.size // block_size, block_size)
    return encode_rows(rows, key, size)

  def decode(message, shape):
    size = math.prod(shape)
    found = len(jax.tree.leaves(message)[0]) * block_size
    if size > found:
      raise ValueError(
        f'`shape` {tuple(shape)} has {size} values, but the message holds at'
        f' most {found}: give the shape that was encoded.'
      )
    flat = decode_rows(message).reshape(-1)
    return (flat[:size] if size < found else flat).reshape(shape)

  def nbytes(shape):
    return -(-math.prod(shape) // block_size) * row_nbytes

  return Codec(name, encode, decode, nbytes, block_size)


def check_block_size(block_size: int, largest: int | None = None) -> None:
  """Refuses what is not a number of values."""
  allowed = 'an int, at least 1' + (f', at most {largest}' if largest else '')
  is_int = isinstance(block_size, int) and not isinstance(block_size, bool)
  if not is_int or not 1 <= block_size <= (largest or block_size):
    raise ValueError(f'`block_size` must be {allowed}, got {block_size!r}.')


def check_choice(name: str, value: Any, allowed: Sequence[str]) -> None:
  """Refuses what is not among the choices."""
  if value not in allowed:
    choices = ', '.join(map(repr, allowed))
    raise ValueError(f'`{name}` must be one of {choices}, got {value!r}.')


def peak(rows: jax.Array) -> jax.Array:
  """Returns the largest magnitude of each block, or 0 where it is tiny.

  It is NaN where a value is not finite, so that the scale will be too.
  """
  largest = jnp.max(jnp.abs(rows), axis=1, keepdims=True, initial=0)
  largest = jnp.where(largest < TINY, 0.0, largest)
  return jnp.where(largest == jnp.inf, jnp.nan, largest)


def scale_bits(
  scale: jax.Array, *, largest: int = 1, up: bool = False
) -> jax.Array:
  """Returns one bfloat16 per block, as it travels.

  Args:
    scale: Scales of the blocks, in a column.
    largest: What the scale is multiplied by at most. Where that product would
      be tiny the scale is 0, so that what was decoded has the same scale, and
      it never overflows: that makes values above 3.37e38 saturate.
    up: Rounds up, instead of to the nearest.
  """
  most = np.float32(jnp.finfo(jnp.float32).max / largest)
  most = jnp.uint16(most.view(np.uint32) >> 16)
  bits = _bits.narrow(scale[:, 0], 'bfloat16', up=up)
  bits = jnp.where(jnp.isnan(scale[:, 0]), bits, jnp.minimum(bits, most))
  is_tiny = scale_of(bits)[:, 0] * largest < TINY
  return jnp.where(is_tiny, jnp.uint16(0), bits)


def scale_of(bits: jax.Array) -> jax.Array:
  """Returns the scales of the blocks, in a column."""
  return _bits.widen(bits, 'bfloat16')[:, None]


def divide(rows: jax.Array, scale: jax.Array) -> jax.Array:
  """Divides each block by its scale, and blocks of scale 0 by 1.

  The relative error is at most 2**-23, and 0 for powers of two.
  """
  # Compilers multiply by the reciprocal instead, which vanishes for a large
  # scale. So a power of two goes first, whose reciprocal is a normal number.
  scale = jnp.where(scale < 2.0**-126, 1.0, scale)
  power = jnp.minimum(_bits.bits_of(scale) & 0x7F800000, 0x7E800000)
  reciprocal = _bits.float_of(0x7F000000 - power)
  return rows * reciprocal * (1.0 / (scale * reciprocal))


def is_valid(rows: jax.Array, size: int) -> jax.Array:
  """Tells which values of the blocks are not padding."""
  num_rows, block_size = rows.shape
  if size == rows.size:
    return jnp.ones(rows.shape, bool)  # Costs nothing.
  row = jax.lax.broadcasted_iota(jnp.int32, rows.shape, 0)
  column = jax.lax.broadcasted_iota(jnp.int32, rows.shape, 1)
  in_last = size - (num_rows - 1) * block_size
  return (row < num_rows - 1) | (column < in_last)
