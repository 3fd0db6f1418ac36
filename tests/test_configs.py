"""Every config builds; the models are those of the papers."""

import csv
import functools
import math
import pathlib

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dilojax import _optimizer
from dilojax import _overrides
from dilojax import _position
from dilojax import _segment
from dilojax import _workers
from dilojax import build
from dilojax import models
from dilojax import train
from tests import tiny

ROOT = pathlib.Path(__file__).parents[1]
NAMES = sorted(path.stem for path in (ROOT / 'configs').glob('[!_]*.py'))


@functools.cache
def load(name):
  return build.resolve(_overrides.load(ROOT / 'configs' / f'{name}.py'))


# Those with a corpus that is not at hand are traced, and not run.
TRACED = [name for name in NAMES if load(name)['data']['corpus'] == 'tokens']
TRAINED = [
  name
  for name in NAMES
  if name not in TRACED and not _workers.is_asynchronous(load(name))
]


def count(tree):
  return sum(math.prod(leaf.shape) for leaf in jax.tree.leaves(tree))


@pytest.mark.parametrize('name', NAMES)
def test_is_checked_and_says_how_to_run_it(name):
  build.check(load(name))
  text = (ROOT / 'configs' / f'{name}.py').read_text()
  workdir = f'dilojax train --config=configs/{name}.py --workdir=runs/'
  assert workdir in text.partition('get_config')[0]


@pytest.mark.slow
@pytest.mark.parametrize('name', TRAINED)
def test_trains_a_round(name):
  config = load(name)
  changes = {'num_steps': 4, 'every': 4, 'mesh.num_devices': 1}
  if name == 'post_local':
    changes['data_parallel_steps'] = 1
  if 'overlap' in config:
    changes['overlap.delay'] = 1
  if 'offset' in config.get('overlap', {}):
    changes['overlap.offset'] = 2
  if 'delay' in config:
    changes['delay'] = 1
  if 'turns' in config:
    changes['turns'] = 'head final_norm; ; layer_00; embed'
  if name == 'hierarchical':
    changes |= {'levels.level_1.every': 2, 'levels.level_2.every': 4}
  setup = build.make(tiny.config(name, **changes))
  programs = train.make_programs(setup)
  first = _position.start(setup, programs.axes)
  *_, (last, values) = train.advance(setup, programs, first, 4)
  assert last.step == 4
  assert np.isfinite(values).all()
  for row in last.ledger:
    assert row['synchronizations'] > 0
    assert row['bytes_sent'] > 0


def trace(config, step):
  """Traces an inner step of all replicas; returns the replicas' params."""
  model = build.make_model(config)
  tx = _optimizer.make(config, lambda *axes: axes)
  inner_step = _segment.make_step(model, tx, config['inner']['accumulate'])
  size, length = config['data']['batch_size'], config['data']['seq_len']

  def one(key, batch):
    params = model.init(key)
    return inner_step(params, tx.init(params), batch, step)

  num_replicas = config['num_replicas']
  batch = {
    'tokens': jax.ShapeDtypeStruct((num_replicas, size, length + 1), jnp.int32)
  }
  key = jax.eval_shape(lambda: jax.random.key(0))
  program = jax.vmap(one, (None, 0), axis_name='replica')
  return jax.eval_shape(program, key, batch)


MARKED = [
  pytest.param(name, marks=[pytest.mark.slow] * (name != 'diloco_c4_60m'))
  for name in TRACED
]


@pytest.mark.parametrize('name', MARKED)
def test_traces(name):
  config = load(name)
  num_replicas = config['num_replicas']
  params = jax.eval_shape(build.make_model(config).init, jax.random.key(0))
  # The first synchronization; what a quiet step does, it does as well.
  step = config.get('data_parallel_steps', 0) + config['every']
  new_params, _, (loss, norm) = trace(config, step)
  assert count(new_params) == num_replicas * count(params)
  assert loss.shape == norm.shape == (num_replicas,)
  assert loss.dtype == 'float32'


@pytest.mark.parametrize(
  ('name', 'paper', 'row', 'steps_times_tokens'),
  [
    ('diloco_c4_60m', 'diloco', '60M', 88_000 * 512 * 1024),
    ('diloco_c4_150m', 'diloco', '150M', 88_000 * 512 * 1024),
    ('diloco_c4_400m', 'diloco', '400M', 88_000 * 512 * 1024),
    ('streaming_1b', 'streaming_diloco', '1B', 25e9 / 2),
    ('scaling_10b', 'scaling_laws', '10B', 200e9 / 2),
  ],
)
def test_sizes_and_budgets_are_the_papers(name, paper, row, steps_times_tokens):
  config = load(name)
  model, data = config['model'], config['data']
  [want] = [each for each in rows(paper) if each['model'] == row]
  sizes = architecture(paper, want)
  assert {field: model[field] for field in sizes} == sizes
  tokens = config['num_steps'] * data['batch_size'] * data['seq_len']
  assert tokens == pytest.approx(steps_times_tokens, rel=1e-4)


# The decoder covers the sizes of the papers.

VOCABULARY = {
  'diloco': 32_000,
  'streaming_diloco': 32_000,
  'scaling_laws': 32_768,
}


def rows(paper):
  path = ROOT / 'experiments' / paper / 'models.csv'
  lines = path.read_text().splitlines()
  return list(csv.DictReader(line for line in lines if line[0] != '#'))


def architecture(paper, row):
  """Returns the arguments of `decoder` that a row of a paper states."""
  heads = int(row['heads'])
  if paper == 'diloco':
    dim, head_dim = int(row['width']), int(row['kv_dim'])
    mlp_dim = 4 * dim
  elif paper == 'streaming_diloco':
    mlp_dim = int(row['ffn_dim'])
    dim = mlp_dim // 4
    head_dim = dim // heads
  else:
    mlp_dim, dim = int(row['hidden_dim']), int(row['qkv_dim'])
    head_dim = dim // heads
  return {
    'vocab_size': VOCABULARY[paper],
    'num_layers': int(row['layers']),
    'dim': dim,
    'num_heads': heads,
    'head_dim': head_dim,
    'mlp_dim': mlp_dim,
  }


EVERY_SIZE = [
  (paper, row['model'], architecture(paper, row))
  for paper in VOCABULARY
  for row in rows(paper)
]
# Names that are not what their own sizes add up to, and what that is.
MISNAMED = {
  ('streaming_diloco', '100M'): 88e6,
  ('streaming_diloco', '200M'): 184e6,
  ('streaming_diloco', '300M'): 337e6,
  ('streaming_diloco', '500M'): 559e6,
  ('streaming_diloco', '1B'): 1.27e9,
}


@pytest.mark.slow
@pytest.mark.parametrize(('paper', 'name', 'sizes'), EVERY_SIZE)
def test_params_add_up_to_the_names(paper, name, sizes):
  model = models.decoder(
    seq_len=1024,
    mlp='gelu',
    tied_head=True,
    qk_norm=paper != 'diloco',
    z_loss=1e-4,
    dtype='bfloat16',
    remat=True,
    **sizes,
  )
  named = float(name[:-1]) * {'M': 1e6, 'B': 1e9}[name[-1]]
  total = count(jax.eval_shape(model.init, jax.random.key(0)))
  want = MISNAMED.get((paper, name), named)
  assert total == pytest.approx(want, rel=0.05)
