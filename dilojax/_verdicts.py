"""What an experiment expects, and whether its runs show it."""

from collections.abc import Collection, Mapping, Sequence
import math
import re
from typing import NamedTuple

from dilojax import _cells
from dilojax import _near
from dilojax import _statistics

HOLDS, FAILS, UNDECIDED = 'holds', 'does not hold', 'undecided'
FORMS = (
  'A < B',
  'A > B',
  'A within 1.5% of B',
  'A closes 40% of the gap from B to C',
  'A, B, C increase',
  'A, B, C decrease',
)
# Instead of a row there may be the ratio of two, as in 'A/B < C/D'.

_PERCENT = r'(?P<percent>\d+(?:\.\d+)?) ?%'
_PATTERNS = {
  'within': re.compile(rf'(?P<a>.+?) within {_PERCENT} of (?P<b>.+)'),
  'closes': re.compile(
    rf'(?P<a>.+?) closes {_PERCENT} of the gap from (?P<b>.+?) to (?P<c>.+)'
  ),
  '<': re.compile(r'(?P<a>.+?) < (?P<b>.+)'),
  '>': re.compile(r'(?P<a>.+?) > (?P<b>.+)'),
  'increase': re.compile(r'(?P<rows>.+?, .+) increase'),
  'decrease': re.compile(r'(?P<rows>.+?, .+) decrease'),
}


class Statement(NamedTuple):
  """Something expected of the rows of an experiment.

  Attributes:
    text: The statement in words, one of `FORMS`.
    kind: One of '<', '>', 'within', 'closes', 'increase' and 'decrease'.
    rows: Names of the rows, or 'A/B' for the ratio of two, in the order of the
      words.
    share: What stands in percent, as a fraction; 0 if nothing does.
  """

  text: str
  kind: str
  rows: tuple[str, ...]
  share: float


class Verdict(NamedTuple):
  """What the runs say about a statement.

  Attributes:
    text: The statement.
    verdict: 'holds', 'does not hold' or 'undecided'.
    finding: What was measured, in words.
    p: The one-sided p-value of the statement; of the pair of rows with the
      greatest, where there are several. NaN where there is no test.
    n: Number of seeds of the test, the fewest if there are several pairs.
  """

  text: str
  verdict: str
  finding: str
  p: float
  n: int


def parse(text: str, rows: Collection[str]) -> Statement:
  """Reads a statement.

  Args:
    text: One of the forms in `FORMS`, with names of rows for A, B and C, or
      with ratios of two rows.
    rows: The names that there are.

  Returns:
    The statement.

  Raises:
    ValueError: If it has another form, or names no row, or one twice.

  Examples:
    >>> parse('streaming within 1.5% of diloco', {'streaming', 'diloco'})[1:]
    ('within', ('streaming', 'diloco'), 0.015)
  """
  matches = (
    (kind, pattern.fullmatch(text.strip()))
    for kind, pattern in _PATTERNS.items()
    if isinstance(text, str)
  )
  kind, found = next((pair for pair in matches if pair[1]), (None, None))
  if kind is None or found is None:
    raise ValueError(
      f'`EXPECTED` must hold statements such as {", ".join(map(repr, FORMS))},'
      f' with names of rows, got {text!r}.'
    )
  groups = found.groupdict()
  if 'rows' in groups:
    named = tuple(name.strip() for name in groups['rows'].split(', '))
  else:
    named = tuple(groups[key] for key in 'abc' if key in groups)
  for name in (part for each in named for part in _parts(each)):
    if name not in rows:
      raise ValueError(
        f'`EXPECTED`: {text!r} names {name!r}, which is no row: there are'
        f' {", ".join(rows)}.{_near.hint(name, rows)}'
      )
  if len(set(named)) < len(named):
    raise ValueError(
      f'`EXPECTED` must compare different rows, got {text!r}, which names one'
      ' twice.'
    )
  return Statement(
    text.strip(), kind, named, float(groups.get('percent') or 0) / 100
  )


def judge(
  statement: Statement,
  values: Mapping[str, Mapping[int, float]],
  confidence: float,
) -> Verdict:
  r"""Tells whether runs show a statement, deny it, or leave it open.

  All tests are one-sided t-tests over the seeds that all rows of a comparison
  have, of one number per seed. With :math:`a_s` the metric of row A and seed
  :math:`s`, they are for

  .. math::

    A < B &: \quad b_s - a_s > 0, \\
    A \text{ within } x \text{ of } B &: \quad a_s / b_s < 1 + x, \\
    A \text{ closes } x \text{ from } B \text{ to } C &: \quad
      (b_s - a_s) - x (b_s - c_s) > 0.

  A statement holds if noise alone does as much with a probability below one
  minus `confidence`, and does not hold if that is so of its opposite. An order
  of several rows holds if each neighbouring pair does, and does not if one
  pair is the other way round; since each pair is another chance of that, the
  probability allowed is shared out among them. Anything else is undecided,
  above all what rests on one seed. A ratio of two rows is that of each seed,
  and is tested as the metric of a row is.

  Args:
    statement: What is expected.
    values: Per row and seed the metric.
    confidence: Above 0.5 and below 1.

  Returns:
    The verdict.

  Raises:
    ValueError: If `confidence` is out of range, or a ratio is asked for of
      values that are not positive.
  """
  check_confidence(confidence)
  values = {name: _values(name, values) for name in statement.rows}
  tests = _tests(statement, values)
  n = min(len(numbers) for _, numbers, _ in tests)
  estimates = [_statistics.estimate(numbers) for _, numbers, _ in tests]
  found = '; '.join(finding for finding, _, _ in tests)
  if n < 2:
    seeds = 'one seed' if n else 'no seed'
    text = f'{found}; no test' if n else 'no test'
    return Verdict(
      statement.text,
      UNDECIDED,
      f'{text}: the rows have {seeds} in common',
      math.nan,
      n,
    )
  if any(math.isnan(each.mean) for each in estimates):
    return Verdict(
      statement.text,
      UNDECIDED,
      'no test: a run has no finite value',
      math.nan,
      n,
    )
  limits = [limit for _, _, limit in tests]
  true = max(map(_statistics.p_above, estimates, limits))
  false = min(map(_statistics.p_below, estimates, limits))
  allowed = 1 - confidence
  verdict = UNDECIDED
  if true < allowed:
    verdict = HOLDS
  elif false < allowed / len(tests):
    verdict = FAILS
  return Verdict(statement.text, verdict, found, true, n)


def check_confidence(confidence: float) -> None:
  """Checks a confidence.

  Raises:
    ValueError: If it is out of range.
  """
  if not 0.5 < confidence < 1:
    raise ValueError(
      '`confidence` must be above 0.5 and below 1, such as 0.95, got'
      f' {confidence}.'
    )


def words(verdict: Verdict) -> str:
  """Returns a verdict in a line.

  Examples:
    >>> words(Verdict('A < B', 'holds', 'difference -0.1', 0.012, 3))
    'A < B: holds (difference -0.1, p = 0.012, n = 3)'
  """
  tested = '' if math.isnan(verdict.p) else f', p = {verdict.p:.2g}'
  return (
    f'{verdict.text}: {verdict.verdict} ({verdict.finding}{tested},'
    f' n = {verdict.n})'
  )


def _parts(name):
  """Returns a row, or the two of a ratio."""
  first, slash, second = name.partition('/')
  return [first.strip(), second.strip()] if slash else [name]


def _values(name, values):
  first, *others = (values[part] for part in _parts(name))
  if not others:
    return first
  [second] = others
  if any(value <= 0 for value in second.values()):
    raise ValueError(
      f'`EXPECTED`: {name!r} is a ratio, and its second row has values that are'
      ' not positive: compare with < or >.'
    )
  return {
    seed: first[seed] / second[seed] for seed in sorted(first.keys() & second)
  }


# What was measured, in words; and numbers, one per seed, that are to be above
# a limit.
_Test = tuple[str, list[float], float]


def _tests(statement, values) -> Sequence[_Test]:
  kind, named = statement.kind, statement.rows
  if kind == 'within':
    return [_within(statement, values)]
  if kind == 'closes':
    return [_closes(statement, values)]
  falls = kind in ('>', 'decrease')
  return [
    _order(first, second, values, several=len(named) > 2, falls=falls)
    for first, second in zip(named, named[1:])
  ]


def _order(first, second, values, *, several, falls) -> _Test:
  both = _statistics.pairs(values[first], values[second])
  rises = [b - a for a, b in both]
  # Of two rows, the first to the second, as the statement reads; of several,
  # each to the one before.
  sign = 1 if several else -1
  of = _statistics.estimate([sign * rise for rise in rises])
  what = f'{second} - {first}' if several else 'difference'
  numbers = [-rise for rise in rises] if falls else rises
  return f'{what} {_cells.signed(of)}', numbers, 0.0


def _within(statement, values) -> _Test:
  first, second = statement.rows
  both = _statistics.pairs(values[first], values[second])
  if any(b <= 0 for _, b in both):
    raise ValueError(
      f'`EXPECTED`: {statement.text!r} is about a ratio, and {second!r} has'
      ' values that are not positive: compare with < or >.'
    )
  ratios = [a / b for a, b in both]
  of = _statistics.estimate([100 * (ratio - 1) for ratio in ratios])
  finding = f'difference {_cells.signed(of, 2)} %'
  return finding, [-ratio for ratio in ratios], -(1 + statement.share)


def _closes(statement, values) -> _Test:
  mine, start, end = (values[name] for name in statement.rows)
  common = sorted(mine.keys() & start.keys() & end.keys())
  steps = [(start[s] - mine[s], start[s] - end[s]) for s in common]
  if any(gap <= 0 for _, gap in steps):
    finding = 'there is no gap in some seeds'
  else:
    of = _statistics.estimate([100 * step / gap for step, gap in steps])
    finding = f'closed {_cells.signed(of, 1).removeprefix("+")} %'
  return finding, [step - statement.share * gap for step, gap in steps], 0.0
