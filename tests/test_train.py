"""Tests for `dilojax.train`, its segments and positions."""

import json
import shutil

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dilojax import _position
from dilojax import _segment
from dilojax import audit
from dilojax import build
from dilojax import checkpoint
from dilojax import evaluate
from dilojax import replicas
from dilojax import train
from dilojax import transforms
from tests import tiny

VOLATILE = ('seconds', 'train/tokens_per_second')
LEVELS = {
  f'level_{number}': {
    'axis': axis,
    'num_replicas': 2,
    'every': every,
    'outer': {'name': 'nesterov', 'lr': 0.7, 'momentum': 0.5},
  }
  for number, (axis, every) in enumerate((('host', 2), ('region', 6)), start=1)
}
OF_METHOD = {
  'delayed': {
    'overlap.offset': 4,
    'overlap.delay': 3,
    'overlap.merge': 'delta',
  },
  'post_local': {'data_parallel_steps': 6},
  'hierarchical': {'levels': LEVELS},
}


DIGITS = {
  'data': {
    'corpus': 'digits',
    'heldout_fraction': 0.2,
    'non_iid': 0.0,
    'batch_size': 4,
  },
  'model': {'name': 'mlp', 'width': 8, 'num_layers': 1},
}


def config_of(method, **overrides):
  """Returns a config of a model that compiles fast."""
  of_method = dict(OF_METHOD.get(method, {}))
  if method == 'delayed':
    of_method['overlap.alpha'] = None
  return tiny.config(method, **{**DIGITS, **of_method, **overrides})


def steady(records):
  """Returns records without what no two runs agree on."""
  return [
    {key: value for key, value in record.items() if key not in VOLATILE}
    for record in records
  ]


def assert_same(got, want):
  assert got.keys() == want.keys()
  for path in want:
    assert got[path].tobytes() == want[path].tobytes(), path


def losses(records):
  return {
    (record['step'], key): value
    for record in records
    for key, value in record.items()
    if 'loss' in key or 'norm' in key
  }


# Going on.


SLOW = pytest.mark.slow


@pytest.mark.parametrize(
  'method',
  [
    'diloco',
    *(
      pytest.param(method, marks=SLOW)
      for method in ('delayed', 'data_parallel', 'post_local', 'hierarchical')
    ),
  ],
)
def test_goes_on_bitwise(method, tmp_path, monkeypatch):
  """Stops between a launch and its landing, or in the middle of a round."""
  config = config_of(method)
  straight, before, after = [], [], []
  summary = tiny.run(tmp_path / 'straight', config, written=straight)
  with (
    tiny.raises_when_saving(monkeypatch, 12),
    pytest.raises(KeyboardInterrupt),
  ):
    tiny.run(tmp_path / 'stopped', config, written=before)
  assert checkpoint.steps(tmp_path / 'stopped' / 'checkpoints') == [6]
  again = tiny.run(tmp_path / 'stopped', config, written=after)
  assert after[0]['step'] > 6
  lines = (tmp_path / 'stopped' / 'metrics.jsonl').read_text().splitlines()
  assert steady(map(json.loads, lines)) == steady(straight)
  assert_same(
    tiny.state(tmp_path / 'stopped', config, 13),
    tiny.state(tmp_path / 'straight', config, 13),
  )
  assert again['replicas'] == summary['replicas']


@SLOW
@pytest.mark.parametrize('at', [4, 5, 6, 9, 10, 11])
def test_goes_on_bitwise_from_every_offset(at, tmp_path, monkeypatch):
  config = config_of('diloco', checkpoint_every=1, keep_checkpoints=20)
  tiny.run(tmp_path / 'straight', config)
  with (
    tiny.raises_when_saving(monkeypatch, at + 1),
    pytest.raises(KeyboardInterrupt),
  ):
    tiny.run(tmp_path / 'stopped', config)
  tiny.run(tmp_path / 'stopped', config)
  for step in (at, at + 1, 13):
    assert_same(
      tiny.state(tmp_path / 'stopped', config, step),
      tiny.state(tmp_path / 'straight', config, step),
    )


IN_TWO = {
  'overlap.offset': 2,
  'overlap.delay': 4,
  'every': 6,
  'checkpoint_every': 1,
  'keep_checkpoints': 20,
  'wire': {
    'format': 'bfloat16',
    'error_feedback': 0.0,
    'gather': 'mean',
    'result': 'message',
  },
}


@SLOW
def test_only_the_mesh_that_saved_a_mean_half_way_goes_on(tmp_path):
  """Launches in steps 2 and 8, with relays in 4 and 10."""
  two = {'num_replicas': 2, 'mesh.num_devices': 2}
  config = config_of('delayed', **IN_TWO, **two)
  tiny.run(tmp_path, config)
  folder = tmp_path / 'checkpoints'
  want = tiny.state(tmp_path, config, 13)
  for change in ({'mesh.num_devices': 4, 'mesh.fsdp': 2}, {'num_replicas': 4}):
    other = config_of('delayed', **IN_TWO, **{**two, **change})
    setup = build.make(other)
    axes = _position.state_axes(setup)
    for step in (2, 3, 8, 9):
      with pytest.raises(ValueError, match='between its two collectives'):
        _position.restore(folder, step, setup, axes)
    programs = train.make_programs(setup)
    position = _position.restore(folder, 4, setup, axes)
    if change.get('num_replicas', 2) == 2:
      *_, (position, _) = train.advance(setup, programs, position, 7)
      position = _position.restore(folder, 7, setup, axes)
      *_, (position, _) = train.advance(setup, programs, position, 13)
      got = jax.device_get(position.opt_state)
      for path, leaf in jax.tree.leaves_with_path(got):
        name = f'[1]{jax.tree_util.keystr(path)}'
        if 'relayed' not in name:
          np.testing.assert_allclose(leaf, want[name], rtol=1e-5, atol=1e-6)


def test_a_finished_run_is_not_trained_again(tmp_path):
  config, written = config_of('diloco'), []
  first = tiny.run(tmp_path, config)
  again = tiny.run(tmp_path, config, written=written)
  assert written == []
  assert again['final'] == first['final']


def test_never_starts_anew_in_silence(tmp_path):
  config = config_of('diloco')
  tiny.run(tmp_path, config)
  short = config_of('diloco', num_steps=7)
  with pytest.raises(ValueError, match='at least 13, the step'):
    tiny.run(tmp_path, short, changes=('num_steps',))
  shutil.rmtree(tmp_path / 'checkpoints')
  with pytest.raises(ValueError, match='records up to step 13, and no checkp'):
    tiny.run(tmp_path, config)


@pytest.mark.parametrize('num_devices', [1, pytest.param(2, marks=SLOW)])
def test_goes_on_elsewhere(num_devices, tmp_path, monkeypatch):
  config, straight, after = config_of('diloco'), [], []
  tiny.run(tmp_path / 'straight', config, written=straight)
  with (
    tiny.raises_when_saving(monkeypatch, 13),
    pytest.raises(KeyboardInterrupt),
  ):
    tiny.run(tmp_path / 'moved', config)
  moved = config_of('diloco', **{'mesh.num_devices': num_devices})
  tiny.run(tmp_path / 'moved', moved, written=after)
  want = {key: v for key, v in losses(straight).items() if key[0] > 12}
  got = losses(after)
  assert got.keys() == want.keys()
  for key in want:
    np.testing.assert_allclose(got[key], want[key], rtol=1e-4)


@pytest.mark.slow
def test_the_number_of_replicas_may_change(tmp_path):
  """Tokens are those of real batches; who joins starts at the anchor."""
  short = {'num_steps': 5, 'eval_every': 5, 'checkpoint_every': 5}
  config = config_of('diloco', **short)
  tiny.run(tmp_path, config)
  grown = config_of('diloco', num_steps=10, num_replicas=6)
  grown.mesh.num_devices = 2
  setup = build.make(grown)
  axes = _position.state_axes(setup)
  position = _position.restore(tmp_path / 'checkpoints', 5, setup, axes)
  anchor = position.opt_state[-1].anchor
  for own, shared in zip(
    jax.tree.leaves(position.params), jax.tree.leaves(anchor)
  ):
    np.testing.assert_array_equal(own[4:], np.stack([shared] * 2))
  changes = ('num_replicas', 'num_steps', 'eval_every', 'checkpoint_every')
  summary = tiny.run(tmp_path, grown, changes=changes)
  assert [row['steps'] for row in summary['replicas']] == 4 * [10] + 2 * [5]
  per_step = 4  # Images; a text would count its tokens.
  assert summary['final']['tokens'] == per_step * (4 * 10 + 2 * 5)
  shrunk = config_of('diloco', num_steps=15, num_replicas=1)
  shrunk.mesh.num_devices = 1
  changes = ('num_replicas', 'num_steps')
  summary = tiny.run(tmp_path, shrunk, changes=changes)
  assert [row['steps'] for row in summary['replicas']] == [15]


# The same numbers.


@SLOW
@pytest.mark.parametrize('method', ['delayed', 'hierarchical'])
def test_the_loop_is_the_optimizer(method, tmp_path):
  """Scans, static steps and donation change nothing: a plain loop agrees."""
  config, written = config_of(method, log_every=1), []
  tiny.run(tmp_path, config, written=written)
  setup = build.make(config)
  axes = _position.state_axes(setup)
  position = _position.start(setup, axes)
  tx = setup.tx

  def one(params, opt_state, batch):
    loss, grads = jax.value_and_grad(setup.model.loss)(params, batch)
    updates, opt_state = tx.update(grads, opt_state, params)
    params = transforms.apply_updates(params, updates, opt_state)
    return params, opt_state, loss

  program = replicas.over_replicas(one, setup.placement, (*axes, 0), (*axes, 0))
  params, opt_state = position.params, position.opt_state
  sizes = tuple(setup.placement.num_replicas.values())
  for record in [record for record in written if 'train/loss' in record][:-1]:
    step = record['step']
    batch = jax.tree.map(
      lambda *each: np.stack(each).reshape(*sizes, *each[0].shape),
      *(setup.streams.batch(step, k) for k in range(4)),
    )
    params, opt_state, loss = jax.jit(program)(params, opt_state, batch)
    np.testing.assert_allclose(
      record['train/loss'], float(jnp.mean(loss)), rtol=1e-5
    )


@pytest.mark.parametrize(
  ('num_replicas', 'num_devices'),
  [
    (4, 8),
    *(
      pytest.param(*pair, marks=SLOW)
      for pair in ((4, 1), (4, 2), (1, 2), (3, 1))
    ),
  ],
)
def test_placement_does_not_matter(num_replicas, num_devices, tmp_path):
  written, other = [], []
  config = config_of('diloco', num_replicas=num_replicas)
  config.mesh.num_devices = num_replicas
  tiny.run(tmp_path / 'one', config, written=written)
  config.mesh.num_devices = num_devices
  tiny.run(tmp_path / 'other', config, written=other)
  want, got = losses(written), losses(other)
  assert want.keys() == got.keys()
  for key in want:
    np.testing.assert_allclose(got[key], want[key], rtol=1e-4)


@pytest.mark.slow
def test_accumulation_is_the_large_batch(tmp_path):
  whole, parts = [], []
  tiny.run(tmp_path / 'whole', config_of('diloco'), written=whole)
  config = config_of('diloco', **{'inner.accumulate': 4})
  tiny.run(tmp_path / 'parts', config, written=parts)
  want, got = losses(whole), losses(parts)
  for key in want:
    np.testing.assert_allclose(got[key], want[key], rtol=1e-4)


@pytest.mark.parametrize('num_steps', [1, 4, 5, pytest.param(7, marks=SLOW)])
def test_ends_cleanly_after_any_number_of_steps(num_steps, tmp_path):
  """The last synchronization may cut a round short, and is not doubled."""
  config = config_of('diloco', num_steps=num_steps, **{'inner.warmup_steps': 1})
  summary = tiny.run(tmp_path, config)
  rounds = -(-num_steps // 5)
  assert summary['steps'] == num_steps
  assert summary['replicas'][0]['synchronizations'] == rounds
  leaves = tiny.state(tmp_path, config, num_steps)
  params = [leaf for path, leaf in leaves.items() if path.startswith('[0]')]
  for leaf in params:
    np.testing.assert_array_equal(leaf, np.broadcast_to(leaf[:1], leaf.shape))


# What is counted.


def test_bytes_are_those_of_the_messages(tmp_path):
  summary = tiny.run(tmp_path, config_of('diloco'))
  [link] = summary['links']
  assert link['bytes_per_message'] == 4 * summary['num_params']
  for row in summary['replicas']:
    assert row['steps'] == 13
    assert row['tokens'] == 13 * 4
    assert row['bytes_sent'] == 3 * 4 * summary['num_params']


def compiled(config, first):
  """Compiles the segment that starts at a step; returns it and its setup."""
  setup = build.make(config)
  programs = train.make_programs(setup)
  plan = _segment.plan(
    setup, programs.links, first, setup.num_steps, lambda step: False
  )
  segment = next(plan)
  position = _position.start(setup, programs.axes)
  args = (
    position.params,
    position.opt_state,
    _segment.batches(setup, segment),
    _segment.lengths(segment),
  )
  return programs.segment(segment).lower(*args).compile(), setup, segment


@pytest.mark.parametrize('num_devices', [2, 4, 8])
def test_only_the_mean_crosses_replicas(num_devices):
  config = config_of('diloco', **{'mesh.num_devices': num_devices})
  program, setup, segment = compiled(config, 1)
  mesh = setup.placement.mesh
  crossing = [
    found
    for found in audit.collectives(program)
    if replicas.AXIS in audit.axes(found, mesh)
  ]
  assert segment.num_steps == 5
  assert {found.op for found in crossing} == {'all-reduce'}
  assert not any(found.in_loop for found in crossing)
  params = jax.eval_shape(setup.model.init, jax.random.key(0))
  size = sum(leaf.size for leaf in jax.tree.leaves(params))
  per_device = size // mesh.shape['fsdp']
  sent = sum(found.nbytes for found in crossing)
  # Norms and biases that do not divide are whole on every device.
  assert 4 * per_device <= sent <= 4 * per_device + 4 * 100


def test_quiet_segments_do_not_communicate():
  config = config_of('diloco', every=12)
  setup = build.make(config)
  programs = train.make_programs(setup)
  plan = _segment.plan(setup, programs.links, 1, 9, lambda step: step == 9)
  segment = next(plan)
  assert segment.num_steps == 9
  position = _position.start(setup, programs.axes)
  program = programs.segment(segment).lower(
    position.params,
    position.opt_state,
    _segment.batches(setup, segment),
    _segment.lengths(segment),
  )
  assert audit.collectives(program.compile()) == []


def test_few_programs_serve_a_training():
  config = config_of('diloco', num_steps=600, every=7)
  setup = build.make(config)
  links = train.make_programs(setup).links
  stops = lambda step: step % 10 == 0
  plan = list(_segment.plan(setup, links, 1, 600, stops))
  assert sum(segment.num_steps for segment in plan) == 600
  assert len({segment.pattern for segment in plan}) <= 4


# Evaluation.


def test_evaluates_anchor_mean_and_each_replica(tmp_path):
  config, written = config_of('diloco', keep_checkpoints=9), []
  tiny.run(tmp_path, config, written=written)
  [record] = [r for r in written if r['step'] == 6 and 'eval/mean/loss' in r]
  setup = build.make(config)
  axes = _position.state_axes(setup)
  position = _position.restore(tmp_path / 'checkpoints', 6, setup, axes)
  params, anchor = jax.device_get(
    (position.params, position.opt_state[-1].anchor)
  )
  of = {'anchor': anchor, 'mean': jax.tree.map(lambda p: p.mean(0), params)}
  for k in range(4):
    of[f'replica_{k}'] = jax.tree.map(lambda p, k=k: p[k], params)
  for whose, value in of.items():
    want = np.mean(
      [setup.model.evaluate(value, batch)['loss'] for batch in setup.heldout]
    )
    np.testing.assert_allclose(record[f'eval/{whose}/loss'], want, rtol=1e-5)
  assert len({round(record[f'eval/{whose}/loss'], 7) for whose in of}) == 6


def test_bits_per_byte_of_each():
  found = {'anchor': {'loss': np.log(4)}, 'replica': {'loss': np.zeros(3)}}
  named = evaluate.record(found, bytes_per_token=0.5)
  assert named['eval/anchor/bits_per_byte'] == pytest.approx(2 / 0.5)
  assert named['eval/replica_2/bits_per_byte'] == 0


def test_a_text_counts_its_tokens():
  setup = build.make(tiny.config())
  assert _segment.tokens_per_step(setup) == 4 * 8


# Gradients that are not finite.


def breaking(step, replica):
  """Returns a spy that makes one replica's loss NaN at a step."""

  def spy(setup):
    mark = setup.streams.batch(step, replica)['image']
    loss = setup.model.loss

    def broken(params, batch):
      hit = jnp.all(batch['image'] == mark)
      return jnp.where(hit, jnp.nan, 1.0) * loss(params, batch)

    return setup._replace(model=setup.model._replace(loss=broken))

  return spy


def test_stops_with_the_last_good_state(tmp_path):
  config = config_of('diloco', checkpoint_every=3, keep_checkpoints=9)
  with pytest.raises(train.NonFiniteError, match='Step 9, replica 2: loss nan'):
    tiny.run(tmp_path / 'broken', config, spy=breaking(9, 2))
  assert checkpoint.steps(tmp_path / 'broken' / 'checkpoints') == [3, 6, 8]
  good = config_of('diloco', checkpoint_every=8)
  tiny.run(tmp_path / 'good', good)
  assert_same(
    tiny.state(tmp_path / 'broken', config, 8),
    tiny.state(tmp_path / 'good', good, 8),
  )


@SLOW
def test_skips_a_step_and_leaves_the_inner_state(tmp_path):
  config = config_of(
    'diloco', non_finite='skip', checkpoint_every=1, keep_checkpoints=20
  )
  written = []
  tiny.run(tmp_path, config, spy=breaking(9, 2), written=written)
  records = [r for r in written if 'train/skipped_steps' in r]
  assert [r['train/skipped_steps'] for r in records] == [0, 1, 0]
  before, after = (tiny.state(tmp_path, config, step) for step in (8, 9))
  inner = [path for path in before if '.mu' in path or path.startswith('[0]')]
  assert inner
  for path in inner:
    np.testing.assert_array_equal(after[path][2], before[path][2])
    assert not np.array_equal(after[path][1], before[path][1])
  for leaf in tiny.state(tmp_path, config, 13).values():
    assert np.isfinite(leaf).all()


def test_stops_when_nothing_but_skipped_steps_comes(tmp_path):
  def spy(setup):
    loss = lambda params, batch: jnp.nan * setup.model.loss(params, batch)
    return setup._replace(model=setup.model._replace(loss=loss))

  config = config_of('diloco', non_finite='skip')
  with pytest.raises(train.NonFiniteError, match='all 24 were skipped'):
    tiny.run(tmp_path, config, spy=spy)


# Folders that somebody has changed.


@pytest.mark.slow
def test_a_delayed_run_that_has_ended_is_not_extended(tmp_path):
  """Its last message has landed early, and would land once more."""
  ends = {'num_steps': 11, 'overlap.delay': 4, 'overlap.offset': 5}
  tiny.run(tmp_path, config_of('delayed', **ends))
  longer = config_of('delayed', **{**ends, 'num_steps': 20})
  with pytest.raises(ValueError, match='landing early what was in flight'):
    tiny.run(tmp_path, longer, changes=('num_steps',))


@pytest.mark.slow
def test_tokens_of_dropped_replicas_count(tmp_path):
  tiny.run(tmp_path, config_of('diloco', num_steps=10))
  fewer = config_of('diloco', num_steps=15, num_replicas=2)
  fewer.mesh.num_devices = 2
  changes = ('num_replicas', 'num_steps')
  summary = tiny.run(tmp_path, fewer, changes=changes)
  assert summary['final']['tokens'] == 4 * (4 * 10 + 2 * 5)


def test_an_extended_run_has_no_summary_until_it_ends(tmp_path, monkeypatch):
  tiny.run(tmp_path, config_of('diloco', num_steps=10))
  longer = config_of('diloco', num_steps=20)
  with (
    tiny.raises_when_saving(monkeypatch, 12),
    pytest.raises(KeyboardInterrupt),
  ):
    tiny.run(tmp_path, longer, changes=('num_steps',))
  assert not (tmp_path / 'summary.json').exists()


def test_evaluations_must_be_there(tmp_path):
  config = config_of('diloco')
  tiny.run(tmp_path, config)
  (tmp_path / 'summary.json').unlink()
  (tmp_path / 'metrics.jsonl').unlink()
  with pytest.raises(ValueError, match='must hold the evaluation of step 13'):
    tiny.run(tmp_path, config)


PRUNED = {
  'prune': 0.5,
  'wire': {'format': 'float32', 'error_feedback': 0.0, 'gather': 'messages'},
}


@pytest.mark.parametrize(
  'fields',
  [
    pytest.param({}, id='decoder'),
    pytest.param(DIGITS, id='mlp'),
    pytest.param({**DIGITS, **PRUNED}, id='pruned'),
  ],
)
@pytest.mark.slow
def test_shards_inside_a_replica_change_nothing(fields):
  found = []
  for mesh in ({'mesh.fsdp': 2, 'mesh.tensor': 2, 'mesh.num_devices': 8}, {}):
    config = tiny.config('diloco', **{**fields, 'num_replicas': 2, **mesh})
    setup = build.make(config)
    programs = train.make_programs(setup)
    first = _position.start(setup, programs.axes)
    *_, (_, values) = train.advance(setup, programs, first, 6)
    found.append(np.asarray(values))
  assert found[0].shape == found[1].shape
  np.testing.assert_allclose(found[0], found[1], rtol=1e-5)
