"""Tests for `dilojax.launch`, with commands that need no jax."""

import io
import os
import signal
import subprocess
import sys
import time

import pytest

from dilojax import launch
from tests import tiny

PYTHON = [sys.executable, '-S', '-c']


@pytest.fixture(autouse=True)
def grace(monkeypatch):
  monkeypatch.setattr(launch, 'GRACE', 0.5)


def run(script, n=2, timeout=60.0):
  """Launches a Python script; returns the status and what was shown."""
  shown = io.StringIO()
  begin = 'import os, sys, time\nk = int(os.environ["DILOJAX_PROCESS_ID"])\n'
  command = [*PYTHON, begin + script]
  status = launch.launch(command, n, timeout=timeout, stderr=shown)
  return status, shown.getvalue()


def test_all_get_the_same_address_and_a_number_of_their_own(tmp_path):
  script = (
    f'names = {[launch.COORDINATOR, launch.NUM_PROCESSES, launch.TIMEOUT]}\n'
    f'file = open(f"{tmp_path}/{{k}}", "w")\n'
    'file.write(" ".join(map(os.environ.get, names)))'
  )
  assert run(script, 3, timeout=7.0) == (0, '')
  first, second, third = (tmp_path.joinpath(k).read_text() for k in '012')
  assert first == second == third
  address, count, timeout = first.split()
  assert address.startswith('127.0.0.1:')
  assert (count, timeout) == ('3', '7.0')


def test_the_first_is_shown_as_it_is_and_the_others_with_their_numbers(capfd):
  script = 'print("out", k); print("a", k, "\\nb", file=sys.stderr)'
  status, shown = run(script)
  out, err = capfd.readouterr()
  assert (status, shown) == (0, '[1] a 1 \n[1] b\n')
  assert (out, err) == ('out 0\n', 'a 0 \nb\n')


def test_the_status_is_that_of_the_first_that_fails():
  status, shown = run('k == 1 and sys.exit(3); time.sleep(100)')
  assert status == 3
  assert 'process 0 had not ended 0.5 s after process 1 ended with' in shown
  assert 'the first to end was process 1: it ended with status 3.' in shown


def test_all_that_fail_alike_end_by_themselves():
  assert run('time.sleep(k / 5); sys.exit(2)') == (2, '')


def test_a_killed_process_is_named_and_ends_the_others():
  status, shown = run('k == 1 and os.kill(os.getpid(), 9); time.sleep(100)', 3)
  assert status == 128 + signal.SIGKILL
  assert 'the first to end was process 1: it was killed by SIGKILL.' in shown


def test_a_stopped_process_ends_with_the_others():
  script = 'k == 1 and os.kill(os.getpid(), 19); time.sleep(0.5); sys.exit(1)'
  status, shown = run(script)
  assert status == 1
  assert 'process 1 had been stopped by a signal' in shown


def test_one_that_does_not_end_with_the_others_is_killed():
  status, shown = run('time.sleep(100 * k)', timeout=1.0)
  assert status == 1
  assert 'process 1 had not ended 1 s after process 0' in shown


@pytest.mark.parametrize('number', [signal.SIGTERM, signal.SIGINT])
def test_a_signal_reaches_each_once(tmp_path, number):
  script = f"""
import os, signal, sys, time
k = os.environ['DILOJAX_PROCESS_ID']
count = []
signal.signal({int(number)}, lambda *_: count.append(1))
open(f'{tmp_path}/' + k, 'w').close()
while not count:
  time.sleep(0.01)
time.sleep(0.5)
sys.exit(100 + len(count))
"""
  process = subprocess.Popen(
    [sys.executable, '-P', launch.__file__, '-n', '2', '--', *PYTHON, script],
    start_new_session=True,
    stderr=subprocess.PIPE,
    text=True,
  )
  while len(os.listdir(tmp_path)) < 2:
    assert process.poll() is None
    time.sleep(0.01)
  os.killpg(process.pid, number)  # As Ctrl-C does.
  _, err = process.communicate(timeout=60)
  assert (process.returncode, err) == (101, '')


@pytest.mark.parametrize(
  ('arguments', 'message'),
  [
    (['-n', '0', '--', 'true'], '`-n` must be at least 1, got 0.'),
    (['-n', '2', '--'], '`COMMAND` is missing'),
    (['-n', '2', '--timeout=0', '--', 'true'], '`--timeout` must be a number'),
    (['-n', '2', '--timeout=inf', '--', 'true'], '`--timeout` must be'),
    (['-n', '2', '--', '/no/such/command'], '/no/such/command'),
  ],
)
def test_refused(arguments, message, capsys):
  assert launch.main(arguments) == 2
  assert message in capsys.readouterr().err


@pytest.mark.parametrize('arguments', [[], ['-n', 'two'], ['-n2', '--what']])
def test_unknown_arguments(arguments, capsys):
  with pytest.raises(SystemExit) as error:
    launch.main(arguments)
  assert error.value.code == 2
  assert 'usage: launch_local -n N' in capsys.readouterr().err


def test_options_of_the_command_are_its_own(capfd):
  command = ['-n', '1', '--', *PYTHON, 'import sys; print(sys.argv[1:])']
  assert launch.main([*command, '-n', '5', '--help']) == 0
  assert capfd.readouterr().out == "['-n', '5', '--help']\n"


def test_gpus():
  assert launch.num_gpus({'JAX_PLATFORMS': 'cpu'}) == 0
  assert launch.num_gpus({'CUDA_VISIBLE_DEVICES': '3,5'}) == 2
  assert launch.num_gpus({'CUDA_VISIBLE_DEVICES': ''}) == 0
  assert launch.num_gpus({'CUDA_VISIBLE_DEVICES': '-1'}) == 0
  assert launch.share_gpus(2, 0) == [{}, {}]
  assert launch.share_gpus(1, 8) == [{}]
  with pytest.raises(ValueError, match=r'`-n` must divide .* \(1\), got 2'):
    launch.share_gpus(2, 1)


def test_without_the_package():
  # The launcher starts at once: it must not import jax.
  command = [sys.executable, '-P', '-S', '-I', launch.__file__, '--help']
  done = subprocess.run(command, capture_output=True, text=True, cwd=tiny.ROOT)
  assert done.returncode == 0, done.stderr
  assert 'goes on from the newest' in done.stdout
