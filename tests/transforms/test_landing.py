"""`apply_updates` lands bitwise on the anchor; adding does not."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import dilojax as dx

K, SIZE = 4, 300
MEAN = dx.mean_over('replica')
OUTER = optax.sgd(0.7, momentum=0.9, nesterov=True)
LABELS = {'wide': 'a', 'narrow': 'b'}


def link(**kwargs):
  return dx.synchronize(OUTER, **{'every': 2, 'reduce': MEAN, **kwargs})


def level(every):
  return dx.Level(OUTER, every, 'replica')


# All of them land in the second step.
LINKS = {
  'plain': link(),
  'delayed': link(offset=1, delay=1),
  'mixed with nothing': link(offset=1, delay=1, merge=dx.mix(0)),
  'started': link(start=2),
  'fragments': optax.partition({'a': link(), 'b': link(every=1)}, LABELS),
  'two levels': dx.hierarchical(optax.identity(), [level(1), level(2)]),
  'higher level': dx.hierarchical(optax.identity(), [level(3), level(2)]),
}


def land(tx, *, static, exactly):
  """Moves far twice, and returns the replicas and the anchor."""
  start, drift = (
    {
      'wide': scale * jax.random.normal(key, (SIZE,)),
      'narrow': scale * jax.random.normal(key, (SIZE,)).astype(jnp.bfloat16),
    }
    for key, scale in zip(jax.random.split(jax.random.key(0)), (1.0, 100.0))
  )
  state = tx.init(start)
  axes = (None, dx.replica_axes(state))

  def train(params, state, factor):
    for step in (1, 2):
      scale = lambda leaf, factor=factor / step: (factor * leaf).astype(
        leaf.dtype
      )
      step = step if static else None
      updates, state = tx.update(
        jax.tree.map(scale, drift), state, params, step=step
      )
      if exactly:
        params = dx.apply_updates(params, updates, state, step=step)
      else:
        params = optax.apply_updates(params, updates)
    return params, state

  program = jax.vmap(train, (*axes, 0), (0, axes[1]), axis_name='replica')
  factors = jnp.linspace(0.3, 1.7, K)
  params, state = jax.jit(program)(start, state, factors)
  return params, dx.anchor_of(state, start)


def misses(params, anchor):
  """Counts the entries in which a replica differs from the anchor."""
  return {name: int(np.sum(params[name] != anchor[name])) for name in params}


def is_at(params, anchor):
  return not any(misses(params, tiled(anchor)).values())


def tiled(tree):
  return jax.tree.map(lambda leaf: np.tile(leaf, (K, 1)), tree)


@pytest.mark.parametrize('static', [False, True])
@pytest.mark.parametrize('name', LINKS)
def test_every_replica_is_the_anchor(name, static):
  params, anchor = land(LINKS[name], static=static, exactly=True)
  assert is_at(params, anchor)
  assert params['narrow'].dtype == jnp.bfloat16


def test_adding_misses_the_anchor():
  params, anchor = land(LINKS['plain'], static=True, exactly=False)
  missed = misses(params, tiled(anchor))
  assert min(missed.values()) > 0.01 * K * SIZE


@pytest.mark.parametrize('static', [False, True])
def test_quiet_steps_only_add(static):
  params, updates = jnp.array([1e8, 1.0]), jnp.array([1.0, 0.3])
  tx = link(every=4, reduce=optax.identity())
  step = 1 if static else None
  updates, state = tx.update(updates, tx.init(params), params, step=step)
  got = dx.apply_updates(params, updates, state, step=step)
  np.testing.assert_array_equal(got, params + updates)


def test_a_rule_that_keeps_something_is_not_overwritten():
  tx = link(every=1, merge=dx.mix(0.5), reduce=optax.identity())
  params = jnp.zeros(2)
  updates, state = tx.update(jnp.ones(2), tx.init(params), params, step=1)
  got = dx.apply_updates(params, updates, state, step=1)
  # Nesterov's first step is 0.7 * 1.9 of the way.
  np.testing.assert_allclose(got, np.full(2, 0.5 + 0.5 * 1.33), rtol=1e-6)


def test_last_step_lands_exactly():
  tx = link(every=9, reduce=optax.identity())
  keys = jax.random.split(jax.random.key(1), 3)
  start, params, drift = (jax.random.normal(key, (SIZE,)) for key in keys)
  told = {'step': 4, 'final': True}
  updates, state = tx.update(drift, tx.init(start), params, **told)
  got = dx.apply_updates(params, updates, state, **told)
  np.testing.assert_array_equal(got, state.anchor)
  assert np.any(optax.apply_updates(params, updates) != state.anchor)


@pytest.mark.parametrize(('step', 'final'), [(3, False), (2, True), (3, True)])
def test_the_switch_lands_exactly_whatever_the_merge(step, final):
  link = dx.synchronize(
    optax.sgd(0.3),
    every=4,
    start=3,
    merge=dx.mix(0.5),
    reduce=optax.identity(),
  )
  params = jnp.array([1e8, 1.0, 0.3])
  updates, state = link.update(
    jnp.array([-1e8, 0.3, 1e-5]),
    link.init(params),
    params,
    step=step,
    final=final,
  )
  landed = dx.apply_updates(params, updates, state, step=step, final=final)
  np.testing.assert_array_equal(landed, state.anchor)
