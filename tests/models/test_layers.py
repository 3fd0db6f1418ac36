"""Equations that the layers of the decoder obey."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dilojax.models import _layers


def random(seed, *shape):
  return jax.random.normal(jax.random.key(seed), shape)


def plain_attention(query, key, value):
  length, _, head_dim = query.shape[1:]
  score = jnp.einsum('blhk,bmhk->bhlm', query, key) / head_dim**0.5
  mask = jnp.tril(jnp.ones((length, length), bool))[None, None]
  weight = jax.nn.softmax(score, axis=-1, where=mask)
  return jnp.einsum('bhlm,bmhk->blhk', weight, value)


@pytest.mark.parametrize('out', [3, 4, 9])
def test_matmul_has_the_gradient_of_the_product(out):
  x, w, target = random(0, 2, 5, 4), random(1, 4, out), random(2, 2, 5, out)
  loss = lambda fn, x, w: jnp.sum(jnp.sin(fn(x, w)) * target)
  ours = functools.partial(loss, _layers.matmul)
  plain = functools.partial(loss, jnp.matmul)
  np.testing.assert_allclose(ours(x, w), plain(x, w), rtol=1e-5)
  for got, expected in zip(
    jax.grad(ours, (0, 1))(x, w), jax.grad(plain, (0, 1))(x, w)
  ):
    np.testing.assert_allclose(got, expected, rtol=1e-5, atol=1e-5)


def test_matmul_has_second_derivatives():
  x, w, tangent = random(0, 2, 5, 4), random(1, 4, 9), random(2, 4, 9)

  def curvature(fn):
    grad = jax.grad(lambda w: jnp.sum(jnp.sin(fn(x, w))))
    forward = jax.jvp(grad, (w,), (tangent,))[1]
    reverse = jax.grad(lambda w: jnp.vdot(grad(w), tangent))(w)
    return forward, reverse

  expected = curvature(jnp.matmul)[0]
  for got in curvature(_layers.matmul):
    np.testing.assert_allclose(got, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize('shared', ['x', 'w', 'neither'])
def test_matmul_in_a_shard_map_sums_the_gradient_of_what_is_shared(shared):
  xs, ws = random(0, 2, 3, 5, 4), random(1, 2, 4, 9)
  mesh = jax.make_mesh((2,), ('replica',), (jax.sharding.AxisType.Auto,))
  spec_x = jax.P() if shared == 'x' else jax.P('replica')
  spec_w = jax.P() if shared == 'w' else jax.P('replica')
  xs = xs[:1] if shared == 'x' else xs
  ws = ws[:1] if shared == 'w' else ws

  def grads(fn):
    loss = lambda x, w: jnp.sum(jnp.sin(fn(x[0], w[0])))
    return jax.jit(
      jax.shard_map(
        jax.grad(loss, (0, 1)),
        mesh=mesh,
        in_specs=(spec_x, spec_w),
        out_specs=(spec_x, spec_w),
      )
    )(xs, ws)

  for got, expected in zip(grads(_layers.matmul), grads(jnp.matmul)):
    np.testing.assert_allclose(got, expected, rtol=1e-4, atol=1e-5)


def test_matmul_casts_the_weight_and_its_gradient():
  x, w = random(0, 2, 5, 4).astype(jnp.bfloat16), random(1, 4, 9)
  assert _layers.matmul(x, w).dtype == jnp.bfloat16
  grad = jax.grad(lambda w: jnp.sum(_layers.matmul(x, w)).astype('float32'))(w)
  assert grad.dtype == jnp.float32


def test_attend_is_the_softmax_average_of_the_past():
  qkv = [random(i, 2, 7, 3, 4) for i in range(3)]
  target = random(3, 2, 7, 3, 4)
  np.testing.assert_allclose(
    _layers.attend(*qkv), plain_attention(*qkv), rtol=1e-5, atol=1e-6
  )
  loss = lambda fn: lambda *qkv: jnp.sum(fn(*qkv) * target)
  for got, expected in zip(
    jax.grad(loss(_layers.attend), (0, 1, 2))(*qkv),
    jax.grad(loss(plain_attention), (0, 1, 2))(*qkv),
  ):
    np.testing.assert_allclose(got, expected, rtol=1e-4, atol=1e-5)


def test_attend_survives_large_scores():
  query, key, value = (random(i, 1, 6, 2, 4) for i in range(3))
  attend = lambda query: _layers.attend(query, key, value)
  got = attend(1e4 * query)
  np.testing.assert_allclose(
    got, plain_attention(1e4 * query, key, value), rtol=1e-4, atol=1e-5
  )
  grad = jax.grad(lambda query: attend(query).sum())(1e4 * query)
  assert jnp.isfinite(grad).all()


def test_rotated_products_depend_on_distance_only():
  query, key = random(0, 8), random(1, 8)
  everywhere = lambda x: jnp.broadcast_to(x, (1, 9, 1, 8))
  rotated_query = _layers.rotate(everywhere(query))[0, :, 0]
  rotated_key = _layers.rotate(everywhere(key))[0, :, 0]
  product = rotated_query @ rotated_key.T
  np.testing.assert_allclose(product[1:, 1:], product[:-1, :-1], atol=1e-5)
  # By distance they do differ.
  assert jnp.ptp(product[:, 0]) > 0.1
  np.testing.assert_allclose(
    jnp.linalg.norm(rotated_query, axis=1), jnp.linalg.norm(query), rtol=1e-5
  )


def test_rotation_turns_pairs_by_the_stated_angles():
  unit = jnp.zeros((1, 4, 1, 6)).at[..., 1].set(1.0)
  angle = np.arange(4) * 10_000 ** (-2 / 6)
  rotated = _layers.rotate(unit)[0, :, 0]
  np.testing.assert_allclose(rotated[:, 1], np.cos(angle), atol=1e-6)
  np.testing.assert_allclose(rotated[:, 4], np.sin(angle), atol=1e-6)


def test_rms_norm_has_unit_mean_square_at_any_scale():
  x, scale = random(0, 3, 5, 16), jnp.arange(1.0, 17.0)
  normed = _layers.rms_norm(x, jnp.ones(16))
  np.testing.assert_allclose(jnp.mean(normed**2, axis=-1), 1.0, rtol=1e-4)
  np.testing.assert_allclose(
    _layers.rms_norm(100 * x, scale), normed * scale[None, None], rtol=1e-4
  )
