"""The command line: parses, prints, and turns errors into exit statuses."""

import argparse
from collections.abc import Sequence
import contextlib
import json
import os
import subprocess
import sys
import time

from dilojax import _cli_dreamddp
from dilojax import _cli_simulate
from dilojax import _cli_sweep
from dilojax import _cli_tables

# Everything else is imported where it is used.

_BEGAN = time.monotonic()

_TRAIN = """\
Trains, or goes on with the training in a folder.

Any field of the config can be overridden: --config.outer.lr=0.7. A field keeps
its type; a Python dict replaces a group; null removes a field.
"""

_AUDIT = """\
Compiles the programs of a run for a target, and tabulates their collectives.

Nothing is computed, and TPUs need not be there (pip install dilojax[tpu-aot]).
For every operation: the axes of the mesh that it crosses, its number in the
program, how often each runs, the bytes of a replica, and the least that is
scheduled between its start and its end. The bytes across replicas are compared
with the ledger of the run. Fields are overridden as for train.

Exit status: 0 if they agree, 1 if not, 2 for input that cannot be.
"""


def main(argv: Sequence[str] | None = None) -> int:
  """Runs a command.

  Args:
    argv: Arguments, by default those of the process.

  Returns:
    The exit status: 0, 1 if the training failed, 2 for input that cannot be,
    130 if a signal stopped it.
  """
  parser = _parser()
  args, rest = parser.parse_known_args(argv)
  try:
    if args.command in ('train', 'audit', 'profile'):
      args.overrides = _overrides(rest)
    elif args.command == 'sweep':
      args.slurm = _cli_sweep.parameters(rest)
    elif rest:
      raise ValueError(f'unknown arguments: {" ".join(rest)}.')
    return args.run(args)
  except BrokenPipeError:
    # Who reads has seen enough, as `head`; nothing is left to be flushed.
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return 141
  except (ValueError, ImportError, OSError) as error:
    print(f'dilojax: error: {error}', file=sys.stderr)
    return 2
  except KeyboardInterrupt:
    print('dilojax: stopped.', file=sys.stderr)
    return 130


def _parser():
  parser = argparse.ArgumentParser(
    prog='dilojax',
    description='Training that rarely communicates: DiLoCo and its family.',
    allow_abbrev=False,
  )
  commands = parser.add_subparsers(dest='command', required=True)

  train = commands.add_parser(
    'train',
    help='train, or go on with a training',
    description=_TRAIN,
    formatter_class=argparse.RawDescriptionHelpFormatter,
    allow_abbrev=False,
  )
  train.add_argument(
    '--config', required=True, metavar='FILE', help='a Python file of configs/'
  )
  train.add_argument(
    '--workdir', required=True, metavar='DIR', help='the folder of the run'
  )
  train.add_argument(
    '--change',
    default='',
    metavar='FIELDS',
    help='fields in which the run may differ from the config in its folder,'
    ' such as num_replicas, separated by commas',
  )
  train.add_argument(
    '--dry_run', action='store_true', help='check everything, train nothing'
  )
  train.add_argument(
    '--tensorboard', action='store_true', help='write for TensorBoard as well'
  )
  train.add_argument(
    '--wandb', metavar='PROJECT', help='log to Weights & Biases as well'
  )
  train.add_argument(
    '--distributed',
    action='store_true',
    help='be one of several processes, as SLURM or a TPU pod says',
  )
  train.set_defaults(run=_train)

  audit = commands.add_parser(
    'audit',
    help='compile what a run would run, and say what it communicates',
    description=_AUDIT,
    formatter_class=argparse.RawDescriptionHelpFormatter,
    allow_abbrev=False,
  )
  audit.add_argument(
    '--config', required=True, metavar='FILE', help='a Python file of configs/'
  )
  audit.add_argument(
    '--target',
    required=True,
    help='cpu:8, gpu:2, tpu:v5e:4x4, or tpu:v5e:2x2x4 for four slices of 2x2',
  )
  audit.add_argument(
    '--json', action='store_true', help='print JSON instead of a table'
  )
  audit.set_defaults(run=_audit)

  _cli_sweep.add(commands)

  _cli_tables.add(commands)

  _cli_simulate.add(commands)

  _cli_dreamddp.add_profile(commands)

  prepare = commands.add_parser(
    'prepare',
    help='tokenize a corpus into an array on disk or in a bucket',
    allow_abbrev=False,
  )
  prepare.add_argument('--out', required=True, help='where the tokens go')
  prepare.add_argument(
    '--pattern',
    help='glob of text or .jsonl(.gz) files; without it, the standard library',
  )
  prepare.add_argument(
    '--tokenizer',
    default='bytes',
    help='bytes, bpe (trained here), or a tokenizers JSON file',
  )
  prepare.add_argument('--vocab_size', type=int, help='of a bpe trained here')
  prepare.add_argument('--num_clusters', type=int, help='for non-iid streams')
  prepare.add_argument('--heldout_fraction', type=float, default=0.05)
  prepare.set_defaults(run=_prepare)
  return parser


def _overrides(rest):
  overrides = []
  for argument in rest:
    name, equals, text = argument.partition('=')
    if not (name.startswith('--config.') and equals):
      raise ValueError(
        f'unknown argument {argument!r}. Fields of the config are overridden as'
        ' --config.NAME=VALUE, with an equals sign.'
      )
    overrides.append((name.removeprefix('--config.'), text))
  return overrides


def _train(args):
  from dilojax import join
  from dilojax import processes

  found = join.address(os.environ, detect=args.distributed)
  is_first = True
  try:
    with join.joined(found) as index:
      is_first = index == 0
      return _train_here(args, is_first)
  except processes.Agreed:
    if is_first:
      raise
    return 2  # The first says what is wrong, and all have ended.


def _train_here(args, is_first):
  import jax

  from dilojax import _engines
  from dilojax import _overrides as overrides_lib
  from dilojax import build
  from dilojax import metrics
  from dilojax import processes
  from dilojax import table
  from dilojax import train
  from dilojax import workdir

  clock = lambda: time.monotonic() - _BEGAN
  timing = {'imports': clock()}
  notify = lambda text: is_first and print(text, file=sys.stderr, flush=True)
  with processes.together('the config'):
    config = overrides_lib.load(args.config, args.overrides)
    build.check(config)
    # Once devices are in use, as in a notebook, their number stands.
    with contextlib.suppress(RuntimeError):
      jax.config.update('jax_num_cpu_devices', build.num_cpu_devices(config))
    resolved = build.resolve(config)
    changes = [name for name in args.change.split(',') if name]
    if args.tensorboard:
      metrics.import_extra('tensorboardX', 'tensorboard')
    if args.wandb:
      metrics.import_extra('wandb', 'wandb')
  processes.same('config', resolved)
  with processes.together('the corpus'):
    engine = _engines.of(resolved)
    setup = engine.make(config)
    timing['corpus'] = clock()
  processes.same('corpus', setup.dataset.fingerprint)
  for line in engine.describe(setup):
    notify(line)
  if args.dry_run:
    with processes.together('the check of the folder'):
      workdir.check(args.workdir, resolved, changes=changes)
    return 0
  with workdir.opened(args.workdir, resolved, changes=changes) as folder:

    def sink(step):
      records = folder / workdir.METRICS
      resume_step = step if records.exists() else None
      makes = [
        lambda: metrics.jsonl(records, resume_step=resume_step),
        lambda: metrics.progress(
          total_steps=setup.num_steps, start_step=step, stream=sys.stderr
        ),
      ]
      if args.tensorboard:
        board = folder / 'tensorboard'
        makes.append(
          lambda: metrics.tensorboard(board, resume_step=resume_step)
        )
      if args.wandb:
        makes.append(lambda: metrics.wandb(args.wandb, folder.name, resolved))
      with contextlib.ExitStack() as made:  # If one fails, the others close.
        sinks = []
        for make in makes:
          sinks.append(make())
          made.callback(sinks[-1].close)
        made.pop_all()
      environment = workdir.environment()
      environment['functions'] = workdir.functions(resolved)
      workdir.write_json(folder / workdir.ENVIRONMENT, environment)
      return metrics.tee(*sinks)

    try:
      engine.train(
        setup,
        folder,
        sink=sink,
        notify=notify,
        clock=clock,
        timing=timing,
      )
    except train.NonFiniteError as error:
      notify(f'dilojax: error: {error}')
      return 1
    except train.Interrupted as error:
      notify(f'dilojax: {error}')
      return 130
  if is_first:
    print(table.markdown(table.rows([folder])))
  return 0


def _audit(args):
  from dilojax import _targets

  target = _targets.parse(args.target)
  _targets.check_extra(target)
  environment = {**os.environ, **_targets.environment(target)}
  if environment != dict(os.environ):
    # In a process of its own: before jax is imported, and alone with libtpu.
    command = [sys.executable, '-m', 'dilojax.cli', 'audit']
    command += [f'--config={args.config}', f'--target={args.target}']
    command += ['--json'] * args.json
    command += [f'--config.{name}={text}' for name, text in args.overrides]
    return subprocess.run(command, env=environment, check=False).returncode

  from dilojax import _overrides as overrides_lib
  from dilojax import audit
  from dilojax import build

  config = overrides_lib.load(args.config, args.overrides)
  build.check(config)
  devices = _targets.devices(target, build.num_cpu_devices(config))
  notify = lambda text: print(text, file=sys.stderr, flush=True)
  report = audit.audit(config, devices, notify=notify)
  if args.json:
    print(json.dumps({'target': args.target, **audit.as_json(report)}))
  else:
    print(audit.table(report))
  return 0 if report.agrees else 1


def _prepare(args):
  from dilojax import data

  if args.pattern is None:
    documents = data.stdlib_documents()
  else:
    documents = data.file_documents(args.pattern)
  facts = data.prepare(
    documents,
    out=args.out,
    heldout_fraction=args.heldout_fraction,
    tokenizer=args.tokenizer,
    vocab_size=args.vocab_size,
    num_clusters=args.num_clusters,
  )
  for name, value in facts.items():
    print(f'{name}: {value}')
  return 0


if __name__ == '__main__':
  sys.exit(main())
