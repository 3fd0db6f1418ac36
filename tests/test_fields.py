"""Tests for `dilojax._fields`."""

import copy
import functools
import math
import pathlib

import pytest

from dilojax import _choices
from dilojax import _fields
from dilojax import _overrides
from dilojax import build

CONFIGS = pathlib.Path(__file__).parents[1] / 'configs'
NAMES = ('data_parallel', 'delayed', 'diloco', 'hierarchical', 'post_local')
GONE = object()


@functools.cache
def base(name):
  return build.resolve(_overrides.load(CONFIGS / f'{name}.py'))


def load(name='diloco', changes=()):
  """Returns a config as plain values, with changes by dotted name."""
  config = copy.deepcopy(base(name))
  for path, value in dict(changes).items():
    *groups, last = path.split('.')
    group = config
    for part in groups:
      group = group.setdefault(part, {})
    if value is GONE:
      del group[last]
    else:
      group[last] = value
  return config


def problems(name='diloco', changes=()):
  """Returns the lines of the message; none if the config is accepted."""
  try:
    _fields.check(load(name, changes))
  except ValueError as error:
    return str(error).splitlines()
  return []


EVERY_FIELD = {
  path: name for name in NAMES for path in _fields.flatten(base(name))
}
# Of another type, by the type that a field has.
WRONG = {
  bool: (1, 0.0, 'true', None, []),
  int: (True, 1.0, '1', None, [1]),
  float: (False, '0.5', None, [0.5], math.nan),
  str: (True, 1, 0.5, None, ['bytes'], pathlib.Path('bytes'), ''),
}


@pytest.mark.parametrize('path', EVERY_FIELD)
def test_types(path):
  name = EVERY_FIELD[path]
  kind = _fields.expected(load(name))[path].kind
  for value in WRONG[kind]:
    lines = problems(name, {path: value})
    [line] = [line for line in lines if line.startswith(f'`{path}` ')]
    assert 'must be' in line
    assert line.endswith(f'got {value!r}.')


@pytest.mark.parametrize('path', EVERY_FIELD)
def test_missing(path):
  lines = problems(EVERY_FIELD[path], {path: GONE})
  assert any(line.startswith(f'`{path}` is missing') for line in lines)


@pytest.mark.parametrize(
  ('path', 'bad', 'good'),
  [
    ('seed', (-1, 2**32), (0, 2**32 - 1)),
    ('num_steps', (0, -5), (1,)),
    ('every', (0,), (1, 10**6)),
    ('num_replicas', (0,), (1,)),
    ('eval_every', (0,), (1,)),
    ('eval_sequences', (0,), (1,)),
    ('checkpoint_every', (0,), (1,)),
    ('keep_checkpoints', (0,), (1,)),
    ('log_every', (0,), (1,)),
    ('non_finite', ('ignore',), ('stop', 'skip')),
    ('method', ('diloko',), ()),
    ('data.batch_size', (0,), (1,)),
    ('data.seq_len', (0,), (1,)),
    ('data.heldout_fraction', (0, 1, -0.1, math.inf), (0.01, 0.99)),
    ('data.non_iid', (-0.1, 1.1), (0, 0.0)),
    ('data.corpus', ('c4',), ()),
    ('model.name', ('encoder',), ()),
    ('model.vocab_size', (1,), (2,)),
    ('model.num_layers', (0,), (1,)),
    ('model.dim', (0,), (1,)),
    ('model.num_heads', (0,), (1,)),
    ('model.head_dim', (0, 1, 33), (2, 34)),
    ('model.mlp', ('relu',), ('gelu', 'swiglu')),
    ('model.mlp_dim', (0,), (1,)),
    ('model.z_loss', (-1e-4, math.inf), (0, 1e-4)),
    ('model.dtype', ('float16',), ('float32', 'bfloat16')),
    ('inner.name', ('adamW',), ()),
    ('inner.schedule', ('linear',), ()),
    ('inner.peak_lr', (0, -1e-3, math.inf), (1, 1e-9)),
    ('inner.warmup_steps', (-1,), (0,)),
    ('inner.final_lr_ratio', (-0.1, 1.1), (0, 1)),
    ('inner.b1', (-0.1, 1), (0, 0.999)),
    ('inner.b2', (-0.1, 1.0), (0, 0.999)),
    ('inner.weight_decay', (-0.1, math.inf), (0, 0.1)),
    ('inner.clip_norm', (0, -1.0), (1e-3, math.inf)),
    ('inner.accumulate', (0,), (1,)),
    ('outer.name', ('nestrov',), ()),
    ('outer.lr', (0, -0.7, math.inf), (1, 1e-3)),
    ('outer.momentum', (-0.1, 1), (0, 0.99)),
    ('mesh.num_devices', (-1,), (0, 1)),
    ('mesh.fsdp', (-1,), (0, 1)),
    ('mesh.tensor', (0, -1), (1,)),
  ],
)
def test_ranges(path, bad, good):
  for value in bad:
    # A bad `data.non_iid` lacks clusters as well.
    line = problems(changes={path: value})[0]
    assert line.startswith(f'`{path}` must be ')
    assert line.endswith(f', got {value!r}.')
  for value in good:
    assert problems(changes={path: value}) == []


@pytest.mark.parametrize(
  ('name', 'path', 'bad'),
  [
    ('delayed', 'overlap.offset', 0),
    ('delayed', 'overlap.delay', -1),
    ('delayed', 'overlap.merge', 'average'),
    ('delayed', 'overlap.alpha', 1.5),
    ('post_local', 'data_parallel_steps', 0),
    ('hierarchical', 'levels.level_2.every', 0),
    ('hierarchical', 'levels.level_2.num_replicas', 0),
    ('hierarchical', 'levels.level_2.outer.momentum', 1.0),
  ],
)
def test_ranges_of_methods(name, path, bad):
  [line] = problems(name, {path: bad})
  assert line.startswith(f'`{path}` must be ')


def test_choices_bring_their_fields():
  adam = {'name': 'adam', 'lr': 0.7, 'b1': 0.9, 'b2': 0.99, 'eps': 0.1}
  assert problems(changes={'outer': adam}) == []
  assert problems(changes={'outer': {**adam, 'eps': 0.0}}) == [
    '`outer.eps` must be a finite number above 0, got 0.0.'
  ]
  synthetic = {
    'corpus': 'synthetic',
    'seq_len': 8,
    'batch_size': 4,
    'num_symbols': 257,
    'num_sequences': 1,
    'corpus_seed': -1,
    'heldout_fraction': 0.1,
  }
  assert problems(changes={'data': synthetic}) == [
    '`data.num_symbols` must be an int from 2 to 256, got 257.',
    '`data.num_sequences` must be an int of at least 2, got 1.',
    '`data.corpus_seed` must be an int of at least 0, got -1.',
  ]
  assert problems(changes={'data.non_iid': 0.5}) == [
    '`data.num_clusters` is missing: it must be an int of at least 2.'
  ]
  clusters = {'data.non_iid': 0.5, 'data.num_clusters': 4}
  assert problems(changes=clusters) == []


@pytest.mark.parametrize(
  ('name', 'changes', 'path', 'chosen'),
  [
    ('data_parallel', {'every': 50}, 'every', "`method` 'data_parallel'"),
    ('data_parallel', {'outer.lr': 0.7}, 'outer.lr', '`method`'),
    (
      'data_parallel',
      {'final_synchronization': True},
      'final_synchronization',
      '`method`',
    ),
    ('local_sgd', {'outer.name': 'sgd'}, 'outer.name', "`method` 'local_sgd'"),
    ('diloco', {'levels.level_1.every': 5}, 'levels.level_1.every', '`method`'),
    ('diloco', {'data_parallel_steps': 5}, 'data_parallel_steps', '`method`'),
    ('post_local', {'overlap.delay': 5}, 'overlap.delay', '`method`'),
    ('hierarchical', {'num_replicas': 4}, 'num_replicas', '`method`'),
    (
      'hierarchical',
      {'levels.level_1.outer.momentum': 0.9},
      'levels.level_1.outer.momentum',
      "`levels.level_1.outer.name` 'sgd'",
    ),
    ('diloco', {'outer.name': 'sgd'}, 'outer.momentum', "`outer.name` 'sgd'"),
    ('diloco', {'outer.b1': 0.9}, 'outer.b1', "`outer.name` 'nesterov'"),
    (
      'diloco',
      {'inner.schedule': 'constant'},
      'inner.final_lr_ratio',
      "`inner.schedule` 'constant'",
    ),
    ('diloco', {'inner.momentum': 0.9}, 'inner.momentum', "'adamw'"),
    ('diloco', {'inner.decay_steps': 9}, 'inner.decay_steps', "'cosine'"),
    ('delayed', {'overlap.merge': 'delta'}, 'overlap.alpha', "'delta'"),
    ('diloco', {'data.num_symbols': 9}, 'data.num_symbols', '`data.corpus`'),
    ('diloco', {'model.width': 9}, 'model.width', "`model.name` 'decoder'"),
    ('diloco', {'data.num_clusters': 4}, 'data.num_clusters', '`data.non_iid`'),
  ],
)
def test_without_effect(name, changes, path, chosen):
  [line] = problems(name, changes)
  assert line.startswith(f'`{path}` has no effect with ')
  assert chosen in line
  assert line.endswith(': remove it.')


@pytest.mark.parametrize(
  ('path', 'meant'),
  [
    ('outer.lrr', 'outer.lr'),
    ('outr.lr', 'outer.lr'),
    ('num_step', 'num_steps'),
    ('inner.lr', 'inner.peak_lr'),
    ('data.batchsize', 'data.batch_size'),
    ('batch_size', 'data.batch_size'),
    ('Seed', 'seed'),
  ],
)
def test_unknown_with_a_hint(path, meant):
  [line] = problems(changes={path: 1})
  assert line == f'`{path}` is unknown, got 1. Did you mean `{meant}`?'


def test_unknown_without_a_hint():
  assert problems(changes={'zzz': 1}) == ['`zzz` is unknown, got 1.']
  changes = {'levels.level_1.zzz': 1}
  assert problems('hierarchical', changes)[0].startswith('`levels.level_1.zzz`')


def test_a_wrong_choice_is_one_problem():
  """The fields of a choice are not blamed for a slip in its name."""
  assert len(problems(changes={'outer.name': 'nestrov'})) == 1
  [line] = problems(changes={'method': 'dilcoo'})
  assert line.startswith('`method` must be one of data_parallel, local_sgd')
  assert problems(changes={'method': ['diloco']})[0].startswith('`method` must')


@pytest.mark.parametrize('group', ['data', 'model', 'inner', 'outer', 'mesh'])
def test_no_group(group):
  lines = problems(changes={group: 3})
  assert lines[0] == f'`{group}` must be a group, got 3.'
  assert all('is missing' in line for line in lines[1:])
  assert len(lines) > 1


def test_groups_of_methods_that_are_no_groups():
  assert problems('hierarchical', {'levels': 3})
  assert problems('hierarchical', {'levels.level_1': 3})
  assert problems('delayed', {'overlap': 3})
  assert problems('delayed', {'overlap': {}})


@pytest.mark.parametrize(
  ('name', 'group', 'needed'),
  [
    ('diloco', 'wire', {'wire.error_feedback', 'wire.format', 'wire.gather'}),
    (
      'diloco',
      'overlap',
      {'overlap.offset', 'overlap.delay', 'overlap.merge'},
    ),
    ('diloco', 'fragments', {'fragments.by'}),
    ('diloco', 'subset', {'subset.fraction', 'subset.pattern'}),
    ('diloco', 'outer', {'outer.name'}),
    ('hierarchical', 'levels.level_2.outer', {'levels.level_2.outer.name'}),
  ],
)
def test_an_empty_group_is_told_what_it_needs(name, group, needed):
  lines = problems(name, {group: {}})
  assert {line.split('`')[1] for line in lines} == needed
  assert all('is missing: it must be' in line for line in lines)


@pytest.mark.parametrize(
  ('name', 'group', 'line'),
  [
    *(
      (
        'data_parallel',
        group,
        f"`{group}` has no effect with `method` 'data_parallel': remove it.",
      )
      for group in _choices.GROUPS_OF_METHODS
    ),
    ('diloco', 'new', '`new` is unknown, got {}.'),
    ('diloco', 'inner.new', '`inner.new` is unknown, got {}.'),
    ('diloco', 'outer.lr', '`outer.lr` must be a finite number above 0, got {'),
    ('diloco', 'every', '`every` must be an int of at least 1, got {}.'),
    (
      'diloco',
      'outer.b1',
      "`outer.b1` has no effect with `outer.name` 'nesterov': remove it.",
    ),
  ],
)
def test_an_empty_group_does_not_pass(name, group, line):
  [got] = problems(name, {group: {}})
  assert got.startswith(line)


def test_flatten_and_its_groups():
  config = {'a': {}, 'b': {'c': {}, 'd': 1}, 'e': 2}
  flat = {'a': {}, 'b.c': {}, 'b.d': 1, 'e': 2}
  assert _fields.flatten(config) == flat


def test_all_problems_at_once():
  changes = {
    'seed': -1,
    'every': True,
    'outer.lrr': 1,
    'outer.lr': GONE,
    'outer.name': 'sgd',
  }
  assert sorted(problems(changes=changes)) == [
    '`every` must be an int of at least 1, got True.',
    '`outer.lr` is missing: it must be a finite number above 0.',
    '`outer.lrr` is unknown, got 1. Did you mean `outer.lr`?',
    "`outer.momentum` has no effect with `outer.name` 'sgd': remove it.",
    '`seed` must be an int from 0 to 2**32 - 1, got -1.',
  ]
