"""How a training begins and ends: `start`, `until`, and `final`."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import dilojax as dx
from tests.transforms import training
from tests.transforms.training import LR
from tests.transforms.training import ORIGIN
from tests.transforms.training import TARGETS
from tests.transforms.training import K

NESTEROV = optax.sgd(0.7, momentum=0.9, nesterov=True)
ADAM = optax.adam(0.1)
SWITCH, EVERY = 5, 4


def post_local(mean):
  return dx.post_local(
    optax.adam(LR),
    NESTEROV,
    every=EVERY,
    data_parallel_steps=SWITCH,
    axis_name=mean.init(()).names,
  )


def data_parallel(mean):
  return dx.data_parallel(optax.adam(LR), axis_name=mean.init(()).names)


@functools.cache
def trained(make_tx, num_steps, devices, static):
  return training.run(make_tx, num_steps, devices=devices, static=static)


def equal_along_replicas(tree):
  return all(np.all(leaf == leaf[:1]) for leaf in jax.tree.leaves(tree))


@pytest.mark.parametrize('static', [False, True])
@pytest.mark.parametrize('devices', [1, 2, 4])
def test_data_parallel_up_to_the_switch(devices, static):
  params, (_, inner, link) = trained(post_local, SWITCH, devices, static)
  want, (_, theirs) = trained(data_parallel, SWITCH, devices, static)
  np.testing.assert_allclose(params, want, rtol=1e-6)
  for got, want in zip(jax.tree.leaves(inner), jax.tree.leaves(theirs)):
    np.testing.assert_allclose(got, want, rtol=1e-6)
  assert equal_along_replicas((params, inner))
  # The anchor is taken here, and the outer optimizer is fresh.
  np.testing.assert_array_equal(params[0], link.anchor)
  assert all(np.all(leaf == 0) for leaf in jax.tree.leaves(link.outer))


@pytest.mark.parametrize('static', [False, True])
def test_rounds_count_from_the_switch(static):
  """The first outer step moves by lr (1 + momentum) times the mean."""
  _, (*_, before) = trained(post_local, SWITCH, 4, static)
  params, (_, inner, after) = trained(post_local, SWITCH + EVERY, 4, static)
  assert equal_along_replicas(params)
  assert not equal_along_replicas(inner)
  pseudo_grad = jax.tree.leaves(after.outer)[0]
  want = before.anchor - 0.7 * 1.9 * pseudo_grad
  np.testing.assert_allclose(after.anchor, want, rtol=1e-5)
  late, (*_, later) = trained(post_local, SWITCH + EVERY - 1, 4, static)
  assert not equal_along_replicas(late)
  np.testing.assert_array_equal(later.anchor, before.anchor)


def test_a_late_start_is_one_round_after_a_plain_one():
  """Without data parallelism the switch is just an average."""
  make = lambda **kwargs: training.sgd_then(optax.sgd(1.0), **kwargs)
  started, _ = training.run(make(every=4, start=3), 11)
  offset, _ = training.run(make(every=4, offset=3), 11)
  np.testing.assert_allclose(started, offset, rtol=1e-5)


@pytest.mark.parametrize('static', [False, True])
def test_until_rests_after_its_steps(static):
  tx = dx.until(3, optax.trace(decay=0.5))
  state, got = tx.init(ORIGIN), []
  for step in range(1, 6):
    updates, state = tx.update(ORIGIN + 1, state, step=step if static else None)
    got.append(updates[0])
  np.testing.assert_allclose(got, [1, 1.5, 1.75, 1, 1])
  np.testing.assert_allclose(state.link.trace, 1.75 + ORIGIN)
  assert state.step == 5


@pytest.mark.parametrize('make', [lambda n: dx.until(n, optax.identity())])
def test_until_rejects_what_cannot_be(make):
  with pytest.raises(ValueError, match='`num_steps` must be at least 1, got 0'):
    make(0)


def test_post_local_needs_a_first_phase():
  with pytest.raises(ValueError, match='at least 1, got 0'):
    dx.post_local(optax.sgd(LR), NESTEROV, every=2, data_parallel_steps=0)


# The last step.


@functools.cache
def last(num_steps, *, outer=ADAM, **kwargs):
  """Trains with a last synchronization, and without."""
  make_tx = training.sgd_then(outer, **kwargs)
  return [
    training.run(make_tx, num_steps, devices=1, static=True, final=final)
    for final in (True, False)
  ]


def count(state):
  return state[1].outer[0].count


def test_a_last_step_within_a_round_synchronizes():
  outer = optax.sgd(0.7)
  (params, (_, state)), (plain, (_, before)) = last(6, every=4, outer=outer)
  mean = np.asarray(plain).mean(axis=0)
  want = before.anchor - 0.7 * (before.anchor - mean)
  np.testing.assert_allclose(state.anchor, want, rtol=1e-5)
  assert np.all(np.asarray(params) == np.asarray(state.anchor)[None])
  assert state.step == before.step == 6


@pytest.mark.parametrize('merge', [dx.overwrite(), dx.delta(), dx.mix(0.5)])
def test_a_last_step_that_synchronizes_anyway_does_so_once(merge):
  final, plain = last(8, every=4, merge=merge)
  for got, want in zip(jax.tree.leaves(final), jax.tree.leaves(plain)):
    np.testing.assert_array_equal(got, want)
  assert count(final[1]) == 2


@pytest.mark.parametrize('num_steps', [5, 6])
def test_what_is_in_flight_lands(num_steps):
  """Launched after step 4, it is due after step 6, and lands once."""
  final, _ = last(num_steps, every=4, delay=2)
  _, due = last(6, every=4, delay=2)
  assert count(final[1]) == 1
  np.testing.assert_array_equal(final[1][1].anchor, due[1][1].anchor)
  assert equal_along_replicas(final[0])


def test_a_launch_in_the_last_step_lands_at_once():
  final, plain = last(4, every=4, delay=2)
  _, undelayed = last(4, every=4)
  assert (count(final[1]), count(plain[1])) == (1, 0)
  np.testing.assert_array_equal(final[1][1].anchor, undelayed[1][1].anchor)


def test_what_a_merge_leaves_is_synchronized_too():
  """The flight lands after step 5, and the steps since then are sent."""
  (params, state), _ = last(5, every=4, delay=2, merge=dx.delta())
  assert count(state) == 2
  np.testing.assert_allclose(
    params, np.tile(state[1].anchor, (K, 1)), rtol=1e-6
  )


@pytest.mark.parametrize('num_steps', [2, 3])
def test_a_last_step_before_the_start_is_the_mean(num_steps):
  (params, state), _ = last(num_steps, every=4, start=3)
  mean = TARGETS.mean(axis=0) * (1 - (1 - LR) ** num_steps)
  np.testing.assert_allclose(state[1].anchor, mean, rtol=1e-6)
  assert np.all(np.asarray(params) == np.asarray(state[1].anchor)[None])
  assert count(state) == 0


def test_final_reaches_every_fragment():
  links = {
    name: dx.synchronize(
      optax.sgd(0.5), every=4, offset=offset, reduce=optax.identity()
    )
    for name, offset in [('a', 1), ('b', 3)]
  }
  labels = {'a': 'a', 'b': 'b'}
  tx = optax.chain(optax.sgd(LR), optax.partition(links, labels))
  params = {'a': ORIGIN, 'b': ORIGIN}
  params, state = training.train(
    tx, params, tx.init(params), TARGETS[1], 2, static=True, final=True
  )
  # Distances shrink by half of a step's each time: a twice, b once for two.
  one, two = (1 - (1 - LR) ** steps for steps in (1, 2))
  want = {'a': 1 - (1 - 0.5 * one) ** 2, 'b': 0.5 * two}
  for name, share in want.items():
    np.testing.assert_allclose(params[name], share * TARGETS[1], rtol=1e-5)


def test_until_passes_final_on():
  scale = optax.GradientTransformationExtraArgs(
    lambda _: optax.EmptyState(),
    lambda updates, state, _=None, *, final=False, **__: (
      -updates if final else updates,
      state,
    ),
  )
  tx = dx.until(3, scale)
  updates, _ = tx.update(jnp.ones(2), tx.init(ORIGIN), step=1, final=True)
  np.testing.assert_array_equal(updates, -np.ones(2))
