"""Tests for sweeps as job arrays, with submitit's executor for one machine."""

import json
import threading
import time

import jax
import pytest

from dilojax import _experiment
from dilojax import _points
from dilojax import _pool
from dilojax import _slurm
from dilojax import sweep as sweep_lib
from dilojax import workdir
from tests import test_sweep

pytest.importorskip('submitit', reason='needs dilojax[slurm]')

# Before a sweep asks for fewer devices than other tests need.
jax.devices()

LOCAL = {'cluster': 'local', 'timeout_min': 20}


@pytest.fixture
def write(tmp_path, monkeypatch):
  """Function that writes the experiment."""
  for name, value in test_sweep.OUTSIDE.items():
    monkeypatch.setenv(name, value)

  def write(last='', **config):
    path = tmp_path / 'rates.py'
    path.write_text(test_sweep.SOURCE.format(last=last, config=config))
    return path

  return write


def run(experiment, out, **slurm):
  return sweep_lib.sweep(
    experiment,
    out,
    only=['a'],
    launcher='slurm',
    slurm={**LOCAL, **slurm},
  )


@pytest.mark.parametrize(
  ('slurm', 'wanted'),
  [
    ({'cluster': 'cloud'}, "`slurm.cluster` must be 'slurm' or 'local'"),
    ({'no_such_option': 1}, r'`slurm` must fit submitit: .*no_such_option'),
  ],
)
def test_bad_parameters_are_refused(slurm, wanted, write, tmp_path):
  with pytest.raises(ValueError, match=wanted):
    run(write(), tmp_path / 'out', **slurm)
  assert not list(tmp_path.rglob('config.json'))


def test_without_slurm_it_is_refused(write, tmp_path, monkeypatch):
  monkeypatch.setenv('PATH', '')
  with pytest.raises(ValueError, match='`slurm` must fit submitit: .*srun'):
    sweep_lib.sweep(write(), tmp_path / 'out', launcher='slurm')


@pytest.mark.slow
def test_each_point_is_a_job(write, tmp_path):
  out = tmp_path / 'out'
  last = "yield 'c/0', {'inner.peak_lr': 1e38, 'inner.clip_norm': 1e38}"
  outcome = sweep_lib.sweep(
    write(last), out, only=['a/0', 'c/0'], launcher='slurm', slurm=LOCAL
  )
  assert outcome.finished == ['a/0']
  assert list(outcome.failed) == ['c/0']
  assert 'ended with status 1' in outcome.failed['c/0']
  assert 'gradient norm' in outcome.failed['c/0']
  jobs = {
    name: workdir.read_json(out / name / _slurm.JOB)['job_id']
    for name in ('a/0', 'c/0')
  }
  assert len(set(jobs.values())) == 2
  # What has finished is not submitted again.
  again = run(write(), out)
  assert again == sweep_lib.Outcome(['a/0', 'a/1'], {})
  assert workdir.read_json(out / 'a/0' / _slurm.JOB)['job_id'] == jobs['a/0']


@pytest.mark.slow
def test_a_point_of_two_processes(write, tmp_path):
  """The tasks of a job are the processes of one run."""
  config = {'mesh.num_devices': 2, 'num_replicas': 2}
  out = tmp_path / 'out'
  outcome = run(write(**config), out, tasks_per_node=2)
  assert outcome == sweep_lib.Outcome(['a/0', 'a/1'], {})
  environment = json.loads((out / 'a/0/environment.json').read_text())
  assert environment['num_processes'] == 2
  assert environment['num_devices'] == 2


@pytest.mark.slow
def test_a_preempted_job_saves_and_goes_on(write, tmp_path, monkeypatch):
  """What submitit calls before a job is queued again, here in this process."""
  experiment = write(num_steps=400, checkpoint_every=400)
  out = tmp_path / 'out'
  [point] = sweep_points(experiment, out)
  # As in a job of one task.
  monkeypatch.setattr(_slurm, '_joining', lambda: (0, {}, []))
  task = _slurm.Task(str(point.folder), {})

  def preempt():
    path = point.folder / workdir.METRICS
    while not (path.exists() and path.stat().st_size):
      time.sleep(0.05)
    assert task.checkpoint().function == task

  thread = threading.Thread(target=preempt)
  thread.start()
  assert task() == 130
  thread.join()
  [saved] = (point.folder / workdir.CHECKPOINTS).glob('[0-9]*')
  assert 0 < int(saved.name) < 400
  assert task() == 0


def sweep_points(experiment, out):
  """Returns a point whose folder has its config."""
  found = _experiment.load(experiment)
  points = _points.configured(found, out, {'a/0': found.points['a/0']})
  points[0].folder.mkdir(parents=True)
  _pool.prepare(points[0])
  return points
