"""The command `dilojax sweep`."""

import argparse
import ast
from collections.abc import Sequence
import sys
from typing import Any

# Everything else is imported where it is used.

_SWEEP = """\
Runs the points of an experiment, those that have no result yet.

An experiment is a file of experiments/ with get_config() and sweep(); behind a
colon may follow what these get as their argument, as in FILE.py:paper. All of
its points are checked before the first one starts. Each is a run as of train,
in DIR/row/seed; what it says goes to log.txt there. A point that fails does not
stop the others. Called again, what has finished is left alone, and the rest
goes on from its checkpoints. A signal ends all of them; their states are saved.

Exit status: 0 if all have a result, 1 if some have failed, 2 if anything is
refused, 130 if a signal came.
"""
_SLURM = '--slurm.'


def add(commands: Any) -> None:
  """Adds the command to a parser.

  Args:
    commands: What `add_subparsers` of the parser returned.
  """
  sweep = commands.add_parser(
    'sweep',
    help='run the points of an experiment',
    description=_SWEEP,
    formatter_class=argparse.RawDescriptionHelpFormatter,
    allow_abbrev=False,
  )
  sweep.add_argument(
    'experiment', metavar='EXPERIMENT', help='a file of experiments/'
  )
  sweep.add_argument(
    '--out',
    metavar='DIR',
    help='where the runs go (default: runs/, and folder and name of the file)',
  )
  sweep.add_argument(
    '--jobs',
    type=int,
    metavar='N',
    help='runs at a time, each on its share of the cores or devices (default:'
    ' 1); on SLURM the most at once (default: all)',
  )
  sweep.add_argument(
    '--only',
    action='append',
    default=[],
    metavar='ROW',
    help='a row, or a point ROW/SEED, to run; may be given again',
  )
  sweep.add_argument(
    '--dry_run', action='store_true', help='check all, estimate, run nothing'
  )
  sweep.add_argument(
    '--launcher',
    choices=('local', 'slurm'),
    default='local',
    help='slurm: one job array; --slurm.NAME=VALUE are parameters of submitit',
  )
  sweep.add_argument(
    '--search',
    type=int,
    metavar='N',
    help='go on with the search() of the experiment to N finished trials',
  )
  sweep.set_defaults(run=_run)


def parameters(rest: Sequence[str]) -> dict[str, Any]:
  """Reads arguments `--slurm.NAME=VALUE`.

  Raises:
    ValueError: If there are others.

  Examples:
    >>> parameters(['--slurm.nodes=2', '--slurm.slurm_partition=gpu'])
    {'nodes': 2, 'slurm_partition': 'gpu'}
  """
  found = {}
  for argument in rest:
    name, equals, text = argument.partition('=')
    if not (name.startswith(_SLURM) and equals):
      raise ValueError(
        f'unknown argument {argument!r}. Fields of a config are overridden in'
        ' the `sweep()` of the experiment.'
      )
    try:
      value = ast.literal_eval(text)
    except (ValueError, SyntaxError):
      value = text
    found[name.removeprefix(_SLURM)] = value
  return found


def _run(args):
  from dilojax import sweep

  try:
    if args.search is not None:
      return _search(args)
    outcome = sweep.sweep(
      args.experiment,
      args.out,
      jobs=args.jobs,
      only=args.only,
      dry_run=args.dry_run,
      launcher=args.launcher,
      slurm=args.slurm,
    )
  except sweep.Stopped as error:
    print(f'dilojax: {error}', file=sys.stderr)
    return 130
  if args.dry_run:
    return 0
  out = f' --out={args.out}' * (args.out is not None)
  _say(f'{len(outcome.finished)} finished. See them all:')
  _say(f'  dilojax table {args.experiment}{out}')
  return _failed(outcome)


def _search(args):
  from dilojax import sweep

  for name in ('only', 'slurm'):
    if getattr(args, name):
      raise ValueError(f'`{name}` has no effect with `search`.')
  if args.launcher != 'local':
    raise ValueError("`search` needs `launcher` 'local'.")
  best, outcome = sweep.search(
    args.experiment,
    args.out,
    trials=args.search,
    jobs=args.jobs,
    dry_run=args.dry_run,
  )
  if best is not None:
    print(f'best: trial {best.number}, {best.value:.4f}, {best.overrides}')
  return _failed(outcome)


def _failed(outcome):
  if outcome.failed:
    _say(f'{len(outcome.failed)} failed:')
  for name, reason in outcome.failed.items():
    _say(f'  {name}: {reason}')
  return bool(outcome.failed)


def _say(text):
  print(text, file=sys.stderr, flush=True)
