"""Reports of experiments as one file that needs no network."""

from collections.abc import Sequence
import html
import io
import json
import re

import matplotlib
from matplotlib import figure as mpl_figure
import numpy as np

from dilojax import _cells
from dilojax import _comparison
from dilojax import _curves
from dilojax import _panels
from dilojax import _provenance
from dilojax import _runs
from dilojax import _tables
from dilojax import _verdicts
from dilojax import exact
from dilojax import plot

_CSS = """
body { font: 15px/1.5 system-ui, sans-serif; color: #222; max-width: 76rem;
  margin: 2rem auto; padding: 0 1rem; }
h1 { font-size: 1.5rem; } h2 { font-size: 1.15rem; margin-top: 2rem; }
pre { white-space: pre-wrap; font-size: 0.85rem; background: #f6f6f6;
  padding: 0.8rem; }
.wide { overflow-x: auto; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; }
th, td { text-align: left; padding: 0.25rem 0.7rem 0.25rem 0;
  border-bottom: 1px solid #ddd; white-space: nowrap; }
th { vertical-align: bottom; white-space: normal; }
td.differs { background: #fdeee0; }
ul { padding-left: 1.2rem; }
.verdict { font-weight: 600; } .holds { color: #00694b; }
.fails { color: #a33c00; } .undecided { color: #555; }
svg { max-width: 100%; height: auto; }
"""
_CLASSES = {
  _verdicts.HOLDS: 'holds',
  _verdicts.FAILS: 'fails',
  _verdicts.UNDECIDED: 'undecided',
}


def compared(table: _comparison.Comparison) -> str:
  """Returns the report of an experiment that was trained.

  Args:
    table: Its rows and verdicts.

  Returns:
    A page with the table, verdicts, plots, and where all comes from.
  """
  parts = [
    *_question(table.docstring),
    '<h2>Rows</h2>',
    _grid(_tables.header(table), _tables.lines(table)),
    *(f'<p>{html.escape(note)}</p>' for note in _tables.notes(table)),
  ]
  if table.verdicts:
    parts += [
      f'<h2>Expected, at {100 * table.confidence:g}% confidence</h2>',
      '<p>One-sided paired t-tests over seeds.</p>',
      f'<ul>{"".join(map(_verdict, table.verdicts))}</ul>',
    ]
  parts += ['<h2>Final values</h2>', svg(_dots(table))]
  seeds: dict[str, list[list[dict]]] = {}
  for run in table.runs:
    seeds.setdefault(run['row'], []).append(_runs.records(run))
  curves = _curves.of_rows(seeds, table.metric)
  parts.append('<h2>Courses</h2>')
  if curves:
    parts.append(svg(plot.draw_curves(curves, table.metric)))
  else:
    parts.append('<p>None were kept.</p>')
  return _page(table.name, [*parts, *_sources(table.runs)])


def computed(name: str, docstring: str, cells: Sequence[exact.Cell]) -> str:
  """Returns the report of an experiment that was computed.

  Args:
    name: Its name.
    docstring: Its docstring.
    cells: What it computed.

  Returns:
    A page with the table; the paper's value stands behind ours where they
    differ.
  """
  rows = list(dict.fromkeys(cell.row for cell in cells))
  columns = list(dict.fromkeys(cell.column for cell in cells))
  by_place = {(cell.row, cell.column): cell for cell in cells}
  lines = [
    [row, *(_computed_cell(by_place.get((row, column))) for column in columns)]
    for row in rows
  ]
  differs = {
    (rows.index(cell.row), 1 + columns.index(cell.column))
    for cell in cells
    if exact.agrees(cell) is False
  }
  same, total = exact.count(cells)
  parts = [
    *_question(docstring),
    '<h2>Cells</h2>',
    _grid(('', *columns), lines, differs),
    f'<p>{same} of {total} cells agree with the paper; its value stands in'
    ' brackets where they differ.</p>',
  ]
  return _page(name, parts)


def svg(figure: mpl_figure.Figure) -> str:
  """Returns a figure as an element of a page.

  Args:
    figure: The figure.

  Returns:
    An `<svg>` without declarations and metadata, which name other places.
  """
  out = io.StringIO()
  # Ids inside it are hashes of what they name, so that figures share a page.
  with matplotlib.rc_context({**_panels.STYLE, 'svg.fonttype': 'path'}):
    figure.savefig(out, format='svg', metadata={'Date': None})
  text = out.getvalue()
  text = re.sub(r'<metadata>.*?</metadata>', '', text, flags=re.DOTALL)
  return text[text.index('<svg') :]


def _page(name, parts):
  title = html.escape(name)
  return '\n'.join(
    [
      '<!doctype html>',
      '<html lang="en">',
      '<head>',
      '<meta charset="utf-8">',
      '<meta name="viewport" content="width=device-width">',
      f'<title>{title}</title>',
      f'<style>{_CSS}</style>',
      '</head>',
      '<body>',
      f'<p>{title}</p>',
      *parts,
      '</body>',
      '</html>',
    ]
  )


def _question(docstring):
  first, _, rest = docstring.strip().partition('\n')
  parts = [f'<h1>{html.escape(first)}</h1>'] if first else []
  if rest.strip():
    parts.append(f'<pre>{html.escape(rest.strip())}</pre>')
  return parts


def _grid(header, lines, differs=frozenset()):
  cell = lambda name, text, more='': (
    f'<{name}{more}>{html.escape(text)}</{name}>'
  )
  mark = lambda at: ' class="differs"' if at in differs else ''
  head = ''.join(cell('th', text) for text in header)
  body = [
    ''.join(
      cell('td', text, mark((number, place))) for place, text in enumerate(line)
    )
    for number, line in enumerate(lines)
  ]
  rows = '\n'.join(f'<tr>{line}</tr>' for line in [head, *body])
  return f'<div class="wide"><table>\n{rows}\n</table></div>'


def _computed_cell(cell):
  if cell is None:
    return ''
  ours = exact.printed(cell)
  return f'{ours} ({cell.paper})' if exact.agrees(cell) is False else ours


def _verdict(verdict):
  statement = html.escape(verdict.text)
  rest = html.escape(_verdicts.words(verdict))
  rest = rest.removeprefix(f'{statement}: {verdict.verdict}')
  kind = _CLASSES[verdict.verdict]
  return (
    f'<li>{statement}: <span class="verdict {kind}">{verdict.verdict}</span>'
    f'{rest}.</li>'
  )


def _dots(table):
  """Draws the final value of each seed, and means with standard errors."""
  rows = [row for row in table.rows if row.seeds]
  with matplotlib.rc_context(_panels.STYLE):
    longest = max(len(row.name) for row in rows)
    left, right = 0.3 + 0.085 * longest, 1.6
    size = left + 5.5 + right, 0.9 + 0.32 * len(rows)
    figure = mpl_figure.Figure(figsize=size)
    panel = figure.add_axes(
      (left / size[0], 0.55 / size[1], 5.5 / size[0], 1 - 0.65 / size[1])
    )
    for place, row in enumerate(rows):
      color, _ = _panels.look(place)
      panel.plot(
        row.values,
        np.full(len(row.values), place),
        'o',
        color=color,
        alpha=0.5,
        ms=5,
        mew=0,
      )
      panel.errorbar(
        row.metric.mean, place, xerr=row.metric.error, fmt='|', color=color,
        ms=14, mew=2, lw=2,
      )  # fmt: skip
      panel.annotate(
        _cells.estimated(row.metric, _cells.digits([row.metric.mean])),
        (1.02, place),
        xycoords=('axes fraction', 'data'),
        annotation_clip=False,
        color=color,
        size=_panels.LABEL_SIZE,
        va='center',
      )
    panel.set_yticks(
      range(len(rows)), [row.name for row in rows], parse_math=False
    )
    panel.set_ylim(len(rows) - 0.4, -0.6)
    panel.set_xlabel(f'{table.metric}: seeds, mean and standard error')
  return figure


def _sources(runs):
  """Says where runs come from, down to every field of their configs."""
  fields = [
    (name, value, ', '.join(rows))
    for name, by_value in _provenance.differing(runs).items()
    for value, rows in by_value.items()
  ]
  parts = [
    '<h2>Where it comes from</h2>',
    f'<p>{html.escape(_provenance.provenance(runs))}</p>',
    f'<p>{html.escape(_provenance.settings(runs))}</p>',
  ]
  if fields:
    parts.append(_grid(('rows differ in', 'value', 'rows'), fields))
  each = [
    (
      f'{run["row"]}/{run["seed"]}',
      str(run['environment']['commit'])[:10],
      'yes' if run['environment']['clean'] else 'no',
      f'{run["seconds"]:,.0f} s',
    )
    for run in runs
  ]
  header = ('run', 'commit', 'clean tree', 'wall time')
  parts += [f'<details><summary>Runs</summary>{_grid(header, each)}</details>']
  for row in dict.fromkeys(run['row'] for run in runs):
    first = next(run for run in runs if run['row'] == row)
    held = {
      'config': first['config'],
      'environment': first['environment'],
      'corpus': first.get('corpus'),
    }
    parts.append(
      f'<details><summary>{html.escape(row)}: config and machine of the first'
      f' seed</summary><pre>{html.escape(json.dumps(held, indent=2))}</pre>'
      '</details>'
    )
  return parts
