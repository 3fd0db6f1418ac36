"""Tests for `dilojax.sweep`: refusals, what runs, and what runs again."""

import fcntl
import io
import json
import os
import pathlib
import re
import signal
import subprocess
import sys
import threading
import time

import jax
import pytest

from dilojax import _board
from dilojax import _estimate
from dilojax import _experiment
from dilojax import _points
from dilojax import _pool
from dilojax import _shares
from dilojax import cli
from dilojax import sweep as sweep_lib
from dilojax import table
from tests import tiny

# Before a sweep asks for fewer devices than other tests need.
jax.devices()

SOURCE = '''\
"""Does a larger outer step help?"""

from tests import tiny

ROWS = {{'a': {{'outer.lr': 0.7}}, 'b': {{'outer.lr': 0.5}}}}


def get_config():
  return tiny.config(**{{'mesh.num_devices': 1, **{config}}}).unlock()


def sweep():
  for seed in (0, 1):
    for row, overrides in ROWS.items():
      yield f'{{row}}/{{seed}}', {{'seed': seed, **overrides}}
  {last}
'''
NAMES = ['a/0', 'b/0', 'a/1', 'b/1']


# What processes need to find the package and its tests, and to be quick.
OUTSIDE = {
  'PYTHONPATH': str(tiny.ROOT),
  'JAX_PLATFORMS': 'cpu',
  'JAX_COMPILATION_CACHE_DIR': jax.config.jax_compilation_cache_dir,
  'JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS': '0.1',
  'JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES': '0',
}


@pytest.fixture(autouse=True)
def outside(monkeypatch):
  for name, value in OUTSIDE.items():
    monkeypatch.setenv(name, value)


@pytest.fixture
def write(tmp_path):
  """Function that writes the experiment, perhaps with one more point."""

  def write(last='', **config):
    folder = tmp_path / 'experiments/tiny'
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / 'rates.py'
    path.write_text(SOURCE.format(last=last, config=config))
    return path

  return write


@pytest.fixture
def run(tmp_path):
  """Function that sweeps into `out`, without calibration."""
  return lambda experiment, **kwargs: sweep_lib.sweep(
    experiment, tmp_path / 'out', calibrate=False, **kwargs
  )


def content(folder):
  """Returns every file below a folder by name, with its bytes and time."""
  return {
    str(path): (path.read_bytes(), path.stat().st_mtime_ns)
    for path in sorted(folder.rglob('*'))
    if path.is_file()
  }


def results(out):
  """Returns of every run what does not depend on time."""
  found = {}
  for path in sorted(out.rglob('summary.json')):
    summary = json.loads(path.read_text())
    summary['final'].pop('seconds')
    records = [
      {k: v for k, v in json.loads(line).items() if 'second' not in k}
      for line in (path.parent / 'metrics.jsonl').read_text().splitlines()
    ]
    name = str(path.parent.relative_to(out))
    found[name] = summary['final'], summary['replicas'], records
  return found


# What is refused, before anything runs.


@pytest.mark.parametrize(
  ('last', 'wanted'),
  [
    (
      "yield 'c/0', {'outer.momentun': 0.9}",
      "point 'c/0': `outer.momentun` is unknown, got 0.9. Did you mean"
      ' `outer.momentum`?',
    ),
    (
      "yield 'c/0', {'outre.lr': 0.9}",
      "point 'c/0': `config.outre.lr` is in no group of the config. Did you"
      ' mean `outer.lr`?',
    ),
    (
      "yield 'c/0', {'every': 'often'}",
      "point 'c/0': `config.every` must be of type int, as 5 is, got"
      ' "\'often\'".',
    ),
    (
      "yield 'c/0', {'eval_sequences': 10_000}",
      "point 'c/0': `eval_sequences` must be at most",
    ),
    (
      "yield 'c/3', {'outer.lr': 0.9}",
      "point 'c/3': `seed` must be that of the name, 3, got 0",
    ),
    (
      "yield 'a/1', {'outer.lr': 0.9}",
      "`sweep()` yields two points called 'a/1': rename one.",
    ),
    (
      "yield 'c/1', {'seed': 1, 'outer.lr': 0.5}",
      "point 'c/1' has the config of 'b/1'",
    ),
    (
      "yield 'c', {'outer.lr': 0.5}",
      "`sweep()` must yield names 'row/seed'",
    ),
    ("yield 'search/0', {}", "a row cannot be called 'search'"),
    (
      "raise KeyError('lost')",
      "`sweep()` fails: KeyError: 'lost'",
    ),
  ],
)
def test_a_wrong_last_point_is_refused_before_anything_is_written(
  last, wanted, write, run, tmp_path
):
  experiment = write(last)
  before = content(tmp_path)
  with pytest.raises(ValueError, match='point|sweep') as error:
    run(experiment)
  assert wanted in str(error.value)
  assert content(tmp_path) == before
  assert not (tmp_path / 'out').exists()


def test_the_command_refuses_with_status_2(write, tmp_path, capsys):
  experiment = write("yield 'c/0', {'outer.momentun': 0.9}")
  argv = ['sweep', str(experiment), f'--out={tmp_path / "out"}']
  assert cli.main(argv) == 2
  shown = capsys.readouterr().err
  assert 'Did you mean `outer.momentum`?' in shown
  assert 'Traceback' not in shown
  assert not (tmp_path / 'out').exists()


def test_all_wrong_points_are_named_at_once(write, run):
  last = "yield 'c/0', {'everry': 3}\n  yield 'd/0', {'num_stepps': 3}"
  with pytest.raises(ValueError, match=r"(?s)'c/0': `everry`.*'d/0': `num_st"):
    run(write(last))


def test_a_folder_of_another_config_is_refused(write, run, tmp_path):
  folder = tmp_path / 'out/b/1'
  folder.mkdir(parents=True)
  [point] = [
    each
    for each in _points.configured(
      _experiment.load(write(every=3)),
      tmp_path / 'out',
      {'b/1': {'seed': 1, 'outer.lr': 0.5}},
    )
  ]
  (folder / 'config.json').write_text(json.dumps(point.config))
  before = content(tmp_path / 'out')
  with pytest.raises(ValueError, match=r"point 'b/1'.*`every`: 3 there, 5 her"):
    run(write())
  assert content(tmp_path / 'out') == before


@pytest.mark.parametrize(
  ('kwargs', 'wanted'),
  [
    ({'only': ['c']}, r"`only`: 'c' is no row of the sweep.* a, b\."),
    ({'only': ['a/7']}, r"`only`: 'a/7'.*There are: a/0, b/0, a/1, b/1\."),
    ({'jobs': 0}, r'`jobs` must be at least 1, got 0\.'),
    ({'jobs': 10_000}, r'`jobs` must be at most \d+, the number of cores'),
    ({'launcher': 'cloud'}, r"`launcher` must be 'local' or 'slurm'"),
    ({'slurm': {'nodes': 2}}, "`slurm` has no effect with `launcher` 'local'"),
  ],
)
def test_bad_arguments(kwargs, wanted, write, run, tmp_path):
  with pytest.raises(ValueError, match=wanted):
    run(write(), **kwargs)
  assert not (tmp_path / 'out').exists()


# What runs.


@pytest.fixture(scope='module')
def swept(tmp_path_factory):
  """The folder of a finished sweep. Do not change it."""
  folder = tmp_path_factory.mktemp('swept')
  path = folder / 'rates.py'
  path.write_text(SOURCE.format(last='', config={}))
  with pytest.MonkeyPatch.context() as patch:
    for name, value in OUTSIDE.items():
      patch.setenv(name, value)
    outcome = sweep_lib.sweep(path, folder / 'out', jobs=1, calibrate=False)
  assert outcome == sweep_lib.Outcome(NAMES, {})
  return folder


@pytest.mark.slow
def test_each_run_is_that_of_its_point(swept):
  assert sorted(results(swept / 'out')) == sorted(NAMES)
  for name in NAMES:
    folder = swept / 'out' / name
    row, _, seed = name.partition('/')
    config = json.loads((folder / 'config.json').read_text())
    assert config['seed'] == int(seed)
    assert config['outer']['lr'] == {'a': 0.7, 'b': 0.5}[row]
    environment = json.loads((folder / 'environment.json').read_text())
    assert environment['command'][:2] == ['dilojax', 'train']
    assert {'commit', 'clean', 'packages', 'processor', 'cores'} <= set(
      environment
    )
    summary = json.loads((folder / 'summary.json').read_text())
    assert summary['corpus']['fingerprint']
    assert summary['seconds'] > 0


@pytest.mark.slow
def test_what_has_finished_is_left_alone_and_the_rest_runs(
  swept, write, run, tmp_path, capsys
):
  out = tmp_path / 'out'
  subprocess.run(['cp', '-a', swept / 'out', out], check=True)
  before = content(out)
  assert run(write()) == sweep_lib.Outcome(NAMES, {})
  assert content(out) == before
  # One has finished but its summary is lost; of another nothing is left.
  (out / 'a/0/summary.json').unlink()
  subprocess.run(['rm', '-r', out / 'b/1'], check=True)
  assert run(write(), only=['a/0', 'b/1']).failed == {}
  shown = capsys.readouterr().err
  assert '2 runs, 0 finished, 1 begun' in shown
  assert 'a/0: goes on after step 13.' in shown
  assert 'b/1: begins.' in shown
  after = content(out)
  same = [name for name in before if '/a/1/' in name or '/b/0/' in name]
  assert same
  assert all(after[name] == before[name] for name in same)
  assert results(out) == results(swept / 'out')


@pytest.mark.slow
def test_a_failing_point_does_not_stop_the_others(write, tmp_path, capsys):
  last = "yield 'c/0', {'inner.peak_lr': 1e38, 'inner.clip_norm': 1e38}"
  experiment, out = write(last), tmp_path / 'out'
  argv = ['sweep', str(experiment), f'--out={out}', '--only=c', '--only=a/0']
  assert cli.main(argv) == 1
  shown = capsys.readouterr().err
  assert 'c/0: ended with status 1: Step ' in shown
  assert 'dilojax: error: ' in (out / 'c/0/log.txt').read_text()
  assert sorted(results(out)) == ['a/0']


@pytest.mark.slow
def test_a_point_of_another_sweep_is_waited_for(
  swept, write, run, tmp_path, capsys
):
  """It is not begun here, and not begun twice."""
  out = tmp_path / 'out'
  (out / 'a/0').mkdir(parents=True)
  began, claim = time.monotonic(), open(out / 'a/0/.sweep', 'a')
  fcntl.flock(claim, fcntl.LOCK_EX)

  def finish():  # As the other one would.
    subprocess.run(['cp', '-a', f'{swept}/out/a/0/.', out / 'a/0'], check=True)
    claim.close()

  timer = threading.Timer(3.0, finish)
  timer.start()
  outcome = run(write(), only=['a/0'])
  timer.join()
  assert outcome == sweep_lib.Outcome(['a/0'], {})
  assert time.monotonic() - began >= 3.0
  shown = capsys.readouterr().err
  assert shown.count('a/0: another sweep runs it') == 1
  assert 'a/0: begins' not in shown


def test_dry_run_tells_all_and_writes_nothing(write, run, tmp_path, capsys):
  run(write(), dry_run=True)
  shown = capsys.readouterr().err
  assert '4 runs, 0 finished, 0 begun' in shown
  for name in NAMES:
    assert f'  {name}: new; ' in shown
  assert not (tmp_path / 'out').exists()


# Signals.


def begin(experiment, out, jobs=2):
  """Starts the command in a process of its own."""
  command = [sys.executable, '-m', 'dilojax.cli', 'sweep', str(experiment)]
  return subprocess.Popen(
    [*command, f'--out={out}', f'--jobs={jobs}'],
    cwd=tiny.ROOT,
    stderr=subprocess.PIPE,
    text=True,
  )


def processes(out):
  """Returns the processes whose command names a folder, zombies aside."""
  found = []
  for path in pathlib.Path('/proc').glob('[0-9]*/cmdline'):
    try:
      if str(out) in path.read_text():
        found.append(int(path.parent.name))
    except OSError:
      continue
  return found


def wait_for(condition, process, seconds=600):
  until = time.monotonic() + seconds
  while not condition():
    assert process.poll() is None, process.communicate()
    assert time.monotonic() < until
    time.sleep(0.02)


@pytest.mark.slow
@pytest.mark.skipif(not os.path.isdir('/proc'), reason='asks /proc')
@pytest.mark.skipif(os.cpu_count() == 1, reason='two at a time')
def test_a_killed_sweep_leaves_no_process_and_goes_on(
  write, tmp_path_factory, tmp_path
):
  config = {'num_steps': 200, 'checkpoint_every': 20, 'eval_every': 50}
  last = "yield 'c/0', {'outer.lr': 0.9}\n  yield 'd/0', {'outer.lr': 0.3}"
  experiment = write(last, **config)
  straight = tmp_path_factory.mktemp('straight')
  process = begin(experiment, straight)
  process.communicate()
  assert process.returncode == 0
  out = tmp_path / 'out'
  for number in (0, 1):  # Among the first points, and among the last.
    process = begin(experiment, out)
    saved = f'*/{number}/checkpoints/*'
    wait_for(lambda saved=saved: list(out.glob(saved)), process)
    process.kill()
    process.communicate()
    # They end by themselves, and save.
    until = time.monotonic() + 300
    while processes(out):
      assert time.monotonic() < until
      time.sleep(0.1)
  process = begin(experiment, out)
  process.communicate()
  assert process.returncode == 0
  assert len(results(out)) == 6
  assert results(out) == results(straight)
  # But for the time that it took.
  got, want = (
    re.sub(r'\d+ s +\|$', '', table.text(experiment, out=each), flags=re.M)
    for each in (out, straight)
  )
  assert got.count('\n| ') == 1 + 4
  assert got == want


@pytest.mark.slow
@pytest.mark.parametrize('number', [signal.SIGINT, signal.SIGTERM])
def test_a_stopped_sweep_saves_and_goes_on(number, write, swept, tmp_path):
  out = tmp_path / 'out'
  experiment = write(num_steps=4000, checkpoint_every=4000)
  process = begin(experiment, out, jobs=1)
  has_begun = lambda path: path.stat().st_size > 0
  wait_for(lambda: any(map(has_begun, out.glob('*/*/metrics.jsonl'))), process)
  process.send_signal(number)
  _, shown = process.communicate(timeout=300)
  assert process.returncode == 130, shown
  assert 'The same command goes on.' in shown
  assert processes(out) == []
  [saved] = out.glob('*/*/checkpoints/[0-9]*')
  assert 0 < int(saved.name) < 4000
  assert not list(out.rglob('.saving-*'))
  assert not list(out.rglob('*.new'))


def test_points_share_a_cache_unless_there_is_one(monkeypatch, tmp_path):
  name = 'JAX_COMPILATION_CACHE_DIR'
  assert sweep_lib.environment(tmp_path) == dict(os.environ)
  monkeypatch.delenv(name)
  assert sweep_lib.environment(tmp_path)[name] == str(tmp_path / '.cache')


# What is shown.


def running(tmp_path, name, step):
  """A point of 100 steps that has taken some."""
  folder = tmp_path / name
  folder.mkdir(parents=True)
  (folder / 'metrics.jsonl').write_text(f'{{"step": {step}}}\n{{"st')
  point = _points.Point(name, folder, {'num_steps': 100}, 1.0)
  return _pool.Running(point, None, None, 0, 0.0, 0)


@pytest.mark.parametrize('is_terminal', [False, True])
def test_the_board(is_terminal, tmp_path, monkeypatch):
  monkeypatch.setattr(_board, 'EVERY_SECONDS', 0.0)
  stream = io.StringIO()
  board = _board.board(
    total=4,
    done=1,
    metric='eval/anchor/loss',
    left=lambda running: 60.0 * len(running),
    stream=stream,
    is_terminal=is_terminal,
  )
  first = running(tmp_path, 'a/0', 40)
  second = running(tmp_path, 'b/0', 0)
  board.events.start(first.point)
  board.events.look([first, second])
  assert 'about 2 min left' in stream.getvalue()
  assert 'step 40/100' in stream.getvalue()
  summary = {'steps': 100, 'final': {'eval/anchor/loss': 1.25}}
  (first.point.folder / 'summary.json').write_text(json.dumps(summary))
  board.events.end(_pool.Ended(first.point, None, 42.0))
  board.events.end(_pool.Ended(second.point, 'ended with status 1: no', 7.0))
  board.close()
  shown = stream.getvalue()
  assert 'a/0: goes on after step 40.' in shown
  assert (
    'a/0: finished, eval/anchor/loss 1.2500, 42 s; 2 of 4 finished, about 60 s'
    ' left'
  ) in shown
  assert 'b/0: ended with status 1: no' in shown


# Shares and estimates.


def test_each_has_its_cores(monkeypatch):
  monkeypatch.setattr(os, 'sched_getaffinity', lambda pid: {1, 3, 5, 7, 9})
  found = _shares.shares(2, {'JAX_PLATFORMS': 'cpu'})
  assert [share.cores for share in found] == [(1, 3), (5, 7, 9)]
  assert [share.environ for share in found] == [
    {'OMP_NUM_THREADS': '2'},
    {'OMP_NUM_THREADS': '3'},
  ]


def test_each_has_its_gpus(monkeypatch):
  monkeypatch.setattr(os, 'sched_getaffinity', lambda pid: set(range(8)))
  environ = {'CUDA_VISIBLE_DEVICES': '2,3,6,7'}
  found = _shares.shares(2, environ)
  assert [share.environ['CUDA_VISIBLE_DEVICES'] for share in found] == [
    '2,3',
    '6,7',
  ]
  assert [share.num_devices for share in found] == [2, 2]
  with pytest.raises(ValueError, match=r'must divide the number of GPUs \(4\)'):
    _shares.shares(3, environ)


def test_each_has_its_tpu_chips(monkeypatch):
  monkeypatch.setattr(os, 'sched_getaffinity', lambda pid: set(range(8)))
  environ = {'TPU_VISIBLE_CHIPS': '0,1,2,3', 'JAX_PLATFORMS': 'tpu'}
  found = _shares.shares(2, environ)
  assert [share.environ['TPU_VISIBLE_CHIPS'] for share in found] == [
    '0,1',
    '2,3',
  ]
  assert found[0].environ['TPU_CHIPS_PER_PROCESS_BOUNDS'] == '1,2,1'


def test_the_estimate_of_a_measured_speed():
  """Steps and evaluations at their pace, and the start once a run."""
  config = {'num_steps': 100, 'eval_every': 30}
  point = _points.Point('a/0', pathlib.Path('none'), config, 5000.0)
  measured = {'step': 0.5, 'evaluation': 2.0, 'all': 3.0}
  speed = _estimate.from_measured(point, measured, seconds=10.0)
  # 100 steps of 0.5 s, 4 evaluations of 2 s, and a start of 10 - 3 s.
  assert _estimate.seconds(point, {'a': speed}) == pytest.approx(65.0)
  double = point._replace(name='b/0', work=10_000.0)
  assert _estimate.seconds(double, {'a': speed}) == pytest.approx(123.0)


def test_the_time_of_several_at_a_time():
  assert _estimate.together([60.0] * 6, 1) == 360.0
  assert _estimate.together([60.0] * 6, 2) == 180.0
  assert _estimate.together([5.0, 1.0, 1.0, 1.0], 2) == 5.0
