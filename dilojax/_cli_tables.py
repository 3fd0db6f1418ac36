"""The commands that read runs: `dilojax table` and `dilojax plot`."""

import argparse
from collections.abc import Sequence
import pathlib
from typing import Any

# Everything else is imported where it is used.

_TABLE = """\
Compares finished runs, or prints the table of an experiment.

An experiment is a file of experiments/, with or without .py, and behind a colon
its variant, if it has any. Its runs are those of the folder --out, as `dilojax
sweep` fills it, or else those that are kept beside it. One that is computed has
no runs, and is computed now.

Folders of runs are compared as they are: those that differ in nothing but the
seed are one row.
"""

_PLOT = """\
Draws loss against steps, tokens, bytes and time.

Folders of runs have a line each. An experiment has a line a row, the mean over
seeds with a band of its standard error, from the folder --out of its sweep.
"""


def add(commands: Any) -> None:
  """Adds the commands to a parser.

  Args:
    commands: What `add_subparsers` of the parser returned.
  """
  table = commands.add_parser(
    'table',
    help='compare finished runs, or print the table of an experiment',
    description=_TABLE,
    formatter_class=argparse.RawDescriptionHelpFormatter,
    allow_abbrev=False,
  )
  table.add_argument(
    'runs',
    nargs='+',
    metavar='EXPERIMENT|RUN',
    help='one experiment, or folders of runs',
  )
  table.add_argument('--out', metavar='DIR', help='folder of the sweep')
  table.add_argument(
    '--format',
    choices=('markdown', 'csv', 'json', 'html'),
    default='markdown',
    help='html is a report with plots, in one file',
  )
  table.add_argument(
    '--file', metavar='FILE', help='write the table there instead'
  )
  table.add_argument(
    '--confidence',
    type=float,
    default=0.95,
    help='of the verdicts on what is expected (default: 0.95)',
  )
  table.add_argument(
    '--keep',
    action='store_true',
    help='keep the runs of --out beside the experiment, for version control',
  )
  table.set_defaults(run=_table)

  plot = commands.add_parser(
    'plot',
    help='draw loss against steps, tokens, bytes, time',
    description=_PLOT,
    formatter_class=argparse.RawDescriptionHelpFormatter,
    allow_abbrev=False,
  )
  plot.add_argument(
    'runs',
    nargs='+',
    metavar='EXPERIMENT|RUN',
    help='one experiment, or folders of runs',
  )
  plot.add_argument(
    '--out',
    metavar='PATH',
    help='folder of the sweep; with folders of runs, the picture to write'
    ' (default: plot.png)',
  )
  plot.add_argument(
    '--file',
    metavar='FILE',
    help='picture of an experiment to write (default: plot.png)',
  )
  plot.add_argument(
    '--metric', help='metric of the runs to draw (default: eval/anchor/loss)'
  )
  plot.set_defaults(run=_plot)


def is_experiment(names: Sequence[str]) -> bool:
  """Tells whether arguments name an experiment, and not folders of runs.

  Raises:
    ValueError: If they name an experiment and more.
  """
  from dilojax import _experiment

  def is_one(name):
    path, _ = _experiment.split(name)
    by_stem = path.with_name(f'{path.name}.py')
    return path.suffix == '.py' or (not path.exists() and by_stem.exists())

  named = [name for name in names if is_one(name)]
  if named and len(names) > 1:
    raise ValueError(
      f'{named[0]!r} is an experiment: name it alone, and its runs with --out.'
    )
  return bool(named)


def _table(args):
  from dilojax import table

  if is_experiment(args.runs):
    [name] = args.runs
    if args.keep and args.out is None:
      raise ValueError('--keep needs --out: the runs to be kept are there.')
    # Before anything is written, all that can be wrong.
    text = table.text(
      name, out=args.out, format=args.format, confidence=args.confidence
    )
    if args.keep:
      table.keep(name, args.out)
    if args.file is None:
      print(text)
    else:
      print(_written(pathlib.Path(args.file), text))
    return 0
  if args.out or args.keep or args.file or args.format != 'markdown':
    raise ValueError(
      '--out, --keep, --file and --format are for an experiment, a file of'
      f' experiments/, got folders of runs: {", ".join(args.runs)}.'
    )
  print(table.markdown(table.rows([pathlib.Path(run) for run in args.runs])))
  return 0


def _written(path, text):
  """Writes a text whole or not at all, and returns its path."""
  temporary = path.with_name(f'.{path.name}.new')
  temporary.write_text(f'{text}\n')
  return temporary.replace(path)


def _plot(args):
  from dilojax import plot

  if is_experiment(args.runs):
    if args.metric:
      raise ValueError(
        '--metric is for folders of runs: an experiment says its own `METRIC`.'
      )
    file = args.file or 'plot.png'
    print(plot.plot_experiment(args.runs[0], args.out, file))
    return 0
  if args.file and args.out:
    raise ValueError('--file and --out both name the picture: leave out one.')
  metric = args.metric or 'eval/anchor/loss'
  print(
    plot.plot(args.runs, args.file or args.out or 'plot.png', metric=metric)
  )
  return 0
