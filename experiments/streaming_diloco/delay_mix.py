"""How long may messages be on their way, and does it help to mix them in?

The ablation of delay and mixing in https://arxiv.org/abs/2501.18512, at small
scale. Rows are named by the delay in inner steps, and by the weight of the
replica's own params when a message lands: 0 overwrites them. Expected: up to 5
steps cost at most 0.5%, and with a long delay it is safer to mix. The paper has
less than 0.2% at 10 steps with mixing.

    dilojax sweep experiments/streaming_diloco/delay_mix.py --out=runs/delay_mix
    dilojax table experiments/streaming_diloco/delay_mix.py --out=runs/delay_mix

Cost: 30 runs of `configs/small.py` with two replicas and 30 steps per round.

Rows that mix have outer settings of their own, those of
`experiments/streaming_diloco/quality.py`: half of a landing is taken away
again, which a larger step makes up for. So compare rows of one weight. The
paper has one outer setting, fragments of three layers and messages of 4 bits;
here are fragments of one layer and 32 bits, which leaves the delay alone.
"""

from collections.abc import Iterator
from typing import Any

from configs import small
from configs import streaming
from configs import streaming_1b

SEEDS = (0, 1, 2)
PARENTS = {
  'mix_0': 'overwrite_0',
  **{f'overwrite_{delay}': 'overwrite_0' for delay in (1, 5, 10, 20)},
  **{f'mix_{delay}': 'mix_0' for delay in (1, 5, 10, 20)},
}
EXPECTED = (
  'overwrite_5 within 0.5% of overwrite_0',
  'mix_5 within 0.5% of mix_0',
  'mix_10 within 0.5% of mix_0',
  'overwrite_0 < overwrite_20',
  'mix_20 < overwrite_20',
)


def get_config(size='small'):
  """Returns the config that every run overrides."""
  config = {'small': small, 'paper': streaming_1b}[size].get_config()
  config.num_replicas, config.every = 2, 30
  config.fragments = streaming.get_config().fragments
  config.fragments.layers_per_fragment = {'small': 1, 'paper': 3}[size]
  return config


def sweep(size='small') -> Iterator[tuple[str, dict[str, Any]]]:
  """Yields the name `row/seed` and the overrides of each run."""
  mixing = {'outer.lr': 1.0, 'outer.momentum': 0.8} if size == 'small' else {}
  for seed in SEEDS:
    for delay in (0, 1, 5, 10, 20):
      overlap = {'delay': delay, 'merge': 'overwrite'}
      yield f'overwrite_{delay}/{seed}', {'seed': seed, 'overlap': overlap}
      overlap = {'delay': delay, 'merge': 'mix', 'alpha': 0.5}
      overrides = {'seed': seed, 'overlap': overlap, **mixing}
      yield f'mix_{delay}/{seed}', overrides
