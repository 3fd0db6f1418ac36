"""What is said about the communication of a run: as table, as JSON."""

from typing import Any, NamedTuple

from dilojax import _claims
from dilojax import _overlap


class Row(NamedTuple):
  """Collectives of a program that are alike.

  Attributes:
    axes: Axes of the mesh that they cross.
    op: The operation, such as `all-reduce`.
    is_sent: Whether it became messages between slices.
    dtype: Its type in XLA's words.
    number: Number of such operations in the program.
    times: How often the program runs each of them.
    nbytes: Bytes of all of them and all times, per replica.
    padding: Bytes beside these that fill whole tiles.
    between: The least that is scheduled between start and end of any of them;
      None if an end is not to be found.
  """

  axes: tuple[str, ...]
  op: str
  is_sent: bool
  dtype: str
  number: int
  times: int
  nbytes: int
  padding: int
  between: _overlap.Between | None


class Program(NamedTuple):
  """A compiled program of a run.

  Attributes:
    name: What it does, in order.
    runs: How often the run runs it.
    steps: Inner steps of the first of these.
    rows: Its collectives.
  """

  name: str
  runs: int
  steps: int
  rows: tuple[Row, ...]


class Report(NamedTuple):
  """What a run communicates.

  Attributes:
    mesh: Devices along the axes of the mesh.
    num_steps: Inner steps of the run.
    every: Inner steps of its longest round.
    programs: Its programs; the last one evaluates.
    totals: What crosses each replica axis.
  """

  mesh: dict[str, int]
  num_steps: int
  every: int
  programs: tuple[Program, ...]
  totals: tuple[_claims.Total, ...]

  @property
  def agrees(self) -> bool:
    """Whether the programs send what the ledger says."""
    return all(total.agrees for total in self.totals)


def table(report: Report) -> str:
  """Returns a report as text, with a table for each program."""
  mesh = ', '.join(f'{axis} {size}' for axis, size in report.mesh.items())
  lines = [f'{report.num_steps:,} steps on a mesh of {mesh}.']
  for program in report.programs:
    times = 'once' if program.runs == 1 else f'{program.runs:,} times'
    lines += ['', f'{program.name} ({times}):']
    if not program.rows:
      lines.append('  no collectives')
      continue
    cells = [
      ('axes', 'operation', 'dtype', 'number', 'times', 'bytes', 'meanwhile')
    ]
    for row in program.rows:
      counts = [f'{n:,}' for n in (row.number, row.times, row.nbytes)]
      cells.append(
        (
          ' '.join(row.axes),
          row.op + ' by send' * row.is_sent,
          row.dtype,
          counts[0],
          counts[1],
          counts[2],
          _between(row.between),
        )
      )
    lines += ['  ' + line for line in _aligned(cells)]
  num_rounds = report.num_steps / report.every
  lines += ['', f'Bytes of a replica in a round of {report.every:,} steps:']
  cells = [('axis', 'compiled', 'ledger', 'difference', 'agrees')]
  per_round = lambda nbytes: f'{nbytes / num_rounds:,.0f}'
  for each in report.totals:
    cells.append(
      (
        each.axis,
        per_round(each.compiled),
        per_round(each.ledger),
        f'{(each.compiled - each.ledger) / num_rounds:+,.0f}',
        'yes' if each.agrees else 'no',
      )
    )
  lines += ['  ' + line for line in _aligned(cells)]
  if any(
    each.agrees and each.compiled != each.ledger for each in report.totals
  ):
    lines.append(
      'What is not sharded inside a replica is sent by each of its devices, and'
      ' what replicas take turns to average is cut into equal rows.'
    )
  for each in report.totals:
    if each.padding:
      lines.append(
        f'Beside these, {per_round(each.padding)} bytes along {each.axis} fill'
        ' whole tiles.'
      )
  lines.append(verdict(report))
  return '\n'.join(lines)


def verdict(report: Report) -> str:
  """Says whether the programs send what the ledger says."""
  apart = [each for each in report.totals if not each.agrees]
  if not apart:
    return 'The compiled programs send what the ledger says.'
  parts = []
  for each in apart:
    bound = each.most if each.compiled > each.most else each.least
    share = f' ({each.compiled / each.ledger:.4g} times)' * bool(each.ledger)
    more = 'more' if each.compiled > bound else 'fewer'
    parts.append(
      f'{abs(each.compiled - bound):,} bytes {more} along {each.axis} in'
      f' {report.num_steps:,} steps than the ledger says{share}'
    )
  return f'They disagree: the compiled programs send {"; ".join(parts)}.'


def as_json(report: Report) -> dict[str, Any]:
  """Returns a report as plain JSON values."""
  totals = [{**_plain(each), 'agrees': each.agrees} for each in report.totals]
  return {**_plain(report), 'totals': totals, 'agrees': report.agrees}


def _plain(node: Any) -> Any:
  if hasattr(node, '_asdict'):
    return {name: _plain(value) for name, value in node._asdict().items()}
  return [_plain(each) for each in node] if isinstance(node, tuple) else node


def _between(between) -> str:
  if between is None:
    return 'end not found'
  words = [
    f'{number:,} {name[:-1] if number == 1 else name}'
    for name, number in between._asdict().items()
    if name != 'loops' and number
  ]
  return ', '.join(words) or 'nothing: it blocks'


def _aligned(cells) -> list[str]:
  widths = [max(map(len, column)) for column in zip(*cells)]
  is_number = [cells[-1][n][-1:].isdigit() for n in range(len(widths))]
  return [
    '  '.join(
      cell.rjust(width) if right else cell.ljust(width)
      for cell, width, right in zip(row, widths, is_number)
    ).rstrip()
    for row in cells
  ]
