"""Random entries: which are drawn, what their mean does, what travels."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import dilojax as dx
from dilojax import _ledger
from dilojax import audit
from dilojax import replicas
from dilojax.transforms import _draw
from tests.transforms import training
from tests.transforms.training import DIM
from tests.transforms.training import LR
from tests.transforms.training import MEAN
from tests.transforms.training import ORIGIN
from tests.transforms.training import TARGETS
from tests.transforms.training import K

SHAPES = {'w': (3, 5), 'deep': (2, 3, 4), 'b': (512,), 's': ()}


def names_of(mean):
  return mean.init(None).names


def sgd_then_subset(fraction, **kwargs):
  return lambda mean: optax.chain(
    optax.sgd(LR), dx.subset_mean_over(names_of(mean), fraction, **kwargs)
  )


# Which entries are drawn.


def test_shuffled_is_a_permutation_of_each_leaf():
  sizes = [1, 2, 5, 16, 100]
  positions = [jnp.arange(size + 2) for size in sizes]
  shuffle = jax.vmap(lambda key: _draw.shuffled(key, positions, sizes))
  each = jax.jit(shuffle)(jax.random.split(jax.random.key(0), 20))
  for size, found in zip(sizes, map(np.asarray, each)):
    np.testing.assert_array_equal(
      np.sort(found[:, :size], axis=1), np.tile(np.arange(size), (20, 1))
    )
    assert np.all(found[:, size:] == size)
    assert size < 5 or len({tuple(row) for row in found}) > 10


def test_every_entry_is_as_likely_at_every_position():
  sizes, num_draws = [5, 7], 20_000
  positions = [jnp.arange(size) for size in sizes]
  shuffle = jax.vmap(lambda key: _draw.shuffled(key, positions, sizes))
  each = jax.jit(shuffle)(jax.random.split(jax.random.key(0), num_draws))
  for size, found in zip(sizes, map(np.asarray, each)):
    expected = num_draws / size
    deviation = np.sqrt(expected * (1 - 1 / size))
    for position in range(size):
      counts = np.bincount(found[:, position], minlength=size)
      assert np.all(np.abs(counts - expected) < 5 * deviation)


@pytest.mark.parametrize('fraction', [0.005, 0.3, 0.5, 1 / 3])
@pytest.mark.parametrize('pattern', ['partition', 'fresh_partition'])
def test_a_pass_of_a_partition_has_every_entry_once(pattern, fraction):
  parts = _draw.num_parts(fraction)
  sizes = [1, 10, 64]
  draw = lambda number: _draw.entries(
    jax.random.key(0), number, sizes, fraction, pattern
  )
  each = jax.jit(jax.vmap(draw))(jnp.arange(2 * parts))
  assert parts == {0.005: 200, 0.3: 4, 0.5: 2}.get(fraction, 3)
  for size, found in zip(sizes, map(np.asarray, each)):
    assert found.shape[1] == -(-size // parts)
    passes = [found[:parts].ravel(), found[parts:].ravel()]
    for one in passes:
      np.testing.assert_array_equal(np.sort(one[one < size]), np.arange(size))
    if size > 1:
      assert np.array_equal(*passes) == (pattern == 'partition')


def test_independent_draws_differ_and_have_the_share():
  draw = lambda number: _draw.entries(
    jax.random.key(0), number, [50], 0.1, 'independent'
  )
  [found] = jax.jit(jax.vmap(draw))(jnp.arange(100))
  found = np.asarray(found)
  assert found.shape == (100, 5)
  assert all(len(set(row)) == 5 for row in found)
  assert set(found.ravel()) == set(range(50))


# What becomes of the params.


@pytest.mark.parametrize('pattern', _draw.PATTERNS)
def test_drawn_entries_agree_and_others_stay_bitwise(pattern):
  key = jax.random.key(0)
  draw = lambda *args: jax.random.uniform(key, *args)
  # Within a factor of two a difference is exact. What is narrow is rounded
  # before it is a difference.
  params = {
    name: draw((K, *shape), jnp.bfloat16, 0.5, 2)
    if name == 'b'
    else draw((K, *shape), jnp.float32, 1, 2)
    for name, shape in SHAPES.items()
  }
  still = jax.tree.map(lambda leaf: jnp.zeros_like(leaf), params)
  tx = dx.subset_mean_over('replica', 0.3, pattern=pattern)

  def land(params, updates):
    state = tx.init(params)
    updates, state = tx.update(updates, state, params)
    return optax.apply_updates(params, updates)

  landed = jax.jit(jax.vmap(land, axis_name='replica'))(params, still)
  for name, shape in SHAPES.items():
    size = int(np.prod(shape))
    before = np.asarray(params[name]).reshape(K, size)
    after = np.asarray(landed[name]).reshape(K, size)
    assert after.dtype == before.dtype
    drawn = np.any(after != before, axis=0)
    assert drawn.sum() <= _draw.num_drawn(size, 0.3, pattern)
    assert drawn.sum() or (size == 1 and pattern != 'independent')
    np.testing.assert_array_equal(
      after[:, drawn], after[:1, drawn].repeat(K, axis=0)
    )
    means = [
      values.astype(np.float32).mean(axis=0) for values in (after, before)
    ]
    np.testing.assert_allclose(*means, rtol=2**-8 if name == 'b' else 1e-6)


def test_the_landing_is_where_the_updates_lead():
  params = jnp.asarray(TARGETS)
  tx = dx.subset_mean_over('replica', 1.0)
  step = lambda params: tx.update(params, tx.init(params), params)[0]
  updates = jax.jit(jax.vmap(step, axis_name='replica'))(params)
  np.testing.assert_allclose(params + updates, 2 * MEAN[None].repeat(K, 0))


@pytest.mark.parametrize(
  ('fraction', 'every', 'delay', 'pattern'),
  [
    (0.4, 1, 0, 'independent'),
    (0.4, 1, 0, 'fresh_partition'),
    (0.4, 3, 2, 'independent'),
    (0.4, 3, 1, 'partition'),
    (1.0, 4, 3, 'independent'),
  ],
)
def test_the_mean_of_replicas_is_as_without_averaging(
  fraction, every, delay, pattern
):
  """With SGD on a quadratic it is known in closed form."""
  make_tx = sgd_then_subset(
    fraction, every=every, delay=delay, pattern=pattern, seed=1
  )
  params, (_, state) = training.run(make_tx, 9)
  np.testing.assert_allclose(
    params.mean(axis=0), MEAN * (1 - (1 - LR) ** 9), rtol=1e-5
  )
  alone = TARGETS * (1 - (1 - LR) ** 9)
  assert np.ptp(params, axis=0).sum() < np.ptp(alone, axis=0).sum()
  assert state.step == 9


# Equal to something known.


@pytest.mark.parametrize('devices', [1, 2, 4])
@pytest.mark.parametrize('static', [False, True])
def test_all_entries_are_local_sgd(devices, static):
  local_sgd = lambda every: training.sgd_then(optax.sgd(1.0), every=every)
  for every in (1, 3):
    got, _ = training.run(
      sgd_then_subset(1.0, every=every), 7, devices=devices, static=static
    )
    want, _ = training.run(local_sgd(every), 7, static=True)
    np.testing.assert_allclose(got, want, rtol=1e-5)


def test_aliases_are_these_chains():
  """SPARTA with one entry of one, and LOSCAR-SGD without a delay."""
  want, _ = training.run(sgd_then_subset(1.0, every=2), 5, static=True)
  loscar = lambda mean: dx.loscar_sgd(
    optax.sgd(LR), every=2, fraction=1.0, axis_name=names_of(mean)
  )
  got, _ = training.run(loscar, 5, static=True)
  np.testing.assert_array_equal(got, want)
  want, _ = training.run(sgd_then_subset(1.0), 5, static=True)
  sparta = lambda mean: dx.sparta(
    optax.sgd(LR), 1.0, pattern='partition', axis_name=names_of(mean)
  )
  got, _ = training.run(sparta, 5, static=True)
  np.testing.assert_array_equal(got, want)


@pytest.mark.parametrize(
  ('merge', 'fraction'),
  [('delta', 1.0), ('overwrite', 1.0), ('mix', 1.0), ('overwrite', 0.4)],
)
def test_a_late_mean_enters_by_the_merge(merge, fraction):
  """Launched after 4 steps, landed after 6, in closed form."""
  rules = {'delta': dx.delta(), 'overwrite': dx.overwrite(), 'mix': dx.mix(0.3)}
  make_tx = sgd_then_subset(
    fraction, every=4, delay=2, merge=rules[merge], pattern='partition'
  )
  at = lambda step: TARGETS * (1 - (1 - LR) ** step)
  mean, now, launched = at(4).mean(axis=0), at(6), at(4)
  want = {
    'delta': mean + (now - launched),
    'overwrite': np.tile(mean, (K, 1)),
    'mix': 0.3 * now + 0.7 * mean,
  }
  got, _ = training.run(make_tx, 6)
  is_landed = np.isclose(got, want[merge], rtol=1e-5).all(axis=0)
  assert is_landed.sum() == (1 if fraction < 1 else DIM)
  np.testing.assert_allclose(got[:, ~is_landed], now[:, ~is_landed], rtol=1e-5)
  before, _ = training.run(make_tx, 5, static=True)
  np.testing.assert_allclose(before, at(5), rtol=1e-5)


def test_sparta_with_an_outer_optimizer_is_diloco_on_the_mean():
  outer = optax.sgd(0.7, momentum=0.9, nesterov=True)
  sparta = lambda mean: dx.sparta(
    optax.sgd(LR), 0.4, outer=outer, every=3, axis_name=names_of(mean)
  )
  params, state = training.run(sparta, 7)
  want, (_, wanted) = training.run(training.sgd_then(outer, every=3), 7)
  np.testing.assert_allclose(state[-1].anchor, wanted.anchor, rtol=1e-5)
  np.testing.assert_allclose(params.mean(axis=0), want.mean(axis=0), rtol=1e-5)
  assert np.ptp(params, axis=0).min() < np.ptp(want, axis=0).min()
  params, state = training.run(sparta, 6)
  assert np.all(params == state[-1].anchor[None])


def test_what_is_in_flight_lands_at_the_end():
  """And all meet once more, which the ledger counts."""
  make_tx = sgd_then_subset(1.0, every=4, delay=2)
  params, _ = training.run(make_tx, 5, static=True, final=True)
  np.testing.assert_allclose(
    params, np.tile(MEAN * (1 - (1 - LR) ** 5), (K, 1)), rtol=1e-5
  )
  tx = make_tx(dx.mean_over('replica'))
  links = dx.links(tx.init(ORIGIN), ORIGIN)
  [row] = _ledger.advance(
    _ledger.start(1), links, 1, 5, tokens_per_step=1, final=True
  )
  assert (row['synchronizations'], row['bytes_sent']) == (2, 2 * 4 * DIM)


# One function in every mode; state.


@functools.cache
def trained(how, static, cuts=(7,)):
  tx = dx.loscar_sgd(optax.adam(LR), every=3, fraction=0.6, delay=1, seed=1)
  state = tx.init(ORIGIN)
  axes = (0, dx.replica_axes(state))
  assert (axes[1][1].arrived, axes[1][1].sent) == (None, 0)
  args = training.copies((ORIGIN, state), axes)
  for num_steps in cuts:
    fn = lambda *args, num_steps=num_steps: training.train(
      tx, *args, num_steps, static=static
    )
    fn = training.map_yourself(fn, (*axes, 0), axes, how)
    args = fn(*args, jnp.asarray(TARGETS))
  return jax.tree.leaves(args)


@pytest.mark.slow
@pytest.mark.parametrize(
  ('how', 'static', 'cuts'),
  [
    ('pmap', False, (7,)),
    ('shard_map', False, (7,)),
    ('shard_map', True, (7,)),
    ('vmap', False, (3, 4)),
  ],
)
def test_all_modes_and_resumed_trainings_agree(how, static, cuts):
  for got, want in zip(trained(how, static, cuts), trained('vmap', False)):
    np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-6)


def test_a_loop_over_one_static_step_draws_anew():
  """A loop of equal steps traces one of them for all."""
  size, num_steps = 8, 4
  tx = dx.subset_mean_over('replica', 1 / num_steps, pattern='partition')
  params = jnp.arange(1.0, 3.0)[:, None] * jnp.ones((2, size))

  def train(params):
    def one(carry, _):
      params, state = carry
      updates, state = tx.update(jnp.zeros(size), state, params, step=1)
      return (optax.apply_updates(params, updates), state), None

    return jax.lax.scan(one, (params, tx.init(params)), length=num_steps)[0][0]

  landed = jax.jit(jax.vmap(train, axis_name='replica'))(params)
  np.testing.assert_array_equal(landed, np.full((2, size), 1.5))


# What travels.


@pytest.mark.slow
@pytest.mark.parametrize('pattern', _draw.PATTERNS)
def test_only_the_drawn_values_travel(pattern):
  params = {name: jnp.ones(shape) for name, shape in SHAPES.items()}
  placement = replicas.place(K, K)
  tx = dx.subset_mean_over('replica', 0.3, every=3, delay=1, pattern=pattern)
  state = tx.init(params)
  axes = (0, dx.replica_axes(state))
  args = replicas.spread((params, state), placement, axes)

  def sent(step):
    def one(params, state):
      updates, state = tx.update(params, state, params, step=step)
      return dx.apply_updates(params, updates, state, step=step), state

    program = replicas.over_replicas(one, placement, axes, axes)
    return audit.collectives(jax.jit(program).lower(*args).compile())

  sizes = [int(np.prod(shape)) for shape in SHAPES.values()]
  count = sum(_draw.num_drawn(size, 0.3, pattern) for size in sizes)
  found = sent(3)
  assert {one.op for one in found} == {'all-reduce'}
  assert sum(one.nbytes for one in found) == 4 * count
  if pattern == 'partition':
    assert sent(2) == sent(4) == []
  [link] = dx.links(state, params)
  assert (link.op, link.nbytes, link.axis_names, link.is_anchorless) == (
    'all-reduce',
    4 * count,
    ('replica',),
    True,
  )


def test_links_of_a_masked_part_count_that_part():
  params = {'w': jnp.ones((4, 5)), 'b': jnp.ones(3)}
  tx = dx.subset_mean_over('replica', 0.5)
  state = optax.masked(tx, {'w': True, 'b': False}).init(params)
  [link] = dx.links(state, params)
  assert link.nbytes == 4 * 10


# Refusals.


@pytest.mark.parametrize(
  ('kwargs', 'match'),
  [
    ({'fraction': 0}, '`fraction` must be above 0.*leave the link out'),
    ({'fraction': 1.5}, '`fraction` must be above 0 and at most 1'),
    ({'fraction': float('nan')}, '`fraction` must be'),
    ({'every': 0}, '`every` must be at least 1'),
    ({'every': 2.0}, '`every` must be an int'),
    ({'every': 2, 'delay': 2}, '`delay` must be at least 0 and less'),
    ({'pattern': 'stripes'}, "`pattern` must be one of 'independent'"),
    ({'axis_name': ()}, '`axis_name` must be'),
  ],
)
def test_what_is_out_of_range_is_refused(kwargs, match):
  with pytest.raises(ValueError, match=match):
    dx.subset_mean_over(**{'axis_name': 'replica', 'fraction': 0.5, **kwargs})


def test_what_makes_no_sense_is_refused():
  tx = dx.subset_mean_over('replica', 0.5)
  with pytest.raises(ValueError, match=r"inexact types, got others at \['n'\]"):
    tx.init({'n': jnp.ones(3, jnp.int32)})
  with pytest.raises(ValueError, match='pass `params`'):
    tx.update(ORIGIN, tx.init(ORIGIN))
  with pytest.raises(ValueError, match='`step` must be a Python int'):
    tx.update(ORIGIN, tx.init(ORIGIN), ORIGIN, step=0)
  with pytest.raises(ValueError, match='`final` is decided while tracing'):
    tx.update(ORIGIN, tx.init(ORIGIN), ORIGIN, final=True)
  with pytest.raises(ValueError, match='`outer` and `every` belong together'):
    dx.sparta(optax.sgd(LR), every=3)
