"""What every public transform promises, one test each over all of them."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import dilojax as dx
from tests.transforms import training

PARAMS = {
  'w': jnp.linspace(-1.0, 1.0, 6).reshape(2, 3),
  'b': jnp.ones(3, jnp.bfloat16),
  's': jnp.ones(()),
}
SGD = optax.sgd(0.1)
OUTER = optax.sgd(0.7, momentum=0.9, nesterov=True)
MEAN = dx.mean_over('replica')

TRANSFORMS = {
  'mean_over': MEAN,
  'until': dx.until(2, MEAN),
  'synchronize': dx.synchronize(OUTER, every=2, reduce=MEAN),
  'synchronize, late': dx.synchronize(
    OUTER, every=3, delay=1, merge=dx.delta(), reduce=MEAN, start=1
  ),
  'data_parallel': dx.data_parallel(SGD),
  'local_sgd': dx.local_sgd(SGD, every=2),
  'diloco': dx.diloco(optax.adam(0.1), OUTER, every=2),
  'post_local': dx.post_local(SGD, OUTER, every=2, data_parallel_steps=1),
  'lookahead': dx.lookahead(SGD, every=2, step_size=0.5),
  'snoo': dx.snoo(SGD, every=2, lr=0.7, momentum=0.9),
  'hierarchical': dx.hierarchical(
    SGD, [dx.Level(OUTER, 1, 'replica'), dx.Level(OUTER, 2, 'replica')]
  ),
  'few bits, in two steps': dx.synchronize(
    OUTER,
    every=3,
    delay=2,
    send=dx.error_feedback(dx.wire.int8(block_size=4)),
    reduce=MEAN,
  ),
  'streaming_diloco': dx.streaming_diloco(
    SGD, OUTER, every=3, fragments=dx.by_bytes(2)
  ),
  'eager_diloco': dx.eager_diloco(SGD, OUTER, every=2),
  'delayed_diloco': dx.delayed_diloco(SGD, OUTER, every=2),
  'cocodc': dx.cocodc(SGD, OUTER, every=3, delay=1, fragments=dx.by_bytes(2)),
  'sparseloco': dx.sparseloco(SGD, every=2, fraction=0.5, block_size=4),
  'decoupled_merge': dx.decoupled_merge(
    SGD, OUTER, every=3, delay=1, fragments=dx.by_bytes(2)
  ),
  'dropping': dx.synchronize(OUTER, every=2, reduce=dx.dropping(MEAN, 0.5)),
  'noloco': dx.noloco(SGD, every=2),
  'sparta': dx.sparta(SGD, 0.5),
  'loscar_sgd': dx.loscar_sgd(SGD, every=2, fraction=0.5, delay=1),
  'dreamddp': dx.dreamddp(
    SGD, [['fragment_0'], [], ['fragment_1']], fragments=dx.by_bytes(2)
  ),
}
# These have no replicas to agree with: they run without an axis.
ALONE = ('lookahead', 'snoo')


def extended(name):
  return optax.with_extra_args_support(TRANSFORMS[name])


def mapped(tx, num_steps=3, *, how='vmap', num_replicas=2, **extra_args):
  """Returns a mapped training, its axes, and arguments without gradients."""
  tx = optax.with_extra_args_support(tx)
  state = tx.init(PARAMS)
  axes = (0, dx.replica_axes(state))

  def train(params, state, grads):
    def one(carry, _):
      params, state = carry
      updates, state = tx.update(grads, state, params, **extra_args)
      return (dx.apply_updates(params, updates, state), state), None

    return jax.lax.scan(one, (params, state), length=num_steps)[0]

  if num_replicas == 1:
    return jax.jit(train), (PARAMS, state)
  fn = training.map_yourself(train, (*axes, 0), axes, how)
  return fn, training.copies((PARAMS, state), axes, num_replicas)


def gradients(num_replicas=2):
  if num_replicas == 1:
    return jax.tree.map(jnp.ones_like, PARAMS)
  scale = jnp.arange(1.0, num_replicas + 1)
  along = lambda leaf: (
    jnp.ones((num_replicas, *leaf.shape)) * scale.reshape(-1, *leaf.ndim * [1])
  ).astype(leaf.dtype)
  return jax.tree.map(along, PARAMS)


def typed(tree):
  return jax.tree.map(jax.typeof, tree)


def size(name):
  return 1 if name in ALONE else 2


@pytest.mark.parametrize('name', TRANSFORMS)
def test_init_runs_in_the_abstract(name):
  init = TRANSFORMS[name].init
  abstract = jax.eval_shape(init, PARAMS)
  concrete = init(PARAMS)
  assert jax.tree.structure(abstract) == jax.tree.structure(concrete)
  assert typed(abstract) == typed(concrete)
  assert typed(jax.jit(init)(PARAMS)) == typed(concrete)


@functools.cache
def trained(name):
  """Trains three steps in a scan, twice, under `vmap`."""
  fn, args = mapped(TRANSFORMS[name], num_replicas=size(name))
  grads = gradients(size(name))
  once = fn(*args, grads)
  twice = fn(*once, grads)
  return fn, args, once, twice


@pytest.mark.parametrize('name', TRANSFORMS)
def test_structure_and_types_are_kept_and_nothing_compiles_twice(name):
  fn, args, once, twice = trained(name)
  assert typed(args) == typed(once) == typed(twice)
  assert jax.tree.structure(args) == jax.tree.structure(twice)
  assert fn._cache_size() == 1
  assert all(np.all(np.isfinite(x)) for x in jax.tree.leaves(twice))
  assert not np.array_equal(twice[0]['w'], args[0]['w'])


@pytest.mark.parametrize('name', TRANSFORMS)
def test_state_survives_flattening(name):
  fn, _, once, twice = trained(name)
  leaves, structure = jax.tree.flatten(once)
  again = fn(*jax.tree.unflatten(structure, leaves), gradients(size(name)))
  for got, want in zip(jax.tree.leaves(again), jax.tree.leaves(twice)):
    np.testing.assert_array_equal(got, want)
  moved = jax.tree.map(np.asarray, once[1])
  assert jax.tree.structure(moved) == jax.tree.structure(once[1])


@pytest.mark.parametrize('name', sorted(set(TRANSFORMS) - set(ALONE)))
def test_checks_of_shard_map_hold(name):
  """Its types prove that what is shared agrees."""
  fn, args = mapped(TRANSFORMS[name], how='shard_map', num_replicas=training.K)
  grads = gradients(training.K)
  assert typed(jax.eval_shape(fn, *args, grads)) == typed(
    jax.eval_shape(lambda *args: args, *args)
  )


@pytest.mark.parametrize('name', TRANSFORMS)
def test_unknown_arguments_pass(name):
  told = []
  listener = optax.GradientTransformationExtraArgs(
    lambda _: optax.EmptyState(),
    lambda updates, state, _=None, **extra_args: (
      told.append(extra_args) or updates,
      state,
    ),
  )
  tx = optax.chain(TRANSFORMS[name], listener)
  fn, args = mapped(tx, num_replicas=size(name), value=1.0, unknown='x')
  jax.eval_shape(fn, *args, gradients(size(name)))
  assert told[0].keys() >= {'value', 'unknown'}


def wrappers(name):
  tx = TRANSFORMS[name]
  labels = {'w': 'ours', 'b': 'theirs', 's': 'ours'}
  yield 'chain', optax.chain(optax.clip_by_global_norm(1.0), tx)
  yield 'partition', optax.partition({'ours': tx, 'theirs': SGD}, labels)
  yield 'masked', optax.masked(tx, {'w': True, 'b': True, 's': False})
  yield (
    'injected',
    optax.inject_hyperparams(lambda scale: optax.chain(tx, optax.scale(scale)))(
      optax.linear_schedule(1.0, 0.5, 3)
    ),
  )
  yield 'finite', optax.chain(optax.apply_if_finite(SGD, 2), tx)


@pytest.mark.parametrize('name', TRANSFORMS)
def test_works_inside_the_wrappers_of_optax(name):
  for _, tx in wrappers(name):
    fn, args = mapped(tx, num_replicas=size(name))
    after = jax.eval_shape(fn, *args, gradients(size(name)))
    assert typed(after) == typed(args)


def test_masked_leaves_are_left_alone():
  tx = optax.masked(TRANSFORMS['diloco'], {'w': True, 'b': True, 's': False})
  fn, args = mapped(tx, 2)
  params, _ = fn(*args, jax.tree.map(jnp.zeros_like, gradients()))
  np.testing.assert_array_equal(params['s'], args[0]['s'])
  grads = gradients()
  params, _ = fn(*args, grads)
  # `masked` hands their updates through, here the gradients, twice.
  np.testing.assert_allclose(params['s'], args[0]['s'] + 2 * grads['s'])
  np.testing.assert_array_equal(params['w'][0], params['w'][1])


def test_hyperparameters_are_injected_with_static_ints():
  """An outer rate that changes, of one replica: `every` stays an int."""
  schedule = optax.linear_schedule(1.0, 0.0, 4)
  make = optax.inject_hyperparams(dx.snoo, static_args=('every',))
  tx = make(optax.sgd(0.1), every=1, lr=schedule, momentum=0.0)
  params, state = jnp.zeros(2), tx.init(jnp.zeros(2))
  got = []
  for _ in range(4):
    updates, state = tx.update(jnp.ones(2), state, params)
    params = optax.apply_updates(params, updates)
    got.append(params[0])
  want = np.cumsum(-0.1 * np.array([1, 0.75, 0.5, 0.25]))
  np.testing.assert_allclose(got, want, rtol=1e-5)


def test_an_outer_rate_is_injected_around_the_outer_optimizer():
  """Around the whole chain it would be private, and so would the anchor."""
  inject = optax.inject_hyperparams
  rate = optax.linear_schedule(1.0, 0.0, 4)
  within = dx.diloco(SGD, inject(optax.sgd)(rate), every=1)
  around = inject(lambda lr: dx.diloco(SGD, optax.sgd(lr), every=1))(rate)
  fn, args = mapped(within)
  jax.eval_shape(fn, *args, gradients())
  fn, args = mapped(around)
  with pytest.raises(ValueError, match='out_axes|axis spec None'):
    jax.eval_shape(fn, *args, gradients())
