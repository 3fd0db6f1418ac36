"""Bits: narrow floats, scales, random fractions, and packed codes."""

import jax
import jax.numpy as jnp
import numpy as np

# Floats.


def bits_of(x: jax.Array) -> jax.Array:
  """Returns the bits of float32 values, as uint32."""
  return jax.lax.bitcast_convert_type(x, jnp.uint32)


def float_of(bits: jax.Array) -> jax.Array:
  """Returns the float32 values of bits in uint32."""
  return jax.lax.bitcast_convert_type(bits, jnp.float32)


def apart(x: jax.Array) -> jax.Array:
  """Keeps a product apart from a sum that it enters, at the price of a bit.

  Compilers fuse the two where they meet, without a rounding in between. The
  sum then has different bits in different places.
  """
  return float_of(bits_of(x) & jnp.uint32(0xFFFFFFFE))


def narrow(x: jax.Array, dtype: str, *, up: bool = False) -> jax.Array:
  """Rounds float32 values to a narrower float, and returns its bits.

  What is finite stays finite: it saturates. The rounding is written with
  integers, since a compiler may drop a conversion to a narrow float and back,
  and with it the rounding.

  Args:
    x: Float32 values.
    dtype: Name of a float type of 8 or 16 bits.
    up: Rounds away from zero, instead of to the nearest with ties to even.

  Returns:
    The bits, as unsigned integers of the same width.
  """
  info = jnp.finfo(dtype)
  shift = 23 - info.nmant
  code = lambda value: int(np.array(value, info.dtype).view(f'u{width}'))
  width = info.bits // 8
  largest, inf, nan = code(info.max), code(np.inf), code(np.nan)

  bits = bits_of(x)
  sign = bits >> 31 << (info.bits - 1)
  bits = bits & 0x7FFFFFFF
  half = (1 << (shift - 1)) - 1 + (bits >> shift & 1)
  rounding = jnp.uint32((1 << shift) - 1) if up else half
  bias = 1 - info.minexp
  rounded = (bits + rounding >> shift) - ((127 - bias) << info.nmant)
  if bias < 127:  # Below its normal range, a type is a grid of fixed steps.
    step = float(info.smallest_normal) * 2.0**-info.nmant
    steps = jnp.minimum(jnp.abs(x) / step, 2.0**info.nmant)
    on_grid = (jnp.ceil if up else jnp.round)(steps).astype(jnp.uint32)
    is_normal = bits >= bits_of(jnp.float32(info.smallest_normal))
    rounded = jnp.where(is_normal, rounded, on_grid)
  rounded = jnp.minimum(rounded, largest)
  special = jnp.where(bits == 0x7F800000, jnp.uint32(inf), jnp.uint32(nan))
  rounded = jnp.where(bits < 0x7F800000, rounded, special)
  return (rounded | sign).astype(f'uint{info.bits}')


def widen(bits: jax.Array, dtype: str) -> jax.Array:
  """Returns the float32 values of bits from `narrow`."""
  return jax.lax.bitcast_convert_type(bits, dtype).astype(jnp.float32)


def uniform(key: jax.Array, shape: tuple[int, ...]) -> jax.Array:
  """Draws from [0, 1), in steps of 2**-24."""
  bits = jax.random.bits(key, shape, jnp.uint32) >> 8
  return bits.astype(jnp.float32) * 2.0**-24


# Packing.


def packed_nbytes(num_codes: int, bits: int) -> int:
  """Returns how many bytes a row of codes packs into."""
  return sum(-(-num_codes * width // 8) for width, _ in _pieces(bits))


def pack(codes: jax.Array, bits: int) -> jax.Array:
  """Packs rows of codes of 1 to 16 bits, in uint32, into rows of bytes.

  A code is cut into pieces of 8, 4, 2 and 1 bits, so 12 bits are 8 and 4. A
  byte takes its pieces from equally long sections of the row: the first half
  and the second half for 4 bits. That keeps access contiguous.
  """
  parts = []
  for width, shift in _pieces(bits):
    piece = (codes >> shift) & ((1 << width) - 1)
    per_byte = 8 // width
    padding = -piece.shape[1] % per_byte
    if padding:
      piece = jnp.pad(piece, ((0, 0), (0, padding)))
    first, *others = jnp.split(piece, per_byte, axis=1)
    for i, section in enumerate(others, start=1):
      first |= section << (i * width)
    parts.append(first.astype(jnp.uint8))
  return parts[0] if len(parts) == 1 else jnp.concatenate(parts, axis=1)


def unpack(packed: jax.Array, bits: int, num_codes: int) -> jax.Array:
  """Returns the rows of codes, in uint32, that `pack` packed."""
  codes, begin = jnp.uint32(0), 0
  for width, shift in _pieces(bits):
    end = begin + -(-num_codes * width // 8)
    part = packed[:, begin:end].astype(jnp.uint32)
    begin = end
    shifts = jnp.arange(0, 8, width, dtype=jnp.uint32)[None, :, None]
    # A broadcast, and not a concatenation, which would be copied in pieces.
    piece = (part[:, None, :] >> shifts) & ((1 << width) - 1)
    piece = piece.reshape(len(packed), (8 // width) * part.shape[1])
    piece = piece[:, :num_codes]
    codes |= piece << shift
  return codes


def _pieces(bits):
  """Returns width and position of the pieces of a code, highest first."""
  pieces = []
  for width in (8, 8, 4, 2, 1):
    if width <= bits:
      bits -= width
      pieces.append((width, bits))
  return pieces
