"""The link between replicas: closed forms, what is shared, misuse."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import dilojax as dx
from tests.transforms import training
from tests.transforms.training import DIM
from tests.transforms.training import KEEP
from tests.transforms.training import LR
from tests.transforms.training import MEAN
from tests.transforms.training import ORIGIN
from tests.transforms.training import TARGETS
from tests.transforms.training import K

# Closed forms: a step of SGD shrinks the distance to the target by 1 - LR.


@pytest.mark.parametrize('static', [False, True])
@pytest.mark.parametrize('devices', [1, 2, 4])
def test_quadratic_has_closed_form(devices, static):
  every, outer_lr, decay = 5, 0.7, 0.01
  outer = optax.chain(optax.add_decayed_weights(decay), optax.sgd(outer_lr))
  make_tx = training.sgd_then(outer, every=every)
  params, (_, state) = training.run(make_tx, 13, devices=devices, static=static)
  anchor = np.zeros(DIM)
  for _ in range(2):
    local = TARGETS + (1 - LR) ** every * (anchor - TARGETS)
    pseudo_grad = anchor - local.mean(axis=0)
    anchor = anchor - outer_lr * (pseudo_grad + decay * anchor)
  local = TARGETS + (1 - LR) ** 3 * (anchor - TARGETS)
  np.testing.assert_allclose(state.anchor, anchor, rtol=1e-5)
  np.testing.assert_allclose(params, local, rtol=1e-5)
  assert state.step == 13


@pytest.mark.parametrize('static', [False, True])
def test_fragments_take_turns(static):
  rounds = {'a': [2, 5], 'b': [5]}  # Inner steps before each synchronization.

  def make_tx(mean):
    link = lambda offset: dx.synchronize(
      optax.sgd(0.5), every=5, offset=offset, reduce=mean
    )
    fragments = {'a': link(2), 'b': link(5)}
    labels = {'a': 'a', 'b': 'b'}
    return optax.chain(optax.sgd(LR), optax.partition(fragments, labels))

  params, _ = training.run(
    make_tx, 9, {'a': ORIGIN, 'b': ORIGIN}, static=static
  )
  for name, lengths in rounds.items():
    anchor = np.zeros(DIM)
    for length in lengths:
      anchor = anchor + 0.5 * (1 - (1 - LR) ** length) * (MEAN - anchor)
    rest = (1 - LR) ** (9 - sum(lengths))
    want = TARGETS + rest * (anchor - TARGETS)
    np.testing.assert_allclose(params[name], want, rtol=1e-5)


def test_narrow_params_move_a_wide_anchor():
  """Ten shifts, each a hundredth of the spacing of bfloat16."""
  spacing, outer_lr = 2**-7, 0.01
  tx = dx.synchronize(optax.sgd(outer_lr), every=1, reduce=KEEP)
  params = jnp.ones(DIM, jnp.bfloat16)
  state = tx.init(params)
  for _ in range(10):
    updates = jnp.full(DIM, -spacing, jnp.bfloat16)
    updates, state = tx.update(updates, state, params)
    params = optax.apply_updates(params, updates)
  # In every round the replica restarts from 1, but the anchor goes on.
  want = 1 - spacing * (1 - (1 - outer_lr) ** 10)
  np.testing.assert_allclose(state.anchor, np.full(DIM, want), rtol=1e-6)


def test_a_late_first_landing_brings_nothing_before():
  """With offset 8, every 10 and delay 5 a residue alone would say step 3."""
  tx = dx.synchronize(optax.sgd(0.5), every=10, offset=8, delay=5, reduce=KEEP)
  updates, state = jnp.ones(DIM), tx.init(ORIGIN)
  moved = []
  for step in range(1, 15):
    before = state
    _, state = tx.update(updates, state, ORIGIN, step=step)
    moved += [step] * bool(jnp.any(state.anchor != before.anchor))
  assert moved == [13]


# Merges, exactly.


def test_merging_nothing_of_the_local_value_is_overwriting():
  assert dx.mix(0)(1.0, 2.0, 3.0) == dx.overwrite()(1.0, 2.0, 3.0) == 3.0
  assert dx.mix(0).overwrites


@pytest.mark.parametrize('delay', [0, 2])
def test_merging_only_the_local_value_leaves_replicas_alone(delay):
  """Identity 5: with a weight of one the replicas train independently."""
  make_tx = training.sgd_then(
    optax.sgd(0.7), every=4, delay=delay, merge=dx.mix(1)
  )
  params, (_, state) = training.run(make_tx, 11)
  want = TARGETS * (1 - (1 - LR) ** 11)
  np.testing.assert_allclose(params, want, rtol=1e-5)
  assert np.all(np.asarray(state.anchor) != 0)


def test_weight_of_one_is_exact():
  now, anchor = np.float32(0.1), np.float32(1e8)
  assert dx.mix(1)(now, now, anchor) == now


@pytest.mark.parametrize('delay', [0, 1, 3])
def test_delta_keeps_the_mean_of_the_replicas(delay):
  """Identity 9. Overwriting with a delay does not, so this can fail."""
  distance = (1 - LR) ** 11
  means = {}
  for merge in (dx.delta(), dx.overwrite()):
    make_tx = training.sgd_then(
      optax.sgd(1.0), every=4, delay=delay, merge=merge
    )
    params, _ = training.run(make_tx, 11)
    means[merge.overwrites] = np.asarray(params).mean(axis=0)
  want = MEAN * (1 - distance)
  np.testing.assert_allclose(means[False], want, rtol=1e-5)
  assert np.allclose(means[True], want, rtol=1e-5) == (delay == 0)


# What is shared, and with whom.


def test_sender_is_private():
  send = optax.trace(decay=0.5)
  make_tx = training.sgd_then(optax.sgd(1.0), every=1, send=send)
  _, (_, state) = training.run(make_tx, 2)
  first, second = LR * TARGETS, LR * (TARGETS - LR * MEAN)
  anchor = MEAN * LR * (1 + (1 - LR) + 0.5)
  np.testing.assert_allclose(
    state.send.trace, -(second + 0.5 * first), rtol=1e-5
  )
  np.testing.assert_allclose(state.anchor, anchor, rtol=1e-5)


def test_private_state_has_an_axis_of_replicas():
  memory = optax.trace(decay=0.5)

  def make_tx(mean):
    reduce = optax.chain(mean, memory)
    link = dx.synchronize(
      memory,
      every=3,
      delay=1,
      reduce=reduce,
      send=memory,
      merge=dx.delta(),
    )
    return optax.chain(memory, link)

  _, (inner, state) = training.run(make_tx, 4)
  shapes = lambda *trees: [leaf.shape for leaf in jax.tree.leaves(trees)]
  assert shapes(inner, state.send, state.launched) == 3 * [(K, DIM)]
  assert shapes(state.anchor, state.reduce, state.outer) == 3 * [(DIM,)]
  assert shapes(state.arrived) == [(DIM,)]
  assert shapes(state.step) == [()]


def test_nothing_is_kept_that_is_not_needed():
  """Extra memory is the anchor and the momentum: twice the params."""
  params = {'w': jnp.ones((5, 7)), 'b': jnp.ones(3)}
  nbytes = lambda tree: sum(leaf.nbytes for leaf in jax.tree.leaves(tree))
  outer = optax.sgd(0.7, momentum=0.9, nesterov=True)
  state = lambda **kwargs: dx.synchronize(
    outer, every=4, reduce=KEEP, **kwargs
  ).init(params)
  counter = 4
  assert nbytes(state()) == 2 * nbytes(params) + counter
  assert nbytes(state(delay=1)) == 3 * nbytes(params) + counter
  assert nbytes(state(delay=1, merge=dx.mix(0.5))) == nbytes(state(delay=1))
  delta = state(delay=1, merge=dx.delta())
  assert nbytes(delta) == 4 * nbytes(params) + counter


def test_extra_args_reach_all_three_but_step_does_not():
  scale = optax.GradientTransformationExtraArgs(
    lambda _: optax.EmptyState(),
    lambda updates, state, _=None, *, factor: (factor * updates, state),
  )
  tx = dx.synchronize(scale, every=1, reduce=scale, send=scale)
  state = tx.init(ORIGIN)
  updates, _ = tx.update(
    ORIGIN + 1, state, ORIGIN, step=1, final=True, factor=-2.0
  )
  np.testing.assert_allclose(updates, np.full(DIM, 8.0))


# Misuse.


@pytest.mark.parametrize(
  ('kwargs', 'message'),
  [
    ({'every': 0}, '`every` must be at least 1, got 0'),
    ({'every': 2.0}, '`every` must be an int, got 2.0'),
    ({'every': True}, '`every` must be an int, got True'),
    ({'every': 3, 'offset': 0}, r'`offset` must be from 1 .* \(3\), got 0'),
    ({'every': 3, 'offset': 4}, r'`offset` must be from 1 .* \(3\), got 4'),
    ({'every': 3, 'offset': '1'}, "`offset` must be an int, got '1'"),
    ({'every': 3, 'delay': -1}, '`delay` must be at least 0, got -1'),
    ({'every': 3, 'delay': 3}, r'`delay` \(3\) reaches the next launch.*\(3\)'),
    ({'every': 6, 'delay': 9}, r'`delay` \(9\) reaches the next launch.*\(6\)'),
    ({'every': 3, 'delay': None}, '`delay` must be an int, got None'),
    ({'every': 3, 'start': -1}, '`start` must be at least 0, got -1'),
    ({'every': 3, 'start': 0.5}, '`start` must be an int, got 0.5'),
  ],
)
def test_rejects_what_cannot_be(kwargs, message):
  with pytest.raises(ValueError, match=message):
    dx.synchronize(optax.sgd(1.0), reduce=KEEP, **kwargs)


@pytest.mark.parametrize(
  ('kwargs', 'message'),
  [
    ({}, 'pass `params`'),
    ({'params': ORIGIN, 'step': 0}, 'counted from 1 .* got 0'),
    ({'params': ORIGIN, 'step': jnp.int32(3)}, '`step` must be a Python int'),
    ({'params': ORIGIN, 'step': True}, '`step` must be a Python int.*True'),
    ({'params': ORIGIN, 'final': True}, '`final` is decided while tracing'),
  ],
)
def test_update_rejects_what_cannot_be(kwargs, message):
  tx = dx.synchronize(optax.sgd(1.0), every=2, reduce=KEEP)
  with pytest.raises(ValueError, match=message):
    tx.update(ORIGIN, tx.init(ORIGIN), **kwargs)


@pytest.mark.parametrize('alpha', [-0.1, 1.5])
def test_mix_rejects_what_cannot_be(alpha):
  with pytest.raises(ValueError, match=f'`alpha` must be .* got {alpha}'):
    dx.mix(alpha)


@pytest.mark.parametrize('names', [(), ('replica', 'replica')])
def test_mean_rejects_what_cannot_be(names):
  with pytest.raises(ValueError, match='`axis_name` must be one name'):
    dx.mean_over(names)


@pytest.mark.parametrize(
  ('kwargs', 'message'),
  [
    ({'every': 3, 'delay': 1}, None),
    ({'every': 3, 'delay': 2, 'offset': 1}, None),
    ({'every': 1}, None),
    ({'every': 1, 'delay': 1}, 'reaches the next launch'),
  ],
)
def test_legal_and_illegal_delays(kwargs, message):
  make = lambda: dx.synchronize(optax.sgd(1.0), reduce=KEEP, **kwargs)
  if message is None:
    make()
  else:
    with pytest.raises(ValueError, match=message):
      make()
