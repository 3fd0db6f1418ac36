"""Numbers and grids for people."""

from collections.abc import Sequence
import math

from dilojax import _statistics


def grid(header: Sequence[str], lines: Sequence[Sequence[str]]) -> str:
  """Returns a Markdown table with aligned columns.

  Examples:
    >>> print(grid(('row', 'n'), [('a', '10')]))
    | row | n  |
    | --- | -- |
    | a   | 10 |
  """
  lines = [[cell.replace('|', r'\|') for cell in line] for line in lines]
  widths = [max(map(len, column)) for column in zip(header, *lines)]
  join = lambda cells: '| ' + ' | '.join(map(str.ljust, cells, widths)) + ' |'
  rule = '| ' + ' | '.join('-' * width for width in widths) + ' |'
  return '\n'.join([join(header), rule, *map(join, lines)])


def mean_and_error(values: Sequence[float], digits: int) -> str:
  """Returns the mean, and with several values its standard error.

  Examples:
    >>> mean_and_error([1.0, 2.0, 3.0], digits=2)
    '2.00 ± 0.58'
  """
  return estimated(_statistics.estimate(values), digits)


def estimated(of: _statistics.Estimate, digits: int) -> str:
  """Returns an estimate; without values a dash."""
  if not of.n:
    return '-'
  mean = f'{of.mean:.{digits}f}'
  return mean if math.isnan(of.error) else f'{mean} ± {of.error:.{digits}f}'


def signed(of: _statistics.Estimate, digits: int = 4) -> str:
  """Returns an estimated difference; without values a dash."""
  text = estimated(of, digits)
  return text if text[:1] in '-n' else f'+{text}'


def digits(values: Sequence[float]) -> int:
  """Returns how many decimals tell values apart that noise does not.

  Examples:
    >>> digits([1.38, 1.41]), digits([16.23]), digits([1203.0])
    (4, 3, 1)
  """
  largest = max((abs(v) for v in values if math.isfinite(v)), default=0.0)
  return 4 if largest < 10 else max(4 - math.floor(math.log10(largest)), 0)


def nbytes(count: float) -> str:
  """Returns a number of bytes for people.

  Examples:
    >>> nbytes(1_250_000)
    '1.25 MB'
  """
  size, units = float(count), ['B', 'kB', 'MB', 'GB', 'TB', 'PB', 'EB']
  while size >= 999.5 and len(units) > 1:
    size, units = size / 1000, units[1:]
  return f'{size:.3g} {units[0]}'
