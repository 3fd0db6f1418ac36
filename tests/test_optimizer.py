"""Tests for `dilojax._optimizer`."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from dilojax import _optimizer
from dilojax import build
from tests import tiny


def inner(**fields):
  """Returns overrides that replace fields of the group `inner`."""
  return {f'inner.{name}': value for name, value in fields.items()}


WSD = {'schedule': 'wsd', 'final_lr_ratio': 0.1, 'decay_steps': 4}

# Schedules, counted from 1: the first step has `peak / warm-up`, never 0.


def shape(t, total, warmup, *, schedule, final_lr_ratio=0.0, decay_steps=0):
  """Returns the learning rate at step t over the peak."""
  if t <= warmup:
    return t / warmup
  if schedule == 'constant':
    return 1.0
  ratio = final_lr_ratio
  if schedule == 'cosine':
    angle = math.pi * (t - 1 - warmup) / (total - warmup)
    return ratio + (1 - ratio) * (1 + math.cos(angle)) / 2
  return 1 - (1 - ratio) * max(0, t - 1 - total + decay_steps) / decay_steps


COSINE = {'schedule': 'cosine', 'final_lr_ratio': 0.1}


@pytest.mark.parametrize(
  'fields',
  [
    {'schedule': 'constant'},
    COSINE,
    {**COSINE, 'final_lr_ratio': 0.0},
    WSD,
    {**WSD, 'decay_steps': 13 - 3},
  ],
)
@pytest.mark.parametrize('warmup', [0, 1, 3])
def test_schedules(fields, warmup):
  fields = {'final_lr_ratio': None, **fields}
  changes = inner(warmup_steps=warmup, peak_lr=0.25, **fields)
  lr = build.make(tiny.config(**changes)).lr
  known = {name: value for name, value in fields.items() if value is not None}
  for t in range(1, 14):
    want = 0.25 * shape(t, 13, warmup, **known)
    np.testing.assert_allclose(lr(t), want, rtol=1e-5)


def test_a_warm_up_alone():
  lr = build.make(tiny.config(**inner(warmup_steps=13, peak_lr=1.3))).lr
  np.testing.assert_allclose([lr(t) for t in (1, 13)], [0.1, 1.3], rtol=1e-6)


# Every hyper-parameter reaches the params.

TREE = {
  'embed': np.array([[0.2, -1.0], [0.8, 0.4]], np.float32),
  'layer': {'kernel': np.array([[1.0, -0.5], [0.3, 0.7]], np.float32)},
  'norm': np.array([1.0, 0.9], np.float32),
}
INNER = {
  'adamw': {'b1': 0.9, 'b2': 0.99, 'weight_decay': 0.1},
  'adam': {'b1': 0.9, 'b2': 0.99},
  'sgd': {'momentum': 0.9},
  'muon': {'momentum': 0.9, 'b1': 0.9, 'b2': 0.99, 'weight_decay': 0.1},
  'lion': {'b1': 0.9, 'b2': 0.99, 'weight_decay': 0.1},
}
OUTER = {
  'sgd': {'lr': 0.7},
  'nesterov': {'lr': 0.7, 'momentum': 0.6},
  'heavy_ball': {'lr': 0.7, 'momentum': 0.6},
  'adam': {'lr': 0.1, 'b1': 0.9, 'b2': 0.99, 'eps': 0.1},
}
SLOPES = np.array([1.0, 2.0], np.float32)
OVERLAP = {'offset': 2, 'delay': 1, 'merge': 'mix', 'alpha': 0.5}


def inner_config(name, **fields):
  common = {
    'name': name,
    'peak_lr': 0.1,
    'warmup_steps': 1,
    'clip_norm': 1.0,
    'accumulate': 1,
  }
  return {'inner': {**common, **COSINE, **INNER[name], **fields}}


def train(config):
  """Trains two replicas with gradients that depend on step and replica."""
  tx = optax.with_extra_args_support(
    _optimizer.make(config, lambda *axes: axes)
  )

  # Operation by operation: the many programs would take long to compile.
  def one(slope):
    params = jax.tree.map(jnp.array, TREE)
    state = tx.init(params)
    for step in range(1, config['num_steps'] + 1):
      turn = lambda leaf, step=step: jnp.sin(slope * leaf + step) + leaf
      grads = jax.tree.map(turn, params)
      updates, state = tx.update(grads, state, params, step=step)
      params = optax.apply_updates(params, updates)
    return params

  return jax.device_get(jax.vmap(one, axis_name='replica')(SLOPES))


def train_alone(config):
  """Trains one replica with the inner optimizer alone."""
  tx = _optimizer.make_inner(config)
  params, state = TREE, tx.init(TREE)
  for step in range(1, config['num_steps'] + 1):
    grads = jax.tree.map(lambda leaf, step=step: np.sin(leaf + step), params)
    updates, state = tx.update(grads, state, params)
    params = jax.device_get(optax.apply_updates(params, updates))
  return params


def small(name='diloco', **overrides):
  overrides = {'num_steps': 7, 'every': 3, **overrides}
  return build.resolve(tiny.config(name, **overrides))


def differs(left, right):
  largest = jax.tree.map(lambda a, b: np.abs(a - b).max(), left, right)
  return max(jax.tree.leaves(largest)) > 1e-5


INNER_CHANGES = [
  (name, field, value)
  for name in INNER
  for field, value in {
    'peak_lr': 0.05,
    'warmup_steps': 2,
    'clip_norm': 100.0,
    'final_lr_ratio': 0.5,
    **{field: value / 2 for field, value in INNER[name].items()},
  }.items()
  # Lion steps by signs; these gradients' are the same at any length.
  if (name, field) != ('lion', 'clip_norm')
]


@pytest.fixture(scope='module')
def trained():
  """Function that trains, and remembers what came out."""
  known = {}

  def trained(config, train=train):
    key = repr((train, config))
    if key not in known:
      known[key] = train(config)
    return known[key]

  return trained


@pytest.mark.parametrize(('name', 'field', 'value'), INNER_CHANGES)
def test_inner_fields_reach_the_params(trained, name, field, value):
  make = lambda **change: small(num_steps=4, **inner_config(name, **change))
  base = trained(make(), train_alone)
  assert differs(base, trained(make(**{field: value}), train_alone))


OUTER_CHANGES = [
  (name, field, value / 2)
  for name, fields in OUTER.items()
  for field, value in fields.items()
]


@pytest.mark.parametrize(('name', 'field', 'value'), OUTER_CHANGES)
def test_outer_fields_reach_the_params(trained, name, field, value):
  group = lambda **change: {'outer': {'name': name, **OUTER[name], **change}}
  base = trained(small(**group()))
  assert differs(base, trained(small(**group(**{field: value}))))


@pytest.mark.parametrize(
  ('name', 'base', 'change'),
  [
    ('diloco', {}, {'every': 2}),
    ('local_sgd', {}, {'every': 2}),
    ('post_local', {'data_parallel_steps': 2}, {'data_parallel_steps': 3}),
    ('diloco', {'overlap': OVERLAP}, {'overlap.offset': 3}),
    ('diloco', {'overlap': OVERLAP}, {'overlap.delay': 2}),
    ('diloco', {'overlap': OVERLAP}, {'overlap.alpha': 0.2}),
    (
      'diloco',
      {'overlap': {'offset': 2, 'delay': 1, 'merge': 'overwrite'}},
      {'overlap.merge': 'delta'},
    ),
    (
      'diloco',
      {'inner.schedule': 'constant', 'inner.final_lr_ratio': None},
      {
        'inner.schedule': 'wsd',
        'inner.final_lr_ratio': 0.1,
        'inner.decay_steps': 4,
      },
    ),
    ('diloco', inner(**WSD), {'inner.decay_steps': 2}),
    ('diloco', inner(**WSD), {'inner.final_lr_ratio': 0.9}),
  ],
)
def test_fields_of_methods_reach_the_params(trained, name, base, change):
  common = {'inner.peak_lr': 0.1}
  left = trained(small(name, **common, **base))
  assert differs(left, trained(small(name, **{**common, **base, **change})))


@pytest.mark.parametrize(
  ('left', 'right'), [('sgd', 'nesterov'), ('nesterov', 'heavy_ball')]
)
def test_outer_optimizers_differ(trained, left, right):
  left, right = (
    trained(small(outer={'name': name, **OUTER[name]}))
    for name in (left, right)
  )
  assert differs(left, right)


@pytest.mark.parametrize('name', ['adamw', 'muon', 'lion'])
def test_only_matrices_decay(name):
  still = jax.tree.map(lambda leaf: 0 * leaf, TREE)
  tx = _optimizer.make_inner(small(**inner_config(name, weight_decay=0.5)))
  updates, _ = tx.update(still, tx.init(TREE), TREE)
  lr = 0.1
  for leaf in ('embed', 'norm'):
    want = -lr * 0.5 * TREE[leaf] * (leaf == 'embed')
    np.testing.assert_allclose(updates[leaf], want, rtol=1e-6)
  kernel = TREE['layer']['kernel']
  np.testing.assert_allclose(
    updates['layer']['kernel'], -lr * 0.5 * kernel, rtol=1e-6
  )


def test_muon_is_for_the_matrices_between_embedding_and_head():
  tx = _optimizer.make_inner(small(**inner_config('muon', weight_decay=0.0)))
  theirs = _optimizer.make_inner(
    small(**inner_config('adamw', weight_decay=0.0))
  )
  grads = jax.tree.map(lambda leaf: 0.01 * leaf, TREE)
  ours, _ = tx.update(grads, tx.init(TREE), TREE)
  adamw, _ = theirs.update(grads, theirs.init(TREE), TREE)
  for leaf in ('embed', 'norm'):
    np.testing.assert_array_equal(ours[leaf], adamw[leaf])
  # Orthogonal, up to the iteration's accuracy and the learning rate.
  update = ours['layer']['kernel'] / 0.1
  gram = update @ update.T
  np.testing.assert_allclose(gram, np.eye(2), atol=0.7)
  assert differs(ours['layer'], adamw['layer'])


def test_skip_keeps_the_params_and_the_schedule():
  config = small(non_finite='skip', **inner_config('adamw'))
  tx = _optimizer.make_inner(config)
  bad = jax.tree.map(lambda leaf: leaf * np.nan, TREE)
  state = tx.init(TREE)
  for _ in range(3):
    updates, state = tx.update(bad, state, TREE)
    assert all(not leaf.any() for leaf in jax.tree.leaves(updates))
  good, _ = tx.update(TREE, state, TREE)
  fresh, _ = tx.update(TREE, tx.init(TREE), TREE)
  assert not differs(good, fresh)
