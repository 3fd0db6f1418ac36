"""One replica's function in every mode that maps it."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import dilojax as dx
from dilojax import replicas
from tests.transforms import training
from tests.transforms.training import DIM
from tests.transforms.training import ORIGIN
from tests.transforms.training import TARGETS
from tests.transforms.training import K

NESTEROV = optax.sgd(0.7, momentum=0.9, nesterov=True)


def program(placement, num_steps):
  """Returns a program, its axes, and its arguments but the targets."""
  tx = dx.diloco(
    optax.adam(0.1), NESTEROV, every=3, axis_name=placement.axis_names()
  )
  state = tx.init(ORIGIN)
  axes = (0, dx.replica_axes(state))
  fn = replicas.over_replicas(
    lambda *args: training.train(tx, *args, num_steps),
    placement,
    (*axes, 0),
    axes,
  )
  return fn, axes, replicas.spread((ORIGIN, state), placement, axes)


@functools.cache
def straight():
  fn, _, args = program(replicas.place(K, K), 7)
  return jax.jit(fn)(*args, TARGETS)


@pytest.mark.parametrize('devices', [1, 4])
def test_seeds_are_mapped_around_replicas(devices):
  """A `vmap` over the `shard_map`, with collectives and branches within."""
  fn, _, args = program(replicas.place(K, devices), 7)
  targets = jnp.stack([TARGETS, TARGETS + 1])
  seeds = jax.vmap(fn, in_axes=(None, None, 0))
  params, (_, state) = jax.jit(seeds)(*args, targets)
  want, (_, wanted) = straight()
  np.testing.assert_allclose(params[0], want, rtol=1e-5)
  np.testing.assert_allclose(state.anchor[0], wanted.anchor, rtol=1e-5)
  assert np.all(state.anchor[1] > state.anchor[0])


@pytest.mark.parametrize('ambient', [False, True])
def test_everything_stays_where_it_is(ambient):
  """With a mesh in the context and without, and within a replica."""
  placement = replicas.place(2, 8, fsdp=2, tensor=2)
  tx = dx.diloco(optax.adam(0.1), NESTEROV, every=2)
  params = {'w': jnp.ones((4, 8)), 'b': jnp.ones(3)}
  state = tx.init(params)
  axes = (0, dx.replica_axes(state))

  def one(params, state):
    updates, state = tx.update(params, state, params)
    return dx.apply_updates(params, updates, state), state

  step = jax.jit(replicas.over_replicas(one, placement, axes, axes))
  args = replicas.spread((params, state), placement, axes)
  before = jax.tree.map(lambda leaf: leaf.sharding, args)
  if ambient:
    with jax.set_mesh(placement.mesh):
      args = step(*step(*args))
  else:
    args = step(*step(*args))
  same = jax.tree.map(
    lambda leaf, was: leaf.sharding.is_equivalent_to(was, leaf.ndim),
    args,
    before,
  )
  assert all(jax.tree.leaves(same))


def test_two_hundred_steps_of_four_replicas():
  """Few programs in flight: the rendezvous of CPU devices never starves."""
  results = []
  for devices in (4, 1):
    fn, _, args = program(replicas.place(4, devices), 20)
    chunk = jax.jit(fn, donate_argnums=(0, 1))
    for _ in range(10):
      args = jax.block_until_ready(chunk(*args, TARGETS))
    results.append(args)
  (params, (_, state)), (want, (_, wanted)) = results
  assert state.step == 200
  np.testing.assert_allclose(params, want, atol=1e-3)
  np.testing.assert_allclose(state.anchor, wanted.anchor, atol=1e-3)


def test_the_whole_loop_of_the_introduction():
  """Design's chain, by hand under `shard_map` with its checks on."""
  offsets = {'a': 2, 'b': 5}
  fragments = {
    name: dx.synchronize(
      NESTEROV,
      every=5,
      offset=offset,
      delay=2,
      merge=dx.mix(0.5),
      reduce=dx.mean_over('replica'),
    )
    for name, offset in offsets.items()
  }
  tx = optax.chain(
    optax.clip_by_global_norm(1.0),
    optax.adamw(0.1, weight_decay=0.1),
    optax.partition(fragments, {'a': 'a', 'b': 'b'}),
  )
  params = {'a': ORIGIN, 'b': ORIGIN}
  state = tx.init(params)
  axes = (0, dx.replica_axes(state))
  args = training.copies((params, state), axes)
  results = [
    training.map_yourself(
      lambda *args: training.train(tx, *args, 9), (*axes, 0), axes, how
    )(*args, jnp.asarray(TARGETS))
    for how in ('shard_map', 'vmap', 'pmap')
  ]
  for other in results[1:]:
    for got, want in zip(jax.tree.leaves(other), jax.tree.leaves(results[0])):
      np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-6)


@jax.custom_vjp
def scaled(x):
  return 2 * x


scaled.defvjp(lambda x: (2 * x, None), lambda _, grad: (3 * grad,))


def users_step(placement, *, calls_back):
  """A gradient rule of its own, a scan, and perhaps a callback."""

  def one(params, target):
    def loss(params):
      out = jax.lax.scan(
        lambda carry, _: (scaled(carry), None), params, length=2
      )[0]
      return jnp.sum(out * target)

    double = 2 * target
    if calls_back:
      double = jax.pure_callback(
        lambda x: 2 * np.asarray(x),
        jax.ShapeDtypeStruct((DIM,), jnp.float32),
        target,
        vmap_method='sequential',
      )
    mean = dx.mean_over(placement.axis_names())
    grads = jax.grad(loss)(params)
    return mean.update(grads + double, mean.init(grads))[0]

  return jax.jit(replicas.over_replicas(one, placement, (0, 0), None))


@pytest.mark.parametrize(
  ('devices', 'calls_back'), [(1, True), (2, False), (4, False)]
)
def test_a_users_step_may_contain_what_it_likes(devices, calls_back):
  fn = users_step(replicas.place(K, devices), calls_back=calls_back)
  got = fn(1 + 0 * TARGETS, TARGETS)
  np.testing.assert_allclose(got, 11 * TARGETS.mean(axis=0), rtol=1e-6)


def test_callbacks_on_several_devices_are_refused():
  """JAX's limit, where axes inside a replica are left to the compiler."""
  fn = users_step(replicas.place(K, 4), calls_back=True)
  with pytest.raises(NotImplementedError, match='callbacks are only supported'):
    fn(1 + 0 * TARGETS, TARGETS)


@pytest.mark.parametrize('dtype', [jnp.bfloat16, jnp.float16])
@pytest.mark.parametrize(
  ('total', 'devices', 'fsdp'), [(4, 1, 1), (4, 2, 1), (4, 4, 1), (2, 4, 2)]
)
def test_narrow_gradients_are_averaged(total, devices, fsdp, dtype):
  """Left as it is, XLA's own widening aborts the process on CPU."""
  placement = replicas.place(total, devices, fsdp=fsdp)
  tx = dx.data_parallel(optax.sgd(1.0), axis_name=placement.axis_names())
  state = tx.init(jnp.zeros(4, dtype))
  step = replicas.over_replicas(
    lambda grads: tx.update(grads, state)[0], placement, (0,), None
  )
  grads = jnp.arange(4.0 * total).reshape(total, 4).astype(dtype)
  got = jax.jit(step)(replicas.put(grads, placement, 0))
  assert got.dtype == dtype
  want = -np.arange(4.0 * total).reshape(total, 4).mean(axis=0)
  np.testing.assert_array_equal(got.astype(jnp.float32), want)


@pytest.mark.parametrize('names', [('a', 'b'), ('b', 'a')])
def test_a_mean_takes_what_varies_along_one_name_only(names):
  """A tuple at once would be refused by the checks of `shard_map`."""
  auto = (jax.sharding.AxisType.Auto,) * 2
  mesh = jax.make_mesh((2, 2), ('a', 'b'), auto, devices=jax.devices()[:4])
  mean = dx.mean_over(names)
  fn = jax.shard_map(
    lambda x: mean.update(x, mean.init(x))[0],
    mesh=mesh,
    in_specs=jax.P('a'),
    out_specs=jax.P(),
  )
  np.testing.assert_allclose(jax.jit(fn)(jnp.array([1.0, 3.0])), [2.0])


def test_gradients_of_shared_params_are_refused():
  """JAX sums them over the replicas: their mean would be K times too large."""
  tx = dx.data_parallel(optax.sgd(0.1))
  mesh = jax.make_mesh((K,), ('replica',), (jax.sharding.AxisType.Auto,))

  def step(params, target):
    grads = jax.grad(training.loss)(params, target[0])
    return tx.update(grads, tx.init(params), params)[0]

  shared = jax.shard_map(
    step,
    mesh=mesh,
    in_specs=(jax.P(), jax.P('replica')),
    out_specs=jax.P(),
  )
  with pytest.raises(ValueError, match='gradients of shared params'):
    jax.jit(shared)(ORIGIN, TARGETS)


@pytest.mark.parametrize('how', ['vmap', 'shard_map'])
def test_leaves_without_elements_are_no_matter(how):
  tx = dx.diloco(optax.identity(), optax.sgd(1.0), every=2)
  params = {'empty': jnp.zeros((0, 3)), 'full': jnp.zeros(3)}
  state = tx.init(params)
  axes = dx.replica_axes(state)

  def train(params, state, target):
    for _ in range(2):
      updates = jax.tree.map(
        lambda leaf: jnp.broadcast_to(target, leaf.shape), params
      )
      updates, state = tx.update(updates, state, params)
      params = dx.apply_updates(params, updates, state)
    return params, state

  step = training.map_yourself(train, (0, axes, 0), (0, axes), how)
  copies = training.copies(params, 0), training.copies(state, axes)
  got, _ = step(*copies, jnp.arange(4.0))
  np.testing.assert_allclose(got['full'], 3.0)
  assert got['empty'].shape == (4, 0, 3)
