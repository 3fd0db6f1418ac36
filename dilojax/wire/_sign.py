"""One bit: the sign, and one magnitude for all."""

import functools

import jax.numpy as jnp

from dilojax.wire import _bits
from dilojax.wire import _codec


def sign(block_size: int = 1024) -> _codec.Codec:
  r"""Returns the 1-bit format: signs, and the mean magnitude of each block.

  .. math::

    \hat v_i = m\, \mathrm{sign}(v_i), \quad
    m = \tfrac{1}{n} \sum_i |v_i| \text{ rounded to bfloat16},

  with :math:`\mathrm{sign}(0) = 1` unless the whole block is 0. The error of a
  value is :math:`\big| |v_i| - m \big|`, and without the rounding

  .. math::

    \|\hat v - v\|^2 = \|v\|_2^2 - \|v\|_1^2 / n \le (1 - 1/n) \|v\|_2^2 .

  It wants error feedback. Bytes per value: 1/8, and 2 for each block. Encoding
  what was decoded gives the same message. Blocks below :math:`2^{-118}` become
  zeros, and blocks with a value that is not finite become NaN.

  Args:
    block_size: Number of values that share a magnitude.

  Returns:
    A :class:`Codec`.

  Raises:
    ValueError: If `block_size` is out of range.

  Examples:
    >>> import jax.numpy as jnp
    >>> from dilojax import wire
    >>> codec = wire.sign(block_size=8)
    >>> message = codec.encode(jnp.array([1.0, -3.0, 2.0, -2.0]))
    >>> print(codec.decode(message, (4,)), codec.nbytes((4,)))
    [ 2. -2.  2. -2.] 3

  References:
    Karimireddy et al., `Error Feedback Fixes SignSGD and other Gradient
    Compression Schemes <https://arxiv.org/abs/1901.09847>`_, 2019

  .. note::
    The paper takes one magnitude per layer. Blocks are ours.
  """
  _codec.check_block_size(block_size)
  return _sign(block_size)


@functools.cache
def _sign(block_size):
  def encode_rows(rows, _, size):
    peak = _codec.peak(rows)
    count = jnp.sum(
      _codec.is_valid(rows, size), axis=1, keepdims=True, dtype=jnp.float32
    )
    # In units of the peak the sum neither overflows nor underflows.
    unit = jnp.abs(_codec.divide(rows, peak))
    mean = jnp.sum(unit, axis=1, keepdims=True) / jnp.maximum(count, 1)
    scale = _codec.scale_bits(jnp.minimum(mean, 1.0) * peak)
    is_negative = (rows < 0) & (scale > 0)[:, None]
    codes = _bits.pack(is_negative.astype(jnp.uint32), 1)
    return {'codes': codes, 'scale': scale}

  def decode_rows(message):
    codes = _bits.unpack(message['codes'], 1, block_size)
    return jnp.where(codes == 0, 1.0, -1.0) * _codec.scale_of(message['scale'])

  row_nbytes = _bits.packed_nbytes(block_size, 1) + 2
  return _codec.make('sign', block_size, row_nbytes, encode_rows, decode_rows)
