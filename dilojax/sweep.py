"""Runs the points of an experiment: all are checked before the first starts."""

from collections.abc import Mapping, Sequence
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import time
from typing import Any, NamedTuple, TextIO

from dilojax import _board
from dilojax import _estimate
from dilojax import _experiment
from dilojax import _points
from dilojax import _pool
from dilojax import _search
from dilojax import _shares
from dilojax._pool import Stopped as Stopped

# Programs that several points compile are compiled once.
CACHE = '.cache'
LAUNCHERS = ('local', 'slurm')


class Outcome(NamedTuple):
  """What a sweep came to.

  Attributes:
    finished: Names of the points with a result.
    failed: Why others have none, by name.
  """

  finished: list[str]
  failed: dict[str, str]


def sweep(
  experiment: str | os.PathLike[str],
  out: str | os.PathLike[str] | None = None,
  *,
  jobs: int | None = None,
  only: Sequence[str] = (),
  dry_run: bool = False,
  launcher: str = 'local',
  slurm: Mapping[str, Any] | None = None,
  calibrate: bool = True,
  stream: TextIO | None = None,
) -> Outcome:
  """Runs the points of an experiment that have no result yet.

  Every point is a run as `dilojax train` makes it, in `out/row/seed`. Before
  the first one starts, all are checked. A point that fails does not stop the
  others. Called again, what has finished is left alone, and what has begun
  goes on from its newest checkpoint.

  The points are built here on CPU devices, to check them: unless JAX is already
  in use, this process has no others from then on.

  Args:
    experiment: The file of the experiment, and behind a colon its variant.
    out: Where the folders of the runs go; by default `runs/`, and the name of
      the experiment with that of its folder.
    jobs: Number of runs at a time, each on its share of the cores or devices;
      by default 1. On SLURM the most that may run at once, by default all.
    only: Rows, or points `row/seed`, to run; the others are checked only.
    dry_run: Whether to check and to estimate only.
    launcher: 'local' for processes on this machine, 'slurm' for a job array.
    slurm: Parameters of the array, see :func:`dilojax._slurm.run`.
    calibrate: Whether to train a few steps to estimate the time, where no
      finished run tells.
    stream: Where to show what goes on, by default stderr.

  Returns:
    The outcome.

  Raises:
    ValueError: If anything is refused. Nothing has been written then.
    Stopped: If a signal ended it.
  """
  stream = sys.stderr if stream is None else stream
  notify = lambda text: print(text, file=stream, flush=True)
  found = _experiment.load(experiment)
  if not found.points:
    other = 'dilojax table' if found.compute else 'dilojax sweep --search=N'
    raise ValueError(
      f'`experiment` {str(experiment)!r} has no `sweep()`: use `{other}`.'
    )
  if launcher not in LAUNCHERS:
    raise ValueError(
      f"`launcher` must be 'local' or 'slurm', got {launcher!r}."
    )
  if slurm and launcher == 'local':
    raise ValueError("`slurm` has no effect with `launcher` 'local'.")
  folder = default_out(found) if out is None else pathlib.Path(out)
  is_local = launcher == 'local'
  if not is_local and jobs is not None and jobs < 1:
    raise ValueError(f'`jobs` must be at least 1, got {jobs}.')
  shares = _shares_of(jobs) if is_local else []
  num_devices = shares[0].num_devices if shares else 0
  points = _points.configured(found, folder, found.points)
  points = _points.chosen(_points.built(points, num_devices), only)
  todo = [point for point in points if not _points.is_finished(point)]
  for line in _plan(found.name, folder, points, todo, shares):
    notify(line)
  environ = dict(os.environ) if dry_run else environment(folder)
  speeds = _estimate.from_finished(points)
  if todo and is_local:
    if calibrate and not speeds:
      speeds = _calibrated(todo[0], shares[0], environ, notify)
    if speeds:
      durations = [_estimate.seconds(point, speeds) for point in todo]
      seconds = _estimate.together(durations, len(shares))
      notify(f'It takes about {_board.duration(seconds)}.')
  if dry_run:
    for point in points:
      notify(f'  {point.name}: {_state(point)}; {found.points[point.name]}')
    todo = []
  if not todo:
    return Outcome([each.name for each in points if _is_finished(each)], {})
  failed: dict[str, str] = {}
  left, over = _left(todo, speeds, len(shares))
  board = _board.board(
    total=len(points),
    done=len(points) - len(todo),
    metric=found.metric,
    left=left,
    stream=stream,
  )

  def end(ended):
    over(ended)
    if ended.reason is not None:
      failed[ended.point.name] = ended.reason
    board.events.end(ended)

  events = board.events._replace(end=end)
  try:
    if is_local:
      _pool.run(todo, shares, environ, events)
    else:
      from dilojax import _slurm

      _slurm.run(todo, folder, jobs, slurm or {}, environ, events)
  finally:
    board.close()
  return Outcome([each.name for each in points if _is_finished(each)], failed)


def search(
  experiment: str | os.PathLike[str],
  out: str | os.PathLike[str] | None = None,
  *,
  trials: int,
  jobs: int | None = None,
  dry_run: bool = False,
  stream: TextIO | None = None,
) -> tuple[_search.Best | None, Outcome]:
  """Searches with Optuna, by `search(trial)` of an experiment.

  A trial is a run in `out/search/NUMBER`, and the study lies beside. Called
  again, trials that had begun go on, and new ones follow until so many have
  finished. One that fails is left out of what the study learns from.

  Args:
    experiment: The file of the experiment.
    out: As for :func:`sweep`.
    trials: Number of finished trials in the end.
    jobs: As for :func:`sweep`.
    dry_run: Whether to check only, on a trial at random.
    stream: As for :func:`sweep`.

  Returns:
    The best trial, None if none has finished, and the outcome of this call.

  Raises:
    ValueError: If anything is refused. Nothing has been written then.
    Stopped: If a signal ended it.
  """
  stream = sys.stderr if stream is None else stream
  found = _experiment.load(experiment)
  if found.search is None:
    raise ValueError(
      f'`experiment` {str(experiment)!r} has no `search(trial)`: write one, or'
      ' leave `search` out.'
    )
  if trials < 1:
    raise ValueError(f'`search` must be at least 1, got {trials}.')
  folder = default_out(found) if out is None else pathlib.Path(out)
  shares = _shares_of(jobs)
  _search.check(found, folder, shares[0].num_devices)
  if dry_run:
    return None, Outcome([], {})
  failed: dict[str, str] = {}
  with _search.opened(found, folder, len(shares)) as opened:
    done = _search.num_finished(opened)
    print(
      f'Search {found.name} in {str(folder)!r}: {done} of {trials} trials have'
      ' finished.',
      file=stream,
      flush=True,
    )
    board = _board.board(
      total=max(trials, done),
      done=done,
      metric=found.metric,
      left=lambda running: None,
      stream=stream,
    )

    def end(ended):
      _search.tell(opened, ended)
      if ended.reason is not None:
        failed[ended.point.name] = ended.reason
      board.events.end(ended)

    events = board.events._replace(end=end)
    waiting = _search.trials(opened, trials, failed)
    try:
      _pool.run(waiting, shares, environment(folder), events)
    finally:
      board.close()
    return _search.best(opened), Outcome(_search.finished(opened), failed)


def default_out(experiment: _experiment.Experiment) -> pathlib.Path:
  """Returns where the runs of an experiment go if nobody says it."""
  return pathlib.Path('runs', experiment.name)


def environment(out: pathlib.Path) -> dict[str, str]:
  """Returns the environment variables of all runs, with a cache of programs."""
  own = {
    'JAX_COMPILATION_CACHE_DIR': str((out / CACHE).absolute()),
    'JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS': '0.1',
    'JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES': '0',
  }
  has_cache = 'JAX_COMPILATION_CACHE_DIR' in os.environ
  return {**os.environ, **({} if has_cache else own)}


_is_finished = _points.is_finished


def _shares_of(jobs):
  return _shares.shares(1 if jobs is None else jobs, os.environ)


def _plan(name, folder, points, todo, shares):
  """Says what will be done, before it is."""
  begun = [point for point in todo if _points.steps_done(point)]
  lines = [
    f'Sweep {name} in {str(folder)!r}: {len(points)} runs,'
    f' {len(points) - len(todo)} finished, {len(begun)} begun. All are valid.'
  ]
  if todo and shares:
    [first, *_] = shares
    own = 'on all cores'
    if first.num_devices:
      own = f'on {first.num_devices} devices each'
    elif first.cores is not None:
      fewest = min(len(each.cores or ()) for each in shares)
      own = f'on {fewest} core{"s" * (fewest > 1)} each'
    lines.append(f'Runs {len(shares)} at a time, {own}.')
  return lines


def _state(point):
  if _is_finished(point):
    return 'finished'
  at = _points.steps_done(point)
  return f'at step {at:,}' if at else 'new'


def _calibrated(point, share, environ, notify):
  """Trains a few steps of a point; returns the speed of its row."""
  notify(f'Trains a few steps of {point.name} to estimate the time.')
  began = time.monotonic()
  argv = ['calibrate', json.dumps(point.config)]
  with tempfile.TemporaryFile('w+') as log:
    with _pool.start(
      argv, share, environ, stdout=subprocess.PIPE, stderr=log
    ) as process:
      try:
        # Not `communicate`, which would end the pipe, and with it the process.
        measured = process.stdout.read()
        status = process.wait()
      finally:
        process.kill()
    if status:
      log.seek(0)
      last = log.read().strip().splitlines()[-1:] or ['']
      notify(f'No estimate: that {_pool.how(status)}: {last[0]}')
      return {}
  seconds = time.monotonic() - began
  speed = _estimate.from_measured(point, json.loads(measured), seconds)
  return {_experiment.row(point.name): speed}


def _left(todo, speeds, jobs):
  """Returns what tells the seconds left, and what takes in what has ended."""
  rest = {
    point.name: _estimate.seconds(point, speeds) if speeds else 0.0
    for point in todo
  }
  took, estimated = 0.0, 0.0

  def left(running):
    if not jobs or not speeds or not rest:
      return None
    # Estimates are corrected by what the first ones took.
    scale = took / estimated if estimated else 1.0
    waiting = {name: scale * seconds for name, seconds in rest.items()}
    own = [
      _seconds_of(each, waiting.pop(each.point.name, 0.0)) for each in running
    ]
    return _estimate.together([*own, *waiting.values()], jobs)

  def over(ended):
    nonlocal took, estimated
    seconds = rest.pop(ended.point.name, None)
    if seconds and ended.seconds and ended.reason is None:
      took, estimated = took + ended.seconds, estimated + seconds

  return left, over


def _seconds_of(running, estimate):
  """Returns how long one that runs still takes, at its pace once it has one."""
  spent = time.monotonic() - running.began
  at, end = _points.steps_done(running.point), running.point.config['num_steps']
  taken = at - running.begun_at
  if taken > 0.1 * end:
    return spent / taken * (end - at)
  return max(0.0, estimate - spent)
