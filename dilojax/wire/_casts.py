"""Casts: each value on its own, or with a power of two per block."""

import functools

import jax.numpy as jnp

from dilojax.wire import _bits
from dilojax.wire import _codec

_LARGEST_FLOAT8 = 240.0


@functools.cache
def float32() -> _codec.Codec:
  """Returns the format that changes nothing.

  Bytes per value: 4. The error is 0, and encoding what was decoded gives the
  same message.

  Returns:
    A :class:`Codec`, with blocks of one value.

  Examples:
    >>> import jax.numpy as jnp
    >>> from dilojax import wire
    >>> codec = wire.float32()
    >>> print(codec.decode(codec.encode(jnp.array([0.1])), (1,)))
    [0.1]
  """
  encode_rows = lambda rows, *_: {'values': rows[:, 0]}
  decode_rows = lambda message: message['values']
  return _codec.make('float32', 1, 4, encode_rows, decode_rows)


@functools.cache
def bfloat16() -> _codec.Codec:
  r"""Returns a cast to bfloat16.

  Rounds to the nearest, ties to even, and saturates at :math:`3.39 \cdot
  10^{38}`. The error of a value :math:`v` is at most :math:`2^{-8} |v|`, plus
  :math:`2^{-126}` where a device flushes small values. Bytes per value: 2, as
  bits in uint16. Encoding what was decoded gives the same message. Infinities
  and NaN arrive as they are.

  Returns:
    A :class:`Codec`, with blocks of one value.

  Examples:
    >>> import jax.numpy as jnp
    >>> from dilojax import wire
    >>> codec = wire.bfloat16()
    >>> print(codec.decode(codec.encode(jnp.array([1.01])), (1,)))
    [1.0078125]

  References:
    Douillard et al., `Streaming DiLoCo with overlapping communication
    <https://arxiv.org/abs/2501.18512>`_, 2025
  """
  return _cast('bfloat16')


@functools.cache
def float16() -> _codec.Codec:
  r"""Returns a cast to float16, which saturates.

  Rounds to the nearest, ties to even. The error of a value :math:`v` is at
  most :math:`\max(2^{-11} |v|, 2^{-25})` up to 65504 and a little above; what
  is larger becomes 65504. Bytes per value: 2, as bits in uint16. Encoding what
  was decoded gives the same message. Infinities and NaN arrive as they are.

  Returns:
    A :class:`Codec`, with blocks of one value.

  Examples:
    >>> import jax.numpy as jnp
    >>> from dilojax import wire
    >>> codec = wire.float16()
    >>> print(codec.decode(codec.encode(jnp.array([0.5, -1e6])), (2,)))
    [ 5.0000e-01 -6.5504e+04]

  References:
    Jaghouar et al., `OpenDiLoCo: An Open-Source Framework for Globally
    Distributed Low-Communication Training
    <https://arxiv.org/abs/2407.07852>`_, 2024

  .. note::
    The reference sends float16. That large values saturate is ours.
  """
  return _cast('float16')


def _cast(dtype):
  encode_rows = lambda rows, *_: {'values': _bits.narrow(rows[:, 0], dtype)}
  decode_rows = lambda message: _bits.widen(message['values'], dtype)
  return _codec.make(dtype, 1, 2, encode_rows, decode_rows)


def float8(block_size: int = 256) -> _codec.Codec:
  r"""Returns a cast to float8 (e4m3fn), with a power of two per block.

  A block is divided by the power of two :math:`s` that brings its largest
  magnitude :math:`M` to at least 128 and less than 256, and saturates at 240,
  the largest float below. The error of a value :math:`v` is at most

  .. math::

    \max(2^{-4} |v|,\, 2^{-16} M).

  Bytes per value: 1, and 1 for each block, the exponent of :math:`s`. Encoding
  what was decoded gives the same message. Blocks below :math:`2^{-118}` become
  zeros, and blocks with a value that is not finite become NaN.

  Args:
    block_size: Number of values that share a scale.

  Returns:
    A :class:`Codec`.

  Raises:
    ValueError: If `block_size` is out of range.

  Examples:
    >>> import jax.numpy as jnp
    >>> from dilojax import wire
    >>> codec = wire.float8(block_size=4)
    >>> message = codec.encode(jnp.array([1e6, -1.1e5, 0.0, 2e4]))
    >>> print(codec.decode(message, (4,)), codec.nbytes((4,)))
    [ 983040. -106496.       0.   20480.] 5

  References:
    Douillard et al., `Streaming DiLoCo with overlapping communication
    <https://arxiv.org/abs/2501.18512>`_, 2025

  .. note::
    The paper sends float8 among other formats and publishes no details. The
    scale is our reconstruction.
  """
  _codec.check_block_size(block_size)
  return _float8(block_size)


@functools.cache
def _float8(block_size):
  def encode_rows(rows, *_):
    peak = _codec.peak(rows)[:, 0]
    exponent = jnp.where(peak > 0, (_bits.bits_of(peak) >> 23) - 7, 0)
    exponent = jnp.where(jnp.isnan(peak), 255, exponent).astype(jnp.uint8)
    ratio = _codec.divide(rows, _power(exponent))
    # With 256 the scale of what was decoded would be another, or infinite.
    ratio = jnp.clip(ratio, -_LARGEST_FLOAT8, _LARGEST_FLOAT8)
    values = _bits.narrow(ratio, 'float8_e4m3fn')
    return {'exponent': exponent, 'values': values}

  def decode_rows(message):
    values = _bits.widen(message['values'], 'float8_e4m3fn')
    return values * _power(message['exponent'])

  return _codec.make(
    'float8', block_size, block_size + 1, encode_rows, decode_rows
  )


def _power(exponent):
  """Returns 2**(exponent - 127), and 0 for 0, in a column."""
  return _bits.float_of(exponent.astype(jnp.uint32) << 23)[:, None]
