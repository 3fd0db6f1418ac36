"""Tests for `dilojax.build`."""

import jax
import numpy as np
import pytest

from dilojax import _optimizer
from dilojax import build
from tests import tiny


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
    ('diloco', {'inner.warmup_steps': 14}, r'at most .num_steps. .13., got 14'),
    (
      'diloco',
      {
        'inner.warmup_steps': 10,
        'inner.schedule': 'wsd',
        'inner.decay_steps': 4,
      },
      r'at most .num_steps. .13., got 14',
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
    (
      'diloco',
      {'data.num_sequences': 15, 'eval_sequences': 3},
      r'4.* disjoint streams .*need 16',
    ),
    (
      'diloco',
      {'eval_sequences': 81},
      'must be at most 80, the number of held-out sequences, got 81',
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
    (
      'diloco',
      {'prune': 0.06},
      '`prune` must drop .* row, which has 16, got 0.06: .* at least 0.0625',
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


# Every corpus with a model for it.

DIGITS = {
  'corpus': 'digits',
  'batch_size': 4,
  'heldout_fraction': 0.1,
  'non_iid': 0.5,
}


@pytest.mark.parametrize('name', ['mlp', 'convnet'])
def test_digits(name):
  model = {'name': name, 'width': 3, 'num_layers': 2}
  setup = build.make(tiny.config(data=DIGITS, model=model))
  params = setup.model.init(jax.random.key(0))
  batch = setup.streams.batch(1, 0)
  assert batch['image'].shape == (4, 8, 8)
  assert np.isfinite(jax.jit(setup.model.loss)(params, batch))
  assert set(params) == {'layer_00', 'layer_01', 'head'}
  # Half of the images are dealt by label: the replicas see others.
  counts = [
    np.bincount(
      np.concatenate(
        [setup.streams.batch(step, k)['label'] for step in range(1, 41)]
      ),
      minlength=10,
    )
    for k in range(4)
  ]
  assert min(count.argmax() for count in counts) < max(
    count.argmax() for count in counts
  )


def test_model_fields_reach_the_model():
  init = lambda config: jax.eval_shape(
    build.make_model(build.resolve(config)).init, jax.random.key(0)
  )
  base = init(tiny.config())
  for field, value in {
    'vocab_size': 16,
    'num_layers': 2,
    'dim': 16,
    'num_heads': 2,
    'head_dim': 4,
    'mlp_dim': 8,
    'mlp': 'swiglu',
    'tied_head': True,
    'qk_norm': False,
  }.items():
    assert init(tiny.config(**{f'model.{field}': value})) != base, field


@pytest.mark.parametrize(
  ('field', 'value'), [('z_loss', 0.1), ('dtype', 'bfloat16')]
)
def test_model_fields_reach_the_loss(field, value):
  setups = [
    build.make(tiny.config()),
    build.make(tiny.config(**{f'model.{field}': value})),
  ]
  params = setups[0].model.init(jax.random.key(0))
  batch = setups[0].streams.batch(1, 0)
  left, right = (jax.jit(setup.model.loss)(params, batch) for setup in setups)
  assert left != right


def test_fields_of_the_loop_are_those_of_the_config():
  setup = build.make(
    tiny.config(
      seed=3,
      keep_checkpoints=5,
      non_finite='skip',
      final_synchronization=False,
      eval_every=7,
      log_every=5,
      checkpoint_every=9,
      **{'inner.accumulate': 2},
    )
  )
  want = {
    'seed': 3,
    'num_steps': 13,
    'batch_size': 4,
    'accumulate': 2,
    'final': False,
    'skips': True,
    'eval_every': 7,
    'log_every': 5,
    'checkpoint_every': 9,
    'keep_checkpoints': 5,
  }
  assert {name: getattr(setup, name) for name in want} == want
  assert sum(len(batch['tokens']) for batch in setup.heldout) == 8
  other = build.make(tiny.config(seed=4))
  batches = [each.streams.batch(1, 0)['tokens'] for each in (setup, other)]
  assert (batches[0] != batches[1]).any()


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
  corpus, model, batch, mean, link, peak = build.describe(setup)
  assert corpus.startswith('Corpus synthetic (')
  assert '320 sequences to train on, 80 held out' in corpus
  params = jax.eval_shape(setup.model.init, jax.random.key(0))
  count = sum(leaf.size for leaf in jax.tree.leaves(params))
  assert f'Model of {count:,} params; 4 replicas on 4 devices' in model
  assert '4 sequences per replica and step, 16 over all; 13 steps' in batch
  assert mean == (
    f'Over replica: all-reduce of {4 * count:,} bytes every step from step 1;'
    ' 4 synchronizations,'
    f' {4 * 4 * count:,} bytes sent per replica.'
  )
  # Rounds end in steps 9 and, at last, 13; step 4 took the anchor.
  assert link == (
    f'Over replica: all-reduce of {4 * count:,} bytes every 5 steps from step'
    f' 9; 2 synchronizations, {3 * 4 * count:,} bytes sent per replica.'
  )
  assert (
    peak == f'At most {4 * count:,} bytes sent in a step, the last excepted.'
  )


def test_one_replica_sends_nothing():
  setup = build.make(tiny.config(num_replicas=1, **{'mesh.num_devices': 1}))
  [link] = build.links(setup)
  assert link.nbytes == 0
  [link] = build.links(build.make(tiny.config()))
  params = jax.eval_shape(setup.model.init, jax.random.key(0))
  assert link.nbytes == sum(4 * leaf.size for leaf in jax.tree.leaves(params))
