"""What is kept of the runs of an experiment, and where it is read from.

A kept run is a dict of its row and seed, its final metrics, bytes, tokens and
seconds, its config, and what it ran on; a few hundred bytes once what it has
in common with the others is written once. Such files stay under version
control, so that tables are computed anywhere.
"""

from collections.abc import Mapping, Sequence
import json
import os
import pathlib
from typing import Any, NamedTuple

from dilojax import _curves
from dilojax import _experiment
from dilojax import _fields
from dilojax import _overrides
from dilojax import metrics
from dilojax import workdir

Run = dict[str, Any]

# Neither host names nor paths.
ENVIRONMENT = (
  'python',
  'packages',
  'machine',
  'system',
  'processor',
  'cpus',
  'cores',
  'platform',
  'device_kind',
  'num_devices',
  'num_processes',
  'commit',
  'clean',
  'functions',
)


class Found(NamedTuple):
  """Runs, and what is amiss with their folder.

  Attributes:
    runs: The finished ones.
    missing: Names of points that have no finished run.
    others: Names of folders with a run that is no point.
    stood_in: Names of points whose run is a kept one, though a folder was read.
  """

  runs: list[Run]
  missing: tuple[str, ...]
  others: tuple[str, ...] = ()
  stood_in: tuple[str, ...] = ()


def swept(
  experiment: _experiment.Experiment, out: str | os.PathLike[str]
) -> Found:
  """Reads the runs of a sweep.

  Where the folder has no finished run of a point, one that is kept beside the
  experiment stands in, if it is of the same config.

  Args:
    experiment: The experiment.
    out: Folder of its sweep, with a folder `row/seed` for each point.

  Returns:
    What there is.

  Raises:
    ValueError: If there is no finished run, or one of another config.
  """
  points, out = _points(experiment), check_out(out)
  runs: dict[str, Run] = {}
  for name in points:
    if _is_finished(out / name):
      row, seed = _experiment.row(name), _experiment.seed(name)
      condensed = condense(out / name, experiment.metric)
      runs[name] = _in_order({'row': row, 'seed': seed, **condensed})
  held = {
    path.parent.relative_to(out).as_posix()
    for path in out.glob(f'*/*/{workdir.SUMMARY}')
    if path.parts[-3] != _experiment.SEARCH
  }
  if not runs:
    shown = ', '.join([*points][:5]) + ', ...' * (len(points) > 5)
    raise ValueError(
      f'`out` {str(out)!r} holds no finished run of {experiment.name!r}, whose'
      f' points are {shown}. Run its sweep first.'
    )
  check([*runs.values()], points)
  both = {**stand_ins(experiment), **runs}
  found = [both[name] for name in points if name in both]
  check(found, points)
  return Found(
    runs=found,
    missing=tuple(name for name in points if name not in both),
    others=tuple(sorted(held - points.keys())),
    stood_in=tuple(
      name for name in points if name in both and name not in runs
    ),
  )


def stand_ins(experiment: _experiment.Experiment) -> dict[str, Run]:
  """Returns kept runs, by name, whose config is that of their point today."""
  kept = _kept(experiment)
  if not kept or experiment.get_config is None:
    return {}
  config = _overrides.config_of(
    experiment.get_config, experiment.path, 'experiment'
  )
  points = experiment.points
  return {
    name: run
    for name, run in kept.items()
    if name in points
    and _plain(run['config'])
    == _plain(_overrides.override(config, points[name]).to_dict())
  }


def kept(experiment: _experiment.Experiment) -> Found:
  """Reads the runs that are kept beside an experiment.

  Args:
    experiment: The experiment.

  Returns:
    What there is.

  Raises:
    ValueError: If there is nothing, or it cannot be read, or holds runs of
      another config.
  """
  points = _points(experiment)
  path = experiment.kept
  if not path.is_file():
    raise ValueError(
      f'`out` is missing: no runs are kept in {str(path)!r}. Name the folder of'
      ' the sweep with --out.'
    )
  by_name = _kept(experiment)
  runs = [by_name[name] for name in points if name in by_name]
  if not runs:
    raise ValueError(
      f'{str(path)!r} holds no run of {experiment.name!r}, but'
      f' {", ".join(by_name)}.'
    )
  check(runs, points)
  missing = tuple(name for name in points if name not in by_name)
  return Found(runs, missing, tuple(sorted(by_name.keys() - points.keys())))


def check_out(out: str | os.PathLike[str]) -> pathlib.Path:
  """Checks that a folder of a sweep is there, and returns its path.

  Raises:
    ValueError: If it is not.
  """
  path = pathlib.Path(out)
  if not path.is_dir():
    raise ValueError(
      f'`out` must be the folder of a sweep, got {str(out)!r}, which is'
      f' {"a file" if path.exists() else "not there"}.'
    )
  return path


def condense(folder: pathlib.Path, metric: str) -> Run:
  """Returns what is kept of a finished run.

  Args:
    folder: Folder of the run.
    metric: Name of the metric whose course is kept.
  """
  load = lambda name: workdir.read_json(folder / name)
  summary, environment = load(workdir.SUMMARY), load(workdir.ENVIRONMENT)
  facts = ('num_params', 'corpus', 'placement', 'timing')
  return {
    'final': summary['final'],
    'replicas': summary['replicas'],
    'seconds': summary['seconds'],
    **{name: summary[name] for name in facts if name in summary},
    'config': load(workdir.CONFIG),
    'environment': {
      name: environment[name] for name in ENVIRONMENT if name in environment
    },
    'course': _course(folder / workdir.METRICS, metric),
  }


def records(run: Run) -> list[metrics.Record]:
  """Returns the evaluations that are kept of a run, as records."""
  course = run.get('course', {})
  columns = [[(name, value) for value in course[name]] for name in course]
  return [dict(cells) for cells in zip(*columns)]


def check(runs: Sequence[Run], points: Mapping[str, Mapping[str, Any]]) -> None:
  """Checks that runs are those of the points.

  Raises:
    ValueError: If a run has another config than its point, or than the runs of
      the same row.
  """
  first: dict[str, dict[str, Any]] = {}
  for run in runs:
    name = _name(run)
    for field, (got, want) in _mismatch(run, points[name]).items():
      text = lambda fields: json.dumps(fields) if fields else 'none'
      raise ValueError(
        f'The run {name!r} is of another version of this experiment, which'
        f' asks for `{field}`: {text(want)}, and the run has {text(got)}.'
        ' Run the sweep in another folder.'
      )
    config = {k: v for k, v in _plain(run['config']).items() if k != 'seed'}
    known = first.setdefault(run['row'], config)
    for field in sorted(config.keys() | known.keys()):
      if config.get(field) != known.get(field):
        raise ValueError(
          f'The runs of the row {run["row"]!r} differ in `{field}`:'
          f' {known.get(field)!r} and {config.get(field)!r}. They must be'
          ' equal in all but the seed: run the sweep in another folder.'
        )


def write(path: pathlib.Path, runs: Sequence[Run]) -> None:
  """Writes kept runs: what all have in common once, then a run a line.

  Args:
    path: The file; one that is there is replaced.
    runs: The runs.
  """
  common = runs[0]
  for run in runs[1:]:
    common = _common(common, run)
  lines = [json.dumps(_without(run, common)) for run in runs]
  shared = json.dumps(common, indent=1).replace('\n', '\n ')
  text = ',\n  '.join(lines)
  temporary = path.with_name(f'.{path.name}.new')
  temporary.write_text(
    f'{{\n "common": {shared},\n "runs": [\n  {text}\n ]\n}}\n'
  )
  temporary.replace(path)


def read(path: pathlib.Path) -> list[Run]:
  """Reads what :func:`write` wrote.

  Raises:
    ValueError: If it is missing, damaged, or something else.
  """
  held = workdir.read_json(path)
  try:
    return [_in_order(_with(held['common'], run)) for run in held['runs']]
  except (AttributeError, KeyError, TypeError) as error:
    raise ValueError(
      f'{str(path)!r} must hold kept runs, got something else:'
      f' {type(error).__name__} {error}.'
    ) from None


def _points(experiment):
  if not experiment.points:
    raise ValueError(
      f'{experiment.name!r} has no `sweep()`: nothing to compare.'
    )
  return experiment.points


def _kept(experiment):
  """Returns the runs that are kept beside an experiment, by name."""
  path = experiment.kept
  return {_name(run): run for run in read(path)} if path.is_file() else {}


def _plain(config):
  """Returns the fields of a config, as JSON has them, without its placement."""
  return {
    name: value
    for name, value in _flat(config).items()
    if not _is_placement(name)
  }


def _name(run):
  return f'{run["row"]}/{run["seed"]}'


def _mismatch(run, overrides):
  """Returns per field of a point what its run has, and what it should have."""
  config = _fields.flatten(run['config'])
  found = {}
  for field, value in _flat(overrides).items():
    got = {
      key: config[key]
      for key in config
      if key == field or key.startswith(f'{field}.')
    }
    want = {} if value is None else {field: value}
    if got != want and not _is_placement(field):
      found[field] = got, want
  return found


def _is_finished(folder):
  if not (folder / workdir.SUMMARY).is_file():
    return False
  summary = workdir.read_json(folder / workdir.SUMMARY)
  config = workdir.read_json(folder / workdir.CONFIG)
  try:
    # A run that has been made longer, and goes on, has an old summary.
    return summary['steps'] == config['num_steps']
  except (KeyError, TypeError) as error:
    raise ValueError(
      f'{str(folder)!r} must hold the config and summary of a run, got'
      f' something else: {type(error).__name__} {error}.'
    ) from None


def _course(path, metric):
  found = [record for record in metrics.read(path) if metric in record]
  course = {
    name: [record.get(name) for record in found]
    for name in (*_curves.AXES, metric)
  }
  # Nobody reads a millisecond of hours.
  course['seconds'] = [
    None if each is None else round(each, 1) for each in course['seconds']
  ]
  return course


def _flat(overrides):
  """Flattens overrides, whose groups may be dicts, to values as JSON has."""
  # Dicts of dotted names and dicts of dicts alike.
  return _fields.flatten(json.loads(json.dumps(overrides)))


def _is_placement(field):
  return field.partition('.')[0] == workdir.PLACEMENT


def _in_order(run):
  """Orders keys, so that what is kept reads as what it was kept from."""
  return json.loads(json.dumps(run, sort_keys=True))


def _common(first, second):
  """Returns what two dicts have in common, at any depth."""
  both = {}
  for key, value in first.items():
    if key not in second:
      continue
    other = second[key]
    if isinstance(value, dict) and isinstance(other, dict):
      both[key] = _common(value, other)
    elif value == other and type(value) is type(other):
      both[key] = value
  return both


def _without(run, common):
  """Returns what of a dict is not in common."""
  rest = {}
  for key, value in run.items():
    if key not in common:
      rest[key] = value
    elif isinstance(value, dict):
      if below := _without(value, common[key]):
        rest[key] = below
  return rest


def _with(common, rest):
  """Returns the dict of which `rest` is not in common."""
  whole = dict(common)
  for key, value in rest.items():
    both = isinstance(value, dict) and isinstance(common.get(key), dict)
    whole[key] = _with(common[key], value) if both else value
  return whole
