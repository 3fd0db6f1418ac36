"""Tables of finished runs and of experiments, computed from files alone."""

from collections.abc import Iterable, Sequence
import json
import os
import pathlib
import statistics
from typing import Any

from dilojax import _cells
from dilojax import _comparison
from dilojax import _experiment
from dilojax import _runs
from dilojax import _tables
from dilojax import _verdicts
from dilojax import exact
from dilojax import workdir

FORMATS = ('markdown', 'csv', 'json', 'html')


def text(
  experiment: str | os.PathLike[str],
  *,
  out: str | os.PathLike[str] | None = None,
  format: str = 'markdown',
  confidence: float = 0.95,
) -> str:
  """Returns the table of an experiment.

  Args:
    experiment: A file of `experiments/`, with or without `.py`, and behind a
      colon its variant.
    out: Folder of its sweep. Without it, the runs kept beside the experiment
      are read. An experiment that is computed has none.
    format: One of `FORMATS`.
    confidence: That of the verdicts on what is expected, above 0.5 and below 1.

  Returns:
    The table as text, without a line end.

  Raises:
    ValueError: If the experiment, its runs or an argument is malformed, or
      there is no run.
  """
  if format not in FORMATS:
    raise ValueError(
      f'`format` must be one of {", ".join(FORMATS)}, got {format!r}.'
    )
  _verdicts.check_confidence(confidence)
  loaded = _experiment.load(experiment)
  if loaded.compute is not None and not loaded.points:
    if out is not None:
      raise ValueError(
        f'`out` has no effect: {loaded.name!r} is computed, not trained.'
      )
    return _computed(loaded, format)
  found = _runs.kept(loaded) if out is None else _runs.swept(loaded, out)
  compared = _comparison.compare(loaded, found, confidence)
  if format == 'html':
    from dilojax import _html  # Matplotlib takes its time.

    return _html.compared(compared)
  formats = {
    'markdown': _tables.markdown,
    'csv': _tables.csv_text,
    'json': _tables.json_text,
  }
  return formats[format](compared)


def keep(
  experiment: str | os.PathLike[str], out: str | os.PathLike[str]
) -> pathlib.Path:
  """Condenses the runs of a sweep to a file beside its experiment.

  Args:
    experiment: A file of `experiments/`, with or without `.py`.
    out: Folder of its sweep.

  Returns:
    The path of the file, that of the experiment with the ending `.json`. One
    that is there is replaced.

  Raises:
    ValueError: If the experiment or its runs are malformed, or there is none.
  """
  loaded = _experiment.load(experiment)
  runs = _runs.swept(loaded, out).runs
  path = loaded.kept
  _runs.write(path, runs)
  return path


def _computed(experiment, format):
  cells = experiment.compute()
  if format == 'json':
    return _tables.cells_json(experiment.name, cells)
  if format == 'html':
    from dilojax import _html

    return _html.computed(experiment.name, experiment.docstring, cells)
  table = exact.markdown if format == 'markdown' else exact.csv_text
  return table(cells).rstrip('\n')


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
  return _cells.grid(header, [_line(row) for row in rows])


def _line(row):
  summaries = row['summaries']
  finals = [summary['final'] for summary in summaries]
  bits = [final.get('eval/anchor/bits_per_byte') for final in finals]
  sent = max(each['bytes_sent'] for each in summaries[0]['replicas'])
  seconds = statistics.fmean(summary['seconds'] for summary in summaries)
  return (
    row['name'],
    str(len(summaries)),
    _cells.mean_and_error([final['eval/anchor/loss'] for final in finals], 4),
    '-' if None in bits else _cells.mean_and_error(bits, 4),
    f'{summaries[0]["steps"]:,}',
    f'{finals[0]["tokens"]:,}',
    _cells.nbytes(sent),
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
