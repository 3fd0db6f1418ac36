"""Tests for `dilojax._experiment`: what a file says, and what is refused."""

import pytest

from dilojax import _experiment
from tests import tiny

GOOD = '''\
"""Is a better than b?"""

METRIC = 'eval/mean/loss'
EXPECTED = (('a', '<', 'b'), 'a, b increase')
BASELINE = 'b'


def get_config():
  return {}


def sweep():
  yield 'a/0', {'seed': 0}
  yield 'b/0', {'seed': 0, 'outer': None}
'''


@pytest.fixture
def load(tmp_path):
  """Function that loads an experiment of some source."""

  def load(source, name='name.py'):
    (tmp_path / 'name.py').write_text(source)
    return _experiment.load(tmp_path / name)

  return load


def test_what_a_file_says(load, tmp_path):
  (tmp_path / 'name.csv').write_text('row,loss\n')
  found = load(GOOD)
  assert found.name == f'{tmp_path.name}/name'
  assert found.docstring == 'Is a better than b?'
  assert found.points == {'a/0': {'seed': 0}, 'b/0': {'seed': 0, 'outer': None}}
  assert found.metric == 'eval/mean/loss'
  assert found.expected == ('a < b', 'a, b increase')
  assert found.parents == {'a': 'b'}
  assert found.paper == tmp_path / 'name.csv'
  assert found.search is found.compute is None
  assert _experiment.row('a/12') == 'a'
  assert _experiment.seed('a/12') == 12


def test_the_suffix_may_be_left_out(load):
  assert load(GOOD, 'name').path == load(GOOD).path


def test_a_computed_table_needs_no_config(load):
  found = load('def compute():\n  return []\n')
  assert found.points == {}
  assert found.get_config is None
  assert found.compute() == []


@pytest.mark.parametrize(
  ('old', 'new', 'wanted'),
  [
    ("BASELINE = 'b'", "BASELINE = 'bb'", "`BASELINE`: 'bb' is no row"),
    ("BASELINE = 'b'", "PARENTS = {'a': 'c'}", "`PARENTS`: 'c' is no row"),
    ("BASELINE = 'b'", "PARENTS = ['a']", '`PARENTS` must be a dict'),
    (
      "BASELINE = 'b'",
      "BASELINE = 'b'\nPARENTS = {'a': 'b'}",
      '`BASELINE` has no effect with `PARENTS`',
    ),
    ("'a, b increase'", '3', '`EXPECTED` must be a tuple of statements'),
    ("METRIC = 'eval/mean/loss'", 'METRIC = 3', '`METRIC` must be a text'),
    ('def get_config', 'def get_configg', r'`get_config\(\)` is missing'),
    ('def sweep', 'def sweeep', r'must have `sweep\(\)`, `search\(trial\)`'),
    ("yield 'a/0', {'seed': 0}", 'yield 3', 'must yield pairs'),
    ("'a/0', {'seed': 0}", "'a/0', [3]", "point 'a/0' must have a dict"),
    ("'a/0'", "'a/b/0'", "names 'row/seed'.*got 'a/b/0'"),
    ("'a/0'", "'../0'", "names 'row/seed'"),
    ("'a/0'", "'a/00'", "names 'row/seed'"),
    ("'a/0'", "'b/0'", "two points called 'b/0'"),
    ('"""Is', '1 / 0\n"""Is', 'ZeroDivisionError'),
  ],
)
def test_what_is_refused(old, new, wanted, load):
  assert GOOD.count(old) == 1
  with pytest.raises(ValueError, match=f'(?s)`experiment`.*{wanted}'):
    load(GOOD.replace(old, new))


def test_a_missing_file(tmp_path):
  with pytest.raises(ValueError, match='must be a Python file'):
    _experiment.load(tmp_path / 'none')


@pytest.mark.parametrize(
  'path', sorted((tiny.ROOT / 'experiments').glob('*/[!_]*.py'))
)
def test_our_own(path, monkeypatch):
  monkeypatch.chdir(tiny.ROOT)
  assert _experiment.load(path).docstring


VARIED = GOOD.replace('get_config()', "get_config(size='small')").replace(
  'return {}', "return {'small': {}, 'paper': {}}[size]"
)
SWEEP = "sweep(size='small')"


def test_a_variant_reaches_the_functions(load):
  """Both get it; `sweep` need not take it; runs are kept apart."""
  usual, paper = load(VARIED), load(VARIED, 'name.py:paper')
  assert paper.points == usual.points
  assert (usual.variant, paper.variant) == ('', 'paper')
  assert paper.name == f'{usual.name}_paper'
  assert usual.kept == usual.path.with_suffix('.json')
  assert paper.kept == usual.path.with_name('name_paper.json')
  assert paper.path == usual.path == load(VARIED, 'name:paper').path
  assert paper.get_config() == {}
  both = VARIED.replace('sweep()', SWEEP).replace("{'seed': 0}", '{size: 0}')
  assert load(both).points['a/0'] == {'small': 0}
  assert load(both, 'name.py:paper').points['a/0'] == {'paper': 0}


def test_a_variant_that_is_not_there(load):
  with pytest.raises(ValueError, match=r"get_config\('papr'\).*KeyError"):
    load(VARIED, 'name.py:papr')
  with pytest.raises(ValueError, match="no argument: leave out ':paper'"):
    load(GOOD, 'name.py:paper')


def test_views_are_rows(load):
  """They can be expected, and compared with; nothing is trained for them."""
  views = "VIEWS = {'a.mean': ('a', 'eval/mean/loss')}\nPARENTS"
  found = load(GOOD.replace('BASELINE', views).replace("= 'b'", "= {'b': 'a'}"))
  assert found.views == {'a.mean': ('a', 'eval/mean/loss')}
  assert list(found.points) == ['a/0', 'b/0']
  views = views.replace('PARENTS', 'BASELINE')
  assert load(GOOD.replace('BASELINE', views)).parents == {
    'a': 'b',
    'a.mean': 'b',
  }


@pytest.mark.parametrize(
  ('views', 'wanted'),
  [
    ("['a']", '`VIEWS` must be a dict'),
    ("{'b': ('a', 'eval/mean/loss')}", "no rows of `sweep.*got 'b'"),
    ("{'a/0': ('a', 'eval/mean/loss')}", "got 'a/0'"),
    ("{'a.mean': 'eval/mean/loss'}", 'must be a row and a metric'),
    ("{'a.mean': ('c', 'eval/mean/loss')}", "'c', which is no row"),
  ],
)
def test_views_that_are_refused(views, wanted, load):
  source = GOOD.replace('BASELINE', f'VIEWS = {views}\nBASELINE')
  with pytest.raises(ValueError, match=wanted):
    load(source)
