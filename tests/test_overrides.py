"""Tests for `dilojax._overrides`."""

import json
import math
import pathlib

import ml_collections
import pytest

from dilojax import _overrides
from dilojax import build

CONFIGS = sorted((pathlib.Path(__file__).parents[1] / 'configs').glob('[!_]*'))
SOURCE = """\
import ml_collections


def get_config():
  config = ml_collections.ConfigDict()
  config.count = 10
  config.rate = 0.5
  config.name = 'nesterov'
  config.flag = True
  config.sizes = (1, 2)
  config.names = ['a', 'b']
  config.group = ml_collections.ConfigDict({'lr': 0.7, 'momentum': 0.9})
  config.nothing = None
  return config
"""


@pytest.fixture
def load(tmp_path):
  """Function that loads the config above with overrides, as plain values."""
  path = tmp_path / 'config.py'
  path.write_text(SOURCE)
  return lambda *overrides: _overrides.load(path, overrides).to_dict()


@pytest.mark.parametrize(
  ('name', 'text', 'value'),
  [
    ('rate', '1', 1.0),
    ('rate', '-2', -2.0),
    ('rate', '3e-4', 3e-4),
    ('rate', '1E+2', 100.0),
    ('rate', '.5', 0.5),
    ('rate', 'inf', math.inf),
    ('rate', 'INF', math.inf),
    ('rate', '0x10', 16.0),
    ('count', '3', 3),
    ('count', '-3', -3),
    ('count', '1e3', 1000),
    ('count', '100.0', 100),
    ('count', '1_000', 1000),
    ('name', 'sgd', 'sgd'),
    ('name', "'sgd'", 'sgd'),
    ('name', '"sgd"', 'sgd'),
    ('name', '"null"', 'null'),
    ('name', '3', '3'),
    ('name', '1e3', '1e3'),
    ('name', 'True', 'True'),
    ('name', 'a=b', 'a=b'),
    ('name', '', ''),
    ('name', '{x}', '{x}'),
    ('name', 'data/*.txt', 'data/*.txt'),
    ('name', 'a, b', 'a, b'),
    ('flag', 'false', False),
    ('flag', 'False', False),
    ('flag', 'FALSE', False),
    ('flag', 'true', True),
    ('sizes', '(3, 4, 5)', (3, 4, 5)),
    ('sizes', '[3, 4]', (3, 4)),
    ('sizes', '()', ()),
    ('names', "['x']", ['x']),
    ('names', "('x', 'y')", ['x', 'y']),
    ('group.lr', '1', 1.0),
    ('group', "{'lr': 1, 'b1': (0.9,)}", {'lr': 1, 'b1': (0.9,)}),
    ('nothing', '0.5', 0.5),
    ('nothing', 'text', 'text'),
    ('new', '1e-3', 1e-3),
    ('new', 'true', True),
    ('new', "{'a': {'b': 1}}", {'a': {'b': 1}}),
    ('group.eps', '0.1', 0.1),
  ],
)
def test_values(load, name, text, value):
  *groups, last = name.split('.')
  got = load((name, text))
  for part in groups:
    got = got[part]
  assert got[last] == value
  assert type(got[last]) is type(value)


@pytest.mark.parametrize(
  ('name', 'text', 'kind'),
  [
    ('count', '1.5', 'int, as 10 is'),
    ('count', 'inf', 'int'),
    ('count', 'true', 'int'),
    ('count', 'ten', 'int'),
    ('count', '', 'int'),
    ('count', '[1]', 'int'),
    ('rate', 'high', 'float, as 0.5 is'),
    ('rate', 'False', 'float'),
    ('rate', '1' + '0' * 400, 'float'),
    ('flag', '1', 'bool, as True is'),
    ('flag', 'yes', 'bool'),
    ('sizes', '3', 'tuple'),
    ('sizes', 'a', 'tuple'),
    ('names', '{1: 2}', 'list'),
    ('group', '3', 'group, got'),
    ('count', '{"lr": 1}', 'int'),
  ],
)
def test_the_type_is_kept(load, name, text, kind):
  with pytest.raises(
    ValueError, match=f'`config.{name}` must be of type {kind}'
  ):
    load((name, text))


@pytest.mark.parametrize(
  ('text', 'why'),
  [
    ("{'a': 10**9}", '10**9 at character 7 is none'),
    ("{'a': 1, 'b': [2, {'c': int8}]}", 'int8 at character 25 is none'),
    ("{'a': f(3)}", 'f(3) at character 7 is none'),
    ('{a: 1}', 'a at character 2 is none'),
    ('{a}', 'a at character 2 is none'),
    ('{**a}', 'a at character 4 is none'),
    ('{[]: 1}', '{[]: 1} at character 1 is none'),
    (' {"a": x}', 'x at character 7 is none'),
    ("{'a': }", 'expression expected after dictionary key'),
    ("{'a': 1", "'{' was never closed, at character 1"),
    ("{'a': 1}}", "unmatched '}', at character 9"),
    ('{' * 300, 'at character 201'),
  ],
)
@pytest.mark.parametrize('name', ['new', 'group', 'group.new', 'count'])
def test_what_starts_like_a_dict_is_one(load, name, text, why):
  with pytest.raises(ValueError, match='must be a Python literal') as error:
    load((name, text))
  message = str(error.value)
  assert message.startswith(f'`config.{name}` must be a Python literal, as it')
  assert repr(text) in message
  assert why in message


@pytest.mark.parametrize('name', ['count', 'group', 'group.lr', 'nothing'])
@pytest.mark.parametrize('null', ['null', 'NULL'])
def test_null_removes(load, name, null):
  got, want = load((name, null)), load()
  *groups, last = name.split('.')
  inside = want
  for part in groups:
    inside = inside[part]
  del inside[last]
  assert got == want


def test_null_for_what_is_not_there(load):
  assert load(('group.eps', 'null'), ('new', 'null')) == load()


def test_the_last_one_counts(load):
  assert load(('count', '1'), ('count', '2'))['count'] == 2
  # A group that is replaced takes later fields.
  got = load(('group', "{'lr': 1.0}"), ('group.lr', '2'), ('group.b', '3'))
  assert got['group'] == {'lr': 2.0, 'b': 3}


@pytest.mark.parametrize(
  ('name', 'hint'),
  [
    ('grup.lr', ' Did you mean `group.lr`?'),
    ('group.lr.x', ' Did you mean `group.lr`?'),
    ('zzzz.y', ''),
    ('.lr', ''),
  ],
)
def test_no_such_group(load, name, hint):
  with pytest.raises(ValueError, match='is in no group') as error:
    load((name, '1'))
  assert (
    str(error.value) == f'`config.{name}` is in no group of the config.{hint}'
  )


@pytest.mark.parametrize(
  ('name', 'field', 'value', 'shown', 'told'),
  [
    (
      'diloco',
      'overlap.delay',
      '1',
      "overlap=\"{'offset': ..., 'delay': 1, 'merge': ...}\"",
      '`delay` an int of at least 0',
    ),
    (
      'diloco',
      'overlap.merge',
      'mix',
      "overlap=\"{'offset': ..., 'delay': ..., 'merge': 'mix', 'alpha': ...}\"",
      '`alpha` a number from 0 to 1',
    ),
    (
      'delayed',
      'wire.format',
      'sign',
      "wire=\"{'error_feedback': ..., 'format': 'sign', 'block_size': ...,",
      '`block_size` an int of at least 1',
    ),
    (
      'diloco',
      'fragments.num_fragments',
      '3',
      "fragments=\"{'by': ..., 'num_fragments': 3}\"",
      '`by` one of layers, bytes. A choice may bring more.',
    ),
    (
      'diloco',
      'subset.fraction',
      '0.5',
      "subset=\"{'fraction': 0.5, 'pattern': ...}\"",
      '`pattern` one of independent, partition, fresh_partition',
    ),
    (
      'hierarchical',
      'levels.level_3.every',
      '5',
      "levels.level_3=\"{'axis': ..., 'num_replicas': ..., 'every': 5, 'outer':"
      " {'name': ...}}\"",
      '`outer.name` one of sgd, nesterov, heavy_ball, adam',
    ),
  ],
)
def test_a_group_that_is_not_there_is_shown(name, field, value, shown, told):
  path = next(path for path in CONFIGS if path.stem == name)
  with pytest.raises(ValueError, match='give the whole group') as error:
    _overrides.load(path, [(field, value)])
  message = str(error.value)
  assert message.startswith(f'`config.{field}` is in no group of the config')
  assert f'--config.{shown}' in message
  assert told in message
  # A config with nothing but that field lacks as many as are left open.
  *groups, last = field.split('.')
  group = {last: _overrides._parse(value)}
  lacking = _overrides.load(path, [('.'.join(groups), repr(group))])
  with pytest.raises(ValueError, match='is missing') as error:
    build.check(lacking)
  assert str(error.value).count('is missing') == message.count(': ...')


@pytest.mark.parametrize(
  ('name', 'field', 'group'),
  [
    ('diloco', 'levels.level_1.every', 'levels'),
    ('diloco', 'gossip.lr', 'gossip'),
    ('hierarchical', 'overlap.delay', 'overlap'),
    ('data_parallel', 'outer.lr', 'outer'),
  ],
)
def test_a_group_of_another_method(name, field, group):
  path = next(path for path in CONFIGS if path.stem == name)
  with pytest.raises(ValueError, match='is in no group') as error:
    _overrides.load(path, [(field, '1')])
  assert str(error.value).startswith(
    f'`config.{field}` is in no group of the config: `method` {name!r} has no'
    f' group `{group}`.'
  )
  assert 'Did you mean' not in str(error.value)


def test_dotted_key_is_refused(load):
  with pytest.raises(ValueError, match='dots'):
    load(('new', "{'a.b': 1}"))


def test_locked(tmp_path):
  path = tmp_path / 'config.py'
  path.write_text(SOURCE)
  config = _overrides.load(path)
  assert config.is_locked
  with pytest.raises(AttributeError):
    config.new = 1


@pytest.mark.parametrize(
  ('source', 'message'),
  [
    ('x = (', 'SyntaxError'),
    ('import no_such_module', 'ModuleNotFoundError'),
    ('x = 1', 'get_config'),
    ('def get_config():\n  return 1 / 0', 'ZeroDivisionError'),
    ('def get_config():\n  return {}', 'must return a ConfigDict, got dict'),
  ],
)
def test_no_config(tmp_path, source, message):
  path = tmp_path / 'config.py'
  path.write_text(source)
  with pytest.raises(ValueError, match=message) as error:
    _overrides.load(path)
  assert str(path) in str(error.value)


@pytest.mark.parametrize('name', ['missing.py', '.', 'config.txt'])
def test_no_file(tmp_path, name):
  (tmp_path / 'config.txt').write_text(SOURCE)
  with pytest.raises(ValueError, match='`config` must be a Python file, got'):
    _overrides.load(tmp_path / name)


def test_imports_its_neighbours(tmp_path, monkeypatch):
  (tmp_path / 'base.py').write_text(SOURCE)
  path = tmp_path / 'derived.py'
  path.write_text('from base import get_config')
  monkeypatch.chdir(tmp_path)
  assert _overrides.load(path)['count'] == 10


@pytest.mark.parametrize('path', CONFIGS, ids=lambda path: path.stem)
def test_round_trip_through_json(path):
  config = _overrides.load(path, [('seed', '3'), ('inner.clip_norm', 'inf')])
  plain = build.resolve(config)
  again = json.loads(json.dumps(plain))
  assert again == plain
  assert ml_collections.ConfigDict(again).to_dict() == config.to_dict()
  build.check(again)
