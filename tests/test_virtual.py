"""Tests for trainings on a virtual clock: `dilojax._virtual`, `_workers`."""

import json
import re
import shutil

import jax
import numpy as np
import pytest

from dilojax import _clock
from dilojax import _engines
from dilojax import _overrides
from dilojax import _virtual
from dilojax import asynchronous
from dilojax import build
from dilojax import checkpoint
from dilojax import cli
from dilojax import train
from dilojax import workdir
from tests import test_train
from tests import tiny

METHODS = {
  'async_local_sgd': {},
  'halos': {'num_workers': 8, 'times.speeds': '1', 'local.push_every': 3},
  'synchronous': {},
  'ringleader': {'num_workers': 5, 'eval_sequences': 8},
}
SHORT = {
  'num_steps': 12,
  'every': 4,
  'eval_every': 4,
  'log_every': 4,
  'checkpoint_every': 5,
  'inner.warmup_steps': 2,
}


def config(method, **overrides):
  given = {**SHORT, **METHODS[method], **overrides}
  if method == 'ringleader':
    given |= {'data.non_iid': 0.0, 'inner.warmup_steps': 0}
  return test_train.config_of(method, **given)


def leaves(folder, made):
  """Returns the newest state of a run: its arrays by path, and the rest."""
  setup = _clock.make(made)
  params = setup.model.init(jax.random.key(0))
  loop = asynchronous.Loop(setup.system, params)
  newest = checkpoint.steps(folder / workdir.CHECKPOINTS)[-1]
  _virtual._restore(loop, params, folder / workdir.CHECKPOINTS, newest)
  arrays, meta = loop.save()
  named = jax.tree.leaves_with_path(jax.device_get(arrays))
  return {jax.tree_util.keystr(path): leaf for path, leaf in named}, meta


def records(folder):
  lines = (folder / workdir.METRICS).read_text().splitlines()
  return test_train.steady(map(json.loads, lines))


@pytest.mark.parametrize('method', METHODS)
def test_it_trains(method, tmp_path):
  summary = tiny.run(tmp_path, config(method))
  found = records(tmp_path)
  last = found[-1]
  assert summary['steps'] == last['step'] == 12
  assert last['eval/anchor/loss'] < found[1]['eval/anchor/loss']
  assert summary['final']['virtual_seconds'] == summary['virtual_seconds'] > 0
  assert (
    last['tokens'] >= last['tokens_merged'] >= 12 * 4 * len(summary['replicas'])
  )
  each = [row['bytes_sent'] for row in summary['replicas']]
  assert last['bytes_sent'] == max(each)
  assert all(row['steps'] >= 4 for row in summary['replicas'])


def test_with_equal_speeds_a_barrier_is_diloco(tmp_path):
  """The same batches, rates and rule as replicas that meet on devices."""
  # At ends of rounds, where all params are alike.
  changes = {'every': 3, 'eval_every': 3, 'log_every': 6, 'num_steps': 12}
  clocked = config('synchronous', **{'times.speeds': '1', **changes})
  met = test_train.config_of(
    'diloco', **{**SHORT, **changes, 'num_replicas': 4}
  )
  finals = []
  for name, made in {'clocked': clocked, 'met': met}.items():
    tiny.run(tmp_path / name, made)
    finals.append(records(tmp_path / name))
  pick = lambda found, name: [each[name] for each in found if name in each]
  for name in ('eval/anchor/loss', 'eval/anchor/accuracy', 'train/lr'):
    np.testing.assert_allclose(
      pick(finals[0], name), pick(finals[1], name), rtol=1e-5
    )
  last = [pick(found, 'bytes_sent')[-1] for found in finals]
  assert last[0] == last[1]
  assert pick(finals[0], 'virtual_seconds')[-1] == pytest.approx(
    12 * 0.1 + 4 * ring_seconds(clocked), rel=1e-12
  )


def ring_seconds(made):
  nbytes = _clock.make(made).system.nbytes or 4 * 610
  return 2 * 3 / 4 * 8 * nbytes / 1e9


@pytest.mark.parametrize(
  'method',
  [
    pytest.param(
      name, marks=[] if name == 'async_local_sgd' else pytest.mark.slow
    )
    for name in METHODS
  ],
)
def test_it_goes_on_bitwise(method, tmp_path, monkeypatch):
  straight, broken = tmp_path / 'straight', tmp_path / 'broken'
  made = config(method, keep_checkpoints=9)
  tiny.run(straight, made)
  steps = checkpoint.steps(straight / workdir.CHECKPOINTS)
  with (
    tiny.raises_when_saving(monkeypatch, steps[-1]),
    pytest.raises(KeyboardInterrupt),
  ):
    tiny.run(broken, made)
  assert checkpoint.steps(broken / workdir.CHECKPOINTS) == steps[:-1]
  tiny.run(broken, made)
  assert records(broken) == records(straight)
  got, want = (leaves(folder, made) for folder in (broken, straight))
  assert got[1] == want[1]
  jax.tree.map(np.testing.assert_array_equal, got[0], want[0])
  # A run that has finished is left alone.
  before = (broken / workdir.METRICS).read_bytes()
  tiny.run(broken, made)
  assert (broken / workdir.METRICS).read_bytes() == before


def test_devices_change_nothing(tmp_path):
  for count in (1, 3):
    made = config('async_local_sgd', **{'mesh.num_devices': count})
    tiny.run(tmp_path / str(count), made)
  assert records(tmp_path / '1') == records(tmp_path / '3')


def test_it_ends_when_nobody_comes_back(tmp_path):
  stalls = {
    'name': 'stalls',
    'step_seconds': 0.1,
    'speeds': '1',
    'probability': 0.5,
    'stall': float('inf'),
  }
  made = config('async_local_sgd', steps_by_speed='equal')
  made = _overrides.override(made, {'times': stalls})
  with pytest.raises(ValueError, match='no worker comes back'):
    tiny.run(tmp_path, made)


@pytest.mark.parametrize(
  ('method', 'changes', 'message'),
  [
    ('async_local_sgd', {'times.speeds': '1 2'}, '`times.speeds` must be one'),
    ('async_local_sgd', {'times.speeds': 'fast'}, '`times.speeds` must be one'),
    ('async_local_sgd', {'times.speeds': '1 1 0 1'}, r'`speeds\[2\]`'),
    ('async_local_sgd', {'times.speeds': '-1'}, r'`speeds\[0\]`'),
    ('async_local_sgd', {'times.speeds': '1 1 1 0.01'}, 'without a step'),
    ('async_local_sgd', {'network.num_sites': 3}, 'must divide `num_workers`'),
    ('async_local_sgd', {'mesh.fsdp': 2}, '`mesh.fsdp` and `mesh.tensor`'),
    ('async_local_sgd', {'server.c': 0.5}, '`c` must be from 0 to 1 / `every`'),
    ('async_local_sgd', {'outer': {'lr': 1.0}}, '`outer.lr` has no effect'),
    ('async_local_sgd', {'num_replicas': 2}, '`num_replicas` has no effect'),
    ('halos', {'network.path': 'no.csv'}, '`network.path` .* must be a CSV'),
    ('halos', {'num_workers': 6}, 'must divide `num_workers`'),
    ('synchronous', {'exchange': 'tree'}, 'one of ring, server'),
    ('ringleader', {'inner.clip_norm': 1.0}, '`inner` has no effect'),
    ('ringleader', {'steps_by_speed': 'floor'}, '`steps_by_speed` has no ef'),
  ],
)
def test_what_does_not_fit(method, changes, message):
  with pytest.raises(ValueError, match=message):
    build.check(config(method, **changes))


def test_a_quorum_of_more_than_there_are():
  quorum = {'count': 5, 'grace': 0.0, 'weighted': True}
  with pytest.raises(ValueError, match=r'quorum` must be from 1 to 4'):
    build.check(config('synchronous', exchange=None, quorum=quorum))


def test_it_is_not_for_other_engines():
  made = config('halos')
  with pytest.raises(ValueError, match='has workers on a virtual clock'):
    build.make(made)
  assert _engines.of(made) is _engines.CLOCK
  assert _engines.of(tiny.config()) is _engines.REPLICAS


def test_command_line(tmp_path, capsys, monkeypatch):
  """A run, interrupted and not; and a table of it."""
  monkeypatch.chdir(tiny.ROOT)
  flags = [
    f'--config.{name}={value}'
    for name, value in {**SHORT, 'mesh.num_devices': 4}.items()
  ]
  groups = [
    f'--config.{name}={value!r}' for name, value in test_train.DIGITS.items()
  ]
  command = ['train', '--config=configs/async_local_sgd.py', *groups, *flags]
  folder = tmp_path / 'run'
  assert cli.main([*command, f'--workdir={folder}', '--dry_run']) == 0
  shown = capsys.readouterr().err
  assert 'Rounds of 1 to 4 inner steps' in shown
  assert not folder.exists()
  assert cli.main([*command, f'--workdir={folder}']) == 0
  assert re.search(r'\| run .*\| 12 ', capsys.readouterr().out, re.S)
  assert cli.main(['audit', *command[1:], '--target=cpu:4']) == 2
  shutil.rmtree(folder)


def test_signals_end_it_after_an_update(tmp_path, monkeypatch):
  heard = iter([False] * 5 + [True] * 100)

  class Caught:
    def __enter__(self):
      return lambda: next(heard)

    def __exit__(self, *args):
      return None

  made = config('async_local_sgd', checkpoint_every=100)
  with monkeypatch.context() as patch:
    patch.setattr(_virtual._signals, 'caught', Caught)
    with pytest.raises(train.Interrupted, match='Stopped after step'):
      tiny.run(tmp_path / 'stopped', made)
  assert checkpoint.steps(tmp_path / 'stopped' / workdir.CHECKPOINTS)
  tiny.run(tmp_path / 'stopped', made)
  tiny.run(tmp_path / 'straight', made)
  assert records(tmp_path / 'stopped') == records(tmp_path / 'straight')
