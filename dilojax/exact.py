"""Cells that a computation fills, beside those that a paper prints."""

from collections.abc import Iterable, Sequence
import csv
import io
import os
import pathlib
import re
from typing import NamedTuple

_NUMBER = re.compile(
  r'[-+]?\d+(?:\.(?P<decimals>\d+))?(?P<exponent>e[-+]?\d+)?'
)


class Cell(NamedTuple):
  """A cell of a table.

  Attributes:
    row: Name of the row.
    column: Name of the column.
    ours: What was computed. NaN or infinity where there is no number.
    paper: What the paper prints, letter by letter; '' if it prints nothing.
    within: Largest difference, relative to the paper's value, at which the two
      agree; None if they must agree in all digits that the paper prints.
  """

  row: str
  column: str
  ours: float
  paper: str = ''
  within: float | None = None


def printed(cell: Cell) -> str:
  """Returns our value with as many digits as the paper prints.

  Where the paper prints none, or no number, with four significant ones.

  Examples:
    >>> printed(Cell('DiLoCo', 'Gbit/s', 0.45, '0.4'))
    '0.5'
    >>> printed(Cell('DiLoCo', 'loss', 0.00601, '6.0e-3'))
    '6.0e-03'
  """
  found = _NUMBER.fullmatch(cell.paper)
  if not found:
    return f'{cell.ours:.4g}'
  kind = 'e' if found['exponent'] else 'f'
  return f'{cell.ours:.{len(found["decimals"] or "")}{kind}}'


def agrees(cell: Cell) -> bool | None:
  """Tells whether a cell is what the paper prints; None if it prints nothing.

  Examples:
    >>> agrees(Cell('DiLoCo', 'Gbit/s', 0.4501, '0.5'))
    True
    >>> agrees(Cell('DiLoCo', 'Gbit/s', 1.04, '1.00', within=0.05))
    True
  """
  if not cell.paper:
    return None
  if not _NUMBER.fullmatch(cell.paper):
    return printed(cell) == cell.paper
  if cell.within is None:
    return float(printed(cell)) == float(cell.paper)
  paper = float(cell.paper)
  return abs(cell.ours - paper) <= cell.within * abs(paper)


def count(cells: Iterable[Cell]) -> tuple[int, int]:
  """Returns how many cells agree, and how many the paper prints."""
  known = [agrees(cell) for cell in cells if cell.paper]
  return sum(map(bool, known)), len(known)


def markdown(cells: Sequence[Cell]) -> str:
  """Returns a Markdown table of our values, and the number that agree.

  Rows and columns come in the order of the cells. The paper's value stands in
  brackets after ours where the two differ.
  """
  rows = list(dict.fromkeys(cell.row for cell in cells))
  columns = list(dict.fromkeys(cell.column for cell in cells))
  texts = {(cell.row, cell.column): _text(cell) for cell in cells}
  header = ('', *columns)
  lines = [
    (row, *(texts.get((row, column), '') for column in columns)) for row in rows
  ]
  widths = [max(map(len, column)) for column in zip(header, *lines)]
  join = lambda line: '| ' + ' | '.join(map(str.ljust, line, widths)) + ' |'
  rule = '| ' + ' | '.join('-' * width for width in widths) + ' |'
  same, total = count(cells)
  return '\n'.join(
    [
      join(header),
      rule,
      *map(join, lines),
      '',
      f'{same} of {total} cells agree with the paper.',
    ]
  )


def read(path: str | os.PathLike[str]) -> list[dict[str, str]]:
  """Reads published values: the rows of a CSV file, without lines of `#`."""
  lines = pathlib.Path(path).read_text(encoding='utf-8').splitlines()
  return list(
    csv.DictReader(line for line in lines if not line.startswith('#'))
  )


def csv_text(cells: Sequence[Cell]) -> str:
  """Returns the cells as CSV, one line each."""
  out = io.StringIO()
  writer = csv.writer(out, lineterminator='\n')
  writer.writerow((*Cell._fields, 'printed', 'agrees'))
  for cell in cells:
    verdict = agrees(cell)
    writer.writerow((*cell, printed(cell), '' if verdict is None else verdict))
  return out.getvalue()


def _text(cell):
  ours = printed(cell)
  return ours if agrees(cell) in (True, None) else f'{ours} ({cell.paper})'
