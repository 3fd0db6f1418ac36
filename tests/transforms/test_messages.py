"""Means of messages: what arrives is what was sent, decoded and averaged."""

import functools
import operator

import hypothesis
from hypothesis import strategies as st
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import dilojax as dx
from dilojax import wire
from tests.transforms import meeting
from tests.transforms import training
from tests.transforms.training import K

GRADS = meeting.gradients()
WEIGHT = np.array([3.0, 0.0, 1.0, 4.0], np.float32)
FORMATS = {
  'float32': wire.float32(),
  'int8': wire.int8(block_size=2),
  'statistical': wire.statistical(2),
  'top_k': wire.top_k(0.5, block_size=4),
}


def averaged(tree, weight=None):
  """The same in numpy, for every replica."""
  mean = lambda leaf: np.broadcast_to(
    np.average(np.asarray(leaf, np.float64), axis=0, weights=weight),
    np.shape(leaf),
  )
  return jax.tree.map(mean, tree)


def assert_bitwise_equal_rows(tree):
  for leaf in jax.tree.leaves(tree):
    for row in leaf[1:]:
      np.testing.assert_array_equal(row, leaf[0])


@pytest.mark.parametrize('name', FORMATS)
def test_a_mean_of_messages_is_that_of_what_they_say(name):
  codec = FORMATS[name]
  rounds = jax.tree.map(lambda leaf: leaf[:, None], GRADS)
  send = dx.encode(codec)
  by_rows = dx.mean_over('replica', result=wire.float32())
  whole = dx.mean_over('replica', gather='messages')
  got, sent, _ = meeting.over_rounds(by_rows, rounds, send)
  want = averaged(sent)
  meeting.assert_trees_close(got, want, rtol=1e-5, atol=1e-7)
  assert_bitwise_equal_rows(got)
  got, _, _ = meeting.over_rounds(whole, rounds, send)
  meeting.assert_trees_close(got, want, rtol=1e-5, atol=1e-7)
  assert_bitwise_equal_rows(got)


@pytest.mark.slow
@pytest.mark.parametrize('gather', ['mean', 'messages'])
def test_every_entry_of_every_leaf_is_averaged_once(gather):
  """Leaves of any size share a buffer, which is cut for the owners."""
  mean = dx.mean_over('replica', wire=wire.bfloat16(), gather=gather)

  @hypothesis.settings(max_examples=8, deadline=None, database=None)
  @hypothesis.given(
    st.lists(st.integers(0, 9), min_size=1, max_size=5), st.integers(1, 5)
  )
  def check(sizes, count):
    rng = np.random.default_rng(sum(sizes) + count)
    # Their sums are exact.
    leaves = [rng.integers(-60, 60, size=(count, size)) for size in sizes]
    got = jax.vmap(
      lambda *grads: mean.update(list(grads), ())[0], axis_name='replica'
    )(*(jnp.asarray(leaf, jnp.float32) for leaf in leaves))
    assert len(got) == len(leaves)
    for have, leaf in zip(got, leaves):
      want = functools.reduce(operator.add, leaf.astype(np.float32)) / count
      if gather == 'mean':
        want = np.asarray(jnp.asarray(want).astype(jnp.bfloat16), np.float32)
      for k in range(count):
        np.testing.assert_allclose(have[k], want, rtol=2e-7)

  check()


def test_a_result_is_encoded_once_more():
  codec = wire.bfloat16()
  mean = dx.mean_over('replica', wire=wire.float32(), result=codec)
  got = meeting.arrived(mean, GRADS)
  want = jax.tree.map(lambda leaf: leaf.astype(jnp.bfloat16), averaged(GRADS))
  meeting.assert_trees_close(
    got, jax.tree.map(lambda leaf: leaf.astype(np.float32), want), rtol=2**-7
  )
  for leaf in jax.tree.leaves(got):
    narrow = leaf.astype(jnp.bfloat16).astype(jnp.float32)
    np.testing.assert_array_equal(leaf, narrow)
  assert_bitwise_equal_rows(got)


@pytest.mark.parametrize('gather', ['mean', 'messages'])
def test_a_wire_of_float32_is_none(gather):
  """The whole training, with a leaf of fewer values than replicas."""
  wired = lambda mean: training.sgd_then(
    optax.sgd(0.7, momentum=0.9, nesterov=True),
    every=3,
    reduce=dx.mean_over(
      mean.init(None).names, wire=wire.float32(), gather=gather
    ),
  )(mean)
  plain = training.sgd_then(
    optax.sgd(0.7, momentum=0.9, nesterov=True), every=3
  )
  got, (_, state) = training.run(wired, 7, devices=1)
  want, (_, wanted) = training.run(plain, 7, devices=1)
  np.testing.assert_allclose(got, want, rtol=1e-5)
  np.testing.assert_allclose(state.anchor, wanted.anchor, rtol=1e-5)


@pytest.mark.parametrize('static', [False, True])
@pytest.mark.parametrize('delay', [2, 3])
def test_a_relay_arrives_as_messages_do(delay, static):
  """Two collectives with steps between them, against one at the launch."""

  def late(mean, **kwargs):
    names = mean.init(None).names
    return training.sgd_then(
      optax.sgd(0.7, momentum=0.9),
      every=4,
      delay=delay,
      merge=dx.mix(0.5),
      send=dx.encode(wire.int8(block_size=2)),
      reduce=dx.mean_over(names, **kwargs),
    )(mean)

  relayed = lambda mean: late(mean, result=wire.float32())
  at_once = lambda mean: late(mean, gather='messages')
  got, (_, state) = training.run(relayed, 8, devices=1, static=static)
  want, (_, wanted) = training.run(at_once, 8, devices=1, static=static)
  assert jax.tree.leaves(state.relayed)
  assert not jax.tree.leaves(wanted.relayed)
  np.testing.assert_allclose(got, want, rtol=1e-5)
  np.testing.assert_allclose(state.anchor, wanted.anchor, rtol=1e-5)


def weighted(names):
  """One replica's means of each kind, by weight."""

  def fn(grads, weight):
    codec = wire.top_k(0.5, block_size=4)
    kinds = {
      'plain': (dx.mean_over(names), training.KEEP),
      'rows': (dx.mean_over(names, result=wire.float32()), dx.encode(codec)),
      'whole': (dx.mean_over(names, gather='messages'), dx.encode(codec)),
    }
    found = {}
    for kind, (reduce, send) in kinds.items():
      message, _ = send.update(grads, send.init(grads))
      state = reduce.init(grads)
      found[kind], _ = reduce.update(message, state, grads, weight=weight)
      found[f'{kind}, sent'] = meeting.decoded(message)
    return found

  return fn


@pytest.mark.parametrize('mode', meeting.MODES)
def test_weights_count_in_every_mode(mode):
  """One of weight 0 is absent, even if it has nothing but NaN."""
  grads = jax.tree.map(lambda leaf: leaf.at[1].set(jnp.nan), GRADS)
  got = meeting.in_mode(weighted, mode, grads, jnp.asarray(WEIGHT))
  for kind in ('plain', 'rows', 'whole'):
    sent = jax.tree.map(
      lambda leaf: np.nan_to_num(np.asarray(leaf)), got[f'{kind}, sent']
    )
    want = averaged(sent, WEIGHT)
    meeting.assert_trees_close(got[kind], want, rtol=1e-5, atol=1e-7)
    assert_bitwise_equal_rows(got[kind])


@pytest.mark.parametrize('kwargs', [{}, {'wire': wire.float32()}])
def test_equal_weights_are_none(kwargs):
  mean = dx.mean_over('replica', **kwargs)
  want = meeting.arrived(mean, GRADS)
  got = meeting.arrived(mean, GRADS, weight=jnp.full(K, 4096.0))
  for one, other in zip(jax.tree.leaves(got), jax.tree.leaves(want)):
    np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize('kwargs', [{}, {'wire': wire.float32()}])
def test_where_nobody_weighs_the_mean_is_zero(kwargs):
  grads = jax.tree.map(lambda leaf: leaf * jnp.nan, GRADS)
  mean = dx.mean_over('replica', **kwargs)
  got = meeting.arrived(mean, grads, weight=jnp.zeros(K))
  assert not any(np.any(leaf) for leaf in jax.tree.leaves(got))


def test_many_tokens_do_not_leave_the_range_of_half_floats():
  grads = {'w': jnp.full((K, 2), 2.0, jnp.float16)}
  got = meeting.arrived(
    dx.mean_over('replica'), grads, weight=[60_000.0, 50_000.0, 1.0, 1.0]
  )
  np.testing.assert_allclose(got['w'].astype(jnp.float32), 2.0, rtol=2e-3)


@pytest.mark.parametrize('place', ['chain', 'synchronize'])
def test_weights_reach_a_mean_wherever_it_is(place):
  mean = dx.mean_over('replica')
  tx = {
    'chain': optax.chain(mean, optax.scale(1.0)),
    'synchronize': dx.synchronize(optax.sgd(1.0), every=1, reduce=mean),
  }[place]
  grads = jnp.array([1.0, 2.0, 3.0, 4.0])

  def one(grads, weight):
    state = tx.init(jnp.zeros(()))
    return tx.update(grads, state, jnp.zeros(()), weight=weight)[0]

  got = jax.vmap(one, axis_name='replica')(grads, jnp.asarray(WEIGHT))
  want = np.average(grads, weights=WEIGHT)
  np.testing.assert_allclose(got, np.full(K, want), rtol=1e-6)


@pytest.mark.parametrize('gather', ['mean', 'messages'])
def test_a_mean_is_of_one_format(gather):
  """Bytes of several could not be told by a link's state."""
  encode = lambda codec: dx.encode(codec).update(
    jnp.ones(4), dx.encode(codec).init(None)
  )[0]
  narrow = encode(wire.int8(block_size=4))
  for other in (encode(wire.float32()), encode(wire.int8()), jnp.ones(4)):
    with pytest.raises(ValueError, match='`updates` must be encoded in one'):
      jax.vmap(
        lambda _, other=other: dx.mean_over('replica', gather=gather).update(
          {'a': narrow, 'b': other}, ()
        ),
        axis_name='replica',
      )(jnp.ones(2))


@pytest.mark.parametrize('static', [False, True])
@pytest.mark.parametrize('kwargs', [{'delay': 1}, {'delay': 3}, {}])
def test_wide_params_have_a_wide_state(kwargs, static):
  with jax.enable_x64(True):
    mean = dx.mean_over('replica', wire=wire.int8(block_size=4))
    mean = mean if kwargs else dx.one_round_late(mean)
    tx = dx.synchronize(optax.sgd(0.5), every=4, reduce=mean, **kwargs)
    params = jnp.arange(6.0)
    assert params.dtype == jnp.float64
    state = tx.init(params)
    axes = dx.replica_axes(state)

    def train(state, params):
      for step in range(1, 9):
        told = {'step': step} if static else {}
        updates, state = tx.update(jnp.ones(6), state, params, **told)
        params = optax.apply_updates(params, updates)
      return state

    got = jax.eval_shape(
      jax.vmap(train, (axes, 0), axes, axis_name='replica'),
      training.copies(state, axes, 2),
      jnp.stack([params, params]),
    )
    dtypes = lambda tree: [leaf.dtype for leaf in jax.tree.leaves(tree)]
    assert dtypes(got) == dtypes(state)
