"""Draws runs: a loss against steps, tokens, communicated bytes and time."""

from collections.abc import Sequence
import itertools
import os
import pathlib

import matplotlib
from matplotlib import figure as mpl_figure
from matplotlib.backends import backend_agg
import numpy as np

from dilojax import _curves
from dilojax import _experiment
from dilojax import _panels
from dilojax import _runs
from dilojax import metrics

FORMATS = ('.png', '.svg', '.pdf')


def plot(
  runs: Sequence[str | os.PathLike[str]],
  out: str | os.PathLike[str],
  metric: str = 'eval/anchor/loss',
) -> pathlib.Path:
  """Draws one metric of several runs, against four costs.

  Thick lines with markers are evaluations. A thin line is the training metric
  of the same unit, where there is one. Bytes have a logarithmic axis with a
  place for zero, where runs without communication stay.

  Args:
    runs: Folders of runs, each with a `metrics.jsonl`. The run may be going on.
    out: The picture, a `.png`, `.svg` or `.pdf` in an existing folder. One that
      is there already is replaced.
    metric: Name of the metric in the records.

  Returns:
    The path of the picture.

  Raises:
    ValueError: If a folder holds no run, a run has no such metric, or the
      picture cannot be written.
  """
  out = check_out(out)
  return save(draw(runs, metric), out)


def plot_experiment(
  experiment: str | os.PathLike[str],
  out: str | os.PathLike[str] | None,
  file: str | os.PathLike[str],
) -> pathlib.Path:
  """Draws the metric of an experiment, a line a row, against four costs.

  A line is the mean over the seeds that have the metric so far, at the steps
  that all of them have reached; its band is the standard error.

  Args:
    experiment: A file of `experiments/`, with or without `.py`.
    out: Folder of its sweep, which may be going on; None for the runs kept
      beside the experiment.
    file: The picture, as in :func:`plot`.

  Returns:
    The path of the picture.

  Raises:
    ValueError: If the experiment is malformed or not trained, no run has its
      metric, or the picture cannot be written.
  """
  loaded = _experiment.load(experiment)
  file = check_out(file)
  if not loaded.points:
    raise ValueError(f'{loaded.name!r} has no `sweep()`: nothing to draw.')
  rows: dict[str, list[list[metrics.Record]]] = {}
  if out is None:
    for run in _runs.kept(loaded).runs:
      rows.setdefault(run['row'], []).append(_runs.records(run))
  else:
    folder, kept = _runs.check_out(out), _runs.stand_ins(loaded)
    for name in loaded.points:
      is_kept = name in kept and not (folder / name).exists()
      records = (
        _runs.records(kept[name]) if is_kept else _curves.read(folder / name)
      )
      rows.setdefault(_experiment.row(name), []).append(records)
  curves = _curves.of_rows(rows, loaded.metric)
  if not curves:
    where = 'what is kept' if out is None else repr(str(out))
    raise ValueError(
      f'`out`: no run of {loaded.name!r} in {where} has a course of'
      f' {loaded.metric!r} yet.'
    )
  return save(draw_curves(curves, loaded.metric), file)


def draw(
  runs: Sequence[str | os.PathLike[str]], metric: str = 'eval/anchor/loss'
) -> mpl_figure.Figure:
  """Makes the figure of :func:`plot`, for use in a notebook.

  Args:
    runs: Folders of runs.
    metric: Name of the metric in the records.

  Returns:
    The figure.

  Raises:
    ValueError: If a folder holds no run, or a run has no such metric.
  """
  return draw_curves(_curves.load(runs, metric), metric)


def draw_curves(
  curves: Sequence[_curves.Curve], metric: str
) -> mpl_figure.Figure:
  """Makes a figure of curves.

  Args:
    curves: What is drawn; a band where they have one.
    metric: Name of what they show.

  Returns:
    The figure.
  """
  unit, curves = _with_time_unit(curves)
  with matplotlib.rc_context(_panels.STYLE):
    figure = mpl_figure.Figure(figsize=(_panels.WIDTH, _panels.HEIGHT))
    canvas = backend_agg.FigureCanvasAgg(figure)
    panels = figure.subplots(2, 2, sharey=True)
    for panel, axis in zip(panels.flat, _curves.AXES):
      _panels.draw_panel(panel, axis, curves)
      panel.set_xlabel(_curves.AXES[axis])
    panels[1, 1].set_xlabel(f'{unit} of training')
    _panels.limit_y(panels[0, 0], curves, metric)
    for panel in panels[:, 0]:
      panel.set_ylabel(metric + _panels.UNITS.get(metric.split('/')[-1], ''))
    _panels.explain(figure, curves, metric)
    _panels.fit(figure, canvas, curves)
    for panel, axis in zip(panels.flat, _curves.AXES):
      _panels.thin(panel, canvas)
      _panels.label(panel, axis, curves, canvas)
  return figure


def save(figure: mpl_figure.Figure, out: pathlib.Path) -> pathlib.Path:
  """Writes a figure, whole or not at all: nobody sees half a picture.

  Args:
    figure: The figure.
    out: What :func:`check_out` returned.

  Returns:
    The path of the picture.

  Raises:
    ValueError: If it cannot be written.
  """
  temporary = out.with_name(f'.{out.stem}.partial{out.suffix}')
  date = {'.png': {}, '.svg': {'Date': None}, '.pdf': {'CreationDate': None}}
  try:
    with matplotlib.rc_context(_panels.STYLE):
      figure.savefig(
        temporary,
        dpi=_panels.DOTS_PER_INCH,
        metadata=date[out.suffix.lower()],
      )
    temporary.replace(out)
  except OSError as error:
    temporary.unlink(missing_ok=True)
    raise ValueError(
      f'`out` must be a file that can be written, got {str(out)!r}:'
      f' {error.strerror}.'
    ) from error
  return out


def check_out(out: str | os.PathLike[str]) -> pathlib.Path:
  """Checks that a picture can be written, and returns its path.

  Raises:
    ValueError: If it has no known ending, or no folder, or is read-only.
  """
  out = pathlib.Path(out)
  if out.suffix.lower() not in FORMATS:
    raise ValueError(
      f'`out` must end in one of {", ".join(FORMATS)}, got {str(out)!r}.'
    )
  if out.is_dir():
    raise ValueError(f'`out` must be a file, got the folder {str(out)!r}.')
  if not out.parent.is_dir():
    raise ValueError(
      f'`out` must be in an existing folder, got {str(out)!r}: make'
      f' {str(out.parent)!r} first.'
    )
  if out.exists() and not os.access(out, os.W_OK):
    raise ValueError(
      f'`out` must be a file that can be written, got {str(out)!r}, which is'
      ' read-only.'
    )
  return out


def _with_time_unit(curves):
  """Measures time in a unit that suits the longest run."""
  longest = np.nanmax([*itertools.chain(*(c.x['seconds'] for c in curves)), 0])
  unit, size = next(
    (unit, size)
    for unit, size in (('hours', 3600), ('minutes', 60), ('seconds', 1))
    if longest >= 2 * size or size == 1
  )
  rescale = lambda x: {**x, 'seconds': x['seconds'] / size}
  return unit, [
    curve._replace(x=rescale(curve.x), train_x=rescale(curve.train_x))
    for curve in curves
  ]
