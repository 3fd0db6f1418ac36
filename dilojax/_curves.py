"""What the folders of runs have to show in a picture."""

from collections.abc import Mapping, Sequence
import difflib
import itertools
import math
import os
import pathlib
from typing import NamedTuple

import numpy as np

from dilojax import metrics

# The costs that every record states, and what they are.
AXES = {
  'step': 'inner steps',
  'tokens': 'tokens, over all replicas',
  'bytes_sent': 'bytes sent by a replica',
  'seconds': 'seconds of training',
}
MAX_LABEL = 24  # Characters.


class Curve(NamedTuple):
  """What one run has to show.

  Attributes:
    label: Name of the run, unique in the picture.
    x: Positions of the evaluations, one array for each of `AXES`.
    y: The metric there.
    train_x: Positions of the records of training.
    train_y: The training metric there; empty where the run has none.
    error: Standard error of `y` over seeds; None if it is of one run.
  """

  label: str
  x: dict[str, np.ndarray]
  y: np.ndarray
  train_x: dict[str, np.ndarray]
  train_y: np.ndarray
  error: np.ndarray | None = None


def load(
  runs: Sequence[str | os.PathLike[str]], metric: str
) -> tuple[Curve, ...]:
  """Reads the curves of runs.

  Args:
    runs: Folders of runs.
    metric: Name of the metric in the records.

  Returns:
    A curve for each run.

  Raises:
    ValueError: If a folder holds no run, or a run has no such metric.
  """
  if isinstance(runs, str | os.PathLike) or not runs:
    raise ValueError(f'`runs` must name at least one run folder, got {runs!r}.')
  folders = [pathlib.Path(run) for run in runs]
  records = [_read_run(folder) for folder in folders]
  train = f'train/{metric.split("/")[-1]}'
  curves = []
  for folder, label, of_run in zip(folders, _labels(folders), records):
    x, y = _select(of_run, metric, folder)
    if not np.isfinite(y).any():
      raise ValueError(_no_metric(of_run, metric, folder))
    train_x, train_y = _select(of_run, train if train != metric else '', folder)
    curves.append(Curve(label, x, y, train_x, train_y))
  return tuple(curves)


def of_rows(
  rows: Mapping[str, Sequence[Sequence[metrics.Record]]], metric: str
) -> tuple[Curve, ...]:
  """Returns the mean course of the runs of each row.

  Args:
    rows: Per name of a row the records of its runs.
    metric: Name of the metric in the records.

  Returns:
    A curve for each row, at the steps that all its runs have; none for a row
    without any. Runs without the metric are left out.

  Raises:
    ValueError: If a record with the metric lacks a cost.
  """
  found = {row: _mean(row, seeds, metric) for row, seeds in rows.items()}
  curves = [curve for curve in found.values() if curve is not None]
  short = [_shorten(curve.label) for curve in curves]
  if len(set(short)) < len(short):
    return tuple(curves)
  return tuple(
    curve._replace(label=label) for curve, label in zip(curves, short)
  )


def read(folder: pathlib.Path) -> list[metrics.Record]:
  """Returns the records of a run so far, none if it has not begun."""
  path = folder / 'metrics.jsonl'
  return metrics.read(path) if path.is_file() else []


def _read_run(folder):
  path = folder / 'metrics.jsonl'
  if not folder.is_dir():
    raise ValueError(
      f'`runs` must be folders of runs, got {str(folder)!r}, which is'
      f' {"a file" if folder.exists() else "not there"}.'
    )
  if not path.is_file():
    raise ValueError(
      f'`runs` must be folders of runs, got {str(folder)!r} without a'
      f' {path.name}.'
    )
  return metrics.read(path)


def _mean(row, seeds, metric):
  """Returns the mean of the runs of a row, None without any."""
  selected = [_select(records, metric, row) for records in seeds]
  selected = [(x, y) for x, y in selected if np.isfinite(y).any()]
  if not selected:
    return None
  # A step of zero has no place on a logarithmic axis, and is NaN.
  held = [set(x['step'][np.isfinite(x['step'])]) for x, _ in selected]
  steps = sorted(set.intersection(*held))
  if not steps:
    return None
  places = [
    [list(x['step']).index(step) for step in steps] for x, _ in selected
  ]
  x = {
    axis: np.mean([x[axis][at] for (x, _), at in zip(selected, places)], axis=0)
    for axis in AXES
  }
  y = np.stack([y[at] for (_, y), at in zip(selected, places)])
  n, none = len(selected), np.array([])
  error = y.std(axis=0, ddof=1) / math.sqrt(n) if n > 1 else None
  no_train = dict.fromkeys(AXES, none)
  return Curve(row, x, y.mean(axis=0), no_train, none, error)


def _labels(folders):
  """Names runs by the ends of their paths, as long as it takes to differ."""
  parts = [folder.resolve().parts for folder in folders]
  for first, second in itertools.combinations(range(len(parts)), 2):
    if parts[first] == parts[second]:
      raise ValueError(
        f'`runs` must be different folders, got {str(folders[second])!r} twice.'
      )
  names = []
  for mine in parts:
    length = 1
    same = lambda other: other[-length:] == mine[-length:]  # noqa: B023
    while sum(map(same, parts)) > 1:
      length += 1
    names.append('/'.join(mine[-length:]))
  short = [_shorten(name) for name in names]
  return short if len(set(short)) == len(short) else names


def _shorten(name):
  if len(name) <= MAX_LABEL:
    return name
  half = (MAX_LABEL - 1) // 2
  return f'{name[:half]}…{name[-half:]}'


def _select(records, name, folder):
  """Returns costs and values of the records that have a metric."""
  chosen = [
    record for record in records if isinstance(record.get(name), int | float)
  ]
  for record, axis in itertools.product(chosen, AXES):
    if not isinstance(record.get(axis), int | float):
      raise ValueError(
        f'A record of {name!r} at step {record["step"]} in {str(folder)!r}'
        f' lacks {axis!r}: all of {", ".join(AXES)} are needed.'
      )
  values = lambda key: np.array([float(record[key]) for record in chosen])
  x, y = {axis: values(axis) for axis in AXES}, values(name)
  # A line breaks at NaN, on any axis.
  y = np.where(np.isfinite(y), y, np.nan)
  # What has no place on a logarithmic axis. Only a run that never sends is
  # shown at zero bytes: it would be nowhere else.
  sends = any(record.get('bytes_sent') for record in records)
  for axis in AXES:
    if axis != 'bytes_sent' or sends:
      x[axis] = np.where(x[axis] > 0, x[axis], np.nan)
  return x, y


def _no_metric(records, metric, folder):
  if any(metric in record for record in records):
    return f'`metric` {metric!r} of {str(folder)!r} has no finite value.'
  names = sorted({name for record in records for name in record} - set(AXES))
  if not names:
    return f'`metric` {metric!r}: {str(folder)!r} has no metrics yet.'
  near = difflib.get_close_matches(metric, names, n=3, cutoff=0.5)
  return (
    f'`metric` must be one that every run has, got {metric!r}, which'
    f' {str(folder)!r} lacks'
    + (f' (did you mean {" or ".join(near)}?)' if near else '')
    + f': it has {", ".join(names)}.'
  )
