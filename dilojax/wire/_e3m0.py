"""Four bits: a sign and an exponent."""

import functools

import jax
import jax.numpy as jnp

from dilojax.wire import _bits
from dilojax.wire import _codec


def e3m0(block_size: int = 256, rounding: str = 'nearest') -> _codec.Codec:
  r"""Returns the 4-bit format of Streaming DiLoCo: sign and exponent.

  With :math:`s` the largest magnitude of a block, rounded to bfloat16, a value
  becomes 0 or

  .. math::

    \pm s\, 2^{f - 7}, \quad f = 1, \dots, 7,

  whichever is nearest. A tie goes to the even exponent field :math:`f`, where
  0 has the field 0. With stochastic rounding it becomes one of its two
  neighbors, so that it is right on average. Two values share a byte, one of
  the first half of the block and one of the second.

  The error of a value :math:`v` is at most

  .. math::

    \max(|v| / 3,\, s\, 2^{-7}), \quad\text{stochastic: }
    \max(|v|,\, s\, 2^{-6}),

  and :math:`s` is at most :math:`1 + 2^{-7}` times the largest magnitude.
  Bytes per value: 1/2, and 2 for each block. Encoding what was decoded gives
  the same message (nearest). Blocks below :math:`2^{-118}` become zeros, and
  blocks with a value that is not finite become NaN.

  Args:
    block_size: Number of values that share a scale.
    rounding: 'nearest', or 'stochastic', for which `encode` needs a key.

  Returns:
    A :class:`Codec`.

  Raises:
    ValueError: If an argument is out of range.

  Examples:
    >>> import jax.numpy as jnp
    >>> from dilojax import wire
    >>> codec = wire.e3m0(block_size=4)
    >>> message = codec.encode(jnp.array([4.0, -1.2, 0.0, 0.5]))
    >>> print(codec.decode(message, (4,)), codec.nbytes((4,)))
    [ 4.  -1.   0.   0.5] 4

  References:
    Douillard et al., `Streaming DiLoCo with overlapping communication
    <https://arxiv.org/abs/2501.18512>`_, 2025

  .. note::
    The paper publishes the format alone. Scale, blocks, zero, and rounding
    are our reconstruction.
  """
  _codec.check_block_size(block_size)
  _codec.check_choice('rounding', rounding, _codec.ROUNDINGS)
  return _e3m0(block_size, rounding)


@functools.cache
def _e3m0(block_size, rounding):
  stochastic = rounding == 'stochastic'

  def encode_rows(rows, key, _):
    # Rounded up, nothing exceeds the scale, where no neighbor is above.
    scale = _codec.scale_bits(_codec.peak(rows), up=stochastic)
    ratio = jnp.abs(_codec.divide(rows, _codec.scale_of(scale)))
    if stochastic:
      field = _stochastic_field(ratio, key)
    else:
      field = _nearest_field(ratio)
    is_negative = (rows < 0) & (field > 0)
    codes = field | jnp.where(is_negative, jnp.uint32(8), jnp.uint32(0))
    return {'codes': _bits.pack(codes, 4), 'scale': scale}

  def decode_rows(message):
    codes = _bits.unpack(message['codes'], 4, block_size)
    field = codes & 7
    power = jnp.where(field > 0, (field + 120) << 23, jnp.uint32(0))
    signed = _bits.float_of(power | (codes >> 3) << 31)
    return signed * _codec.scale_of(message['scale'])

  return _codec.make(
    'e3m0',
    block_size,
    _bits.packed_nbytes(block_size, 4) + 2,
    encode_rows,
    decode_rows,
    needs_key=stochastic,
  )


def _nearest_field(ratio):
  """Rounds ratios to powers of two, with integers: fields 1 to 7, and 0."""
  bits = _bits.bits_of(ratio)
  rounded = bits + 0x3FFFFF + (bits >> 23 & 1) >> 23
  field = jnp.maximum(rounded, 120) - 120
  # Below the smallest power the grid is even: the tie is half of it.
  field = jnp.where(ratio > 2.0**-7, jnp.maximum(field, 1), 0)
  return jnp.minimum(field, 7)


def _stochastic_field(ratio, key):
  """Rounds to a neighbor, to the upper one by the share of the way to it."""
  draws = jax.random.bits(key, ratio.shape, jnp.uint32) >> 9
  field = (_bits.bits_of(ratio) + draws >> 23) - 120
  rises = draws.astype(jnp.float32) * 2.0**-23 < ratio * 2.0**6
  field = jnp.where(ratio < 2.0**-6, rises.astype(jnp.uint32), field)
  return jnp.minimum(field, 7)
