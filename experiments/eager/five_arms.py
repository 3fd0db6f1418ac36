"""How late may the pseudo-gradients of others be?

Table 2 of https://arxiv.org/abs/2502.12996, and a row of its table 3, at small
scale: no overlap; messages that land an inner step late; a whole round late,
as they are and with a lower outer learning rate; and eager updates, whose own
share is fresh. Expected: an inner step costs nothing; a round costs much, a
lower outer learning rate takes part of that back, and eager updates take back
most of it; fragments are no help to them.

    dilojax sweep experiments/eager/five_arms.py --out=runs/five_arms
    dilojax table experiments/eager/five_arms.py --out=runs/five_arms

Cost: 21 runs of `configs/small.py` with two replicas and 30 steps per round.

`eager_lower` is no row of the paper. Its eager updates two rounds late are no
row here: there is no such reduction. The paper has outer momentum 0.9 and
fragments of three layers in all of table 2; here is outer momentum 0.6, and all
params at once but in `eager_fragments`. All runs end with a synchronization
that takes in what is still on its way.
"""

from collections.abc import Iterator
from typing import Any

from configs import small
from configs import streaming
from configs import streaming_1b

SEEDS = (0, 1, 2)
PAPER_COLUMN = 'loss'
PARENTS = {
  'inner_step': 'none',
  'delayed': 'none',
  'delayed_lower': 'delayed',
  'eager': 'none',
  'eager_lower': 'eager',
  'eager_fragments': 'eager',
}
EXPECTED = (
  'inner_step within 0.5% of none',
  'none < delayed',
  'delayed_lower < delayed',
  'eager < delayed',
  'eager < delayed_lower',
  'eager within 1% of none',
  'eager < eager_fragments',
)


def get_config(size='small'):
  """Returns the config that every run overrides."""
  config = {'small': small, 'paper': streaming_1b}[size].get_config()
  config.num_replicas, config.every = 2, 30
  return config


def sweep(size='small') -> Iterator[tuple[str, dict[str, Any]]]:
  """Yields the name `row/seed` and the overrides of each run."""
  lower = {'outer.lr': {'small': 0.3, 'paper': 0.2}[size]}
  fragments = streaming.get_config().fragments.to_dict()
  fragments['layers_per_fragment'] = {'small': 1, 'paper': 3}[size]
  late = {'offset': 30, 'delay': 1, 'merge': 'overwrite'}
  rows = {
    'none': {},
    'inner_step': {'overlap': late},
    'delayed': {'late': 'delayed'},
    'delayed_lower': {'late': 'delayed', **lower},
    'eager': {'late': 'eager'},
    'eager_lower': {'late': 'eager', **lower},
    'eager_fragments': {'late': 'eager', 'fragments': fragments},
  }
  for seed in SEEDS:
    for row, overrides in rows.items():
      yield f'{row}/{seed}', {'seed': seed, **overrides}
