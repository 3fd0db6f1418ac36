"""The trained experiments: every run is valid, every name is a row's."""

import csv
import math
import pathlib

import pytest

from dilojax import _comparison
from dilojax import _experiment
from dilojax import _points
from dilojax import _runs
from dilojax import _verdicts
from dilojax import build
from tests import tiny

TRAINED = [
  path
  for path in sorted((tiny.ROOT / 'experiments').glob('*/[!_]*.py'))
  if '\ndef sweep(' in path.read_text()
]
# Those without a variant at the paper's size.
PLAIN = ('diloco/gap_closed', 'streaming_diloco/quality')
IDS = [
  path.relative_to(tiny.ROOT / 'experiments').as_posix() for path in TRAINED
]
VARIED = [
  pytest.param(path, id=name)
  for path, name in zip(TRAINED, IDS)
  if name.removesuffix('.py') not in PLAIN
]


# What the paper has and we do not.
ONLY_PAPER = {
  'diloco/num_replicas': {'K=64', 'K=64_non_iid'},
  'eager/five_arms': {'eager_two_rounds'},
  # The best outer learning rates, of which there are no losses.
  'scaling_laws/outer_lr': {'M=1', 'M=2', 'M=4', 'M=8'},
}


@pytest.fixture
def load(monkeypatch):
  """Function that loads an experiment where its configs are found."""
  monkeypatch.chdir(tiny.ROOT)
  return _experiment.load


def configured(experiment):
  # A folder that is not there has no other config.
  out = pathlib.Path('no_such_folder')
  return _points.configured(experiment, out, experiment.points)


@pytest.mark.parametrize('path', TRAINED, ids=IDS)
def test_rows_and_what_is_said_of_them(path, load):
  """Statements, parents and the paper's values are about rows, on 3 seeds."""
  found = load(path)
  names = [*map(_experiment.row, found.points)]
  rows = {*names, *found.views}
  assert {names.count(row) for row in set(names)} == {3}
  statements = [_verdicts.parse(text, rows) for text in found.expected]
  assert statements
  # Each row but one has something that it is compared with.
  assert len(rows) - len(found.parents) in range(1, 4)
  column, paper = _comparison._paper(found)
  assert paper.keys() - rows == ONLY_PAPER.get(found.name, set())
  if found.paper:
    lines = found.paper.read_text().splitlines()
    assert 'arXiv:' in lines[0]
    assert column in next(csv.reader([lines[1]]))
    assert all(math.isfinite(float(value)) for value in paper.values())


@pytest.mark.parametrize('path', TRAINED, ids=IDS)
def test_what_the_docstring_tells(path, load):
  """A question first, the commands of this file, and the cost in runs."""
  found = load(path)
  question, _, rest = found.docstring.partition('\n')
  assert question.endswith('?')
  name = f'experiments/{found.name}.py'
  assert rest.count(f'dilojax sweep {name}') == 1
  assert rest.count(f'dilojax table {name}') == 1
  assert f'Cost: {len(found.points)} runs' in rest
  assert 'Expected' in rest


@pytest.mark.parametrize('path', TRAINED, ids=IDS)
def test_configs_are_valid_and_different(path, load):
  points = configured(load(path))
  counts = {point.config['num_replicas'] for point in points}
  assert max(counts) <= 16
  # Those of a row differ in nothing but the seed.
  rows = {}
  for point in points:
    rest = {**point.config, 'seed': 0}
    assert rows.setdefault(_experiment.row(point.name), rest) == rest


@pytest.mark.parametrize('path', VARIED)
def test_the_same_at_the_size_of_the_paper(path, load):
  """The same rows, statements and values, of a model that is far larger."""
  usual, paper = load(path), load(f'{path}:paper')
  assert list(paper.points) == list(usual.points)
  assert paper.expected == usual.expected
  points = configured(paper)
  assert {point.config['data']['corpus'] for point in points} == {'tokens'}
  assert min(point.config['model']['dim'] for point in points) >= 512
  with pytest.raises(ValueError, match=r"get_config\('papr'\).*KeyError"):
    load(f'{path}:papr')


EQUAL_TOKENS = (
  'scaling_laws/every_step',
  'scaling_laws/outer_lr',
  'noloco/against_diloco',
)


@pytest.mark.parametrize('variant', ['', ':paper'])
@pytest.mark.parametrize('name', EQUAL_TOKENS)
def test_rows_have_equal_tokens(name, variant, load):
  path = tiny.ROOT / 'experiments' / f'{name}.py{variant}'
  assert len({tokens(point) for point in configured(load(path))}) == 1


@pytest.mark.parametrize('variant', ['', ':paper'])
def test_twenty_tokens_per_param(variant, load):
  path = tiny.ROOT / f'experiments/scaling_laws/replicas_by_size.py{variant}'
  by_size = {}
  for point in configured(load(path)):
    size = point.name.partition('_')[0]
    by_size.setdefault(size, set()).add(tokens(point))
    if variant:
      continue
    model = point.config['model']
    shape = 2 * model['vocab_size'] * model['dim']
    shape += 12 * model['num_layers'] * model['dim'] ** 2
    assert tokens(point) == pytest.approx(20 * shape, rel=0.02)
  assert [len(each) for each in by_size.values()] == [1, 1, 1]
  if variant:
    wanted = [700e6, 1.8e9, 3.6e9]
    assert [each.pop() for each in by_size.values()] == pytest.approx(
      wanted, rel=1e-4
    )


def tokens(point):
  config = point.config
  each = config['data']['batch_size'] * config['data']['seq_len']
  return config['num_steps'] * config['num_replicas'] * each


def test_a_tenth_of_a_round_is_that_of_the_paper(load):
  """The rows of rounds are parts of what H usually is, at both sizes."""
  path = tiny.ROOT / 'experiments/diloco/rounds.py'
  for variant, want in {
    '': (2, 4, 10, 20, 40, 80),
    ':paper': (50, 100, 250, 500, 1000, 2000),
  }.items():
    points = load(f'{path}{variant}').points
    assert tuple(points[f'{row}H/0']['every'] for row in PARTS) == want


PARTS = (0.1, 0.2, 0.5, 1, 2, 4)


def test_evaluation_ends_in_the_middle_of_rounds(load):
  """No row has just synchronized all its params when it is evaluated."""
  path = tiny.ROOT / 'experiments/streaming_diloco/evaluation.py'
  for variant in ('', ':paper'):
    for point in configured(load(f'{path}{variant}')):
      config = point.config
      assert not config['final_synchronization']
      if 'fragments' not in config:
        since = (config['num_steps'] - config['overlap']['offset']) % 30
        assert since == 15


@pytest.mark.slow
@pytest.mark.parametrize('path', TRAINED, ids=IDS)
def test_runs_can_be_built(path, load):
  """As `--dry_run` builds them: with the corpus, and fragments of params."""
  points = _points.built(configured(load(path)))
  assert all(point.work > 0 for point in points)


def test_kept_runs_are_those_of_the_file(load):
  """What is kept beside an experiment is all of it, as it is today."""
  for path in TRAINED:
    found = load(path)
    if found.kept.is_file():
      assert _runs.stand_ins(found).keys() == found.points.keys(), path
      for run in _runs.kept(found).runs:
        build.check(run['config'])
