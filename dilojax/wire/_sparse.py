"""Sparse formats: few values of each block, and where they belong."""

from collections.abc import Callable
import functools
import math

import jax
import jax.numpy as jnp
import numpy as np

from dilojax.wire import _bits
from dilojax.wire import _casts
from dilojax.wire import _codebook
from dilojax.wire import _codec
from dilojax.wire import _e3m0
from dilojax.wire import _integers

# Formats of what is kept; those with blocks take all of a row as one.
_VALUES: dict[str, Callable[[int], _codec.Codec]] = {
  'float32': lambda _: _casts.float32(),
  'bfloat16': lambda _: _casts.bfloat16(),
  'float16': lambda _: _casts.float16(),
  'float8': _casts.float8,
  'int8': _integers.int8,
  'int4': _integers.int4,
  'e3m0': _e3m0.e3m0,
  'statistical': lambda num: _codebook.statistical(2, num),
}
_LARGEST_BLOCK = 65_536


def top_k(
  fraction: float, block_size: int = 4096, values: str = 'float32'
) -> _codec.Codec:
  r"""Returns the format that keeps the largest values of each block.

  Of a block of :math:`n` values the :math:`k = \max(1, \mathrm{round}(n \cdot
  \text{fraction}))` of the largest magnitude are kept, of equal ones the first,
  and all others become 0. Without rounding of the values it is contractive,

  .. math::

    \|\hat v - v\|^2 \le (1 - k/n) \|v\|^2,

  and wants error feedback. Kept values have the error of their own format,
  with the kept values of a block for its block. A row has :math:`k` indices of
  :math:`\lceil \log_2 n \rceil` bits, 12 for 4096, and :math:`k` values.
  Encoding what was decoded gives the same message with float32 values. A value
  that is not finite is among the largest.

  Args:
    fraction: Share of the values to keep, above 0 and up to 1.
    block_size: Number of values to choose among, at most 65536.
    values: Format of the kept values: 'float32', 'bfloat16', 'float16',
      'float8', 'int8', 'int4', 'e3m0' or 'statistical' (2 bits).

  Returns:
    A :class:`Codec`.

  Raises:
    ValueError: If an argument is out of range.

  Examples:
    >>> import jax.numpy as jnp
    >>> from dilojax import wire
    >>> codec = wire.top_k(0.5, block_size=4)
    >>> message = codec.encode(jnp.array([1.0, -3.0, 2.0, 0.0]))
    >>> print(codec.decode(message, (4,)), codec.nbytes((4,)))
    [ 0. -3.  2.  0.] 9

  References:
    Sarfi et al., `Communication Efficient LLM Pre-training with SparseLoCo
    <https://arxiv.org/abs/2508.15706>`_, 2025

  .. note::
    The paper has blocks of 4096 and 2-bit values; its code cuts matrices into
    squares of 64 x 64, where we take 4096 values in a row.
  """
  _check_sparse(fraction, block_size)
  _codec.check_choice('values', values, tuple(_VALUES))
  return _top_k(_num_kept(fraction, block_size), block_size, values)


@functools.cache
def _top_k(num_kept, block_size, values):
  index_bits = max(1, math.ceil(math.log2(block_size)))
  encode_kept, decode_kept, kept_nbytes = _kept(values, num_kept)

  def encode_rows(rows, *_):
    _, indices = jax.lax.top_k(jnp.abs(rows), num_kept)
    return {
      'indices': _bits.pack(indices.astype(jnp.uint32), index_bits),
      'values': encode_kept(jnp.take_along_axis(rows, indices, axis=1)),
    }

  def decode_rows(message):
    indices = _bits.unpack(message['indices'], index_bits, num_kept)
    kept = decode_kept(message['values'])
    return _spread(indices.astype(jnp.int32), kept, block_size)

  row_nbytes = _bits.packed_nbytes(num_kept, index_bits) + kept_nbytes
  return _codec.make('top_k', block_size, row_nbytes, encode_rows, decode_rows)


def random_subset(
  fraction: float, block_size: int = 4096, values: str = 'float32'
) -> _codec.Codec:
  r"""Returns the format that keeps a random subset of each block.

  `encode` needs a key. With the same key all replicas keep the same entries.
  A block of :math:`n` values is cut into :math:`k = \max(1, \mathrm{round}(n
  \cdot \text{fraction}))` sections that are equally long, up to one value, and
  one value is drawn of each; all others become 0. A row has no indices, but the
  seed of its draws. If :math:`k` divides :math:`n`,

  .. math::

    \mathbb{E}\, \hat v = \tfrac{k}{n} v, \quad
    \mathbb{E}\, \|\hat v - v\|^2 = (1 - k/n) \|v\|^2,

  so :math:`n / k` times the decoded is right on average. Kept values have the
  error of their own format. Bytes: 4 for each block, and those of its
  :math:`k` values. Encoding what was decoded with the same key gives the same
  message with float32 values.

  Args:
    fraction: Share of the values to keep, above 0 and up to 1.
    block_size: Number of values per block, at most 65536.
    values: Format of the kept values, as for :func:`top_k`.

  Returns:
    A :class:`Codec`.

  Raises:
    ValueError: If an argument is out of range, or without a key in `encode`.

  Examples:
    >>> import jax, jax.numpy as jnp
    >>> from dilojax import wire
    >>> codec = wire.random_subset(0.25, block_size=8)
    >>> message = codec.encode(jnp.ones(8), jax.random.key(0))
    >>> print(codec.decode(message, (8,)).sum(), codec.nbytes((8,)))
    2.0 12

  .. note::
    SPARTA averages such a subset at every step; its code draws each entry on
    its own, or walks through a partition. One draw per section is ours.
  """
  _check_sparse(fraction, block_size)
  _codec.check_choice('values', values, tuple(_VALUES))
  return _random_subset(_num_kept(fraction, block_size), block_size, values)


@functools.cache
def _random_subset(num_kept, block_size, values):
  encode_kept, decode_kept, kept_nbytes = _kept(values, num_kept)
  begins = np.arange(num_kept + 1) * block_size // num_kept
  lengths = np.diff(begins).astype(np.uint32)
  begins = begins[:-1].astype(np.uint32)

  def draw(seed):
    # The generator is part of the format, whatever the default is.
    key = jax.random.key(seed, impl='threefry2x32')
    offset = jax.random.bits(key, (num_kept,), jnp.uint32) % lengths
    return (begins + offset).astype(jnp.int32)

  def encode_rows(rows, key, _):
    seed = jax.random.bits(key, (len(rows),), jnp.uint32)
    kept = jnp.take_along_axis(rows, jax.vmap(draw)(seed), axis=1)
    return {'seed': seed, 'values': encode_kept(kept)}

  def decode_rows(message):
    kept = decode_kept(message['values'])
    return _spread(jax.vmap(draw)(message['seed']), kept, block_size)

  return _codec.make(
    'random_subset',
    block_size,
    4 + kept_nbytes,
    encode_rows,
    decode_rows,
    needs_key=True,
  )


def _kept(values, num_kept):
  """Returns functions for the kept values of all blocks, and a row's bytes."""
  codec = _VALUES[values](num_kept)

  def encode(kept):
    message = codec.encode(kept)
    if codec.block_size == num_kept:
      return message
    # A cast has blocks of one value: here they become rows of all.
    return jax.tree.map(lambda leaf: leaf.reshape(kept.shape), message)

  def decode(message):
    num_rows = len(jax.tree.leaves(message)[0])
    if codec.block_size != num_kept:
      message = jax.tree.map(lambda leaf: leaf.reshape(-1), message)
    return codec.decode(message, (num_rows, num_kept))

  return encode, decode, codec.nbytes((num_kept,))


def _spread(indices, kept, block_size):
  """Puts values where they belong in blocks of zeros."""
  rows = jnp.arange(len(indices), dtype=jnp.int32)[:, None]
  zeros = jnp.zeros((len(indices), block_size), jnp.float32)
  # A row of zero bytes names its first index repeatedly, each time for a zero.
  return zeros.at[rows, indices].set(kept)


def _num_kept(fraction, block_size):
  return max(1, round(fraction * block_size))


def _check_sparse(fraction, block_size):
  is_number = isinstance(fraction, int | float | np.number)
  if not is_number or isinstance(fraction, bool) or not 0 < fraction <= 1:
    raise ValueError(
      f'`fraction` must be above 0 and at most 1, got {fraction!r}.'
    )
  _codec.check_block_size(block_size, _LARGEST_BLOCK)
