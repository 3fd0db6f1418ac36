"""A table of finished runs, computed from their files alone."""

from collections.abc import Iterable, Sequence
import json
import math
import pathlib
import statistics
from typing import Any

from dilojax import workdir


def rows(folders: Iterable[pathlib.Path]) -> list[dict[str, Any]]:
  """Reads runs; those that differ in nothing but the seed are one row.

  Args:
    folders: Folders of finished runs.

  Returns:
    Per row its `name`, and its runs as lists of `folders`, `seeds` and
    `summaries`. The first run's folder names the row; if seeds make up a row,
    it is the folder above.

  Raises:
    ValueError: If a folder holds no finished run, or one that another folder
      holds as well, with the same seed.
  """
  groups: dict[str, dict[str, Any]] = {}
  for folder in map(pathlib.Path, folders):
    if not (folder / workdir.SUMMARY).is_file():
      raise ValueError(
        f'{str(folder)!r} holds no finished run: there is no'
        f' {workdir.SUMMARY}. Run it to its end first.'
      )
    summary = workdir.read_json(folder / workdir.SUMMARY)
    config = workdir.read_json(folder / workdir.CONFIG)
    try:
      seed = config.pop('seed')
      config.pop(workdir.PLACEMENT)
      is_whole = summary['steps'] == config['num_steps']
    except (AttributeError, KeyError, TypeError) as error:
      raise ValueError(
        f'{str(folder)!r} must hold the config and summary of a run, got'
        f' something else: {type(error).__name__} {error}.'
      ) from None
    if not is_whole:
      raise ValueError(
        f'{str(folder)!r} has a summary of {summary["steps"]} steps, and a'
        f' config of {config["num_steps"]}: run it to its end first.'
      )
    row = groups.setdefault(
      json.dumps(config, sort_keys=True),
      {'folders': [], 'seeds': [], 'summaries': []},
    )
    if seed in row['seeds']:
      first = row['folders'][row['seeds'].index(seed)]
      raise ValueError(
        f'{str(folder)!r} is a second run of {str(first)!r}, with the same'
        ' config and seed: name one of them.'
      )
    row['folders'].append(folder)
    row['seeds'].append(seed)
    row['summaries'].append(summary)
  return [{'name': _name(row['folders']), **row} for row in groups.values()]


def markdown(rows: Sequence[dict[str, Any]]) -> str:
  """Returns rows as a Markdown table."""
  header = (
    'run',
    'n',
    'loss (nats)',
    'bits per byte',
    'steps',
    'tokens',
    'bytes sent per replica',
    'wall time',
  )
  lines = [_cells(row) for row in rows]
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
  mean = f'{statistics.fmean(values):.{digits}f}'
  if len(values) == 1:
    return mean
  error = statistics.stdev(values) / math.sqrt(len(values))
  return f'{mean} ± {error:.{digits}f}'


def nbytes(count: int) -> str:
  """Returns a number of bytes for people.

  Examples:
    >>> nbytes(1_250_000)
    '1.25 MB'
  """
  size, units = float(count), ['B', 'kB', 'MB', 'GB', 'TB', 'PB', 'EB']
  while size >= 999.5 and len(units) > 1:
    size, units = size / 1000, units[1:]
  return f'{size:.3g} {units[0]}'


def _cells(row):
  summaries = row['summaries']
  finals = [summary['final'] for summary in summaries]
  bits = [final.get('eval/anchor/bits_per_byte') for final in finals]
  sent = max(each['bytes_sent'] for each in summaries[0]['replicas'])
  seconds = statistics.fmean(summary['seconds'] for summary in summaries)
  return (
    row['name'],
    str(len(summaries)),
    mean_and_error([final['eval/anchor/loss'] for final in finals], 4),
    '-' if None in bits else mean_and_error(bits, 4),
    f'{summaries[0]["steps"]:,}',
    f'{finals[0]["tokens"]:,}',
    nbytes(sent),
    f'{seconds:.0f} s',
  )


def _name(folders):
  first = folders[0]
  shared = len({folder.parent for folder in folders}) == 1
  if len(folders) > 1 and shared:
    return first.parent.name
  # The folder of a seed says little without the one above.
  is_seed = first.name.isdigit() and first.parent.name
  return f'{first.parent.name}/{first.name}' if is_seed else first.name
