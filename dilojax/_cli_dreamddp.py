"""The commands `dilojax profile` and `dilojax simulate dreamddp`."""

import argparse
import json
import pathlib
from typing import Any

# Everything else is imported where it is used.

_PROFILE = """\
Measures, on this machine, the backward pass of each part of a config's model.

Writes a CSV file that `dilojax simulate dreamddp` plans with. All-reduce times
are computed from bytes, bandwidth and latency, for a ring. Fields are
overridden as for train. Measure on a machine that does nothing else.
"""

_DREAMDDP = """\
Plans in which step of a round each part of a model is averaged, so that little
is waited for, and predicts the seconds per step of five methods.

The line `turns` is the field of a config that trains so:

  dilojax train --config=configs/dreamddp.py --config.turns='...' --workdir=DIR
"""


def add_profile(commands: Any):
  """Adds the command that measures.

  Args:
    commands: What `add_subparsers` of the parser returned.
  """
  parser = commands.add_parser(
    'profile',
    help='measure the backward pass of each part of a model',
    description=_PROFILE,
    formatter_class=argparse.RawDescriptionHelpFormatter,
    allow_abbrev=False,
  )
  parser.add_argument(
    '--config', required=True, metavar='FILE', help='a Python file of configs/'
  )
  parser.add_argument(
    '--bandwidth',
    required=True,
    type=float,
    metavar='GBIT',
    help='between replicas, in Gbit/s',
  )
  parser.add_argument(
    '--latency',
    type=float,
    default=0.0,
    metavar='SECONDS',
    help='of an all-reduce, however small (0)',
  )
  parser.add_argument(
    '--depth',
    type=int,
    default=1,
    metavar='N',
    help='number of keys that name a part: 1 for layers, which `turns` has (1)',
  )
  parser.add_argument(
    '--repeats', type=int, default=20, metavar='N', help='runs of each (20)'
  )
  parser.add_argument(
    '--out', metavar='FILE', help='file to write; printed without it'
  )
  parser.set_defaults(run=_profile)


def add_dreamddp(commands: Any):
  """Adds the command that plans.

  Args:
    commands: What `add_subparsers` of the parser of `simulate` returned.
  """
  parser = commands.add_parser(
    'dreamddp',
    help='plan which layers are averaged in which step',
    description=_DREAMDDP,
    formatter_class=argparse.RawDescriptionHelpFormatter,
    allow_abbrev=False,
  )
  parser.add_argument(
    'profile',
    metavar='PROFILE',
    help='CSV file of names, backward and all-reduce seconds',
  )
  parser.add_argument(
    '--every', required=True, type=int, metavar='H', help='steps per round'
  )
  parser.add_argument(
    '--start_rule',
    default='physical',
    help='when a transfer starts in the search: physical, or released, as in'
    ' the published numbers (physical)',
  )
  parser.add_argument(
    '--fills',
    action='store_true',
    help='average parts once more while the link would be idle',
  )
  parser.add_argument(
    '--json', action='store_true', help='print JSON instead of tables'
  )
  parser.set_defaults(run=_dreamddp)


def _profile(args):
  import jax

  from dilojax import _overrides
  from dilojax import _profile as profile_lib
  from dilojax import build
  from dilojax import simulate

  config = _overrides.load(args.config, args.overrides)
  build.check(config)
  bandwidth = 1e9 * args.bandwidth
  profile_lib.check(bandwidth, args.latency, args.repeats)
  setup = build.make(config)
  units = profile_lib.profile(
    setup,
    bandwidth=bandwidth,
    latency=args.latency,
    depth=args.depth,
    repeats=args.repeats,
  )
  notes = [
    f'backward pass: shortest of {args.repeats} runs on one device'
    f' ({jax.devices()[0].device_kind})',
    f'all-reduces: {args.bandwidth:g} Gbit/s, {args.latency:g} s, ring of'
    f' {setup.placement.total} replicas',
    'rows in the order of the forward pass; seconds',
  ]
  text = simulate.profile_text(units, notes)
  if args.out is None:
    print(text, end='')
  else:
    pathlib.Path(args.out).write_text(text, encoding='utf-8')
    print(args.out)
  return 0


def _dreamddp(args):
  from dilojax import simulate

  report = simulate.dreamddp_report(
    simulate.read_profile(args.profile),
    every=args.every,
    start_rule=args.start_rule,
    fills=args.fills,
  )
  if args.json:
    print(json.dumps(report))
  else:
    print(simulate.dreamddp_table(report))
    print(f"\nturns: '{report['turns']}'")
  return 0
