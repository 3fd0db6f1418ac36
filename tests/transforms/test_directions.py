"""Means of norms and of directions, and even spectra: their invariants."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import dilojax as dx
from dilojax import wire
from tests.transforms import meeting
from tests.transforms.training import KEEP
from tests.transforms.training import K

RDA = dx.radial_directional_mean('replica')
EXACT = dx.encode(wire.float32())
GRADS = meeting.gradients()
WEIGHT = np.array([3.0, 0.0, 1.0, 4.0], np.float32)


def averaged(leaf, weight=None):
  """The rule in numpy, for one leaf `[K, ...]`."""
  rows = np.asarray(leaf, np.float64).reshape(len(leaf), -1)
  norms = np.linalg.norm(rows, axis=1)
  units = rows / norms[:, None]
  direction = np.average(units, axis=0, weights=weight)
  mean = np.average(norms, weights=weight) * direction
  return np.broadcast_to(
    (mean / np.linalg.norm(direction)).reshape(leaf.shape[1:]), leaf.shape
  )


@pytest.mark.parametrize('send', [KEEP, EXACT], ids=['plain', 'encoded'])
@pytest.mark.parametrize('weight', [None, WEIGHT], ids=['alike', 'weighted'])
def test_norms_and_directions_are_averaged_apart(send, weight):
  """A replica of weight 0 is absent, whatever it sends."""
  grads = GRADS
  if weight is not None:
    grads = jax.tree.map(lambda leaf: leaf.at[1].set(jnp.nan), GRADS)
  got = meeting.arrived(RDA, grads, send=send, weight=weight)
  filled = jax.tree.map(jnp.nan_to_num, grads)
  if weight is not None:
    filled = jax.tree.map(lambda leaf: leaf.at[1].set(1.0), filled)
  want = jax.tree.map(lambda leaf: averaged(leaf, weight), filled)
  meeting.assert_trees_close(got, want, rtol=1e-4, atol=1e-6)
  if weight is not None:
    again = meeting.arrived(RDA, grads, send=send, weight=1e4 * weight)
    meeting.assert_trees_close(again, got)


@pytest.mark.parametrize('send', [KEEP, EXACT], ids=['plain', 'encoded'])
def test_what_is_equal_returns_itself(send):
  """Identity 17: one replica alone, or K that agree; and zeros."""
  for number in (1, K):
    one = meeting.gradients(num_replicas=1)
    grads = jax.tree.map(lambda leaf, n=number: jnp.repeat(leaf, n, 0), one)
    meeting.assert_trees_close(meeting.arrived(RDA, grads, send=send), grads)
  zeros = jax.tree.map(jnp.zeros_like, GRADS)
  meeting.assert_trees_close(
    meeting.arrived(RDA, zeros, send=send), zeros, rtol=0
  )


def test_orthogonal_directions_keep_their_norm():
  """A plain mean of them is shorter by the root of K."""
  grads = 3.0 * jnp.eye(K)
  got = meeting.arrived(RDA, grads)
  np.testing.assert_allclose(np.linalg.norm(got, axis=1), 3.0, rtol=1e-5)
  plain = meeting.arrived(dx.mean_over('replica'), grads)
  np.testing.assert_allclose(
    np.linalg.norm(plain, axis=1), 3.0 / np.sqrt(K), rtol=1e-5
  )


@pytest.mark.parametrize('scale', [1e-30, 1e30])
def test_scales_are_kept_in_the_whole_range(scale):
  """Also where squares leave it."""
  got = meeting.arrived(RDA, jax.tree.map(lambda leaf: scale * leaf, GRADS))
  want = meeting.arrived(RDA, GRADS)
  want = jax.tree.map(lambda leaf: scale * leaf, want)
  meeting.assert_trees_close(got, want)


def test_directions_that_cancel_leave_nothing():
  """What rounding leaves of them has no direction."""
  rng = np.random.default_rng(0)
  one, two = jnp.asarray(rng.normal(size=(2, 7)), jnp.float32)
  grads = jnp.stack([one, two, -2 * one, -0.3 * two])
  np.testing.assert_array_equal(meeting.arrived(RDA, grads), 0)


@pytest.mark.parametrize('send', [KEEP, EXACT], ids=['plain', 'encoded'])
def test_a_mask_leaves_a_plain_mean(send):
  for mask in (
    {'w': True, 's': False},
    lambda tree: jax.tree.map(lambda leaf: leaf.ndim == 2, tree),
  ):
    reduce = dx.radial_directional_mean('replica', mask=mask)
    got = meeting.arrived(reduce, GRADS, send=send)
    np.testing.assert_allclose(got['w'], averaged(GRADS['w']), rtol=1e-4)
    np.testing.assert_allclose(got['s'], np.mean(GRADS['s']), rtol=1e-5)


def test_a_mask_of_another_structure_is_refused():
  reduce = dx.radial_directional_mean('replica', mask={'w': True})
  with pytest.raises(ValueError, match='`mask` must have a boolean for every'):
    meeting.arrived(reduce, GRADS)


def test_dtypes_are_kept():
  grads = jax.tree.map(lambda leaf: leaf.astype(jnp.bfloat16), GRADS)
  for reduce in (RDA, dx.isotropic(dx.mean_over('replica'))):
    got = meeting.arrived(reduce, grads)
    assert all(leaf.dtype == jnp.bfloat16 for leaf in jax.tree.leaves(got))


def test_what_is_sent_is_counted():
  """The leaves once, and a norm of each; or the messages."""
  params = {'w': jnp.zeros((3, 4)), 's': jnp.zeros(())}
  link = lambda **kwargs: dx.synchronize(
    optax.sgd(1.0), every=2, reduce=RDA, **kwargs
  )
  plain = dx.links(link().init(params), params)[0]
  assert (plain.op, plain.nbytes) == ('all-reduce', 4 * 13 + 4 * 2)
  assert plain.axis_names == ('replica',)
  codec = wire.int8(block_size=4)
  sent = dx.links(link(send=dx.encode(codec)).init(params), params)[0]
  nbytes = codec.nbytes((3, 4)) + codec.nbytes(())
  assert (sent.op, sent.nbytes) == ('all-gather', nbytes)


def even(matrix, **kwargs):
  tx = dx.isotropic(KEEP, **kwargs)
  return np.asarray(tx.update(jnp.asarray(matrix), tx.init(None))[0])


def normal(*shape, seed=0):
  rng = np.random.default_rng(seed)
  return np.asarray(rng.normal(size=shape), np.float32)


def rotation(size, seed):
  return np.linalg.qr(normal(size, size, seed=seed))[0]


@pytest.mark.parametrize('shape', [(3, 5), (5, 3), (4, 4)])
def test_singular_values_become_their_mean(shape):
  matrix = normal(*shape)
  values = np.linalg.svd(matrix, compute_uv=False)
  got = even(matrix)
  np.testing.assert_allclose(
    np.linalg.svd(got, compute_uv=False), values.mean(), rtol=1e-4
  )
  np.testing.assert_allclose(even(got), got, rtol=1e-3, atol=1e-5)
  # Rows and columns may be rotated before or after.
  left, right = rotation(shape[0], 1), rotation(shape[1], 2)
  np.testing.assert_allclose(
    even(left @ matrix @ right), left @ got @ right, atol=1e-4
  )


def test_an_orthogonal_matrix_is_left_alone():
  matrix = 2 * rotation(4, 3)
  np.testing.assert_allclose(even(matrix), matrix, atol=1e-5)


@pytest.mark.parametrize('scale', [1.0, 1e-12])
def test_a_matrix_of_lower_rank_keeps_its_null_space(scale):
  """The nuclear norm too: only what is above rounding has a share."""
  matrix = scale * (normal(5, 2) @ normal(2, 4, seed=1))
  got = even(matrix)
  values = np.linalg.svd(matrix, compute_uv=False)[:2]
  found = np.linalg.svd(got, compute_uv=False)
  np.testing.assert_allclose(found[:2], values.mean(), rtol=1e-4)
  np.testing.assert_allclose(found[2:], 0, atol=1e-5 * scale)
  null = np.linalg.svd(matrix)[2][2:]
  np.testing.assert_allclose(got @ null.T, 0, atol=1e-5 * scale)
  np.testing.assert_array_equal(even(np.zeros((3, 2), np.float32)), 0)
  assert np.all(np.isnan(even(np.full((3, 2), np.nan, np.float32))))


def test_which_leaves_are_matrices():
  stacked = normal(2, 3, 4)
  tree = {'stacked': stacked, 'w': stacked[0], 'b': stacked[0, 0]}
  tx = dx.isotropic(KEEP)
  got, _ = tx.update(jax.tree.map(jnp.asarray, tree), tx.init(tree))
  np.testing.assert_array_equal(got['stacked'], stacked)
  np.testing.assert_array_equal(got['b'], tree['b'])
  np.testing.assert_allclose(got['w'], even(tree['w']), rtol=1e-5)
  both = even(stacked, mask=lambda leaf: True)
  np.testing.assert_allclose(both[0], even(stacked[0]), atol=1e-5)
  np.testing.assert_allclose(both[1], even(stacked[1]), atol=1e-5)
  with pytest.raises(ValueError, match='`mask` must choose leaves with two'):
    even(tree['b'], mask=lambda leaf: True)


def test_even_spectra_are_made_once_messages_have_met():
  """After both steps of a mean, as well as after one."""
  codec = dx.encode(wire.float32())
  one = dx.isotropic(dx.mean_over('replica', gather='messages'))
  two = dx.isotropic(dx.mean_over('replica'))

  def in_two_steps(grads):
    message, _ = codec.update(grads, codec.init(grads))
    met, _ = two.meet(message, two.init(grads), grads)
    return two.share(met, grads)

  got = jax.jit(jax.vmap(in_two_steps, axis_name='replica'))(GRADS)
  want = meeting.arrived(one, GRADS, send=codec)
  meeting.assert_trees_close(got, want, rtol=1e-4)
  np.testing.assert_allclose(
    got['w'][0], even(np.mean(GRADS['w'], axis=0)), rtol=1e-4
  )


def of_both(names):
  """One replica's results of everything here."""

  def fn(grads, weight):
    rda = dx.radial_directional_mean(names)
    spectra = dx.isotropic(dx.mean_over(names))
    state = rda.init(grads)
    message, _ = EXACT.update(grads, EXACT.init(grads))
    return (
      rda.update(grads, state, weight=weight)[0],
      rda.update(message, state, weight=weight)[0],
      spectra.update(grads, spectra.init(grads), weight=weight)[0],
    )

  return fn


@pytest.mark.parametrize('mode', meeting.MODES[1:])
def test_every_mode_agrees(mode):
  args = GRADS, jnp.asarray(WEIGHT)
  got = meeting.in_mode(of_both, mode, *args)
  want = meeting.in_mode(of_both, 'vmap', *args)
  meeting.assert_trees_close(got, want, rtol=1e-4, atol=1e-6)
  for leaf in jax.tree.leaves(got):
    for row in leaf[1:]:
      np.testing.assert_array_equal(row, leaf[0])
