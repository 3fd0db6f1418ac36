"""Tests for `dilojax.processes` and `dilojax.join`: alone, and in pairs."""

import functools
import io
import json
import os
import random
import re
import signal
import socket
import subprocess
import sys
import time

import jax
import pytest

from dilojax import _segment
from dilojax import _watch
from dilojax import build
from dilojax import join
from dilojax import launch
from dilojax import processes
from dilojax import workdir
from tests import test_train
from tests import tiny

TIMEOUT = 15
NUM_STEPS = 200
CONFIG = """\
from tests import test_processes


def get_config():
  return test_processes.config()
"""


def config():
  return test_train.config_of(
    'diloco',
    **{
      'num_steps': NUM_STEPS,
      'eval_every': 100,
      'log_every': 10,
      'checkpoint_every': 10,
      'inner.warmup_steps': 2,
      'mesh.num_devices': 2,
      'num_replicas': 2,
    },
  )


def variables(**changes):
  names = {
    launch.COORDINATOR: '127.0.0.1:1234',
    launch.NUM_PROCESSES: '2',
    launch.PROCESS_ID: '1',
  }
  return {k: v for k, v in {**names, **changes}.items() if v is not None}


def test_the_address_of_a_process():
  assert join.address({}) is None
  assert join.address(variables()) == (
    '127.0.0.1:1234',
    2,
    1,
    launch.DEFAULT_TIMEOUT,
    None,
  )
  found = join.address({launch.TIMEOUT: '7'}, detect=True)
  assert (found.coordinator, found.timeout) == (None, 7.0)


@pytest.mark.parametrize(
  ('changes', 'message'),
  [
    ({launch.COORDINATOR: None}, '`DILOJAX_COORDINATOR` must be set'),
    ({launch.COORDINATOR: 'host'}, "HOST:PORT, got 'host'"),
    ({launch.NUM_PROCESSES: '0'}, "at least 1, got '0'"),
    ({launch.PROCESS_ID: '2'}, "from 0 to 1, got '2'"),
    ({launch.PROCESS_ID: '-1'}, "from 0 to 1, got '-1'"),
    ({launch.TIMEOUT: 'nan'}, '`DILOJAX_TIMEOUT` must be a number of seconds'),
    ({launch.TIMEOUT: '0.5'}, "at least 1, got '0.5'"),
    ({launch.LAUNCHER: 'me'}, "number of a process, got 'me'"),
  ],
)
def test_variables_that_cannot_be(changes, message):
  with pytest.raises(ValueError, match=re.escape(message)):
    join.address(variables(**changes))


def test_alone_nothing_is_agreed_on():
  with join.joined(None) as index:
    assert index == processes.index() == 0
  assert processes.count() == 1
  assert processes.exchange('text', 'here') == ['text']
  with (
    pytest.raises(OSError, match='as it was'),
    processes.together('here'),
  ):
    raise OSError('as it was')
  assert processes.from_first(lambda: {'a': (1,)}, 'here') == {'a': (1,)}
  assert processes.fetch({'a': jax.numpy.ones(2)}, 'here', 3)[1] == [3]


def said(reached, beat=0, **more):
  return {'reached': reached, 'beat': beat, 'doing': 'step 5', **more}


def judged(*heard, reached=1, index=0, count=2):
  """Returns the answers of a judge with a patience of 3."""
  judge = _watch.make_judge(index, count, timeout=9, patience=3)
  return [judge(each, reached, 'step 6') for each in heard]


def test_a_process_that_lives_is_left_alone():
  assert not any(judged(*({1: said(1, beat)} for beat in range(20))))
  # Always one behind, and always going on.
  slow = ({1: said(number // 2, number)} for number in range(20))
  assert not any(judged(*slow, reached=100))


def test_a_silent_process_is_lost():
  *before, last = judged(*[{1: said(1)}] * 5)
  assert not any(before)
  assert last.startswith('process 1 has been silent for 9 s')
  assert judged(*[{0: said(1)}] * 4)[-1].startswith('process 1 has been silent')


def test_a_process_that_stays_behind_is_lost():
  heard = [{1: said(0, beat)} for beat in range(5)]
  *before, last = judged(*heard)
  assert not any(before)
  assert last == (
    'process 1 has not reached step 6 for 9 s: it is stuck after step 5, or'
    ' far too slow.'
  )
  # Both wait for the same: a long step is nobody's fault.
  assert not any(judged(*heard, reached=0))


def test_a_process_that_stops_while_it_is_behind_is_silent():
  # It says once more that it is there, and then no more.
  *before, last = judged({1: said(0, 1)}, *[{1: said(0, 2)}] * 5)
  assert not any(before)
  assert last.startswith('process 1 has been silent for 9 s')


def test_what_is_heard_late_was_behind_all_the_time():
  # It is heard at every third call.
  heard = [{1: said(0, number // 3)} for number in range(9)]
  assert [bool(text) for text in judged(*heard)] == [False] * 6 + [True] * 3


def test_a_failure_is_passed_on():
  assert judged({1: {'failed': 'no disk'}}) == ['process 1 failed: no disk']


def test_a_service_without_an_answer_is_process_0():
  *before, last = judged({0: said(1)}, *[{}] * 4, index=1)
  assert not any(before)
  assert last.startswith('process 0 has been silent')
  assert not any(judged(*[{}] * 20, index=0))


@pytest.mark.parametrize(
  ('num_replicas', 'count', 'each'),
  [(2, 2, 1), (4, 2, 2), (6, 2, 3), (32, 2, 8), (2, 4, 1), (1, 3, 1)],
)
def test_devices_of_a_process(num_replicas, count, each, monkeypatch):
  monkeypatch.setattr(processes, 'count', lambda: count)
  changes = {'num_replicas': num_replicas, 'mesh.num_devices': 0}
  assert build.num_cpu_devices(tiny.config(**changes)) == each
  with_devices = {**changes, 'mesh.num_devices': 12}
  assert build.num_cpu_devices(tiny.config(**with_devices)) == 12 // count


@pytest.mark.parametrize(
  ('changes', 'message'),
  [
    ({'num_replicas': 3}, '`num_replicas` (3) must be a multiple'),
    ({'mesh.num_devices': 3}, '`mesh.num_devices` must be a multiple'),
  ],
)
def test_devices_that_two_cannot_share(changes, message, monkeypatch):
  monkeypatch.setattr(processes, 'count', lambda: 2)
  given = {'num_replicas': 4, 'mesh.num_devices': 0, **changes}
  with pytest.raises(ValueError, match=re.escape(message)):
    build.num_cpu_devices(tiny.config(**given))


@pytest.mark.parametrize(
  ('num_replicas', 'num_devices'), [(4, 4), (8, 4), (4, 8), (2, 8)]
)
def test_a_process_makes_the_batches_of_its_own_devices(
  num_replicas, num_devices, monkeypatch
):
  setup = build.make(
    tiny.config(
      **{'num_replicas': num_replicas, 'mesh.num_devices': num_devices}
    )
  )
  own = _segment._own_replicas
  mesh = setup.placement.mesh
  sharding = jax.NamedSharding(mesh, _segment._batch_spec(setup))
  assert own(setup.placement, sharding) == list(range(num_replicas))
  # As if the second half of the devices were another process's.
  half = set(mesh.devices.flat[: num_devices // 2])
  everywhere = type(sharding).addressable_devices_indices_map
  monkeypatch.setattr(
    type(sharding),
    'addressable_devices_indices_map',
    lambda self, shape: {
      device: place
      for device, place in everywhere(self, shape).items()
      if device in half
    },
  )
  assert own(setup.placement, sharding) == list(range(num_replicas // 2))


def command(folder, config_file, *more):
  return [
    *(sys.executable, '-m', 'dilojax.cli', 'train'),
    f'--config={config_file}',
    f'--workdir={folder}',
    *more,
  ]


def begin(folder, n, *more):
  """Starts a training in n processes."""
  config_file = folder.parent / 'config.py'
  config_file.write_text(CONFIG)
  launcher = [sys.executable, '-P', launch.__file__, '-n', str(n)]
  launcher += ['--timeout', str(TIMEOUT)]
  return subprocess.Popen(
    [*launcher, '--', *command(folder, config_file, *more)],
    cwd=tiny.ROOT,
    env={
      **os.environ,
      'PYTHONPATH': str(tiny.ROOT),
      'JAX_PLATFORMS': 'cpu',
    },
    stdout=subprocess.PIPE,
    stderr=subprocess.STDOUT,
    text=True,
  )


def end(process, seconds=240):
  out, _ = process.communicate(timeout=seconds)
  return process.returncode, out


def children(process):
  """Returns the processes that a launcher has started, in their order."""
  listed = subprocess.run(
    ['pgrep', '-P', str(process.pid)], capture_output=True, text=True
  )
  return sorted(map(int, listed.stdout.split()))


def wait_for_step(folder, step, process):
  while process.poll() is None:
    if any(int(path.name) >= step for path in checkpoints(folder)):
      return
    time.sleep(0.01)
  pytest.fail(f'Ended before step {step}: {process.communicate()}')


def checkpoints(folder):
  return [
    path
    for path in (folder / workdir.CHECKPOINTS).glob('*')
    if path.name.isdigit()
  ]


def outcome(folder):
  """Returns what a run has recorded, and its state after the last step."""
  lines = (folder / workdir.METRICS).read_text().splitlines()
  records = test_train.steady(map(json.loads, lines))
  return records, tiny.state(folder, config(), NUM_STEPS)


def assert_same_outcome(got, want):
  (records, state), (other_records, other_state) = map(outcome, (got, want))
  assert records == other_records
  test_train.assert_same(state, other_state)


@pytest.fixture(scope='module')
def run_all(tmp_path_factory):
  """Returns the function that finishes a run in a folder of its own."""
  base = tmp_path_factory.mktemp('runs')

  @functools.cache
  def finished(n):
    folder = base / f'straight{n}'
    status, out = end(begin(folder, n))
    assert status == 0, out
    return folder

  return finished


@pytest.mark.slow
def test_two_processes_are_one(run_all):
  assert_same_outcome(run_all(2), run_all(1))
  written = json.loads((run_all(2) / workdir.ENVIRONMENT).read_text())
  assert (written['num_processes'], written['num_devices']) == (2, 2)


@pytest.mark.slow
@pytest.mark.parametrize(('before', 'after'), [(2, 2), (2, 1), (1, 2)])
def test_killed_it_goes_on_bitwise(before, after, run_all):
  folder = run_all(2).parent / f'killed{before}{after}'
  process = begin(folder, before)
  wait_for_step(folder, 20, process)
  os.kill(children(process)[-1], signal.SIGKILL)
  status, out = end(process, 30)
  assert status == 128 + signal.SIGKILL, out
  assert before == 1 or 'the first to end was process 1: it was killed' in out
  assert not (folder / workdir.SUMMARY).exists()
  status, out = end(begin(folder, after))
  assert status == 0, out
  assert 'Continues from step' in out
  assert_same_outcome(folder, run_all(2))


@pytest.mark.slow
@pytest.mark.parametrize('index', [0, 1])
def test_stuck_it_ends_in_bounded_time(index, tmp_path):
  folder = tmp_path / 'run'
  process = begin(folder, 2)
  wait_for_step(folder, 20, process)
  os.kill(children(process)[index], signal.SIGSTOP)
  since = time.monotonic()
  status, out = end(process)
  assert time.monotonic() - since < 2 * TIMEOUT + launch.GRACE
  assert status == 1, out
  assert f'process {index} has been silent for {TIMEOUT} s' in out
  assert f'process {index} had been stopped by a signal' in out


@pytest.mark.slow
def test_a_signal_to_one_stops_all_after_the_same_step(run_all):
  folder = run_all(2).parent / 'stopped'
  process = begin(folder, 2)
  wait_for_step(folder, 20, process)
  os.kill(children(process)[1], signal.SIGTERM)
  status, out = end(process, 60)
  assert status == 130, out
  newest = max(int(path.name) for path in checkpoints(folder))
  assert f'Stopped after step {newest}, which is saved.' in out
  status, out = end(begin(folder, 2))
  assert status == 0, out
  assert_same_outcome(folder, run_all(2))


@pytest.mark.slow
def test_a_process_that_waits_in_vain_says_so(tmp_path):
  config_file = tmp_path / 'config.py'
  config_file.write_text(CONFIG)
  with socket.socket() as found:
    found.bind(('127.0.0.1', 0))
    port = found.getsockname()[1]
  changes = {
    launch.COORDINATOR: f'127.0.0.1:{port}',
    launch.PROCESS_ID: '0',
    launch.TIMEOUT: '2',
  }
  environ = {'PYTHONPATH': str(tiny.ROOT), 'JAX_PLATFORMS': 'cpu'}
  done = subprocess.run(
    command(tmp_path / 'run', config_file),
    env={**os.environ, **environ, **variables(**changes)},
    capture_output=True,
    text=True,
    timeout=60,
  )
  assert done.returncode == 1
  assert 'not all processes came within 2 s' in done.stderr
  assert not (tmp_path / 'run').exists()


@pytest.mark.slow
def test_a_refusal_is_said_once(tmp_path):
  process = begin(tmp_path / 'run', 2, '--config.every=0')
  status, out = end(process, 60)
  assert status == 2, out
  assert out.count('`every` must be') == 1, out
  assert not (tmp_path / 'run').exists()


PAIR = """
import json, sys
import jax
import numpy as np
from dilojax import join
from dilojax import processes
jax.config.update('jax_platforms', 'cpu')
jax.config.update('jax_num_cpu_devices', 2)
found = join.address(__import__('os').environ)
def body(k):
  {body}
with join.joined(found) as index:
  said = body(index)
  with open(f'{folder}/{{index}}', 'w') as file:
    json.dump(said, file)
"""


def pair(folder, body, timeout=30):
  """Runs a body in two processes; returns status, output, what each said."""
  script = PAIR.format(body=body.strip().replace('\n', '\n  '), folder=folder)
  shown = io.StringIO()
  with pytest.MonkeyPatch.context() as patch:
    patch.setenv('PYTHONPATH', str(tiny.ROOT))
    status = launch.launch(
      [sys.executable, '-c', script], 2, timeout=timeout, stderr=shown
    )
  files = [folder / str(k) for k in (0, 1)]
  said = [json.loads(file.read_text()) for file in files if file.exists()]
  return status, shown.getvalue(), said


@pytest.mark.slow
def test_what_two_processes_tell_each_other(tmp_path):
  status, shown, said = pair(
    tmp_path,
    """
def error(check):
  try:
    check()
  except processes.Agreed as error:
    return str(error)
def fails():
  with processes.together('here'):
    if k:
      raise OSError('no disk')
mesh = jax.make_mesh(
  (2, 2), ('a', 'b'), (jax.sharding.AxisType.Auto,) * 2
)
processes.check_sums(mesh)
values = np.arange(8.0, dtype=np.float32).reshape(4, 2)
values[1, 1] = np.nan
lead = jax.NamedSharding(mesh, jax.P(('a', 'b')))
tree = {
  'far': processes.put(values, lead),
  'same': processes.put(values, jax.NamedSharding(mesh, jax.P())),
}
tree, notes = processes.fetch(tree, 'here', {'k': k})
return {
  'count': processes.count(),
  'texts': processes.exchange(f'text {k}', 'here'),
  'first': processes.from_first(lambda: k, 'here'),
  'is_equal': [
    bool(np.array_equal(leaf, values, equal_nan=True))
    for leaf in tree.values()
  ],
  'dtype': str(tree['far'].dtype),
  'notes': notes,
  'disk': error(fails),
  'same': error(lambda: processes.same('steps', [1, 2])),
  'differ': error(lambda: processes.same('steps', [1, k])),
}
""",
  )
  assert (status, len(said)) == (0, 2), shown
  assert said[0] == said[1]
  differ = said[0].pop('differ')
  assert differ.startswith('All processes must have the same steps: process 0')
  assert said[0] == {
    'count': 2,
    'texts': ['text 0', 'text 1'],
    'first': 0,
    'is_equal': [True, True],
    'dtype': 'float32',
    'notes': [{'k': 0}, {'k': 1}],
    'disk': 'Process 1: no disk',
    'same': None,
  }


@pytest.mark.slow
def test_a_wrong_sum_stops_all(tmp_path):
  # Stands for a backend that adds wrongly, in one of the processes.
  body = """
add = jax.lax.psum
jax.lax.psum = lambda value, axis_name: add(value, axis_name) + k
mesh = jax.make_mesh((4,), ('a',), (jax.sharding.AxisType.Auto,))
processes.check_sums(mesh)
"""
  status, shown, said = pair(tmp_path, body)
  assert (status, said) == (1, []), shown
  assert 'Process 1: A sum over a of the devices is wrong' in shown


@pytest.mark.slow
def test_one_that_fails_alone_ends_the_other(tmp_path):
  since = time.monotonic()
  body = "return 1 / (1 - k) and processes.exchange('', 'here')"
  status, shown, said = pair(tmp_path, body)
  assert (status, said) == (1, []), shown
  assert 'ZeroDivisionError' in shown
  assert time.monotonic() - since < 30  # Not the time-out: it was told.


@pytest.mark.slow
def test_one_that_lives_and_is_stuck_is_lost(tmp_path, capfd):
  body = """
if k:
  import time
  time.sleep(100)
processes.exchange('', 'the next step')
"""
  status, shown, said = pair(tmp_path, body, timeout=10)
  assert (status, said) == (1, []), shown
  err = capfd.readouterr().err
  assert 'process 1 has not reached the next step for 10 s' in err, shown


@pytest.mark.slow
def test_a_cluster_says_who_is_there(tmp_path):
  config_file = tmp_path / 'config.py'
  config_file.write_text(CONFIG)
  # What SLURM tells a task.
  names = {
    'SLURM_JOB_ID': str(random.randrange(4096)),
    'SLURM_STEP_NODELIST': 'localhost',
    'SLURM_NTASKS': '2',
    'SLURM_LOCALID': '0',
    'PYTHONPATH': str(tiny.ROOT),
    'JAX_PLATFORMS': 'cpu',
  }
  running = [
    subprocess.Popen(
      command(tmp_path / 'run', config_file, '--distributed', '--dry_run'),
      env={**os.environ, **names, 'SLURM_PROCID': k},
      stderr=subprocess.PIPE,
      text=True,
    )
    for k in '01'
  ]
  said = [process.communicate(timeout=240)[1] for process in running]
  assert [process.returncode for process in running] == [0, 0], said
  assert '2 replicas on 2 devices' in said[0]
  assert 'replicas' not in said[1]
