"""Runs of a sweep as one job array of SLURM, through submitit."""

from collections.abc import Mapping, Sequence
import contextlib
import os
import pathlib
import subprocess
import sys
import time
from typing import Any, NamedTuple

from dilojax import _points
from dilojax import _pool
from dilojax import launch
from dilojax import metrics
from dilojax import workdir

FOLDER = '.submitit'
JOB = '.job'

# Ports from here on serve the processes of a point that SLURM did not start.
_FIRST_PORT, _NUM_PORTS = 61_440, 4096
# A file system that machines share may show a result late.
_LATE_SECONDS = 5.0
_ACTIVE = ('PENDING', 'RUNNING', 'REQUEUED', 'CONFIGURING', 'COMPLETING')


class Task(NamedTuple):
  """What a task of the array does: be a process of the run of a point.

  Attributes:
    folder: The folder of the run, with its config.
    environ: Environment variables beside those of the job.
  """

  folder: str
  environ: dict[str, str]

  def __call__(self) -> int:
    """Trains; returns the exit status."""
    index, joining, flags = _joining()
    command = [sys.executable, '-m', 'dilojax._child', 'train', *flags]
    command += [f'--config={self.folder}/{workdir.CONFIG}']
    command += [f'--workdir={self.folder}']
    with contextlib.ExitStack() as stack:
      log: Any = None  # The others write to the log of their task.
      if index == 0:
        path = pathlib.Path(self.folder, _pool.LOG)
        log = stack.enter_context(path.open('ab'))
      process = stack.enter_context(
        subprocess.Popen(
          command,
          env={**os.environ, **self.environ, **joining},
          stdin=subprocess.PIPE,
          stdout=log,
          stderr=log,
        )
      )
      _processes.append(process)
      _wait(process)
      return process.wait()

  def checkpoint(self) -> Any:
    """Ends the training, which saves; returns what goes on with it.

    Called by submitit in a signal's handler, before a job that has been
    preempted, or is out of time, is queued again.
    """
    for process in _processes:
      process.terminate()
      _wait(process)
    return _submitit().helpers.DelayedSubmission(self)


_processes: list[subprocess.Popen] = []


def run(
  points: Sequence[_points.Point],
  out: pathlib.Path,
  jobs: int | None,
  parameters: Mapping[str, Any],
  environ: Mapping[str, str],
  events: _pool.Events,
) -> None:
  """Submits the points that are in no queue yet, and waits for all.

  Args:
    points: The points.
    out: The folder of the sweep, on a file system that all machines share.
    jobs: The most that may run at once, None for all.
    parameters: Of submitit's executor, such as `timeout_min`, `nodes`,
      `tasks_per_node`, `gpus_per_node`, `slurm_partition`. `cluster` is
      'slurm', or 'local' to try without one.
    environ: Environment variables of the runs.
    events: Who is told.

  Raises:
    ValueError: If there is no SLURM, or a parameter is unknown.
    Stopped: If a signal came. The jobs go on.
  """
  executor = _executor(out, jobs, dict(parameters))
  own = {name: environ[name] for name in environ if name.startswith('JAX_')}
  queued, new = {}, []
  for point in points:
    job = _queued(executor, point)
    if job is None:
      point.folder.mkdir(parents=True, exist_ok=True)
      _pool.prepare(point)
      new.append(point)
    else:
      queued[point.name] = job
  tasks = [Task(str(point.folder.absolute()), own) for point in new]
  with executor.batch() if new else contextlib.nullcontext():
    submitted = [executor.submit(task) for task in tasks]
  for point, job in zip(new, submitted):
    workdir.write_json(point.folder / JOB, {'job_id': job.job_id})
    queued[point.name] = job
    events.start(point)
  _watch(points, queued, events)
  if executor.cluster == 'local':
    while not all(job.done() for job in queued.values()):
      time.sleep(_pool.POLL_SECONDS)  # They are processes of this one.


def _watch(points, queued, events):
  """Waits until all have ended, or a signal comes."""
  begun = {point.name: _points.steps_done(point) for point in points}
  rest, done_at = list(points), {}
  began = time.monotonic()
  with _pool.signals() as received:
    while rest and not received:
      now = time.monotonic()
      for point in list(rest):
        job, is_finished = queued[point.name], _points.is_finished(point)
        if not is_finished:
          if not job.done():
            continue
          if now < done_at.setdefault(point.name, now) + _LATE_SECONDS:
            continue
        reason = None if is_finished else _reason(point, job)
        rest.remove(point)
        events.end(_pool.Ended(point, reason, now - began))
      events.look(
        [
          _pool.Running(each, None, None, 0, began, begun[each.name])
          for each in rest
          if _points.steps_done(each) > begun[each.name]
        ]
      )
      time.sleep(_pool.LOOK_SECONDS)
  if received:
    ids = sorted({queued[point.name].job_id for point in rest})
    raise _pool.Stopped(
      'Stopped watching; the jobs go on. The same command watches them again,'
      f' scancel {" ".join(ids)} ends them.'
    )


def _reason(point, job):
  try:
    return _pool.why(point, job.result())
  except Exception as error:  # Whatever submitit makes of a lost job.
    last = str(error).strip().splitlines()[-1:] or [type(error).__name__]
    return f'job {job.job_id}: {last[0]}'


def _executor(out, jobs, parameters):
  submitit = _submitit()
  cluster = parameters.pop('cluster', 'slurm')
  if cluster not in ('slurm', 'local'):
    raise ValueError(
      f"`slurm.cluster` must be 'slurm' or 'local', got {cluster!r}."
    )
  parameters.setdefault('name', 'dilojax')
  if jobs is not None:
    parameters['slurm_array_parallelism'] = jobs
  try:
    executor = submitit.AutoExecutor(out / FOLDER / '%j', cluster=cluster)
    executor.update_parameters(**parameters)
  except (NameError, TypeError, ValueError, RuntimeError) as error:
    raise ValueError(f'`slurm` must fit submitit: {error}') from error
  return executor


def _queued(executor, point):
  """Returns the job of a point that another call has submitted, if it lives."""
  path = point.folder / JOB
  if not path.exists():
    return None
  job_id = workdir.read_json(path)['job_id']
  job = executor.job_class(executor.folder, job_id)
  return job if job.state.partition(' ')[0] in _ACTIVE else None


def _joining():
  """Returns the number of this process, and how it finds the others."""
  job = _submitit().JobEnvironment()
  if job.num_tasks == 1:
    return 0, {}, []
  if job.cluster == 'slurm':
    return job.global_rank, {}, ['--distributed']
  port = _FIRST_PORT + int(job.raw_job_id) % _NUM_PORTS
  variables = {
    launch.COORDINATOR: f'127.0.0.1:{port}',
    launch.NUM_PROCESSES: str(job.num_tasks),
    launch.PROCESS_ID: str(job.global_rank),
  }
  return job.global_rank, variables, []


def _submitit():
  return metrics.import_extra('submitit', 'slurm')


def _wait(process):
  # A handler may wait while another wait of this process is interrupted.
  with contextlib.suppress(ChildProcessError):
    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
