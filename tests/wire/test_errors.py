"""Errors of the wire formats: bounds, ties, and what is right on average."""

import functools

import hypothesis
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dilojax import wire
from tests.wire.formats import FORMATS
from tests.wire.formats import KEY

BLOCK = 8
ROWS = 4
# Blocks below become zeros; scales have a relative error of 2**-8.
TINY = 2.0**-118 * (1 + 2.0**-7)
SATURATED = 3.37e38  # For integers.
FEW = hypothesis.settings(max_examples=40, deadline=None, database=None)

finite = st.floats(width=32, allow_nan=False, allow_infinity=False)
moderate = st.floats(-100, 100, width=32)
blocks = st.one_of(
  hnp.arrays(np.float32, (ROWS, BLOCK), elements=finite),
  hnp.arrays(np.float32, (ROWS, BLOCK), elements=moderate),
  st.integers(0, 2**32 - 1).map(
    lambda seed: (
      np.random.default_rng(seed).normal(size=(ROWS, BLOCK)).astype(np.float32)
    )
  ),
)


@functools.cache
def sender(codec):
  return jax.jit(lambda x, key: codec.decode(codec.encode(x, key), x.shape))


def send(codec, x, key=KEY):
  """Returns what arrives, in float64."""
  return np.asarray(sender(codec)(np.asarray(x, np.float32), key), np.float64)


def top(x):
  return np.abs(x).max(axis=1, keepdims=True)


def step(x, levels):
  return top(x) / levels * (1 + 2.0**-7)


BOUNDS = {
  'float32': lambda x: 0 * x,
  'bfloat16': lambda x: 2.0**-8 * np.abs(x),
  'float16': lambda x: np.maximum(
    np.maximum(2.0**-11 * np.abs(x), 2.0**-25), np.abs(x) - 65504
  ),
  'float8': lambda x: np.maximum(2.0**-4 * np.abs(x), 2.0**-16 * top(x)),
  'int8': lambda x: step(x, 127) / 2,
  'int8 stochastic': lambda x: step(x, 127),
  'int4': lambda x: step(x, 7) / 2,
  'int4 stochastic': lambda x: step(x, 7),
  'e3m0': lambda x: np.maximum(np.abs(x) / 3, step(x, 1) * 2.0**-7),
  'e3m0 stochastic': lambda x: np.maximum(np.abs(x), step(x, 1) * 2.0**-6),
}


@pytest.mark.parametrize('name', BOUNDS)
def test_error_is_within_its_bound(name):
  @FEW
  @hypothesis.given(blocks)
  def check(x):
    error = np.abs(send(FORMATS[name], x) - x)
    # Ratios to a scale are rounded, so a tie may fall either way.
    x = x.astype(np.float64)
    bound = np.maximum(BOUNDS[name](x) * (1 + 1e-5), TINY)
    assert (error <= np.maximum(bound, np.abs(x) - SATURATED)).all()

  check()


@pytest.mark.parametrize(('name', 'levels'), [('int8', 127), ('int4', 7)])
def test_integers_are_nearest_and_ties_are_even(name, levels):
  # A power of two for a step is exact.
  x = np.zeros((1, BLOCK))
  x[0] = levels, -levels, 0.5, 1.5, -2.5, 2.51, -0.49, 3.0
  want = [levels, -levels, 0, 2, -2, 3, 0, 3]
  np.testing.assert_array_equal(send(FORMATS[name], x / 4)[0] * 4, want)


def test_e3m0_is_nearest_and_ties_are_even():
  powers = 2.0 ** -np.arange(7.0)  # Fields 7 to 1.
  x = np.r_[powers, 0]
  np.testing.assert_array_equal(send(FORMATS['e3m0'], x[None])[0], x)
  codec = wire.e3m0(16)
  nudge = 2.0**-20
  ties = 0.75 * powers[:6]
  # Between fields 7 and 6, 6 and 5, ... the even one; below 2**-6 it is 0.
  even = [powers[1], powers[1], powers[3], powers[3], powers[5], powers[5]]
  x = np.r_[1, ties, 2.0**-7, np.zeros(8)]
  want = np.r_[1, even, np.zeros(9)]
  np.testing.assert_array_equal(send(codec, x[None])[0], want)
  x[1:8] *= 1 + nudge
  want = np.r_[1, powers[:6], powers[6], np.zeros(8)]
  np.testing.assert_array_equal(send(codec, -x[None])[0], -want)
  x[1:8] *= 1 - 2 * nudge
  want = np.r_[1, powers[1:], np.zeros(9)]
  np.testing.assert_array_equal(send(codec, x[None])[0], want)


def test_e3m0_is_four_bits_and_a_scale():
  message = wire.e3m0(4).encode(jnp.array([4.0, -1.2, 0.0, 0.5]))
  # Fields 7, 5, 0, 4, and 8 for a minus; the first half is in the low bits.
  want = [7 + 16 * 0, 8 + 5 + 16 * 4]
  np.testing.assert_array_equal(message['codes'], [want])
  np.testing.assert_array_equal(message['scale'], [0x4080])  # 4 in bfloat16.
  assert message['codes'].dtype == np.uint8
  assert message['scale'].dtype == np.uint16


@pytest.mark.parametrize(
  ('name', 'dtype'), [('bfloat16', 'bfloat16'), ('float16', 'float16')]
)
def test_casts_round_as_everywhere(name, dtype):
  @FEW
  @hypothesis.given(hnp.arrays(np.float32, 32, elements=finite))
  def check(x):
    largest = np.float32(jnp.finfo(dtype).max)
    want = np.clip(x, -largest, largest).astype(dtype).astype(np.float64)
    normal = (np.abs(x) >= 2.0**-126) | (x == 0)
    np.testing.assert_array_equal(send(FORMATS[name], x)[normal], want[normal])

  check()
  # Ties, downwards and upwards to the even one.
  half = float(jnp.finfo(dtype).eps) / 2
  got = send(FORMATS[name], [1 + half, 1 + 3 * half, -1 - half])
  np.testing.assert_array_equal(got, [1, 1 + 4 * half, -1])


def test_float8_rounds_as_everywhere():
  x = np.random.default_rng(0).normal(size=(ROWS, BLOCK)).astype(np.float32)
  x[:, 0] = 3.0, -1.0, 1.9, 240.0
  # The largest comes to lie between 128 and 256, where 1.9 * 128 rounds to 240.
  scale = 2.0 ** np.array([[1, 0, 0, 7]]).T / 128
  dtype = jnp.float8_e4m3fn.dtype
  x[:, 1:] = np.clip(x[:, 1:], -1, 1)
  want = (x / scale).astype(np.float32).astype(dtype).astype(np.float64) * scale
  np.testing.assert_array_equal(send(FORMATS['float8'], x), want)


# Random rounding.


@pytest.mark.parametrize(
  'name', ['int8 stochastic', 'int4 stochastic', 'e3m0 stochastic']
)
def test_stochastic_rounding_is_right_on_average(name):
  codec, num_keys = FORMATS[name], 4000
  magnitudes = np.array([1.003, 0.8, 0.3, 0.1, 0.03, 0.01, 0.003, 0.001])
  x = np.stack([magnitudes, -7.7 * magnitudes]).astype(np.float32)
  keys = jax.random.split(KEY, num_keys)
  draws = jax.jit(
    jax.vmap(lambda key: codec.decode(codec.encode(x, key), x.shape))
  )(keys)
  draws = np.asarray(draws, np.float64)
  spread = draws.std(axis=0)
  assert (spread > 0).sum() >= 10  # It is random.
  error = np.abs(draws.mean(axis=0) - x)
  floor = 2.0**-22 * np.abs(x)  # Of the division.
  assert (error <= 4.5 * spread / np.sqrt(num_keys) + floor).all()
  assert all(len(np.unique(one)) <= 2 for one in draws.reshape(num_keys, -1).T)


# Codebooks and signs.


@pytest.mark.parametrize('bits', [2, 3])
def test_buckets_keep_the_mean_and_bound_the_error(bits):
  @FEW
  @hypothesis.given(
    st.one_of(
      hnp.arrays(np.float32, (ROWS, BLOCK), elements=moderate),
      st.integers(0, 2**32 - 1).map(
        lambda seed: np.random.default_rng(seed).normal(
          1, 2, size=(ROWS, BLOCK)
        )
      ),
    )
  )
  def check(x):
    x = np.asarray(x, np.float32).astype(np.float64)
    got = send(wire.statistical(bits, BLOCK), x)
    slack = 1e-5 * top(x) + TINY
    mean = x.mean(axis=1, keepdims=True)
    assert (np.abs(got.mean(axis=1, keepdims=True) - mean) <= slack).all()
    sigma = x.std(axis=1, keepdims=True)
    # Of 8 values none is 6 standard deviations away.
    assert (np.abs(got - x) <= 12 * sigma / 2**bits + slack).all()
    error = np.square(got - x).sum(axis=1)
    most = np.square(x - mean).sum(axis=1)
    assert (error <= most + slack[:, 0] * top(x)[:, 0]).all()

  check()


def test_codebook_has_the_means_of_its_buckets():
  x = np.r_[np.random.default_rng(0).normal(3, 2, size=2999), 60.0]
  x = x.astype(np.float32)
  for bits in (1, 2, 4, 5, 8):
    got = send(wire.statistical(bits, 4096), x)
    wide = x.astype(np.float64)
    mean, sigma = wide.mean(), wide.std()
    bucket = np.floor((wide - mean + 6 * sigma) / (12 * sigma) * 2**bits)
    bucket = np.clip(bucket, 0, 2**bits - 1).astype(int)
    sums = np.bincount(bucket, wide, 2**bits)
    means = sums / np.maximum(np.bincount(bucket, minlength=2**bits), 1)
    np.testing.assert_allclose(got, means[bucket], rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize('value', [0.1, -7e-5, 3e38])
@pytest.mark.parametrize('size', [1, 8, 13])
def test_all_equal_is_exact_to_rounding_with_a_codebook(value, size):
  for name in ('statistical', 'int8 codebook'):
    x = np.full(size, value, np.float32)
    np.testing.assert_allclose(send(FORMATS[name], x), x, rtol=2.0**-21)


def test_nearly_equal_values_share_their_buckets():
  """Where codes and sums disagree by a rounding, buckets seem to be empty."""
  x = np.random.default_rng(0).uniform(0.5, 1, size=(400, 1)) * np.ones(BLOCK)
  x = x.astype(np.float32)
  nudged = x.copy()
  nudged[:, ::3] *= 1 + 2.0**-22
  for one in (x, nudged):
    np.testing.assert_allclose(
      send(FORMATS['statistical'], one), one, rtol=2.0**-20
    )


def test_sign_has_the_mean_magnitude():
  @FEW
  @hypothesis.given(blocks)
  def check(x):
    x = x.astype(np.float64)
    got = send(FORMATS['sign'], x)
    mean = np.abs(x).mean(axis=1, keepdims=True)
    mean = np.broadcast_to(mean, x.shape)
    big = mean >= TINY
    assert (np.abs(np.abs(got) - mean)[big] <= 2.0**-7.9 * mean[big]).all()
    # XLA takes subnormal numbers for zero, whose sign is free.
    sure = big & ((np.abs(x) >= np.finfo(np.float32).tiny) | (x == 0))
    assert (np.where(x < 0, -1, 1) == np.where(got < 0, -1, 1))[sure].all()

  check()
  # Padding does not count.
  np.testing.assert_array_equal(send(wire.sign(64), [1.0, -3.0]), [2, -2])


# Sparse formats.


def kept(x, num):
  """Returns the largest of each block, the first of equals, the plain way."""
  order = np.argsort(-np.abs(x), axis=1, kind='stable')[:, :num]
  result = np.zeros_like(x)
  np.put_along_axis(result, order, np.take_along_axis(x, order, 1), 1)
  return result


def test_top_k_keeps_the_largest_and_contracts():
  @FEW
  @hypothesis.given(
    st.one_of(
      hnp.arrays(np.float32, (ROWS, BLOCK), elements=moderate),
      hnp.arrays(np.float32, (ROWS, BLOCK), elements=st.sampled_from([-1, 1])),
    )
  )
  def check(x):
    x = np.where(np.abs(x) < 1e-30, 0, x).astype(np.float64)
    got = send(FORMATS['top_k'], x)
    np.testing.assert_array_equal(got, kept(x, 2))
    error = np.square(got - x).sum(axis=1)
    assert (error <= (1 - 2 / 8) * np.square(x).sum(axis=1) * (1 + 1e-9)).all()

  check()


def test_top_k_takes_indices_of_any_width():
  rng = np.random.default_rng(0)
  for block_size in (1, 2, 3, 100, 4096):
    x = rng.normal(size=(2, block_size)).astype(np.float32)
    codec = wire.top_k(0.3, block_size)
    want = kept(x, max(1, round(0.3 * block_size)))
    np.testing.assert_array_equal(send(codec, x), want)
  # The whole block, in any order: nothing is lost.
  x = rng.normal(size=20).astype(np.float32)
  np.testing.assert_array_equal(send(wire.top_k(1.0, 8), x), x)


@pytest.mark.parametrize(
  ('values', 'precision'),
  [
    *(('bfloat16', 2.0**-8), ('float16', 2.0**-11), ('float8', 2.0**-4)),
    *(('int8', 1 / 250), ('int4', 1 / 13), ('e3m0', 1 / 3)),
  ],
)
def test_kept_values_have_the_error_of_their_format(values, precision):
  x = np.random.default_rng(0).normal(size=(ROWS, BLOCK)).astype(np.float32)
  want = kept(x, 4)
  got = send(wire.top_k(0.5, BLOCK, values), x)
  np.testing.assert_array_equal(got[want == 0], 0)
  assert (np.abs(got - want) <= precision * top(x)).all()
  assert (got != want).any()


def test_a_random_subset_is_shared_and_fair():
  codec, num_keys = wire.random_subset(0.25, 16), 4000
  x = np.linspace(1, 2, 32).astype(np.float32)
  keys = jax.random.split(KEY, num_keys)
  program = jax.jit(
    jax.vmap(
      lambda x, key: codec.decode(codec.encode(x, key), x.shape), (None, 0)
    )
  )
  draws, others = np.asarray(program(x, keys)), np.asarray(program(-x, keys))
  np.testing.assert_array_equal(draws, -others)
  is_kept = draws != 0
  np.testing.assert_array_equal(draws, np.where(is_kept, x, 0))
  per_block = is_kept.reshape(num_keys, 2, 16).sum(axis=2)
  np.testing.assert_array_equal(per_block, 4)
  error = np.abs(is_kept.mean(axis=0) - 0.25)
  assert (error <= 4.5 * np.sqrt(0.25 * 0.75 / num_keys)).all()
  # Blocks draw apart from each other.
  assert (is_kept[:, :16] != is_kept[:, 16:]).any(axis=1).mean() > 0.9
