"""Codebooks: what a code stands for is computed, and travels along."""

import functools

import jax
import jax.numpy as jnp

from dilojax.wire import _bits
from dilojax.wire import _codec

_SIGMAS = 6.0
# Up to here a mask per bucket is faster than to scatter and gather.
_FEW_BUCKETS = 16


def statistical(bits: int = 2, block_size: int = 4096) -> _codec.Codec:
  r"""Returns the statistical quantizer of MuLoCo.

  With mean :math:`\mu` and standard deviation :math:`\sigma` of a block, the
  range :math:`\mu \pm 6 \sigma` is cut into :math:`2^b` buckets of one width,
  the outermost of which also take what lies beyond. A value is decoded to the
  mean of the members of its bucket, so the block keeps its mean, and in each
  bucket the error is that of the best single value:

  .. math::

    \sum_i (\hat v_i - v_i)^2 \le \sum_i (v_i - \mu)^2 \le \sum_i v_i^2, \quad
    |\hat v_i - v_i| \le 12 \sigma / 2^b
    \text{ in a bucket within the range.}

  All hold to rounding, and an all-equal block is exact to rounding. Bytes per
  value: :math:`b / 8`, and :math:`4 \cdot 2^b` for each block, the codebook.
  Blocks below :math:`2^{-118}` become zeros, and blocks with a value that is
  not finite become NaN.

  Args:
    bits: Number of bits per value, from 1 to 8.
    block_size: Number of values that share a codebook.

  Returns:
    A :class:`Codec`.

  Raises:
    ValueError: If an argument is out of range.

  Examples:
    >>> import jax.numpy as jnp
    >>> from dilojax import wire
    >>> codec = wire.statistical(bits=2, block_size=4)
    >>> message = codec.encode(jnp.array([1.0, 4.0, -1.0, -4.0]))
    >>> print(codec.decode(message, (4,)), codec.nbytes((4,)))
    [ 2.5  2.5 -2.5 -2.5] 17

  References:
    Thérien et al., `MuLoCo: Muon is a practical inner optimizer for DiLoCo
    <https://arxiv.org/abs/2505.23725>`_, 2025

  .. note::
    The quantizer is the one of the released code. Blocks are ours.
  """
  if isinstance(bits, bool) or not isinstance(bits, int) or not 1 <= bits <= 8:
    raise ValueError(f'`bits` must be an int from 1 to 8, got {bits!r}.')
  _codec.check_block_size(block_size)
  return codebook('statistical', bits, block_size)


@functools.cache
def codebook(name: str, bits: int, block_size: int) -> _codec.Codec:
  """Returns the format for arguments that were checked."""
  num_buckets = 2**bits

  def encode_rows(rows, _, size):
    peak = _codec.peak(rows)
    valid = _codec.is_valid(rows, size)
    total = lambda x: jnp.sum(x, axis=1, keepdims=True)
    count = jnp.maximum(total(valid.astype(jnp.float32)), 1)
    # In units of the peak no sum of squares overflows, or underflows.
    # Codes are computed twice, for the message and for the sums. They have to
    # agree, so products are kept apart from the sums that they enter.
    unit = jnp.clip(_bits.apart(_codec.divide(rows, peak)), -1, 1)
    center = unit - _bits.apart(total(unit) / count)
    variance = total(jnp.where(valid, jnp.square(center), 0.0)) / count
    width = 2 * _SIGMAS / num_buckets * jnp.sqrt(variance)
    bucket = jnp.floor(_codec.divide(center, width)) + num_buckets // 2
    codes = jnp.clip(bucket, 0, num_buckets - 1).astype(jnp.uint32)
    sums, counts = _per_bucket(codes, unit, valid, num_buckets)
    means = sums / jnp.maximum(counts, 1)
    # A mean lies among its members; rounding must not say otherwise.
    least = jnp.min(jnp.where(valid, unit, 1.0), axis=1, keepdims=True)
    most = jnp.max(jnp.where(valid, unit, -1.0), axis=1, keepdims=True)
    means = jnp.where(counts > 0, jnp.clip(means, least, most), 0.0)
    book = _bits.apart(means * peak)
    return {'codebook': book, 'codes': _bits.pack(codes, bits)}

  def decode_rows(message):
    codes = _bits.unpack(message['codes'], bits, block_size)
    book = message['codebook']
    if num_buckets > _FEW_BUCKETS:
      return jnp.take_along_axis(book, codes.astype(jnp.int32), axis=1)
    values = jnp.broadcast_to(book[:, :1], codes.shape)
    for bucket in range(1, num_buckets):
      column = book[:, bucket : bucket + 1]
      values = jnp.where(codes == bucket, column, values)
    return values

  row_nbytes = _bits.packed_nbytes(block_size, bits) + 4 * num_buckets
  return _codec.make(name, block_size, row_nbytes, encode_rows, decode_rows)


def _per_bucket(codes, values, valid, num_buckets):
  """Returns the sum and the number of the members of each bucket."""
  weights = valid.astype(jnp.float32)
  if num_buckets > _FEW_BUCKETS:
    rows = jnp.arange(len(codes), dtype=jnp.int32)[:, None]
    zeros = jnp.zeros((len(codes), num_buckets, 2), jnp.float32)
    both = zeros.at[rows, codes].add(jnp.stack([values, weights], axis=2))
    return both[:, :, 0], both[:, :, 1]
  masks = [codes == bucket for bucket in range(num_buckets)]
  members = [jnp.where(mask, values, 0.0) for mask in masks]
  members += [jnp.where(mask, weights, 0.0) for mask in masks]
  # All sums in one pass, which computes the codes once.
  add = lambda sums, terms: tuple(map(jnp.add, sums, terms))
  zeros = (jnp.float32(0),) * len(members)
  sums = jax.lax.reduce(tuple(members), zeros, add, (1,))
  return (
    jnp.stack(sums[:num_buckets], axis=1),
    jnp.stack(sums[num_buckets:], axis=1),
  )
