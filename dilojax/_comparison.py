"""The rows of an experiment, from its runs: means, differences, verdicts."""

from collections.abc import Sequence
import csv
import math
import statistics
from typing import Any, NamedTuple

from dilojax import _experiment
from dilojax import _runs
from dilojax import _statistics
from dilojax import _verdicts

BITS = 'eval/anchor/bits_per_byte'


class Row(NamedTuple):
  """A row of a table.

  Attributes:
    name: Its name.
    seeds: Those that have a finished run.
    missing: Those of the sweep that have none.
    values: The metric of each of them.
    metric: Mean and standard error over the seeds.
    bits: The same of bits per byte; None if the runs have none.
    paper: What the paper prints, letter by letter; '' if nothing.
    parent: The row that it is compared with, None if with none.
    difference: Of the metric to the parent's, over the seeds that both have.
    p: Two-sided p-value of the difference; NaN where there is no test.
    sent: Bytes sent by the replica that sends most.
    tokens: Tokens over all replicas.
    seconds: Wall time of a run. Bytes, tokens and seconds are means, and NaN
      without runs.
  """

  name: str
  seeds: tuple[int, ...]
  missing: tuple[int, ...]
  values: tuple[float, ...]
  metric: _statistics.Estimate
  bits: _statistics.Estimate | None
  paper: str
  parent: str | None
  difference: _statistics.Estimate
  p: float
  sent: float
  tokens: float
  seconds: float


class Comparison(NamedTuple):
  """A table of rows, with verdicts.

  Attributes:
    name: Name of the experiment.
    docstring: Its docstring.
    metric: Name of the metric.
    paper_column: Name of the paper's column, None if there is none.
    rows: The rows, in the order of the sweep.
    verdicts: One for each statement expected.
    confidence: That of the verdicts.
    runs: The runs, as kept.
    others: Names of runs in the folder that are no points of the sweep.
    stood_in: Names of runs that are kept ones, since the folder lacks them.
    only_paper: Rows of the paper that the sweep lacks, with their values.
    views: Rows that are another metric of the runs of a row: that row, and
      the metric.
  """

  name: str
  docstring: str
  metric: str
  paper_column: str | None
  rows: tuple[Row, ...]
  verdicts: tuple[_verdicts.Verdict, ...]
  confidence: float
  runs: list[_runs.Run]
  others: tuple[str, ...]
  stood_in: tuple[str, ...]
  only_paper: dict[str, str]
  views: dict[str, tuple[str, str]]


def compare(
  experiment: _experiment.Experiment, found: _runs.Found, confidence: float
) -> Comparison:
  """Computes the table of an experiment.

  Args:
    experiment: One that is trained.
    found: Its runs.
    confidence: That of the verdicts, above 0.5 and below 1.

  Returns:
    The table.

  Raises:
    ValueError: If the confidence is out of range, a statement is malformed, a
      run lacks the metric, or the paper's file does not fit.
  """
  _verdicts.check_confidence(confidence)
  planned: dict[str, list[int]] = {}
  for name in experiment.points:
    planned.setdefault(_experiment.row(name), []).append(_experiment.seed(name))
  # Of whose runs a row is which metric.
  views = {
    **{row: (row, experiment.metric) for row in planned},
    **experiment.views,
  }
  statements = [_verdicts.parse(text, views) for text in experiment.expected]
  column, paper = _paper(experiment)
  runs = {
    row: [run for run in found.runs if run['row'] == row] for row in planned
  }
  values = {
    name: {run['seed']: _value(run, metric) for run in runs[row]}
    for name, (row, metric) in views.items()
  }
  rows = [
    _row(
      name,
      planned[row],
      runs[row],
      metric,
      values,
      experiment.parents.get(name),
      paper.get(name, ''),
    )
    for name, (row, metric) in views.items()
  ]
  return Comparison(
    name=experiment.name,
    docstring=experiment.docstring,
    metric=experiment.metric,
    paper_column=column,
    rows=tuple(rows),
    verdicts=tuple(
      _verdicts.judge(statement, values, confidence) for statement in statements
    ),
    confidence=confidence,
    runs=found.runs,
    others=found.others,
    stood_in=found.stood_in,
    only_paper={
      name: text for name, text in paper.items() if name not in views
    },
    views=experiment.views,
  )


def _row(name, planned, runs, metric, values, parent, paper):
  mine = values[name]
  seeds = tuple(sorted(mine))
  # Whose loss it is, those bits belong to it.
  named = f'{metric.rpartition("/")[0]}/{BITS.rpartition("/")[2]}'
  bits = [run['final'].get(named) for run in runs]
  pairs = _statistics.pairs(mine, values[parent]) if parent else []
  difference = _statistics.estimate([a - b for a, b in pairs])
  mean = lambda numbers: statistics.fmean(numbers) if runs else math.nan
  return Row(
    name=name,
    seeds=seeds,
    missing=tuple(seed for seed in planned if seed not in mine),
    values=tuple(mine[seed] for seed in seeds),
    metric=_statistics.estimate([mine[seed] for seed in seeds]),
    bits=_statistics.estimate(bits) if runs and None not in bits else None,
    paper=paper,
    parent=parent,
    difference=difference,
    p=_statistics.p_apart(difference),
    sent=mean([most_sent(run) for run in runs]),
    tokens=mean([run['final']['tokens'] for run in runs]),
    seconds=mean([run['seconds'] for run in runs]),
  )


def most_sent(run: _runs.Run) -> int:
  """Returns the bytes of the replica that sends most."""
  return max(each['bytes_sent'] for each in run['replicas'])


def _value(run, metric):
  value = run['final'].get(metric)
  # What JSON has no number for may be kept in words.
  if isinstance(value, str):
    value = float(value)
  if not isinstance(value, int | float):
    names = ', '.join(
      name for name, each in run['final'].items() if isinstance(each, float)
    )
    raise ValueError(
      f'`METRIC` must be a final metric of every run, got {metric!r}, which'
      f' {run["row"]}/{run["seed"]} lacks: it has {names}.'
    )
  return float(value)


def _paper(experiment) -> tuple[str | None, dict[str, Any]]:
  """Returns the paper's column, and its values as printed."""
  path = experiment.paper
  if path is None:
    return None, {}
  wrong = lambda what: ValueError(f'{str(path)!r} {what}')
  lines = [
    line
    for line in path.read_text().splitlines()
    if line.strip() and not line.startswith('#')
  ]
  header, *rest = list(csv.reader(lines)) or [[]]
  if header[:1] != ['row'] or len(header) < 2:
    raise wrong(
      'must have a header of `row` and named columns below its comments, got'
      f' {",".join(header)!r}.'
    )
  column = experiment.paper_column
  if column is None:
    column = experiment.metric if experiment.metric in header else header[1]
  if column not in header[1:]:
    raise wrong(
      f'has no column {column!r}, which `PAPER_COLUMN` names: it has'
      f' {", ".join(header[1:])}.'
    )
  if any(len(line) != len(header) for line in rest):
    raise wrong('must have as many cells in each line as in its header.')
  return column, _unique(
    [(line[0], line[header.index(column)]) for line in rest], wrong
  )


def _unique(pairs: Sequence[tuple[str, str]], wrong) -> dict[str, str]:
  values = dict(pairs)
  if len(values) < len(pairs):
    raise wrong('names a row twice.')
  return values
