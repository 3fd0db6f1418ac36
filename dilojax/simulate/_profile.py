"""Profiles: how long the parts of a model compute, and are averaged."""

from collections.abc import Sequence
import csv
import math
import os
import pathlib
from typing import NamedTuple

_COLUMNS = ('index', 'name', 'backward_s', 'comm_s')


class Unit(NamedTuple):
  """A part of a model whose params are averaged together.

  Attributes:
    name: Name of the part.
    backward: Seconds of its backward pass.
    reduce: Seconds of an all-reduce of its params; None if it has none to
      average.
  """

  name: str
  backward: float
  reduce: float | None


def read_profile(path: str | os.PathLike[str]) -> tuple[Unit, ...]:
  """Reads the times of a model's units.

  Args:
    path: CSV file with the columns `name`, `backward_s` and `comm_s`, below
      lines that start with `#`. Its rows are in the order of the forward pass.
      An empty `backward_s` counts as 0; an empty `comm_s` says that there is
      nothing to average.

  Returns:
    The units, in the order of the *backward* pass.

  Raises:
    ValueError: If the file is no such profile.
  """
  text = pathlib.Path(path).read_text(encoding='utf-8')
  lines = [line for line in text.splitlines() if not line.startswith('#')]
  reader = csv.DictReader(lines)
  missing = [
    name for name in _COLUMNS[1:] if name not in (reader.fieldnames or ())
  ]
  if missing:
    raise ValueError(
      f'{path}: a profile has the columns {", ".join(_COLUMNS[1:])}, got'
      f' {", ".join(reader.fieldnames or ()) or "none"}.'
    )
  units = []
  for number, row in enumerate(reader, start=1):
    try:
      backward = float(row['backward_s'] or 0.0)
      reduce = float(row['comm_s']) if row['comm_s'] else None
    except (TypeError, ValueError) as error:
      raise ValueError(
        f'{path}: row {number} ({row["name"]}) must have seconds, or nothing,'
        f' in `backward_s` and `comm_s`: {error}.'
      ) from error
    units.append(Unit(row['name'], backward, reduce))
  found = tuple(reversed(units))
  check_units(found)
  return found


def profile_text(units: Sequence[Unit], notes: Sequence[str] = ()) -> str:
  """Returns what :func:`read_profile` reads, as text.

  Args:
    units: The units, in the order of the backward pass.
    notes: Lines to put on top, each behind a `#`.

  Returns:
    The contents of a CSV file.
  """
  lines = [*(f'# {note}' for note in notes), ','.join(_COLUMNS)]
  for index, unit in enumerate(reversed(units)):
    reduce = '' if unit.reduce is None else f'{unit.reduce:.12g}'
    lines.append(f'{index},{unit.name},{unit.backward:.12g},{reduce}')
  return '\n'.join(lines) + '\n'


def check_units(units: Sequence[Unit]) -> None:
  """Refuses units with equal names, impossible times, or nothing to plan."""
  names = [unit.name for unit in units]
  twice = sorted({name for name in names if names.count(name) > 1})
  if twice:
    raise ValueError(
      f'`units` must have names of their own, got {twice} more than once.'
    )
  is_time = lambda seconds: 0 <= seconds < math.inf
  wrong = [
    unit
    for unit in units
    if not (is_time(unit.backward) and is_time(unit.reduce or 0.0))
  ]
  if wrong:
    raise ValueError(
      f'`units` must have finite times of at least 0, got {wrong[0]}.'
    )
  if all(unit.reduce is None for unit in units):
    raise ValueError(
      f'`units` must have some to average, got {len(units)} with no time of an'
      ' all-reduce: there is nothing to plan.'
    )
