"""The outer step: trajectories by hand, and what it is equal to."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import dilojax as dx
from dilojax import replicas
from tests.transforms import training
from tests.transforms.training import DIM
from tests.transforms.training import KEEP
from tests.transforms.training import LR
from tests.transforms.training import MEAN
from tests.transforms.training import ORIGIN
from tests.transforms.training import TARGETS

NESTEROV = optax.sgd(0.7, momentum=0.9, nesterov=True)


def rounds(tx, displacements, params=ORIGIN):
  """Returns the anchors of one replica that is displaced in every step."""
  state, anchors = tx.init(params), []
  for displacement in displacements:
    updates = jnp.full(DIM, displacement)
    updates, state = tx.update(updates, state, params, step=1)
    params = dx.apply_updates(params, updates, state, step=1)
    anchors.append(state.anchor[0])
  return np.array(anchors), state


def each_step(tx):
  return dx.synchronize(tx, every=1, reduce=KEEP)


@pytest.mark.parametrize('static', [False, True])
@pytest.mark.parametrize('devices', [1, 2])
def test_trajectory_computed_by_hand(devices, static):
  """Two replicas with constant gradients 1 and 2, H = 4."""
  placement = replicas.place(2, devices)
  outer = optax.sgd(0.5, momentum=0.9, nesterov=True)
  tx = dx.diloco(
    optax.sgd(0.1), outer, every=4, axis_name=placement.axis_names()
  )
  params = jnp.ones(1)
  state = tx.init(params)
  axes = (0, dx.replica_axes(state))

  def train(params, state, grad):
    def one(carry, _=None, *, step=None):
      params, state = carry
      updates, state = tx.update(grad, state, params, step=step)
      params = dx.apply_updates(params, updates, state, step=step)
      return (params, state), params

    if not static:
      return jax.lax.scan(one, (params, state), length=16)[1]
    carry, trajectory = (params, state), []
    for step in range(1, 17):
      carry, now = one(carry, step=step)
      trajectory.append(now)
    return jnp.stack(trajectory)

  program = replicas.over_replicas(train, placement, (*axes, 0), 0)
  args = replicas.spread((params, state), placement, axes)
  trajectory = jax.jit(program)(*args, jnp.array([[1.0], [2.0]]))
  want = [0.4300, -0.3830, -1.4147, -2.6432]
  got = trajectory[:, [3, 7, 11, 15], 0]
  np.testing.assert_allclose(got, [want, want], atol=5e-5)
  # The first outer step is the fourth inner step's, not the fifth's.
  np.testing.assert_allclose(trajectory[0, :3, 0], [0.9, 0.8, 0.7], rtol=1e-6)
  np.testing.assert_allclose(trajectory[1, :3, 0], [0.8, 0.6, 0.4], rtol=1e-6)


def test_nesterov_is_the_released_form_when_its_rate_changes():
  momentum, lrs = 0.9, np.array([0.7, 0.1, 0.9, 0.2, 0.5])
  displacements = np.array([1.0, -2.0, 0.5, 3.0, -1.0])
  outer = optax.inject_hyperparams(optax.sgd, static_args=('nesterov',))(
    learning_rate=lambda count: jnp.asarray(lrs, jnp.float32)[count],
    momentum=momentum,
    nesterov=True,
  )
  got, _ = rounds(each_step(outer), displacements)
  anchor, buffer, folded, want, other = 0.0, 0.0, 0.0, [], []
  elsewhere = 0.0
  for lr, pseudo_grad in zip(lrs, -displacements):
    buffer = momentum * buffer + pseudo_grad
    anchor -= lr * (pseudo_grad + momentum * buffer)
    want.append(anchor)
    # The form with the rate inside the buffer, which is another method.
    folded = momentum * folded + lr * pseudo_grad
    elsewhere -= momentum * folded + lr * pseudo_grad
    other.append(elsewhere)
  np.testing.assert_allclose(got, want, rtol=1e-5)
  assert not np.allclose(got[1:], other[1:], rtol=1e-2)


def test_an_outer_step_ends_each_round_and_no_other():
  every, num_steps = 3, 11
  tx = training.sgd_then(optax.adam(0.1), every=every)(KEEP)

  def one(carry, _):
    params, state = training.inner_step(tx, *carry, TARGETS[1])
    return (params, state), state[1].outer[0].count

  _, counts = jax.lax.scan(one, (ORIGIN, tx.init(ORIGIN)), length=num_steps)
  assert counts.tolist() == [t // every for t in range(1, num_steps + 1)]


@pytest.mark.parametrize(
  'outer',
  [
    optax.adam(0.3),
    optax.yogi(0.1),
    optax.adagrad(0.5),
    optax.chain(optax.clip_by_global_norm(0.3), NESTEROV),
    optax.sgd(optax.linear_schedule(1.0, 0.0, transition_steps=4)),
  ],
)
def test_outer_is_called_as_it_is(outer):
  displacements = [1.0, -0.5, 2.0]
  got, _ = rounds(each_step(outer), displacements)
  anchor, state, want = ORIGIN, outer.init(ORIGIN), []
  for displacement in displacements:
    # The replica starts at the anchor, so this is anchor minus replica.
    shift, state = outer.update(jnp.full(DIM, -displacement), state, anchor)
    anchor = optax.apply_updates(anchor, shift)
    want.append(anchor[0])
  np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize(
  ('outer', 'changed'),
  [
    (optax.sgd(0.7), optax.sgd(0.6)),
    (optax.sgd(0.7, 0.9), optax.sgd(0.7, 0.8)),
    (optax.sgd(0.7, 0.9), optax.sgd(0.7, 0.9, nesterov=True)),
    (optax.adam(0.7, eps=0.1), optax.adam(0.7, eps=0.2)),
    (optax.adam(0.7, b1=0.9), optax.adam(0.7, b1=0.8)),
    (optax.adam(0.7, b2=0.9), optax.adam(0.7, b2=0.8)),
    (optax.adamw(0.7), optax.adamw(0.7, weight_decay=0.1)),
  ],
)
def test_every_hyperparameter_reaches_the_step(outer, changed):
  displacements = [1.0, -0.5, 2.0]
  one, _ = rounds(each_step(outer), displacements)
  other, _ = rounds(each_step(changed), displacements)
  assert not np.allclose(one, other, rtol=1e-3)


def test_outer_schedule_counts_synchronizations():
  schedule = optax.linear_schedule(1.0, 0.0, transition_steps=4)
  outer = optax.inject_hyperparams(optax.sgd)(learning_rate=schedule)
  _, (_, state) = training.run(training.sgd_then(outer, every=2), 5)
  hyperparams = optax.tree.get(state.outer, 'hyperparams')
  np.testing.assert_allclose(hyperparams['learning_rate'], 0.75)


# Identities.


@pytest.mark.parametrize('every', [1, 3])
def test_one_replica_and_a_plain_mean_are_the_inner_optimizer(every):
  inner = optax.adamw(LR, weight_decay=0.1)
  params, state = ORIGIN, inner.init(ORIGIN)
  for _ in range(5):
    grads = jax.grad(training.loss)(params, TARGETS[1])
    updates, state = inner.update(grads, state, params)
    params = optax.apply_updates(params, updates)
  tx = optax.chain(
    inner, dx.synchronize(optax.sgd(1.0), every=every, reduce=KEEP)
  )
  got, _ = training.train(tx, ORIGIN, tx.init(ORIGIN), TARGETS[1], 5)
  np.testing.assert_allclose(got, params, rtol=1e-5)


def test_a_rate_of_one_jumps_to_the_mean():
  make_tx = lambda mean: dx.local_sgd(
    optax.sgd(LR), every=4, axis_name=mean.init(()).names
  )
  params, (_, state) = training.run(make_tx, 4)
  np.testing.assert_allclose(
    state.anchor, MEAN * (1 - (1 - LR) ** 4), rtol=1e-5
  )
  assert np.all(np.asarray(params) == np.asarray(state.anchor)[None])


def test_a_rate_of_zero_returns_to_the_anchor():
  make_tx = training.sgd_then(optax.sgd(0.0), every=4)
  params, (_, state) = training.run(make_tx, 4, ORIGIN + 0.3)
  assert np.all(np.asarray(state.anchor) == np.asarray(ORIGIN + 0.3))
  assert np.all(np.asarray(params) == np.asarray(ORIGIN + 0.3)[None])


@pytest.mark.parametrize('devices', [1, 4])
@pytest.mark.parametrize(
  ('outer', 'inner'),
  [
    (optax.sgd(1.0), optax.sgd(LR)),
    (NESTEROV, optax.sgd(0.7 * LR, momentum=0.9, nesterov=True)),
  ],
)
def test_every_step_is_data_parallel(outer, inner, devices):
  theirs = lambda mean: dx.data_parallel(inner, axis_name=mean.init(()).names)
  make_tx = training.sgd_then(outer, every=1)
  got, _ = training.run(make_tx, 7, devices=devices)
  want, _ = training.run(theirs, 7, devices=devices)
  np.testing.assert_allclose(got, want, rtol=1e-5)


def test_one_replica_is_lookahead():
  every, step_size, fast = 4, 0.5, optax.adamw(LR, weight_decay=0.1)
  lookahead = optax.lookahead(fast, every, step_size)
  pair = optax.LookaheadParams.init_synced(ORIGIN)
  state = lookahead.init(pair)
  for _ in range(11):
    grads = jax.grad(training.loss)(pair.fast, TARGETS[1])
    updates, state = lookahead.update(grads, state, pair)
    pair = optax.apply_updates(pair, updates)
  ours = dx.lookahead(fast, every=every, step_size=step_size)
  still = dx.snoo(fast, every=every, lr=step_size, momentum=0.0)
  for tx in (ours, still):
    params, (_, state) = training.train(
      tx, ORIGIN, tx.init(ORIGIN), TARGETS[1], 11
    )
    np.testing.assert_allclose(params, pair.fast, rtol=1e-5)
    np.testing.assert_allclose(state.anchor, pair.slow, rtol=1e-5)


def test_diloco_with_one_replica_is_snoo():
  make_tx = lambda mean: dx.diloco(
    optax.adam(LR), NESTEROV, every=3, axis_name=mean.init(()).names
  )
  _, (_, diloco) = training.run(make_tx, 7, targets=TARGETS[1:2], devices=1)
  tx = dx.snoo(optax.adam(LR), every=3, lr=0.7, momentum=0.9)
  _, (_, snoo) = training.train(tx, ORIGIN, tx.init(ORIGIN), TARGETS[1], 7)
  np.testing.assert_allclose(diloco.anchor, snoo.anchor, rtol=1e-5)
  assert np.all(np.asarray(snoo.anchor) != 0)


def test_one_fragment_is_diloco():
  def whole(mean):
    return training.sgd_then(NESTEROV, every=3)(mean)

  def fragment(mean):
    link = dx.synchronize(NESTEROV, every=3, reduce=mean)
    labels = lambda params: jax.tree.map(lambda _: 'all', params)
    return optax.chain(optax.sgd(LR), optax.partition({'all': link}, labels))

  params = {'a': ORIGIN, 'b': ORIGIN + 1}
  got, _ = training.run(fragment, 8, params)
  want, _ = training.run(whole, 8, params)
  for name in params:
    np.testing.assert_array_equal(got[name], want[name])


def test_a_replica_that_did_not_move_leaves_the_momentum_step():
  anchors, _ = rounds(each_step(NESTEROV), [1.0, 0.0])
  # b = -1, then b = -0.9 and the step is 0.7 * 0.9 * 0.9.
  np.testing.assert_allclose(np.diff(anchors), [0.7 * 0.9**2], rtol=1e-5)


@pytest.mark.parametrize('num_replicas', [2, 4, 8])
def test_equal_replicas_count_as_one(num_replicas):
  make_tx = training.sgd_then(NESTEROV, every=2)
  anchors = []
  for count in (1, num_replicas):
    targets = np.tile(TARGETS[1], (count, 1))
    _, (_, state) = training.run(make_tx, 5, targets=targets, devices=1)
    anchors.append(np.asarray(state.anchor))
  np.testing.assert_allclose(*anchors, rtol=1e-6)
