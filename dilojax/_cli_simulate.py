"""The command `dilojax simulate`: options, and what they mean."""

import argparse
import json
import math
import pathlib
import statistics
from typing import Any

from dilojax import _cli_dreamddp

# Everything else is imported where it is used.

_UTILIZATION = """\
Simulates what the links between sites leave of a training's time.

The model's layers are even: of 3 L passes in a step, each takes as long. A
message is a layer's; a link carries one after the other while computation goes
on, and the forward pass of a layer waits for what it needs. Options of the
method take several values for several methods: the first values make the first
method, and a single value serves for all. Data parallelism, DiLoCo, and its
streaming form in 4 bits that land a step late:

  dilojax simulate utilization --num_layers=24 --step_seconds=0.1 \\
    --params=1e9 --every 1 100 100 --num_fragments 1 1 8 --delay 0 0 1 \\
    --bits 16 16 4 --bandwidth 1 10 100

Utilization is the share of time that is computation.
"""

_DEFAULT_TARGETS = (0.5, 0.8, 0.9, 0.95, 0.99)


def add(commands: Any):
  """Adds the command, and those below it.

  Args:
    commands: What `add_subparsers` returned.
  """
  simulate = commands.add_parser(
    'simulate',
    help='model links and time: no accelerator, no training',
    allow_abbrev=False,
  )
  simulations = simulate.add_subparsers(dest='simulation', required=True)
  _add_utilization(simulations)
  _cli_dreamddp.add_dreamddp(simulations)


def measured(folder: pathlib.Path) -> dict[str, Any]:
  """Reads from a run what the simulation of its model needs.

  Args:
    folder: Folder of a finished run.

  Returns:
    `num_layers`, `params`, and `step_seconds`, with which a step computes for
    as long as one of the run took: the median over the records of training, the
    first left out, of the seconds per step since the one before. Compilation
    is in the first. Evaluation is in few of the others, so that the median
    leaves it out.

  Raises:
    ValueError: If the folder holds no finished run, or too few records.
  """
  from dilojax import metrics
  from dilojax import workdir

  if not (folder / workdir.SUMMARY).is_file():
    raise ValueError(
      f'`measured` must be the folder of a finished run, got {str(folder)!r},'
      f' which has no {workdir.SUMMARY}.'
    )
  records = [
    record
    for record in metrics.read(folder / workdir.METRICS)
    if 'train/loss' in record
  ]
  paces = [
    (after['seconds'] - before['seconds']) / (after['step'] - before['step'])
    for before, after in zip(records, records[1:])
  ]
  if not paces:
    raise ValueError(
      f'`measured` must have at least two records of training, got'
      f' {len(records)} in {str(folder)!r}: the first includes compilation.'
      ' Train with a smaller `log_every`.'
    )
  config = workdir.read_json(folder / workdir.CONFIG)
  summary = workdir.read_json(folder / workdir.SUMMARY)
  try:
    layers, params = config['model']['num_layers'], summary['num_params']
  except (KeyError, TypeError) as error:
    raise ValueError(
      f'`measured` must hold the config and summary of a model with layers, got'
      f' something else in {str(folder)!r}: {type(error).__name__} {error}.'
    ) from None
  # One of the 3 L passes is not computed, see `even_layers`.
  seconds = statistics.median(paces) * 3 * layers / (3 * layers - 1)
  return {'num_layers': layers, 'params': params, 'step_seconds': seconds}


def _add_utilization(simulations):
  parser = simulations.add_parser(
    'utilization',
    help='what links leave of the time, and the bandwidth that is needed',
    description=_UTILIZATION,
    formatter_class=argparse.RawDescriptionHelpFormatter,
    allow_abbrev=False,
  )
  model = parser.add_argument_group(
    'model', 'all three, or those of a run where they are not given'
  )
  model.add_argument('--num_layers', type=int, help='number of layers')
  model.add_argument(
    '--step_seconds',
    type=float,
    help='of 3 passes in each layer; one in the first layer is not needed',
  )
  model.add_argument(
    '--params', type=float, help='number of params, spread over the layers'
  )
  model.add_argument(
    '--measured',
    metavar='RUN',
    help='folder of a finished run: its layers, its params, and as time of'
    ' computation the median between its records of the seconds per step, of'
    ' all replicas that share the machine, synchronizations included',
  )

  method = parser.add_argument_group('method', 'one value or several each')
  _add_several(method, 'every', int, 1, 'steps per round')
  _add_several(method, 'num_fragments', int, 1, 'fragments that take turns')
  _add_several(
    method, 'order', str, 'strided', 'or sequential: layers of a fragment'
  )
  _add_several(
    method,
    'rule',
    str,
    'exact',
    'or rounded: each fragment every EVERY steps, as in our runs, or one'
    ' fragment every round(EVERY / FRAGMENTS), as in the table of the paper',
  )
  _add_several(method, 'delay', int, 0, 'steps from a launch to its landing')
  _add_several(
    method,
    'bits',
    float,
    16.0,
    'bits that a param puts on the link; a ring of K sends 2 (K - 1) / K times'
    ' its message',
  )

  link = parser.add_argument_group('link')
  link.add_argument(
    '--bandwidth',
    type=float,
    nargs='+',
    default=[],
    metavar='GBIT',
    help='between sites, in Gbit/s',
  )
  link.add_argument(
    '--latency',
    type=float,
    default=0.0,
    metavar='SECONDS',
    help='for which a message keeps the link busy beyond its bits',
  )
  link.add_argument(
    '--inside_bandwidth',
    type=float,
    metavar='GBIT',
    help='inside a site, where gradients are averaged in every step; without'
    ' it, this takes no time',
  )
  link.add_argument(
    '--inside_latency', type=float, metavar='SECONDS', help='inside a site'
  )
  link.add_argument(
    '--inside_bits', type=float, help='of a gradient inside a site (16)'
  )

  shown = parser.add_argument_group('what is shown')
  shown.add_argument(
    '--target',
    type=float,
    nargs='+',
    metavar='SHARE',
    help='utilizations, such as 0.9, for which the bandwidth is wanted; the'
    ' first of 50 points of the range that is enough (0.5 0.8 0.9 0.95 0.99'
    ' if neither this nor --bandwidth is given)',
  )
  shown.add_argument(
    '--range',
    type=float,
    nargs=2,
    default=(0.1, 1000.0),
    metavar=('LOW', 'HIGH'),
    help='in Gbit/s, of --target and --plot (0.1 1000)',
  )
  shown.add_argument(
    '--steps', type=int, default=2000, help='to simulate (2000)'
  )
  shown.add_argument(
    '--plot', metavar='FILE', help='picture to write, utilization by bandwidth'
  )
  shown.add_argument(
    '--json', action='store_true', help='print JSON instead of tables'
  )
  parser.set_defaults(run=_utilization)


def _add_several(group, name, kind, default, text):
  group.add_argument(
    f'--{name}',
    type=kind,
    nargs='+',
    default=[default],
    metavar=name.upper() if kind is str else 'N',
    help=f'{text} ({default})' if kind is not str else f'{default} {text}',
  )


def _utilization(args):
  from dilojax import simulate

  layers = _layers(args)
  methods = _methods(args)
  low, high = args.range
  if not 0 < low < high < math.inf:
    raise ValueError(
      f'`range` must be two increasing bandwidths above 0, got {low:g}'
      f' {high:g}.'
    )
  if args.plot is not None:
    from dilojax import plot

    plot.check_out(args.plot)
  targets = args.target
  if targets is None:
    targets = () if args.bandwidth else _DEFAULT_TARGETS
  report = simulate.utilization_report(
    layers,
    methods,
    bandwidths=[1e9 * bandwidth for bandwidth in args.bandwidth],
    targets=targets,
    latency=args.latency,
    inside=_inside(args),
    inside_bits=16.0 if args.inside_bits is None else args.inside_bits,
    grid=[1e9 * low * (high / low) ** (point / 49) for point in range(50)],
    curves=args.plot is not None,
    num_steps=args.steps,
  )
  if args.json:
    print(json.dumps(report))
  else:
    print(simulate.utilization_table(report))
  if args.plot is not None:
    from dilojax import _utilization_plot

    path = _utilization_plot.save(report, args.plot)
    if not args.json:
      print(f'\n{path}')
  return 0


def _layers(args):
  from dilojax import simulate

  given = {
    'num_layers': args.num_layers,
    'step_seconds': args.step_seconds,
    'params': args.params,
  }
  given = {name: value for name, value in given.items() if value is not None}
  if args.measured is not None:
    given = {**measured(pathlib.Path(args.measured)), **given}
  missing = {'num_layers', 'step_seconds', 'params'} - given.keys()
  if missing:
    names = ', '.join(f'--{name}' for name in sorted(missing))
    raise ValueError(
      f'give {names}, or with --measured=RUN the folder of a finished run.'
    )
  for name in ('step_seconds', 'params'):
    if not 0 < given[name] < math.inf:
      raise ValueError(
        f'`{name}` must be a finite number above 0, got {given[name]:g}.'
      )
  return simulate.even_layers(
    given['num_layers'], given['step_seconds'], given['params']
  )


def _methods(args):
  from dilojax import simulate

  options = {
    'every': args.every,
    'num_fragments': args.num_fragments,
    'order': args.order,
    'rule': args.rule,
    'delay': args.delay,
    'bits': args.bits,
  }
  count = max(map(len, options.values()))
  for name, values in options.items():
    if len(values) not in (1, count):
      raise ValueError(
        f'`{name}` must have one value, or one for each of {count} methods,'
        f' got {len(values)}.'
      )
  columns = [
    values * count if len(values) == 1 else values
    for values in options.values()
  ]
  return [simulate.Method(*values) for values in zip(*columns)]


def _inside(args):
  from dilojax import simulate

  if args.inside_bandwidth is not None:
    latency = args.inside_latency or 0.0
    return simulate.Link(1e9 * args.inside_bandwidth, latency)
  for name in ('inside_latency', 'inside_bits'):
    if getattr(args, name) is not None:
      raise ValueError(
        f'`{name}` has no effect without `inside_bandwidth`: give that too.'
      )
  return None
