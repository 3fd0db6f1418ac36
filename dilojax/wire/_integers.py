"""Integers: evenly spaced levels around zero."""

import functools

import jax.numpy as jnp

from dilojax.wire import _bits
from dilojax.wire import _codebook
from dilojax.wire import _codec

_LEVELS = ('uniform', 'codebook')
_CODEBOOK_BLOCK = 65_536


def int8(
  block_size: int | None = None,
  rounding: str = 'nearest',
  levels: str = 'uniform',
) -> _codec.Codec:
  r"""Returns an 8-bit integer format.

  With uniform levels a value becomes a multiple, from -127 to 127, of the step
  :math:`s` of its block, which is its largest magnitude over 127, rounded to
  bfloat16. The error is at most

  .. math::

    s / 2, \quad\text{stochastic: } s,

  and :math:`s` is at most :math:`1 + 2^{-7}` times that quotient. Bytes per
  value: 1, and 2 for each block. Encoding what was decoded gives the same
  message (nearest). Blocks below :math:`2^{-118}` become zeros, values above
  :math:`3.37 \cdot 10^{38}` saturate, and blocks with a value that is not
  finite become NaN.

  With levels from a codebook it is :func:`statistical` with 8 bits: 256
  buckets over 6 standard deviations to both sides of the mean, each decoded to
  the mean of its members, for 1 byte per value and 1024 for each block.

  Args:
    block_size: Number of values that share a step or a codebook. The default
      is 256 with uniform levels, 65536 with a codebook.
    rounding: 'nearest', or 'stochastic', for which `encode` needs a key, and
      levels have to be uniform. Stochastic rounding is right on average.
    levels: 'uniform' or 'codebook'.

  Returns:
    A :class:`Codec`.

  Raises:
    ValueError: If an argument is out of range.

  Examples:
    >>> import jax.numpy as jnp
    >>> from dilojax import wire
    >>> codec = wire.int8(block_size=4)
    >>> message = codec.encode(jnp.array([127.0, -3.4, 0.0, 0.6]))
    >>> print(codec.decode(message, (4,)), codec.nbytes((4,)))
    [127.  -3.   0.   1.] 6

  References:
    Jaghouar et al., `INTELLECT-1 Technical Report
    <https://arxiv.org/abs/2412.01152>`_, 2024

  .. note::
    The paper has the codebook, without the size of a block; its code takes 3
    root mean squares around zero instead. The uniform levels are ours.
  """
  _codec.check_choice('levels', levels, _LEVELS)
  _codec.check_choice('rounding', rounding, _codec.ROUNDINGS)
  if levels == 'codebook':
    if rounding != 'nearest':
      raise ValueError(
        f"`rounding` must be 'nearest' with a codebook, got {rounding!r}:"
        " choose that, or `levels='uniform'`."
      )
    block_size = _CODEBOOK_BLOCK if block_size is None else block_size
    _codec.check_block_size(block_size)
    return _codebook.codebook('int8', 8, block_size)
  block_size = 256 if block_size is None else block_size
  _codec.check_block_size(block_size)
  return _integers('int8', 8, block_size, rounding)


def int4(block_size: int = 128, rounding: str = 'nearest') -> _codec.Codec:
  r"""Returns a 4-bit integer format.

  A value becomes a multiple, from -7 to 7, of the step :math:`s` of its block,
  which is its largest magnitude over 7, rounded to bfloat16. The error is at
  most

  .. math::

    s / 2, \quad\text{stochastic: } s,

  and :math:`s` is at most :math:`1 + 2^{-7}` times that quotient. Two values
  share a byte, one of the first half of the block and one of the second. Bytes
  per value: 1/2, and 2 for each block. Encoding what was decoded gives the
  same message (nearest). Blocks below :math:`2^{-118}` become zeros, values
  above :math:`3.37 \cdot 10^{38}` saturate, and blocks with a value that is not
  finite become NaN.

  Args:
    block_size: Number of values that share a step.
    rounding: 'nearest', or 'stochastic', for which `encode` needs a key.
      Stochastic rounding is right on average.

  Returns:
    A :class:`Codec`.

  Raises:
    ValueError: If an argument is out of range.

  Examples:
    >>> import jax.numpy as jnp
    >>> from dilojax import wire
    >>> codec = wire.int4(block_size=4)
    >>> message = codec.encode(jnp.array([7.0, -3.4, 0.0, 0.6]))
    >>> print(codec.decode(message, (4,)), codec.nbytes((4,)))
    [ 7. -3.  0.  1.] 4

  References:
    Thérien et al., `MuLoCo: Muon is a practical inner optimizer for DiLoCo
    <https://arxiv.org/abs/2505.23725>`_, 2025

  .. note::
    The paper's *linear* quantizer is uniform over the range of values. Blocks,
    and levels that are symmetric around zero, are ours.
  """
  _codec.check_block_size(block_size)
  _codec.check_choice('rounding', rounding, _codec.ROUNDINGS)
  return _integers('int4', 4, block_size, rounding)


@functools.cache
def _integers(name, bits, block_size, rounding):
  stochastic = rounding == 'stochastic'
  largest = 2 ** (bits - 1) - 1
  sign_bit = 1 << (bits - 1)

  def encode_rows(rows, key, _):
    # Rounded to the nearest, the step of what was decoded is the same: the
    # largest value is `largest` steps then, exactly, for a short step.
    step = _codec.peak(rows) / largest
    scale = _codec.scale_bits(step, largest=largest, up=stochastic)
    ratio = _codec.divide(rows, _codec.scale_of(scale))
    if stochastic:
      ratio = _bits.apart(ratio)
      below = jnp.floor(ratio)
      level = below + (_bits.uniform(key, rows.shape) < ratio - below)
    else:
      level = jnp.round(ratio)
    level = jnp.clip(level, -largest, largest).astype(jnp.int32)
    codes = level.astype(jnp.uint32) & ((1 << bits) - 1)
    return {'codes': _bits.pack(codes, bits), 'scale': scale}

  def decode_rows(message):
    codes = _bits.unpack(message['codes'], bits, block_size)
    level = (codes ^ sign_bit).astype(jnp.int32) - sign_bit
    return level.astype(jnp.float32) * _codec.scale_of(message['scale'])

  return _codec.make(
    name,
    block_size,
    _bits.packed_nbytes(block_size, bits) + 2,
    encode_rows,
    decode_rows,
    needs_key=stochastic,
  )
