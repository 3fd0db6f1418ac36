"""A process that is killed or stopped, and the same command again."""

import json
import os
import random
import signal
import subprocess
import sys
import time

import pytest

from tests import test_train
from tests import tiny

COMMAND = """
import sys
import jax
jax.config.update('jax_platforms', 'cpu')
jax.config.update('jax_num_cpu_devices', 4)
from tests import test_killed
from tests import tiny
from dilojax import train
config = test_killed.config()
try:
  tiny.run(sys.argv[1], config)
except train.Interrupted as error:
  print(error)
  sys.exit(130)
"""


def config():
  return test_train.config_of(
    'diloco', num_steps=400, checkpoint_every=7, log_every=3, eval_every=20
  )


def begin(folder):
  return subprocess.Popen(
    [sys.executable, '-c', COMMAND, str(folder)],
    cwd=tiny.ROOT,
    env={**os.environ, 'PYTHONPATH': str(tiny.ROOT)},
    stdout=subprocess.PIPE,
    stderr=subprocess.PIPE,
    text=True,
  )


def wait_for_step(folder, step, process):
  """Waits until a checkpoint of at least a step is there."""
  checkpoints = folder / 'checkpoints'
  while process.poll() is None:
    names = os.listdir(checkpoints) if checkpoints.exists() else []
    if any(name.isdigit() and int(name) >= step for name in names):
      return
    time.sleep(0.01)
  pytest.fail(f'Ended before step {step}: {process.communicate()}')


def finish(folder):
  process = begin(folder)
  out, err = process.communicate(timeout=300)
  assert process.returncode == 0, out + err


def assert_same_runs(got, want):
  lines = [
    (folder / 'metrics.jsonl').read_text().splitlines()
    for folder in (got, want)
  ]
  first, second = (test_train.steady(map(json.loads, each)) for each in lines)
  assert first == second
  test_train.assert_same(
    tiny.state(got, config(), 400), tiny.state(want, config(), 400)
  )


@pytest.fixture(scope='module')
def straight(tmp_path_factory):
  folder = tmp_path_factory.mktemp('straight')
  finish(folder)
  return folder


@pytest.mark.slow
@pytest.mark.parametrize('seed', [0, 1])
def test_killed_twice_it_goes_on_bitwise(seed, straight, tmp_path):
  generator = random.Random(seed)
  for at in (generator.randint(7, 150), generator.randint(160, 350)):
    process = begin(tmp_path)
    wait_for_step(tmp_path, at, process)
    time.sleep(generator.random() / 20)  # Not always just after a checkpoint.
    process.kill()
    process.communicate()
  finish(tmp_path)
  assert_same_runs(tmp_path, straight)


@pytest.mark.slow
@pytest.mark.parametrize('number', [signal.SIGTERM, signal.SIGINT])
def test_stopped_it_saves_and_goes_on_bitwise(number, straight, tmp_path):
  process = begin(tmp_path)
  wait_for_step(tmp_path, 50, process)
  process.send_signal(number)
  out, err = process.communicate(timeout=60)
  assert process.returncode == 130, out + err
  assert 'The same command goes on' in out
  finish(tmp_path)
  assert_same_runs(tmp_path, straight)
