"""Laws that every wire format keeps."""

import functools
from typing import Any, NamedTuple

import hypothesis
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dilojax import wire
from dilojax.wire import _bits
from tests.wire import formats
from tests.wire.formats import FORMATS
from tests.wire.formats import KEY

# A scalar has the program of the shape (1,).
SHAPES = ((), (0,), (4, 5))
WHOLE = {
  'default int8': wire.int8(),
  'default codebook': wire.int8(levels='codebook'),
  'default int4': wire.int4(),
  'default e3m0': wire.e3m0(),
  'default statistical': wire.statistical(),
  'default sign': wire.sign(),
  'default top_k': wire.top_k(0.01),
  'top_k of bytes': wire.top_k(0.1, 256, 'int8'),
  'top_k of 16 bits': wire.top_k(0.01, 65_536, 'int4'),
}
FEW = hypothesis.settings(max_examples=30, deadline=None, database=None)
SPECIAL = {
  'all equal': np.full(20, 0.1),
  'all equal and negative': np.full(20, -3.0),
  'all huge and positive': np.full(20, 3.39617e38),
  'one huge outlier': np.r_[np.linspace(-1, 1, 19), 3.4e38],
  'all huge': np.full(20, -3.4028234e38),
  'denormal': np.linspace(-1e-39, 1e-39, 20),
  'at the edge of the tiny': 2.0**-118 * np.linspace(-2, 2, 20),
  'steps at the edge': 2.0**-126 * np.linspace(-9, 9, 20),
  'just below a power of two': np.linspace(0.001, 1.97, 20),
  'every scale': np.logspace(-45, 38, 20),
}
values = hnp.arrays(
  np.float32,
  20,
  elements=st.floats(width=32, allow_nan=False, allow_infinity=False),
)


class Result(NamedTuple):
  """A message, what arrives, and what is made of that."""

  message: Any
  decoded: jax.Array
  again: Any  # The message of what was decoded.
  zeros: jax.Array  # What rows of zero bytes decode to.
  kept: jax.Array  # What did not arrive.


@functools.cache
def program(name):
  """Compiles, once for all tests, all that they ask of a format."""
  codec = FORMATS[name]

  def one(x):
    message = formats.encode(codec, x)
    decoded = codec.decode(message, x.shape)
    again = formats.encode(codec, decoded)
    zeros = codec.decode(jax.tree.map(jnp.zeros_like, message), x.shape)
    return Result(message, decoded, again, zeros, x - decoded)

  def alone(message):
    row = jax.tree.map(lambda leaf: leaf[1:2], message)
    return codec.decode(row, (min(codec.block_size, 12),))

  def run(x):
    results = {
      shape: one(x[: np.prod(shape, dtype=int)].reshape(shape))
      for shape in SHAPES
    }
    return results, alone(
      results[4, 5].message
    ) if codec.block_size < 20 else None

  return jax.jit(run)


def run(name, x):
  """Returns the result for each shape."""
  return program(name)(np.asarray(x, np.float32))[0]


@pytest.mark.parametrize('name', FORMATS)
def test_zero_arrives_as_zero(name):
  for shape, result in run(name, np.zeros(20)).items():
    want = np.zeros(shape, np.float32)
    assert formats.equal(result.decoded, want)
    assert formats.equal(result.zeros, want)


@pytest.mark.parametrize('name', FORMATS)
def test_finite_stays_finite(name):
  for x in SPECIAL.values():
    for result in run(name, x).values():
      assert np.isfinite(result.decoded).all()

  @FEW
  @hypothesis.given(values)
  def check(x):
    for result in run(name, x).values():
      assert np.isfinite(result.decoded).all()

  check()


@pytest.mark.parametrize('value', [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize('name', [x for x in FORMATS if 'random' not in x])
def test_what_is_not_finite_stays_visible(name, value):
  x = np.linspace(-1, 1, 20)
  x[9] = value
  result = run(name, x)[4, 5]
  decoded = result.decoded.reshape(-1)
  assert not np.isfinite(decoded[9])
  assert np.isfinite(result.zeros).all()
  if FORMATS[name].block_size <= 8:
    assert np.isfinite(decoded[:5]).all()


@pytest.mark.parametrize('name', formats.REPEATABLE)
def test_what_was_decoded_gives_the_same_message(name):
  for x in SPECIAL.values():
    for result in run(name, x).values():
      assert formats.equal(result.message, result.again)

  @FEW
  @hypothesis.given(values)
  def check(x):
    for result in run(name, x).values():
      assert formats.equal(result.message, result.again)

  check()


@pytest.mark.parametrize('name', FORMATS)
def test_rows_decode_alone(name):
  size = FORMATS[name].block_size
  if size >= 20:
    pytest.skip('one row')
  x = np.random.default_rng(0).normal(size=20).astype(np.float32)
  results, alone = program(name)(x)
  decoded = results[4, 5].decoded.reshape(-1)
  assert formats.equal(alone, decoded[size : size + len(alone)])
  for leaf in jax.tree.leaves(results[4, 5].message):
    assert len(leaf) == -(-20 // size)


@pytest.mark.parametrize('shape', [*SHAPES, (1,), (257,), (2, 128)])
@pytest.mark.parametrize('name', [*FORMATS, *WHOLE])
def test_a_message_has_the_size_that_it_says(name, shape):
  codec = (FORMATS | WHOLE)[name]
  x = jax.ShapeDtypeStruct(shape, jnp.float32)
  message = jax.eval_shape(lambda x: formats.encode(codec, x), x)
  leaves = jax.tree.leaves(message)
  num_bytes = sum(leaf.size * leaf.dtype.itemsize for leaf in leaves)
  assert num_bytes == codec.nbytes(shape)
  dtypes = {leaf.dtype.name for leaf in leaves}
  assert dtypes <= {'uint8', 'uint16', 'uint32', 'float32'}
  decoded = jax.eval_shape(lambda m: codec.decode(m, shape), message)
  assert (decoded.shape, decoded.dtype) == (shape, jnp.float32)


@pytest.mark.parametrize(
  ('codec', 'bits'),
  [
    # For 65536 values: payload, and a scale or codebook for each block.
    (wire.float32(), 32),
    (wire.bfloat16(), 16),
    (wire.float16(), 16),
    (wire.float8(), 8 + 8 / 256),
    (wire.int8(), 8 + 16 / 256),
    (wire.int8(levels='codebook'), 8 + 256 * 32 / 65_536),
    (wire.int4(), 4 + 16 / 128),
    (wire.e3m0(), 4 + 16 / 256),
    (wire.statistical(), 2 + 4 * 32 / 4096),
    (wire.statistical(3), 3 + 8 * 32 / 4096),
    (wire.sign(), 1 + 16 / 1024),
    (wire.top_k(1 / 64), (64 * (12 + 32)) / 4096),
    (wire.top_k(1 / 64, values='int8'), (64 * (12 + 8) + 16) / 4096),
    (wire.random_subset(1 / 64), (64 * 32 + 32) / 4096),
  ],
)
def test_bits_per_value(codec, bits):
  assert codec.nbytes((256, 256)) * 8 / 65_536 == bits


@pytest.mark.parametrize('bits', range(1, 17))
def test_packing_keeps_codes(bits):
  rng = np.random.default_rng(bits)
  codes = rng.integers(0, 1 << bits, (2, 11)).astype(np.uint32)
  packed = _bits.pack(jnp.asarray(codes), bits)
  assert packed.shape == (2, _bits.packed_nbytes(11, bits))
  np.testing.assert_array_equal(_bits.unpack(packed, bits, 11), codes)


def test_equal_arguments_give_the_same_codec():
  assert wire.e3m0() is wire.e3m0(block_size=256, rounding='nearest')
  assert wire.int8() is wire.int8(256)
  assert wire.int8() is not wire.int8(128)
  assert wire.top_k(0.01) is wire.top_k(fraction=0.01, values='float32')
  assert wire.float32() is wire.float32()
  assert wire.e3m0(8) is not wire.e3m0(8, 'stochastic')


@pytest.mark.parametrize(
  ('make', 'message'),
  [
    (lambda: wire.e3m0(0), '`block_size` must be an int, at least 1, got 0'),
    (lambda: wire.int4(2.0), '`block_size` must be an int.* got 2.0'),
    (lambda: wire.float8(True), '`block_size` must be an int.* got True'),
    (lambda: wire.sign(-1), '`block_size` must be an int.* got -1'),
    (lambda: wire.top_k(0.1, 65_537), 'at most 65536, got 65537'),
    (lambda: wire.top_k(0.0), '`fraction` must be above 0 .* got 0.0'),
    (lambda: wire.random_subset(1.5), '`fraction` must be .* got 1.5'),
    (lambda: wire.top_k(0.1, values='int2'), "`values` must be .* got 'int2'"),
    (lambda: wire.e3m0(rounding='up'), "`rounding` must be one of 'nearest'"),
    (lambda: wire.int8(levels='log'), "`levels` must be one of 'uniform'"),
    (
      lambda: wire.int8(rounding='stochastic', levels='codebook'),
      "`rounding` must be 'nearest' with a codebook",
    ),
    (lambda: wire.statistical(9), '`bits` must be an int from 1 to 8, got 9'),
    (
      lambda: wire.int4(rounding='stochastic').encode(jnp.ones(3)),
      '`key` must be a key for the random numbers of `int4`, got None',
    ),
    (
      lambda: wire.random_subset(0.1).encode(jnp.ones(3)),
      '`key` must be a key',
    ),
    (
      lambda: wire.bfloat16().decode({'values': jnp.zeros(3, 'uint16')}, (4,)),
      r'`shape` \(4,\) has 4 values, but the message holds at most 3',
    ),
  ],
)
def test_rejects_what_cannot_be(make, message):
  with pytest.raises(ValueError, match=message):
    make()


# Where it runs, and on what.

PATHS = (
  *('float32', 'bfloat16', 'float16', 'float8', 'int8 stochastic', 'e3m0'),
  *('int8 codebook', 'statistical', 'sign', 'top_k int4', 'random_subset'),
)


@pytest.mark.parametrize('name', PATHS)
def test_same_bits_under_every_map(name):
  codec = FORMATS[name]
  x = np.random.default_rng(1).normal(size=(2, 3, 7)).astype(np.float32)

  def send(x):
    message = codec.encode(x, KEY)
    return message, codec.decode(message, x.shape)

  def of_device(x):
    return jax.tree.map(lambda leaf: leaf[None], send(x[0]))

  mesh = jax.make_mesh((2,), ('replica',), (jax.sharding.AxisType.Auto,))
  axis = jax.P('replica')
  sharded = jax.shard_map(of_device, mesh=mesh, in_specs=axis, out_specs=axis)
  one = jax.jit(send)
  want = jax.tree.map(lambda *leaves: np.stack(leaves), *map(one, x))
  assert formats.equal(jax.jit(jax.vmap(send))(x), want)
  assert formats.equal(jax.jit(sharded)(x), want)


@pytest.mark.slow
@pytest.mark.parametrize('name', ['e3m0', 'top_k 12 bits', 'statistical'])
def test_same_bits_without_a_compiler(name):
  x = np.random.default_rng(2).normal(size=(4, 5)).astype(np.float32)
  result = run(name, x.reshape(-1))[4, 5]
  found = formats.encode(FORMATS[name], x)
  assert formats.equal(found, result.message)
  assert formats.equal(FORMATS[name].decode(found, (4, 5)), result.decoded)


@pytest.mark.parametrize('name', FORMATS)
def test_what_is_kept_back_is_what_did_not_arrive(name):
  """Bit by bit, in the program that encodes, as error feedback has it."""
  rng = np.random.default_rng(4)
  for x in rng.normal(size=(20, 20)).astype(np.float32):
    result = run(name, x)[4, 5]
    assert formats.equal(result.kept, x.reshape(4, 5) - result.decoded)


@pytest.mark.parametrize('dtype', ['bfloat16', 'float16'])
def test_narrow_inputs_are_widened_first(dtype):
  codec = FORMATS['int8']
  x = np.random.default_rng(3).normal(size=(3, 5)).astype(dtype)
  encode = jax.jit(codec.encode)
  assert formats.equal(encode(x), encode(x.astype(np.float32)))
