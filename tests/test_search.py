"""Tests for searches: the trials of Optuna are runs."""

import json

import jax
import pytest

from dilojax import _experiment
from dilojax import _points
from dilojax import _pool
from dilojax import _search
from dilojax import sweep as sweep_lib
from tests import test_sweep

pytest.importorskip('optuna', reason='needs dilojax[search]')

# Before a search asks for fewer devices than other tests need.
jax.devices()

SOURCE = '''\
"""Which outer step is best?"""

from tests import tiny


def get_config():
  return tiny.config(**{{'mesh.num_devices': 1, **{config}}}).unlock()


def search(trial):
  return {{
    'outer.lr': trial.suggest_float('lr', 0.1, 1.0),
    {field!r}: trial.suggest_float('momentum', 0.0, 0.9),
  }}
'''


@pytest.fixture
def write(tmp_path):
  """Function that writes the experiment."""

  def write(field='outer.momentum', **config):
    path = tmp_path / 'rates.py'
    path.write_text(SOURCE.format(field=field, config=config))
    return path

  return write


def finish(point, value):
  """Writes what a run with a value would leave."""
  point.folder.mkdir(parents=True, exist_ok=True)
  steps = point.config['num_steps']
  summary = {'steps': steps, 'final': {'eval/anchor/loss': value}}
  (point.folder / 'summary.json').write_text(json.dumps(summary))
  (point.folder / 'config.json').write_text(json.dumps(point.config))


def loss(point):
  """Returns a loss that is least at lr 0.4."""
  return (point.config['outer']['lr'] - 0.4) ** 2


def go_on(experiment, out, count, most=None):
  """Searches with a closed form in place of training; returns its points."""
  found, seen = _experiment.load(experiment), []
  with _search.opened(found, out, jobs=1) as search:
    for point in _search.trials(search, count, {}):
      seen.append(point)
      if most is not None and len(seen) > most:
        break  # Killed while this one runs.
      finish(point, loss(point))
      _search.tell(search, _pool.Ended(point, None, 1.0))
    return seen, _search.best(search), _search.finished(search)


def test_it_goes_on_to_the_number_of_finished_trials(write, tmp_path):
  experiment, out = write(), tmp_path / 'out'
  first, _, finished = go_on(experiment, out, 6, most=3)
  assert [point.name for point in first] == [f'search/{n}' for n in range(4)]
  assert finished == ['search/0', 'search/1', 'search/2']
  second, best, finished = go_on(experiment, out, 6)
  # The one that ran is gone on with, as it was; the others are new.
  assert second[0] == first[-1]
  assert [point.name for point in second] == [
    f'search/{n}' for n in range(3, 6)
  ]
  assert finished == [f'search/{n}' for n in range(6)]
  points = {point.name: point for point in first + second}
  values = {name: loss(point) for name, point in points.items()}
  assert best.value == min(values.values()) == values[f'search/{best.number}']
  rate = points[f'search/{best.number}'].config['outer']['lr']
  assert best.overrides['outer.lr'] == rate
  # No sampler repeats itself.
  assert len({point.config['outer']['lr'] for point in points.values()}) == 6
  assert go_on(experiment, out, 6)[0] == []


def test_a_failed_trial_counts_as_none(write, tmp_path):
  found, out = _experiment.load(write()), tmp_path / 'out'
  with _search.opened(found, out, jobs=1) as search:
    [point] = _search.trials(search, 1, {})
    _search.tell(search, _pool.Ended(point, 'ended with status 1', 1.0))
    assert _search.best(search) is None
    [again] = _search.trials(search, 1, {})
    assert again.name == 'search/1'
    _search.tell(search, _pool.Ended(again, _pool.STOPPED, 1.0))
    assert [each.name for each in _search.trials(search, 1, {})] == ['search/1']


def test_two_searches_do_not_share_a_folder(write, tmp_path):
  found = _experiment.load(write())
  with _search.opened(found, tmp_path / 'out', jobs=1):
    with pytest.raises(ValueError, match='another process searches there'):
      with _search.opened(found, tmp_path / 'out', jobs=1):
        pass


def test_a_search_of_another_config_is_refused(write, tmp_path):
  go_on(write(), tmp_path / 'out', 1)
  with pytest.raises(ValueError, match='another config, which differs in eve'):
    go_on(write(every=3), tmp_path / 'out', 2)


def test_a_wrong_field_is_refused_before_anything_is_written(write, tmp_path):
  out = tmp_path / 'out'
  with pytest.raises(ValueError, match='Did you mean `outer.momentum`'):
    sweep_lib.search(write('outer.momentun'), out, trials=3)
  assert not out.exists()


@pytest.mark.slow
def test_trials_are_runs(write, tmp_path, monkeypatch):
  for name, value in test_sweep.OUTSIDE.items():
    monkeypatch.setenv(name, value)
  out = tmp_path / 'out'
  best, outcome = sweep_lib.search(write(), out, trials=2)
  assert outcome == sweep_lib.Outcome(['search/0', 'search/1'], {})
  values = {}
  for number in (0, 1):
    folder = out / 'search' / str(number)
    summary = json.loads((folder / 'summary.json').read_text())
    values[number] = summary['final']['eval/anchor/loss']
  assert best.value == values[best.number] == min(values.values())
  found = _experiment.load(write())
  [point] = _points.configured(found, out, {'search/0': best.overrides})[:1]
  assert point.config['outer']['lr'] == best.overrides['outer.lr']
