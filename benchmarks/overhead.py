"""Steps per second of the training loop over those of the bare inner step.

    python -m benchmarks.overhead

The loop trains DiLoCo as `dilojax train` does: batches made by the host,
segments, landings, losses read. The bare step is a scan of the same model and
inner optimizer on batches that are on the devices already. Two more rows are
the same DiLoCo in a scan that decides with a branch, and with a call of a
jitted function for each step.
"""

import argparse
import collections

import jax

from benchmarks import measuring
from dilojax import _position
from dilojax import replicas
from dilojax import train

ROUNDS = 3  # Of the loop in a repeat; the others take one.


def main() -> None:
  """Measures, and prints a table and a line of JSON."""
  args = parse_args()
  overrides = [('every', str(args.every)), ('num_steps', str(10**6))]
  setup, bare = measuring.setups(args.config, overrides)
  fns = {
    'loop': loop(setup, ROUNDS * args.every),
    'bare scan': scan(bare, args.every),
    'branch': scan(setup, args.every),
    'call per step': calls(setup, args.every),
  }
  times = measuring.interleaved(fns, args.repeats)
  times['loop'] = [each / ROUNDS for each in times['loop']]
  ratios = {
    name: measuring.median_and_range(
      [base / mine for base, mine in zip(times['bare scan'], each)]
    )
    for name, each in times.items()
  }
  measuring.show(
    ('', 'steps/s', 'of bare', 'least', 'greatest'),
    [
      (
        name,
        f'{args.every / measuring.median_and_range(times[name])["median"]:.1f}',
        *(f'{ratio[key]:.3f}' for key in ('median', 'min', 'max')),
      )
      for name, ratio in ratios.items()
    ],
  )
  measuring.report(
    'overhead', ratios=ratios, seconds=times, settings=vars(args)
  )


def loop(setup, num_steps):
  """Returns a function that goes on in the training loop for some rounds.

  Each call starts the loop, and with it the thread that makes batches, anew.
  """
  programs = train.make_programs(setup)
  at = [_position.start(setup, programs.axes)]

  def run():
    last = at[0].step + num_steps
    # The position after a round keeps its arrays: nothing follows it.
    [*_, (at[0], _)] = train.advance(setup, programs, at[0], last)
    return at[0].params

  return run


def scan(setup, num_steps):
  """Returns a function that scans over steps on batches at hand."""
  start = _position.start(setup, _position.state_axes(setup))
  state = [start.params, start.opt_state]
  batches = measuring.batches(setup, num_steps)
  program = measuring.plain_scan(setup)

  def run():
    state[:], losses = program(*state, batches)
    return losses

  return run


def calls(setup, num_steps):
  """Returns a function that calls a program for each step."""
  axes = _position.state_axes(setup)
  start = _position.start(setup, axes)
  state = [start.params, start.opt_state]
  batches = measuring.batches(setup, num_steps)
  program = jax.jit(
    replicas.over_replicas(
      measuring.plain_step(setup), setup.placement, (*axes, 0), (axes, 0)
    ),
    donate_argnums=(0, 1),
  )
  each = [
    jax.tree.map(lambda leaf, n=n: leaf[:, n], batches)
    for n in range(num_steps)
  ]

  def run():
    waiting = collections.deque()
    for batch in each:
      state[:], loss = program(*state, batch)
      waiting.append(loss)
      if len(waiting) > 2:  # More in flight can deadlock on a CPU.
        waiting.popleft().block_until_ready()
    return waiting[-1]

  return run


def parse_args() -> argparse.Namespace:
  """Reads the command line."""
  parser = argparse.ArgumentParser(
    description=__doc__.partition('\n')[0],
    formatter_class=argparse.ArgumentDefaultsHelpFormatter,
  )
  parser.add_argument('--config', default='configs/diloco.py', help='config')
  parser.add_argument('--every', type=int, default=100, help='steps per round')
  parser.add_argument('--repeats', type=int, default=5, help='at least 5')
  return parser.parse_args()


if __name__ == '__main__':
  main()
