"""How long a sweep will take: from a few steps, or from what has run."""

from collections.abc import Mapping, Sequence
import math
import statistics
import time
from typing import Any, NamedTuple

import jax

from dilojax import _clock
from dilojax import _experiment
from dilojax import _points
from dilojax import _position
from dilojax import _virtual
from dilojax import _workers
from dilojax import build
from dilojax import train

# Of the steps that are timed, once the first have been compiled.
SECONDS = 3.0


class Speed(NamedTuple):
  """How fast the points of a row run.

  Attributes:
    startup: Seconds before and beside the steps: imports, corpus, compilation.
    rate: Floating-point operations per second, evaluations included.
  """

  startup: float
  rate: float


def measure(config: Mapping[str, Any]) -> dict[str, float]:
  """Trains a few steps of a run, and keeps nothing.

  Args:
    config: The config of the run.

  Returns:
    Seconds of a `step`, of an `evaluation`, and of `all` of that beyond the
    first segment: what is left of a process is its start.
  """
  jax.config.update('jax_num_cpu_devices', build.num_cpu_devices(config))
  if _workers.is_asynchronous(config):
    return _virtual.measure(_clock.make(config), SECONDS)
  setup = build.make(config)
  programs = train.make_programs(setup)
  logs = train.log_steps(setup, programs.links)
  begin = position = _position.start(setup, programs.axes)
  marks = []
  is_over = lambda: bool(marks) and time.monotonic() - marks[0][1] > SECONDS
  for position, _ in train.advance(
    setup,
    programs,
    begin,
    setup.num_steps,
    is_cut=logs,
    is_stop=logs,
    is_cancelled=is_over,
  ):
    marks.append((position.step, time.monotonic()))
  # The median, since a segment of another pattern compiles its own program.
  steps = [
    (end - begin) / (last - first)
    for (first, begin), (last, end) in zip(marks, marks[1:])
  ]
  spent = marks[-1][1] - marks[0][1]
  programs.evaluate(position)
  began = time.monotonic()
  programs.evaluate(position)
  evaluation = time.monotonic() - began
  step = statistics.median(steps) if steps else 0.0
  return {'step': step, 'evaluation': evaluation, 'all': spent + evaluation}


def from_measured(
  point: _points.Point, measured: Mapping[str, float], seconds: float
) -> Speed:
  """Returns the speed of a point of which a few steps took some seconds."""
  config = point.config
  evaluations = math.ceil(config['num_steps'] / config['eval_every'])
  training = config['num_steps'] * measured['step']
  training += evaluations * measured['evaluation']
  startup = max(0.0, seconds - measured['all'])
  return Speed(startup, point.work / max(training, 1e-9))


def from_finished(points: Sequence[_points.Point]) -> dict[str, Speed]:
  """Returns the speeds of the rows that have finished runs."""
  found: dict[str, list[Speed]] = {}
  for point in points:
    summary = _points.result(point)
    if summary is None:
      continue
    timing = summary['timing']
    before = timing.get('state', 0.0)
    first = max(0.0, timing.get('first_segment', before) - before)
    training = max(summary['seconds'] - first, 1e-9)
    speed = Speed(before + first, point.work / training)
    found.setdefault(_experiment.row(point.name), []).append(speed)
  return {
    row: Speed(
      statistics.fmean(each.startup for each in speeds),
      statistics.harmonic_mean([each.rate for each in speeds]),
    )
    for row, speeds in found.items()
  }


def seconds(point: _points.Point, speeds: Mapping[str, Speed]) -> float:
  """Returns about how long a point takes from where it is.

  Args:
    point: The point.
    speeds: By row; a row without one takes the mean of the others.
  """
  if _points.is_finished(point):
    return 0.0
  known = list(speeds.values())
  mean = Speed(
    statistics.fmean(each.startup for each in known),
    statistics.harmonic_mean([each.rate for each in known]),
  )
  speed = speeds.get(_experiment.row(point.name), mean)
  left = 1 - _points.steps_done(point) / point.config['num_steps']
  return speed.startup + left * point.work / speed.rate


def together(durations: Sequence[float], jobs: int) -> float:
  """Returns how long runs take, each started once another has ended.

  Examples:
    >>> together([3.0, 2.0, 2.0], jobs=2)
    4.0
  """
  ends = [0.0] * jobs
  for duration in durations:
    first = ends.index(min(ends))
    ends[first] += duration
  return max(ends)
