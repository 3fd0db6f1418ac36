"""The points of an experiment as runs: configs, folders, checks of them all."""

from collections.abc import Iterable, Mapping, Sequence
import contextlib
import json
import pathlib
from typing import Any, NamedTuple

import jax

from dilojax import _engines
from dilojax import _experiment
from dilojax import _overrides
from dilojax import build
from dilojax import workdir

_TAIL = 2**16


class Point(NamedTuple):
  """A run of a sweep.

  Attributes:
    name: `row/seed`.
    folder: The folder of the run.
    config: Its config, as plain JSON values.
    work: About how many floating-point operations it takes.
  """

  name: str
  folder: pathlib.Path
  config: dict[str, Any]
  work: float


def configured(
  experiment: _experiment.Experiment,
  out: pathlib.Path,
  points: Mapping[str, Mapping[str, Any]],
) -> list[Point]:
  """Makes the points of a sweep, and checks their configs and folders.

  Args:
    experiment: The experiment.
    out: Where the folders of the runs go.
    points: Overrides by the name of a point.

  Returns:
    The points, whose work is not known yet.

  Raises:
    ValueError: If any point is refused, in one message about all of them.
  """
  if experiment.get_config is None:
    raise ValueError(
      f'`experiment` {str(experiment.path)!r} trains nothing: its table is'
      f' computed, by `dilojax table {experiment.path}`.'
    )
  base = _overrides.config_of(
    experiment.get_config, experiment.path, 'experiment'
  )
  wrong: dict[str, list[str]] = {}
  configs: dict[str, dict] = {}
  for name, overrides in points.items():
    with _noted(wrong, name):
      config = _overrides.override(base, overrides)
      build.check(config)
      configs[name] = build.resolve(config)
      _check_seed(name, config.seed)
  _raise(wrong)
  _check_different(configs)
  for name, config in configs.items():
    with _noted(wrong, name):
      check_folder(out / name, config)
  _raise(wrong)
  return [
    Point(name, out / name, config, 0.0) for name, config in configs.items()
  ]


def built(points: Sequence[Point], num_devices: int = 0) -> list[Point]:
  """Builds a run of each row, as far as no device is needed.

  Args:
    points: The points.
    num_devices: Number of accelerators that a run gets, 0 for none.

  Returns:
    The points with their work.

  Raises:
    ValueError: If any point is refused, in one message about all of them.
  """
  wrong: dict[str, list[str]] = {}
  placed = {}
  for point in points:
    with _noted(wrong, point.name):
      placed[point.name] = _with_devices(point.config, num_devices)
  _raise(wrong)
  # Once devices are in use, as in a notebook, their number stands. A process
  # that only starts others must not take the memory of an accelerator.
  with contextlib.suppress(RuntimeError):
    count = max(map(build.num_cpu_devices, placed.values()))
    jax.config.update('jax_num_cpu_devices', count)
    jax.config.update('jax_platforms', 'cpu')
  datasets: dict[str, Any] = {}
  work: dict[str, float] = {}
  # Points that differ in nothing but the seed are refused for the same reason.
  alike = lambda name: json.dumps({**placed[name], 'seed': 0}, sort_keys=True)
  for name, config in placed.items():
    if alike(name) not in work:
      work[alike(name)] = 0.0
      with _noted(wrong, name):
        work[alike(name)] = _work(config, datasets)
  _raise(wrong)
  return [point._replace(work=work[alike(point.name)]) for point in points]


def chosen(points: Sequence[Point], only: Iterable[str]) -> list[Point]:
  """Returns the points of some rows, or some of the points; else all.

  Raises:
    ValueError: If there is no such row or point.
  """
  only = list(only)
  for name in only:
    names = [point.name for point in points]
    rows = list(dict.fromkeys(map(_experiment.row, names)))
    known = names if '/' in name else rows
    if name not in known:
      hint = _experiment.near(name, known)
      raise ValueError(f'`only`: {name!r} is no row of the sweep.{hint}')
  is_chosen = lambda name: (
    not only or name in only or _experiment.row(name) in only
  )
  return [point for point in points if is_chosen(point.name)]


def is_finished(point: Point) -> bool:
  """Tells whether the folder of a point has its result."""
  return result(point) is not None


def result(point: Point) -> dict[str, Any] | None:
  """Returns the summary of a point, None if it has not finished."""
  path = point.folder / workdir.SUMMARY
  if not path.exists():
    return None
  summary = workdir.read_json(path)
  is_whole = summary.get('steps') == point.config['num_steps']
  return summary if is_whole else None


def steps_done(point: Point) -> int:
  """Returns the last step that the records of a point tell of."""
  path = point.folder / workdir.METRICS
  try:
    with path.open('rb') as file:
      file.seek(max(0, path.stat().st_size - _TAIL))
      lines = file.read().split(b'\n')[:-1]  # The last may not be complete.
    return int(json.loads(lines[-1])['step']) if lines else 0
  except (OSError, ValueError, KeyError, TypeError):
    return 0


def check_folder(folder: pathlib.Path, config: Mapping[str, Any]) -> None:
  """Checks that a folder is that of a config, or new.

  Raises:
    ValueError: If it is not.
  """
  try:
    workdir.check(folder, config)
  except ValueError as error:
    text, _, _ = str(error).partition(' Choose another folder')
    raise ValueError(
      f'{text} Choose another `out`, or move that folder away.'
    ) from error


@contextlib.contextmanager
def _noted(wrong, name):
  try:
    yield
  except ValueError as error:
    wrong.setdefault(str(error), []).append(name)


def _raise(wrong):
  if not wrong:
    return
  lines = []
  for text, names in wrong.items():
    rest = f' and {len(names) - 1} more' if len(names) > 1 else ''
    lines.append(f'point {names[0]!r}{rest}: {text}')
  raise ValueError('\n  '.join(lines))


def _check_seed(name, seed):
  if name.partition('/')[0] == _experiment.SEARCH:
    return
  wanted = _experiment.seed(name)
  if seed != wanted:
    raise ValueError(
      f'`seed` must be that of the name, {wanted}, got {seed}: yield'
      f" {{'seed': {wanted}, ...}}."
    )


def _check_different(configs):
  seen: dict[str, str] = {}
  for name, config in configs.items():
    if name.partition('/')[0] == _experiment.SEARCH:
      continue
    rest = {k: v for k, v in config.items() if k != workdir.PLACEMENT}
    other = seen.setdefault(json.dumps(rest, sort_keys=True), name)
    if other != name:
      raise ValueError(
        f'point {name!r} has the config of {other!r}: a run twice says nothing'
        ' new. Remove one, or override a field.'
      )


def _work(config, datasets):
  """Builds a run; returns about how many operations it takes."""
  data = {k: v for k, v in config['data'].items() if k != 'batch_size'}
  key = json.dumps(data, sort_keys=True)
  if key not in datasets:
    datasets[key] = build.make_dataset(config)
  engine = _engines.of(config)
  setup = engine.make(config, dataset=datasets[key])
  sequences = setup.batch_size * engine.num_streams(setup)
  return float(setup.num_steps * sequences * setup.model.flops)


def _with_devices(config, num_devices):
  """Returns a config for as many devices as a run will have."""
  mesh = config['mesh']
  if num_devices and mesh['num_devices'] > num_devices:
    raise ValueError(
      f'`mesh.num_devices` must be at most {num_devices}, what is left to each'
      f' run, got {mesh["num_devices"]}: lower `jobs`.'
    )
  wanted = mesh['num_devices'] or num_devices
  return {**config, 'mesh': {**mesh, 'num_devices': wanted}}
