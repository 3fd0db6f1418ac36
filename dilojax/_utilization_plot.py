"""Draws the utilization of methods against the bandwidth between sites."""

from collections.abc import Mapping
import os
import pathlib
from typing import Any

import matplotlib
from matplotlib import figure as mpl_figure
from matplotlib import ticker
from matplotlib.backends import backend_agg
import numpy as np

from dilojax import _panels
from dilojax import plot

HEIGHT = 4.2  # Inches.
# Names are beside the panel, and lead to lines between these utilizations.
HIGHEST, LOWEST = 0.93, 0.07


def save(
  report: Mapping[str, Any], out: str | os.PathLike[str]
) -> pathlib.Path:
  """Draws a report with curves.

  Args:
    report: What :func:`dilojax.simulate.utilization_report` returns.
    out: The picture, a `.png`, `.svg` or `.pdf`.

  Returns:
    Its path.

  Raises:
    ValueError: If it cannot be written.
  """
  return plot.save(draw(report), plot.check_out(out))


def draw(report: Mapping[str, Any]) -> mpl_figure.Figure:
  """Makes the figure.

  Args:
    report: What :func:`dilojax.simulate.utilization_report` returns.

  Returns:
    The figure.
  """
  methods = report['methods']
  curves = [
    np.array([[p['gbit_per_s'], p['utilization']] for p in method['curve']]).T
    for method in methods
  ]
  with matplotlib.rc_context(_panels.STYLE):
    height = max(HEIGHT, 0.9 + len(methods) * _panels.LINE / 72)
    figure = mpl_figure.Figure(figsize=(_panels.WIDTH, height))
    canvas = backend_agg.FigureCanvasAgg(figure)
    panel = figure.subplots()
    for number, (x, y) in enumerate(curves):
      panel.plot(x, y, color=_panels.look(number)[0], lw=1.8)
    panel.set_xscale('log')
    panel.set_xlim(*report['grid_gbit_per_s'])
    panel.set_ylim(0, 1.01)  # All of a line at 100%.
    panel.xaxis.set_major_formatter(ticker.FuncFormatter(lambda x, _: f'{x:g}'))
    panel.xaxis.set_minor_locator(ticker.NullLocator())
    panel.yaxis.set_major_formatter(ticker.PercentFormatter(1, decimals=0))
    panel.set_xlabel('Gbit/s between sites')
    panel.set_ylabel('time that is computation')
    names = [method['name'] for method in methods]
    _fit(figure, canvas, names, height)
    _label(panel, curves, names)
  return figure


def _fit(figure, canvas, names, height):
  """Makes room for the longest name."""
  renderer = canvas.get_renderer()
  texts = [figure.text(0, 0, name, size=_panels.LABEL_SIZE) for name in names]
  widest = max(text.get_window_extent(renderer).width for text in texts)
  for text in texts:
    text.remove()
  room = widest / figure.dpi + 0.3
  width = max(_panels.WIDTH, 4.5 + room)
  figure.set_size_inches(width, height)
  figure.subplots_adjust(
    left=0.75 / width,
    right=1 - room / width,
    bottom=0.6 / height,
    top=1 - 0.2 / height,
  )


def _label(panel, curves, names):
  """Writes names beside the panel, each level with a point of its line.

  At the right end all lines meet: a name leads to where its line is as high as
  the name, or as high as it gets. What needs least bandwidth comes first.
  """
  need = [np.interp(0.5, y, np.log(x)) for x, y in curves]
  order = sorted(range(len(names)), key=lambda number: need[number])
  levels = np.linspace(HIGHEST, LOWEST, len(names)) if names[1:] else [0.5]
  for level, number in zip(levels, order):
    x, y = curves[number]
    color, marker = _panels.look(number)
    height = np.clip(level, y.min(), y.max())
    point = np.exp(np.interp(height, y, np.log(x))), height
    panel.plot(*point, color=color, marker=marker, ms=5, mec='white', mew=0.7)
    _panels.write_beside(
      panel, names[number], point, (1.02, level / 1.01), color
    )
