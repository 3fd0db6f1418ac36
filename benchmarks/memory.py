"""Bytes that DiLoCo holds beyond the inner optimizer's, per device.

    python -m benchmarks.memory

Nothing is timed: sizes come from the compiled programs. Persistent bytes are
those of params and optimizer state on a device; temporary bytes are what a
program of inner steps needs besides. A quiet segment is compared with a scan
of the bare inner step.
"""

import argparse

import jax

from benchmarks import measuring
from dilojax import _position
from dilojax import _segment
from dilojax import build
from dilojax import train


def main() -> None:
  """Measures, and prints a table and a line of JSON."""
  args = parse_args()
  setup, bare = measuring.setups(args.config)
  every = build.links(setup)[0].schedule.every
  start = _position.start(setup, _position.state_axes(setup))
  params = _bytes_per_device(start.params)
  found = {
    'bare scan': _sizes(bare, *_scan(bare)),
    'quiet segment': _sizes(setup, *_segment_of(setup, every - 1)),
    'segment with a landing': _sizes(setup, *_segment_of(setup, every)),
  }
  counter = 4  # The step of the link, an int32.
  persistent = {name: each['persistent'] for name, each in found.items()}
  extra = persistent['quiet segment'] - persistent['bare scan'] - counter
  measuring.show(
    ('program', 'persistent bytes', 'temporary bytes'),
    [
      (name, f'{each["persistent"]:,}', f'{each["temporary"]:,}')
      for name, each in found.items()
    ],
  )
  print(
    f'Beyond the inner optimizer: {extra / params} times the params'
    f' ({params:,} bytes), and a counter of {counter} bytes.'
  )
  measuring.report(
    'memory',
    bytes=found,
    params_bytes_per_device=params,
    persistent_extra_over_params=extra / params,
    quiet_temporary_over_bare=(
      found['quiet segment']['temporary'] / found['bare scan']['temporary']
    ),
    settings=vars(args),
  )


def _scan(setup):
  program = measuring.plain_scan(setup)
  return program, (measuring.batches(setup, _segment.max_steps(setup)),)


def _segment_of(setup, last):
  programs = train.make_programs(setup)
  stop = lambda step: step == last
  segment = next(_segment.plan(setup, programs.links, 1, last, stop))
  args = (_segment.batches(setup, segment), _segment.lengths(segment))
  return programs.segment(segment), args


def _sizes(setup, program, args):
  """Returns what params and state take on a device, and a program besides."""
  start = _position.start(setup, _position.state_axes(setup))
  state = (start.params, start.opt_state)
  compiled = program.lower(*state, *args).compile()
  return {
    'persistent': _bytes_per_device(state),
    'temporary': compiled.memory_analysis().temp_size_in_bytes,
  }


def _bytes_per_device(tree):
  return sum(
    leaf.addressable_shards[0].data.nbytes for leaf in jax.tree.leaves(tree)
  )


def parse_args() -> argparse.Namespace:
  """Reads the command line."""
  parser = argparse.ArgumentParser(
    description=__doc__.partition('\n')[0],
    formatter_class=argparse.ArgumentDefaultsHelpFormatter,
  )
  parser.add_argument('--config', default='configs/diloco.py', help='config')
  return parser.parse_args()


if __name__ == '__main__':
  main()
