"""Inner optimizers stay whole: they see every step and none of the landings."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import dilojax as dx
from tests.transforms import training
from tests.transforms.training import KEEP

PARAMS = {
  'w': jnp.linspace(-1.0, 1.0, 12).reshape(4, 3),
  'b': jnp.array([0.5, -0.5, 0.1]),
  'frozen': jnp.array([1.0, 2.0]),
}
LABELS = {'w': 'muon', 'b': 'adamw', 'frozen': 'frozen'}
NESTEROV = optax.sgd(0.7, momentum=0.9, nesterov=True)

INNERS = {
  'partition': optax.chain(
    optax.clip_by_global_norm(1.0),
    optax.partition(
      {
        'muon': optax.contrib.muon(0.02),
        'adamw': optax.adamw(0.01),
        'frozen': optax.set_to_zero(),
      },
      LABELS,
    ),
  ),
  'masked': optax.masked(
    optax.adamw(0.01), {'w': True, 'b': True, 'frozen': False}
  ),
  'injected': optax.inject_hyperparams(optax.adamw)(
    optax.warmup_cosine_decay_schedule(0.0, 0.1, 2, 10)
  ),
  'if finite': optax.apply_if_finite(optax.adam(0.01), 3),
  'lion': optax.lion(0.01),
  'accumulating': optax.MultiSteps(optax.adam(0.01), 2),
  'averaged': optax.chain(optax.adam(0.01), optax.ema(0.9)),
}


def loss(params, batch):
  out = jnp.tanh(batch @ params['w'] + params['b'][None])
  return jnp.mean((out - 0.3) ** 2) + 0 * params['frozen'].sum()


def batch(step, size=2):
  return jnp.sin(jnp.arange(size * 4.0) + step).reshape(size, 4)


def as_transform(inner):
  is_wrapper = isinstance(inner, optax.MultiSteps)
  return inner.gradient_transformation() if is_wrapper else inner


@pytest.mark.parametrize('name', INNERS)
def test_inner_state_is_kept_over_synchronizations(name):
  """It is what it is alone, fed the same gradients and params."""
  inner = optax.with_extra_args_support(as_transform(INNERS[name]))
  link = dx.synchronize(NESTEROV, every=3, offset=2, delay=1, reduce=KEEP)
  tx = optax.chain(inner, link)

  @jax.jit
  def train(params, state, alone):
    for step in range(1, 4):
      grads = jax.grad(loss)(params, batch(step))
      _, alone = inner.update(grads, alone, params)
      updates, state = tx.update(grads, state, params, step=step)
      params = dx.apply_updates(params, updates, state, step=step)
    return params, state, alone

  params, state, alone = train(PARAMS, tx.init(PARAMS), inner.init(PARAMS))
  assert jax.tree.structure(alone) == jax.tree.structure(state[0])
  for got, want in zip(jax.tree.leaves(state[0]), jax.tree.leaves(alone)):
    np.testing.assert_array_equal(got, want)
  for leaf in PARAMS:
    # Weight decay moves a leaf without a gradient, too.
    moves = leaf != 'frozen' or name in ('injected', 'lion')
    assert moves != np.array_equal(params[leaf], PARAMS[leaf])
    np.testing.assert_array_equal(params[leaf], state[1].anchor[leaf])


def test_a_synchronization_touches_no_bit_of_the_moments():
  tx = optax.chain(
    optax.adam(0.01), dx.synchronize(NESTEROV, every=2, reduce=KEEP)
  )
  params, state = PARAMS, tx.init(PARAMS)
  grads = jax.grad(loss)(params, batch(1))
  _, quiet = tx.update(grads, state, params, step=1)
  _, meeting = tx.update(grads, state, params, step=2)
  leaves = lambda state: jax.tree.leaves(state[0])
  for got, want in zip(leaves(meeting), leaves(quiet)):
    np.testing.assert_array_equal(got, want)
  assert not np.array_equal(quiet[1].anchor['w'], meeting[1].anchor['w'])


def test_a_skipped_step_leaves_the_inner_state_and_the_mean_finite():
  """One replica of two meets a NaN in the step before the landing."""
  inner = optax.apply_if_finite(optax.adam(0.1), max_consecutive_errors=5)
  tx = dx.diloco(inner, optax.sgd(1.0), every=2)
  axes = (0, dx.replica_axes(tx.init(jnp.zeros(3))))

  def one(params, state, grads):
    updates, state = tx.update(grads, state, params)
    return dx.apply_updates(params, updates, state), state

  step = jax.jit(jax.vmap(one, (*axes, 0), axes, axis_name='replica'))
  params = jnp.zeros(3)
  params, states = training.copies((params, tx.init(params)), axes, 2)
  params, states = step(params, states, jnp.ones((2, 3)))
  before = states[0].inner_state
  bad = jnp.array([[1.0] * 3, [1.0, jnp.nan, 1.0]])
  params, states = step(params, states, bad)
  for got, was in zip(
    jax.tree.leaves(states[0].inner_state), jax.tree.leaves(before)
  ):
    np.testing.assert_array_equal(got[1], was[1])
    assert not np.array_equal(got[0], was[0])
  assert states[0].total_notfinite.tolist() == [0, 1]
  # Two steps of Adam by 0.1, and one.
  np.testing.assert_allclose(states[1].anchor, np.full(3, -0.15), rtol=1e-5)
  np.testing.assert_allclose(params, np.full((2, 3), -0.15), rtol=1e-5)


def test_accumulated_gradients_are_those_of_the_large_batch():
  """Two micro-batches per inner step, through two synchronizations."""
  every = 2
  inner = optax.MultiSteps(optax.adam(0.01), 2).gradient_transformation()
  link = lambda every: dx.synchronize(NESTEROV, every=every, reduce=KEEP)
  small = optax.chain(inner, link(2 * every))
  large = optax.chain(optax.adam(0.01), link(every))

  def train(tx, batches):
    params, state = PARAMS, tx.init(PARAMS)

    def one(carry, data):
      params, state = carry
      grads = jax.grad(loss)(params, data)
      updates, state = tx.update(grads, state, params)
      return (dx.apply_updates(params, updates, state), state), None

    return jax.lax.scan(one, (params, state), batches)[0]

  data = jnp.stack([batch(step, 4) for step in range(2 * every)])
  got, (_, link_state) = train(small, data.reshape(-1, 2, 4))
  want, (_, other) = train(large, data)
  for name in PARAMS:
    np.testing.assert_allclose(got[name], want[name], rtol=1e-5, atol=1e-6)
  for name in PARAMS:
    np.testing.assert_allclose(
      link_state.anchor[name], other.anchor[name], rtol=1e-5, atol=1e-6
    )
  assert link_state.step == 2 * other.step


OUTERS = {
  'adam': optax.adam(0.1),
  'clipped': optax.chain(optax.clip_by_global_norm(0.1), optax.sgd(0.5, 0.9)),
  'scheduled': optax.sgd(optax.linear_schedule(1.0, 0.0, 4)),
}


@pytest.mark.parametrize('name', OUTERS)
def test_fragments_have_an_outer_optimizer_each(name):
  """Masked leaves and scalar counts: each is a direct call on its leaves."""
  outer = OUTERS[name]
  link = lambda offset: dx.synchronize(
    outer, every=3, offset=offset, reduce=KEEP
  )
  fragments = {1: link(1), 3: link(3)}
  labels = {'w': 1, 'b': 3, 'frozen': 3}
  tx = optax.partition(fragments, labels)
  drift = {'w': PARAMS['w'] + 1, 'b': PARAMS['b'], 'frozen': jnp.zeros(2)}

  @jax.jit
  def train(params, state):
    for step in range(1, 4):
      updates, state = tx.update(drift, state, params, step=step)
      params = dx.apply_updates(params, updates, state, step=step)
    return params, state

  state = tx.init(PARAMS)
  params, new = train(PARAMS, state)
  assert jax.tree.structure(new) == jax.tree.structure(state)
  for offset in fragments:
    mine = [leaf for leaf in labels if labels[leaf] == offset]
    anchor = {leaf: PARAMS[leaf] for leaf in mine}
    pseudo_grad = {leaf: -offset * drift[leaf] for leaf in mine}
    shift, _ = outer.update(pseudo_grad, outer.init(anchor), anchor)
    got = new.inner_states[offset].inner_state
    for leaf in labels:
      if leaf in mine:
        want = anchor[leaf] + shift[leaf]
        np.testing.assert_allclose(got.anchor[leaf], want, rtol=1e-4)
      else:
        assert isinstance(got.anchor[leaf], optax.MaskedNode)
  np.testing.assert_array_equal(params['frozen'], PARAMS['frozen'])
  counts = optax.tree.get_all_with_path(new, 'count')
  assert all(count == 1 for _, count in counts)
