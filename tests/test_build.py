"""Tests for `dilojax.build` and `dilojax._optimizer`."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from dilojax import _optimizer
from dilojax import build
from tests import tiny

WSD = {'schedule': 'wsd', 'final_lr_ratio': 0.1, 'decay_steps': 4}


def inner(**fields):
  """Returns overrides that replace fields of the group `inner`."""
  return {f'inner.{name}': value for name, value in fields.items()}


def refused(name='diloco', **overrides):
  """Returns the message for a config that cannot be."""
  with pytest.raises(ValueError, match='`') as error:
    build.make(tiny.config(name, **overrides))
  return str(error.value)


# What goes together.


@pytest.mark.parametrize(
  ('name', 'overrides', 'message'),
  [
    (
      'diloco',
      {'inner.accumulate': 3},
      r'\(4\) must be a multiple of `inner.acc',
    ),
    ('diloco', {'inner.warmup_steps': 14}, 'take 14 steps, more than .*13'),
    (
      'diloco',
      {**inner(warmup_steps=10, **WSD)},
      'take 14 steps, more than `num_steps`',
    ),
    ('post_local', {'data_parallel_steps': 13}, r'\(13\) must be less than'),
    (
      'delayed',
      {'overlap.offset': 6},
      r'`offset` must be from 1 to .*5.*got 6',
    ),
    (
      'delayed',
      {'overlap.offset': 5, 'overlap.delay': 5},
      r'`delay` \(5\) reaches the next launch',
    ),
    (
      'delayed',
      {'overlap': {'offset': 5, 'delay': 0, 'merge': 'delta'}},
      "'delta' has no effect with `overlap.delay` 0",
    ),
    ('diloco', {'model.vocab_size': 9}, r"the tokenizer's \(8\), got 9"),
    ('diloco', {'data.num_sequences': 15}, r'4.* disjoint streams .*need 16'),
    (
      'diloco',
      {'eval_sequences': 81},
      'must be at most the number of held-out',
    ),
    ('diloco', {'num_replicas': 3}, r'\(3\) must divide, or be divided by'),
    ('diloco', {'mesh.num_devices': 9}, r'number of devices \(8\), got 9'),
    ('diloco', {'mesh.fsdp': 3}, 'each replica takes 3'),
    ('diloco', {'mesh.tensor': 8}, 'each replica takes 8'),
    (
      'diloco',
      {
        'data': {
          'corpus': 'digits',
          'batch_size': 4,
          'heldout_fraction': 0.1,
          'non_iid': 0.0,
        }
      },
      "'decoder' does not fit `data.corpus` 'digits'",
    ),
    (
      'diloco',
      {'model': {'name': 'mlp', 'width': 8, 'num_layers': 1}},
      "'mlp' does not fit `data.corpus` 'synthetic'",
    ),
    ('hierarchical', {'levels.level_1.axis': 'region'}, 'an `axis` of its own'),
    ('hierarchical', {'levels.level_1.axis': 'fsdp'}, "other than 'fsdp'"),
    (
      'hierarchical',
      {'levels.level_2.every': 0},
      'must be an int of at least 1',
    ),
  ],
)
def test_refuses_what_does_not_go_together(name, overrides, message):
  overrides = (
    {'overlap.offset': 5, **overrides}
    if name == 'delayed' and 'overlap' not in overrides
    else overrides
  )
  with pytest.raises(ValueError, match=message):
    build.make(tiny.config(name, **overrides))


def test_levels_are_numbered():
  level = build.resolve(tiny.config('hierarchical'))['levels']['level_1']
  levels = {'host': level, 'region': {**level, 'axis': 'region'}}
  message = refused('hierarchical', levels=levels)
  assert message.startswith('`levels` must be named level_1, level_2, inner')


def test_levels_are_ordered_by_number():
  level = build.resolve(tiny.config('hierarchical'))['levels']['level_1']
  levels = {
    f'level_{n}': {**level, 'axis': f'axis_{n}', 'num_replicas': 1}
    for n in range(1, 12)
  }
  config = build.resolve(tiny.config('hierarchical', levels=levels))
  want = [f'axis_{n}' for n in range(11, 0, -1)]
  assert list(_optimizer.num_replicas(config)) == want


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
  'embed': np.linspace(-1, 1, 6, dtype=np.float32).reshape(3, 2),
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
OVERLAP = {'offset': 2, 'delay': 1, 'merge': 'mix', 'alpha': 0.5}


def inner_config(name, **fields):
  common = {
    'name': name,
    'peak_lr': 0.1,
    'warmup_steps': 2,
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
      grads = jax.tree.map(
        lambda leaf: jnp.sin(slope * leaf + step) + leaf, params
      )
      updates, state = tx.update(grads, state, params, step=step)
      params = optax.apply_updates(params, updates)
    return params

  return jax.device_get(jax.vmap(one, axis_name='replica')(jnp.arange(1.0, 3)))


def small(name='diloco', **overrides):
  overrides = {'num_steps': 8, 'every': 3, **overrides}
  return build.resolve(tiny.config(name, **overrides))


def differs(left, right):
  largest = jax.tree.map(lambda a, b: np.abs(a - b).max(), left, right)
  return max(jax.tree.leaves(largest)) > 1e-5


INNER_CHANGES = [
  (name, field, value)
  for name in INNER
  for field, value in {
    'peak_lr': 0.05,
    'warmup_steps': 4,
    'clip_norm': 0.5,
    'final_lr_ratio': 0.5,
    **{field: value / 2 for field, value in INNER[name].items()},
  }.items()
  # Whatever the size of the gradients, these take the same step.
  if not (field == 'clip_norm' and name in ('adam', 'lion'))
]


@pytest.fixture(scope='module')
def trained():
  """Function that trains and remembers."""
  known = {}

  def trained(config):
    key = repr(config)
    if key not in known:
      known[key] = train(config)
    return known[key]

  return trained


@pytest.mark.parametrize(('name', 'field', 'value'), INNER_CHANGES)
def test_inner_fields_reach_the_params(trained, name, field, value):
  base = trained(small(**inner_config(name)))
  assert differs(base, trained(small(**inner_config(name, **{field: value}))))


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
    ('diloco', {}, {'every': 4}),
    ('local_sgd', {}, {'every': 4}),
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
  still = jax.tree.map(np.zeros_like, TREE)
  tx = _optimizer.make_inner(small(**inner_config(name, weight_decay=0.5)))
  updates, _ = tx.update(still, tx.init(TREE), TREE)
  lr = 0.1 / 2
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
  update = ours['layer']['kernel'] / 0.05
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


# Placement and description.


@pytest.mark.parametrize(
  ('num_replicas', 'mesh', 'num_devices'),
  [
    (4, {}, 4),
    (1, {}, 1),
    (8, {}, 8),
    (16, {}, 8),
    (12, {}, 6),
    (11, {}, 1),
    (4, {'mesh.num_devices': 2}, 2),
    (2, {'mesh.fsdp': 2}, 4),
    (2, {'mesh.fsdp': 2, 'mesh.tensor': 2}, 8),
  ],
)
def test_devices_of_a_cpu(num_replicas, mesh, num_devices):
  mesh = {'mesh.num_devices': 0, **mesh}
  config = tiny.config(num_replicas=num_replicas, **mesh)
  assert build.num_cpu_devices(config) == num_devices
  placement = build.make_placement(build.resolve(config))
  assert placement.mesh.size == num_devices
  assert placement.total == num_replicas


def test_describes_what_will_be_done():
  setup = build.make(tiny.config('post_local', data_parallel_steps=4))
  corpus, model, batch, mean, link = build.describe(setup)
  assert corpus.startswith('Corpus synthetic (')
  assert '320 sequences to train on, 80 held out' in corpus
  params = jax.eval_shape(setup.model.init, jax.random.key(0))
  count = sum(leaf.size for leaf in jax.tree.leaves(params))
  assert f'Model of {count:,} params; 4 replicas on 4 devices' in model
  assert '4 sequences per replica and step, 16 over all; 13 steps' in batch
  assert mean == (
    'Over replica: every 1 steps from step 1; 4 synchronizations,'
    f' {4 * 4 * count:,} bytes sent per replica.'
  )
  # Rounds end in steps 9 and, at last, 13; step 4 took the anchor.
  assert link == (
    'Over replica: every 5 steps from step 9; 2 synchronizations,'
    f' {3 * 4 * count:,} bytes sent per replica.'
  )


def test_one_replica_sends_nothing():
  setup = build.make(tiny.config(num_replicas=1, **{'mesh.num_devices': 1}))
  [link] = build.links(setup)
  assert link.nbytes == 0
  [link] = build.links(build.make(tiny.config()))
  params = jax.eval_shape(setup.model.init, jax.random.key(0))
  assert link.nbytes == sum(4 * leaf.size for leaf in jax.tree.leaves(params))
