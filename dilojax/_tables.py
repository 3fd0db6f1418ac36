"""Tables of experiments as Markdown, CSV and JSON."""

from collections.abc import Sequence
import csv
import io
import json
import math
from typing import Any

from dilojax import _cells
from dilojax import _comparison
from dilojax import _provenance
from dilojax import _verdicts
from dilojax import exact

# By the last part of a metric's name.
_UNITS = {'loss': ' (nats)'}


def header(table: _comparison.Comparison) -> tuple[str, ...]:
  """Returns the names of the columns."""
  unit = _UNITS.get(table.metric.rpartition('/')[2], '')
  has_bits = _has_bits(table)
  has_parents = any(row.parent for row in table.rows)
  paper = f'paper: {table.paper_column}'
  return (
    'row',
    'n',
    f'{table.metric}{unit}',
    *['bits per byte'] * has_bits,
    *[paper] * (table.paper_column is not None),
    *['against its parent', 'p'] * has_parents,
    'bytes sent per replica',
    'of most',
    'tokens',
    'wall time',
  )


def lines(table: _comparison.Comparison) -> list[tuple[str, ...]]:
  """Returns the cells of each row, as words."""
  has_bits = _has_bits(table)
  has_parents = any(row.parent for row in table.rows)
  most = max(row.sent for row in table.rows if row.seeds)
  digits = _cells.digits([row.metric.mean for row in table.rows])
  return [
    (
      row.name,
      _count(row),
      _cells.estimated(row.metric, digits),
      *[_cells.estimated(row.bits, 4) if row.bits else '-'] * has_bits,
      *[row.paper or '-'] * (table.paper_column is not None),
      *[_against(row, digits), _p(row)] * has_parents,
      *_costs(row, most),
    )
    for row in table.rows
  ]


def notes(table: _comparison.Comparison) -> list[str]:
  """Returns what a reader of the table has to know."""
  words = ['Mean ± standard error over n seeds.']
  if any(row.parent for row in table.rows):
    words.append(
      'Against its parent, which stands in brackets: mean difference over the'
      ' seeds that both have; p: paired t-test, two-sided.'
    )
  said = [' '.join(words)]
  if table.views:
    each = '; '.join(
      f'{name}, {metric} of {row}'
      for name, (row, metric) in table.views.items()
    )
    said.append(f'Rows that are another metric of the runs of a row: {each}.')
  gaps = [
    f'{row.name} {", ".join(map(str, row.missing))}'
    for row in table.rows
    if row.missing
  ]
  if gaps:
    said.append(f'Seeds without a finished run: {"; ".join(gaps)}.')
  if table.stood_in:
    said.append(
      'Runs that are not in the folder, but kept beside the experiment:'
      f' {", ".join(table.stood_in)}.'
    )
  if table.others:
    said.append(
      'Runs that are no points of the experiment, left out:'
      f' {", ".join(table.others)}.'
    )
  if table.only_paper:
    rows = ', '.join(
      f'{name} {value}' for name, value in table.only_paper.items()
    )
    said.append(f'Rows of the paper without a row here: {rows}.')
  return said


def markdown(table: _comparison.Comparison) -> str:
  """Returns a table, its verdicts, and where it comes from, as Markdown."""
  parts = [_cells.grid(header(table), lines(table)), *notes(table)]
  if table.verdicts:
    parts += [
      f'Expected, at {100 * table.confidence:g}% confidence, by one-sided'
      ' paired t-tests:',
      '\n'.join(f'- {_verdicts.words(each)}.' for each in table.verdicts),
    ]
  parts += [
    _provenance.settings(table.runs),
    _provenance.differences(table.runs),
    _provenance.provenance(table.runs),
  ]
  return '\n\n'.join(part for part in parts if part)


def csv_text(table: _comparison.Comparison) -> str:
  """Returns a line a row, with all digits; nothing where there is no value."""
  out = io.StringIO()
  rows = [_row(row) for row in table.rows]
  writer = csv.DictWriter(out, rows[0], lineterminator='\n')
  writer.writeheader()
  for row in rows:
    writer.writerow(
      {
        name: ' '.join(map(str, value)) if isinstance(value, list) else value
        for name, value in row.items()
      }
    )
  return out.getvalue().rstrip('\n')


def json_text(table: _comparison.Comparison) -> str:
  """Returns all that there is; null where there is no value."""
  runs = [
    {
      'row': run['row'],
      'seed': run['seed'],
      'final': run['final'],
      'config': run['config'],
      'environment': run['environment'],
    }
    for run in table.runs
  ]
  whole = {
    'experiment': table.name,
    'metric': table.metric,
    'paper_column': table.paper_column,
    'confidence': table.confidence,
    'rows': [_row(row) for row in table.rows],
    'verdicts': [
      {**verdict._asdict(), 'p': _finite(verdict.p)}
      for verdict in table.verdicts
    ],
    'kept_before': list(table.stood_in),
    'left_out': list(table.others),
    'only_paper': table.only_paper,
    'runs': _strict(runs),
  }
  return json.dumps(whole, indent=1, allow_nan=False)


def cells_json(name: str, cells: Sequence[exact.Cell]) -> str:
  """Returns what was computed; null where there is no value."""
  same, total = exact.count(cells)
  listed = [
    {
      **cell._asdict(),
      'ours': _finite(float(cell.ours)),
      'printed': exact.printed(cell),
      'agrees': exact.agrees(cell),
    }
    for cell in cells
  ]
  whole = {'experiment': name, 'agree': same, 'of': total, 'cells': listed}
  return json.dumps(whole, indent=1, allow_nan=False)


def _row(row) -> dict[str, Any]:
  return {
    'row': row.name,
    'n': len(row.seeds),
    'seeds': list(row.seeds),
    'missing_seeds': list(row.missing),
    'mean': _finite(row.metric.mean),
    'standard_error': _finite(row.metric.error),
    'bits_per_byte': _finite(row.bits.mean) if row.bits else None,
    'paper': row.paper or None,
    'parent': row.parent,
    'difference': _finite(row.difference.mean),
    'difference_standard_error': _finite(row.difference.error),
    'difference_n': row.difference.n,
    'p_two_sided': _finite(row.p),
    'bytes_sent_per_replica': _finite(row.sent),
    'tokens': _finite(row.tokens),
    'seconds': _finite(row.seconds),
  }


def _has_bits(table):
  named = table.metric == _comparison.BITS
  return not named and any(row.bits for row in table.rows)


def _finite(value):
  return value if math.isfinite(value) else None


def _strict(value):
  """Replaces what JSON has no number for by None, at any depth."""
  if isinstance(value, dict):
    return {key: _strict(each) for key, each in value.items()}
  if isinstance(value, list):
    return [_strict(each) for each in value]
  return _finite(value) if isinstance(value, float) else value


def _count(row):
  planned = len(row.seeds) + len(row.missing)
  return f'{len(row.seeds)} of {planned}' if row.missing else str(planned)


def _against(row, digits):
  if not row.difference.n:
    return '-'
  # Fewer seeds than the row has are said.
  fewer = row.difference.n < len(row.seeds)
  n = f', n = {row.difference.n}' if fewer else ''
  return f'{_cells.signed(row.difference, digits)} ({row.parent}{n})'


def _p(row):
  if not row.difference.n:
    return '-'
  if row.difference.n == 1:
    return 'n = 1'
  return '-' if math.isnan(row.p) else f'{row.p:.2g}'


def _costs(row, most):
  if not row.seeds:
    return '-', '-', '-', '-'
  share = f'{100 * row.sent / most:.3g}%' if most else '-'
  return (
    _cells.nbytes(row.sent),
    share,
    f'{row.tokens:,.0f}',
    f'{row.seconds:,.0f} s',
  )
