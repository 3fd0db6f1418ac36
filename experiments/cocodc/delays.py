"""Which merge bears a growing delay?

The rules for what a replica does with a new anchor that lands steps after its
launch: it becomes the anchor (overwrite), or the mean of both (mix), as in
https://arxiv.org/abs/2501.18512; it keeps what it did meanwhile (delta), as in
https://arxiv.org/abs/2605.20866; or the same with a correction of second order
(delay_compensated), as in https://arxiv.org/abs/2504.17672. Rows are named by
the delay in inner steps. Expected: overwriting gets worse with the delay; delta
and mix are better at the long one, and delta is at most 1% worse than without
any delay; the correction changes at most 0.2%.

    dilojax sweep experiments/cocodc/delays.py --out=runs/delays
    dilojax table experiments/cocodc/delays.py --out=runs/delays

Cost: 27 runs of 1.6 million tokens, with 20 steps per round.

There is no table to compare with: CoCoDC prints 21.0% fewer steps than
Streaming DiLoCo, at 150M params with four replicas, 100 steps per round and a
delay of 5. Its equations are reconstructed, and their strength of 0.5 gives a
correction that is far smaller than the params, here as there. Mixing has the
outer settings of `experiments/streaming_diloco/quality.py`, as half of a
landing is taken away again; the others have 0.7 and 0.6.
"""

from collections.abc import Iterator
from typing import Any

from configs import cocodc
from configs import diloco_c4_150m
from configs import small

SEEDS = (0, 1, 2)
DELAYS = (5, 15)
MERGES = {
  'overwrite': {},
  'mix': {'alpha': 0.5},
  'delta': {},
  'delay_compensated': {'strength': 0.5},
}
PARENTS = {
  f'{merge}_{delay}': 'none' if merge == 'overwrite' else f'overwrite_{delay}'
  for delay in DELAYS
  for merge in MERGES
}
EXPECTED = (
  'none, overwrite_5, overwrite_15 increase',
  'delta_5 < overwrite_5',
  'delta_15 < overwrite_15',
  'mix_15 < overwrite_15',
  'delta_15 within 1% of none',
  'delay_compensated_15 within 0.2% of delta_15',
)


def get_config(size='small'):
  """Returns the config that every run overrides."""
  config = {'small': small, 'paper': diloco_c4_150m}[size].get_config()
  config.num_replicas = 4
  config.fragments = cocodc.get_config().fragments
  if size == 'small':
    config.num_steps = 800
    return config
  config.method, config.num_steps, config.every = 'diloco', 64_000, 100
  del config.data_parallel_steps
  config.fragments.layers_per_fragment = 3
  config.fragments.outside = 'first'
  return config


def sweep(size='small') -> Iterator[tuple[str, dict[str, Any]]]:
  """Yields the name `row/seed` and the overrides of each run."""
  mixing = {'outer.lr': 1.0, 'outer.momentum': 0.8} if size == 'small' else {}
  for seed in SEEDS:
    yield f'none/{seed}', {'seed': seed}
    for delay in DELAYS:
      for merge, fields in MERGES.items():
        overlap = {'delay': delay, 'merge': merge, **fields}
        overrides = {'seed': seed, 'overlap': overlap}
        own = mixing if merge == 'mix' else {}
        yield f'{merge}_{delay}/{seed}', {**overrides, **own}
