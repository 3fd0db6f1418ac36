"""Messages that are lost: who stays, who is averaged, and when."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import dilojax as dx
from dilojax import wire
from tests.transforms import meeting
from tests.transforms import training
from tests.transforms.training import LR
from tests.transforms.training import TARGETS
from tests.transforms.training import K

MEAN = dx.mean_over('replica')


def link(probability=0.5, *, reduce=MEAN, **kwargs):
  return optax.chain(
    optax.sgd(LR),
    dx.synchronize(
      kwargs.pop('outer', optax.sgd(0.7)),
      reduce=dx.dropping(reduce, probability, seed=1),
      **{'every': 2, **kwargs},
    ),
  )


def test_a_replica_whose_message_is_lost_keeps_its_own_params():
  """The whole rule in numpy, given who was present."""
  anchor, replica = np.zeros(3, np.float32), np.zeros_like(TARGETS)
  seen = []
  steps = meeting.trajectory(link(), 12)
  for step, (params, (_, state)) in enumerate(steps, start=1):
    replica = replica - LR * (replica - TARGETS)
    if step % 2 == 0:
      present = np.asarray(state.reduce.present)
      seen.append(present)
      if present.any():
        anchor = anchor - 0.7 * np.mean((anchor - replica)[present], axis=0)
      replica = np.where(present[:, None], anchor, replica)
    np.testing.assert_allclose(params, replica, rtol=1e-4)
    np.testing.assert_allclose(state.anchor, anchor, rtol=1e-4, atol=1e-6)
  assert 0 < np.mean(seen) < 1
  assert len(np.unique(seen, axis=0)) > 1


@pytest.mark.parametrize('kwargs', [{}, {'delay': 1}])
def test_no_losses_is_the_mean(kwargs):
  got, (_, state) = list(meeting.trajectory(link(0.0, **kwargs), 5))[-1]
  plain = optax.chain(
    optax.sgd(LR),
    dx.synchronize(optax.sgd(0.7), every=2, reduce=MEAN, **kwargs),
  )
  want, (_, wanted) = list(meeting.trajectory(plain, 5))[-1]
  np.testing.assert_allclose(got, want, rtol=1e-6)
  np.testing.assert_allclose(state.anchor, wanted.anchor, rtol=1e-6)


def test_all_lost_nobody_moves():
  """Without momentum the anchor rests; with it, it coasts."""
  *_, (params, (_, state)) = meeting.trajectory(link(1.0), 4)
  want = (1 - (1 - LR) ** 4) * TARGETS
  np.testing.assert_allclose(params, want, rtol=1e-5)
  np.testing.assert_array_equal(state.anchor, 0)


def test_losses_are_those_of_seed_and_round():
  rounds = jnp.ones((K, 8, 2))
  draws = []
  for seed in (0, 0, 1):
    reduce = dx.dropping(MEAN, 0.5, seed=seed)
    results, _, (_, state) = meeting.over_rounds(reduce, rounds)
    np.testing.assert_array_equal(state.count, 8)
    draws.append((np.asarray(state.present), np.asarray(results)))
  np.testing.assert_array_equal(draws[0][0], draws[1][0])

  assert np.any(draws[0][0] != draws[2][0])
  np.testing.assert_array_equal(draws[0][1], draws[1][1])
  # A resumed training goes on with the same draws.
  reduce = dx.dropping(MEAN, 0.5)

  def present(count, grads):
    state = reduce.init(grads)._replace(count=count)
    return reduce.update(grads, state)[1].present

  one_by_one = jax.vmap(present, (None, 0), axis_name='replica')
  counts = jnp.arange(20)
  found = jax.jit(jax.vmap(one_by_one, (0, None)))(counts, jnp.ones((32, 1)))
  np.testing.assert_array_equal(
    jax.vmap(present, (None, 0), axis_name='replica')(7, jnp.ones((K, 1))),
    draws[0][0],
  )
  assert len(np.unique(found, axis=0)) == 20
  assert abs(np.mean(found) - 0.5) < 4 * 0.5 / np.sqrt(20 * 32)


def test_losses_and_weights_multiply():
  grads = meeting.gradients(shapes={'w': (3,)})
  weight = np.array([1.0, 2.0, 3.0, 0.0], np.float32)
  reduce = dx.dropping(MEAN, 0.5, seed=1)

  def one(grads, weight):
    return reduce.update(grads, reduce.init(grads), weight=weight)

  got, state = jax.vmap(one, axis_name='replica')(grads, jnp.asarray(weight))
  share = weight * np.asarray(state.present)
  assert 0 < share.sum() < weight.sum()
  want = np.average(grads['w'], axis=0, weights=share)
  np.testing.assert_allclose(got['w'][0], want, rtol=1e-5)


@pytest.mark.parametrize('static', [False, True])
def test_losses_of_messages_that_are_relayed(static):
  """Who is absent at the launch stays at the landing, two steps later."""
  kwargs = {'every': 4, 'delay': 2, 'send': dx.encode(wire.float32())}
  relayed = lambda mean: link(
    reduce=dx.mean_over(mean.init(None).names), **kwargs
  )
  whole = lambda mean: link(
    reduce=dx.mean_over(mean.init(None).names, gather='messages'), **kwargs
  )
  got, (_, state) = training.run(relayed, 8, devices=1, static=static)
  want, (_, wanted) = training.run(whole, 8, devices=1, static=static)
  assert jax.tree.leaves(state.relayed)
  np.testing.assert_allclose(got, want, rtol=1e-5)
  np.testing.assert_allclose(state.anchor, wanted.anchor, rtol=1e-5)
  np.testing.assert_array_equal(state.reduce.present, wanted.reduce.present)


@pytest.mark.slow
def test_what_is_lost_has_not_been_sent():
  """Error feedback keeps what it had: in the end all has arrived, once."""
  tx = dx.synchronize(
    optax.sgd(1.0),
    every=1,
    send=dx.error_feedback(wire.top_k(0.25, block_size=4)),
    reduce=dx.dropping(MEAN, 0.5, seed=1),
  )

  def train(updates):
    params = jnp.zeros(4)
    state, lost = tx.init(params), []
    for step in range(1, 33):
      now = updates if step <= 4 else jnp.zeros(4)
      moved, state = tx.update(now, state, params, step=step)
      params = dx.apply_updates(params, moved, state, step=step)
      lost.append(~state.reduce.present)
    return state.anchor, state.send.kept, jnp.array(lost)

  updates = jnp.array([[1.0, 2.0, 3.0, 4.0]])
  [anchor], [kept], [lost] = jax.jit(jax.vmap(train, axis_name='replica'))(
    updates
  )
  assert lost[:4].any()
  assert not lost[:4].all()
  np.testing.assert_array_equal(anchor, 4 * updates[0])
  np.testing.assert_array_equal(kept, jnp.zeros(4))


def test_hosts_are_lost_as_a_whole():
  reduce = dx.dropping(
    dx.mean_over(('host', 'replica')), 0.5, axis_name='host', seed=1
  )
  present = lambda grads: reduce.update(grads, reduce.init(grads))[1].present
  both = jax.vmap(jax.vmap(present, axis_name='replica'), axis_name='host')
  got = np.asarray(both(jnp.ones((8, 2))))
  np.testing.assert_array_equal(got[:, 0], got[:, 1])
  assert 0 < got.sum() < 16


def present_in(names):
  reduce = dx.dropping(dx.mean_over(names), 0.5, seed=1)

  def fn(grads):
    arrived, state = reduce.update(grads, reduce.init(grads))
    return arrived, state.present

  return fn


@pytest.mark.parametrize('mode', meeting.MODES[1:])
def test_the_same_are_lost_in_every_mode(mode):
  grads = jnp.arange(4.0)
  got = meeting.in_mode(present_in, mode, grads)
  want = meeting.in_mode(present_in, 'vmap', grads)
  meeting.assert_trees_close(got, want)


def test_who_is_present_is_private():
  state = link()[0](training.ORIGIN)
  axes = dx.replica_axes(state)[1].reduce
  assert (axes.count, axes.present) == (None, 0)
  assert dx.links(state, training.ORIGIN)[0].overwrites is False


def test_what_cannot_be_dropped_is_refused():
  with pytest.raises(ValueError, match='`probability` must be from 0 to 1'):
    dx.dropping(MEAN, 50)
  with pytest.raises(ValueError, match='`reduce` must give all replicas one'):
    dx.dropping(dx.eager(MEAN), 0.5).init(training.ORIGIN)
  with pytest.raises(ValueError, match='`axis_name` must be given'):
    dx.dropping(optax.identity(), 0.5).init(training.ORIGIN)
