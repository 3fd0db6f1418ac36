"""Replicas on devices: the same numbers, in the right places."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import dilojax as dx
from dilojax import replicas

NESTEROV = optax.sgd(0.7, momentum=0.9, nesterov=True)
COUNTS = range(1, 9)
FITTING = [
  (total, devices)
  for total in COUNTS
  for devices in COUNTS
  if total % devices == 0 or devices % total == 0
]
PARAMS = {'w': jnp.linspace(-1.0, 1.0, 32).reshape(8, 4), 'b': jnp.ones(3)}


def make_step(placement, step=None):
  """Returns one replica's step, a synchronization, and its axes and state."""
  inner = optax.sgd(0.1, momentum=0.9)
  tx = dx.diloco(inner, NESTEROV, every=1, axis_name=placement.axis_names())
  state = tx.init(PARAMS)
  axes = (0, replicas.varying(placement, lambda n: dx.replica_axes(state, n)))

  def one(params, state, drift):
    grads = jax.tree.map(lambda leaf: jnp.sin(leaf) + drift, params)
    updates, state = tx.update(grads, state, params, step=step)
    return dx.apply_updates(params, updates, state, step=step), state

  return one, axes, state


def prepare(placement, step=None):
  one, axes, state = make_step(placement, step)
  program = replicas.over_replicas(one, placement, (*axes, 0), axes)
  return jax.jit(program), replicas.spread((PARAMS, state), placement, axes)


def drifts(placement):
  shape = tuple(placement.num_replicas.values())
  drift = jnp.arange(1.0, placement.total + 1).reshape(shape)
  return replicas.put(drift, placement, 0)


# Which placements there are.


@pytest.mark.parametrize('total', COUNTS)
@pytest.mark.parametrize('devices', COUNTS)
def test_numbers_divide_or_are_refused(total, devices):
  if (total, devices) in FITTING:
    placement = replicas.place(total, devices)
    assert placement.total == total
    assert placement.mesh.size == devices
    inside = max(1, devices // total)
    assert placement.mesh.shape == {
      'replica': devices // inside,
      'fsdp': inside,
      'tensor': 1,
    }
    per_device = max(1, total // devices)
    assert placement.per_device('replica') == per_device
    names = placement.axis_names()
    both = per_device > 1 and devices > 1
    assert names == (('replica', 'local_replica') if both else ('replica',))
    assert placement.count(names) == total
    return
  message = (
    rf'`num_replicas` \({total}\) must divide, or be divided by, the number of'
    rf' devices \({devices}\)'
  )
  with pytest.raises(ValueError, match=message):
    replicas.place(total, devices)


@pytest.mark.parametrize(
  ('args', 'kwargs', 'shape'),
  [
    ((2, 8), {}, (2, 4, 1)),
    ((2, 8), {'tensor': 2}, (2, 2, 2)),
    ((2, 8), {'fsdp': 2, 'tensor': 2}, (2, 2, 2)),
    ((4, 8), {'fsdp': 4}, (2, 4, 1)),
    ((4, 4), {'tensor': 4}, (1, 1, 4)),
    ((8,), {}, (8, 1, 1)),
    ((1,), {}, (1, 8, 1)),
    (({'region': 2, 'host': 4}, 8), {}, (2, 4, 1, 1)),
    (({'region': 2, 'host': 4}, 4), {}, (2, 2, 1, 1)),
    (({'region': 3, 'host': 4}, 2), {}, (1, 2, 1, 1)),
    (({'region': 2, 'host': 2}, 8), {}, (2, 2, 2, 1)),
  ],
)
def test_mesh_has_the_axes_asked_for(args, kwargs, shape):
  placement = replicas.place(*args, **kwargs)
  assert placement.mesh.devices.shape == shape
  assert placement.mesh.devices.flat[0] == jax.devices()[0]


@pytest.mark.parametrize(
  ('args', 'kwargs', 'message'),
  [
    ((2, 0), {}, r'`num_devices` must be from 1 to .* \(8\), got 0'),
    ((2, 9), {}, r'`num_devices` must be from 1 to .* \(8\), got 9'),
    ((0, 1), {}, '`replica` must be at least 1, got 0'),
    (({'region': 2, 'host': 0}, 1), {}, '`host` must be at least 1, got 0'),
    ((2, 4), {'tensor': 0}, '`tensor` must be at least 1, got 0'),
    ((2, 4), {'fsdp': -1}, '`fsdp` must be at least 1, got -1'),
    ((3, 8), {'fsdp': 2}, 'each replica takes 2'),
    ((2, 8), {'fsdp': 2}, r'devices \(8\), of which each replica takes 2'),
    ((2, 8), {'tensor': 3}, r'devices \(8\), of which each replica takes'),
  ],
)
def test_rejects_what_cannot_be(args, kwargs, message):
  with pytest.raises(ValueError, match=message):
    replicas.place(*args, **kwargs)


# The same numbers on any of them.


@pytest.mark.parametrize('total', COUNTS)
def test_numbers_do_not_depend_on_the_devices(total):
  results = []
  for devices in (count for k, count in FITTING if k == total):
    placement = replicas.place(total, devices)
    step, args = prepare(placement, step=1)
    for _ in range(3):
      args = step(*args, drifts(placement))
    results.append(jax.tree.map(np.asarray, args))
  for other in results[1:]:
    for got, want in zip(jax.tree.leaves(other), jax.tree.leaves(results[0])):
      np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize('devices', [1, 2, 4, 8])
def test_several_axes_are_one_big_one(devices):
  several = replicas.place({'region': 2, 'host': 4}, devices)
  alone = replicas.place(8, 1)
  results = []
  for placement in (several, alone):
    step, args = prepare(placement, step=1)
    args = step(*args, drifts(placement))
    results.append(args)
  (params, state), (want, wanted) = results
  got = params['w'].reshape(want['w'].shape)
  np.testing.assert_allclose(got, want['w'], rtol=1e-5, atol=1e-6)
  np.testing.assert_allclose(
    state[1].anchor['w'], wanted[1].anchor['w'], rtol=1e-5, atol=1e-6
  )


@pytest.mark.parametrize('devices', [1, 2, 4, 8])
def test_private_values_keep_their_order(devices):
  """Replica k gets row k, along every axis."""
  placement = replicas.place({'region': 2, 'host': 4}, devices)
  rows = jnp.arange(8.0).reshape(2, 4)
  along = frozenset({'region'})
  fn = replicas.over_replicas(
    lambda own, region, shared: (own + 10 * region + shared, region),
    placement,
    (0, along, None),
    (0, along),
  )
  got, regions = jax.jit(fn)(rows, jnp.array([1.0, 2.0]), jnp.float32(100))
  want = 100 + rows + 10 * jnp.array([[1.0], [2.0]])
  np.testing.assert_array_equal(got, want)
  np.testing.assert_array_equal(regions, [1, 2])


# The start.


@pytest.mark.parametrize(('total', 'devices'), [(4, 1), (4, 2), (4, 4), (2, 8)])
def test_all_start_at_the_anchor(total, devices):
  placement = replicas.place(total, devices)
  _, (params, state) = prepare(placement)
  for name, leaf in PARAMS.items():
    assert params[name].shape == (total, *leaf.shape)
    for replica in np.asarray(params[name]):
      np.testing.assert_array_equal(replica, leaf)
      np.testing.assert_array_equal(replica, state[1].anchor[name])


@pytest.mark.parametrize(('total', 'devices'), [(1, 1), (2, 1), (2, 2)])
def test_spreading_copies(total, devices):
  """What is spread can be donated; the original stays."""
  placement = replicas.place(total, devices)
  original = jax.tree.map(jnp.array, PARAMS)
  spread = replicas.spread((original, original), placement, (0, None))
  add = lambda tree: jax.tree.map(lambda leaf: leaf + 1, tree)
  jax.jit(add, donate_argnums=0)(spread)
  for name, leaf in original.items():
    np.testing.assert_array_equal(leaf, PARAMS[name])


# Shardings.


@pytest.mark.parametrize(
  ('total', 'devices', 'kwargs', 'spec'),
  [
    (4, 4, {}, ('replica',)),
    (4, 1, {}, ('replica',)),
    (2, 8, {}, ('replica', 'fsdp')),
    (2, 8, {'fsdp': 2, 'tensor': 2}, ('replica', 'fsdp', 'tensor')),
    (2, 4, {'tensor': 2}, ('replica', 'tensor')),
  ],
)
def test_outer_state_lies_as_the_params_do(total, devices, kwargs, spec):
  """Without the replica axis, and stays there: per device, in bytes."""
  placement = replicas.place(total, devices, **kwargs)
  step, (params, state) = prepare(placement)
  for _ in range(2):
    inside = 1
    for name in ('fsdp', 'tensor'):
      inside *= placement.mesh.shape[name]
    mesh = placement.mesh
    lies = lambda leaf, *spec, mesh=mesh: leaf.sharding.is_equivalent_to(
      jax.NamedSharding(mesh, jax.P(*spec)), leaf.ndim
    )
    assert lies(params['w'], *spec)
    anchor, momentum = state[1].anchor['w'], state[1].outer[0].trace['w']
    for leaf in (anchor, momentum):
      assert lies(leaf, *spec[1:])
      shards = [shard.data.nbytes for shard in leaf.addressable_shards]
      assert shards == devices * [PARAMS['w'].nbytes // inside]
    params, state = step(params, state, drifts(placement))


def test_the_longest_axes_are_sharded():
  placement = replicas.place(2, 8, fsdp=2, tensor=2)
  tree = {
    'long last': jnp.zeros((2, 4, 8)),
    'odd': jnp.zeros((2, 3, 5)),
    'one even': jnp.zeros((2, 3, 6)),
    'scalar': jnp.zeros(2),
    'empty': jnp.zeros((2, 0, 4)),
  }
  specs = {
    name: sharding.spec
    for name, sharding in replicas.shardings(tree, placement, 0).items()
  }
  assert specs == {
    'long last': jax.P('replica', 'tensor', 'fsdp'),
    'odd': jax.P('replica', None, None),
    'one even': jax.P('replica', None, 'fsdp'),
    'scalar': jax.P('replica'),
    'empty': jax.P('replica', None, 'fsdp'),
  }


@pytest.mark.parametrize(('total', 'devices'), [(4, 2), (2, 8)])
def test_abstract_forms_are_those_of_spread(total, devices):
  placement = replicas.place(total, devices)
  _, axes, state = make_step(placement)
  tree = (PARAMS, state)
  spread = replicas.spread(tree, placement, axes)
  abstract = replicas.like(jax.eval_shape(lambda: tree), placement, axes)
  assert jax.tree.structure(abstract) == jax.tree.structure(spread)
  for got, want in zip(jax.tree.leaves(abstract), jax.tree.leaves(spread)):
    assert (got.shape, got.dtype) == (want.shape, want.dtype)
    assert got.sharding.is_equivalent_to(want.sharding, want.ndim)


def test_nothing_moves_to_the_host_during_steps():
  placement = replicas.place(4, 4)
  step, args = prepare(placement)
  drift = drifts(placement)
  for _ in range(2):
    args = step(*args, drift)
  settled = step._cache_size()
  with jax.transfer_guard('disallow'):
    for _ in range(3):
      args = step(*args, drift)
  assert args[1][1].step == 5
  assert step._cache_size() == settled


# What replicas could disagree on.


@pytest.mark.parametrize(
  ('devices', 'message'),
  [(1, 'out_axes|axis spec None'), (2, 'out_axes|axis spec None'),
   (4, 'out_specs|varying')],
)  # fmt: skip
def test_a_private_value_is_not_declared_shared(devices, message):
  fn = replicas.over_replicas(
    lambda own: 2 * own, replicas.place(4, devices), (0,), None
  )
  with pytest.raises((TypeError, ValueError), match=message):
    jax.eval_shape(fn, jnp.arange(4.0))


def test_axes_of_several_names_are_joined():
  placement = replicas.place({'region': 2, 'host': 2}, 2)
  answers = {'region': (0, None, 0), 'host': (0, None, None)}
  got = replicas.varying(placement, lambda name: answers[name])
  assert got == (
    frozenset({'region', 'host'}),
    frozenset(),
    frozenset({'region'}),
  )


@pytest.mark.parametrize(
  ('sizes', 'devices'), [((1, 4), 4), ((3, 4), 4), ((4, 1), 2), ((2, 2), 2)]
)
def test_a_level_may_lie_within_a_device(sizes, devices):
  """A manual axis behind a vmapped one keeps its place in the specs."""
  axes = dict(zip(('region', 'host'), sizes))
  placement = replicas.place(axes, devices)
  program = replicas.over_replicas(
    lambda own: jax.lax.pmean(own, placement.axis_names('host')),
    placement,
    (0,),
    frozenset({'region'}),
  )
  values = np.arange(np.prod(sizes), dtype=np.float32).reshape(sizes)
  got = jax.jit(program)(replicas.put(values, placement, 0))
  np.testing.assert_allclose(got, values.mean(axis=1))
