"""Do more replicas, each with data of its own, help?

Table 3 of https://arxiv.org/abs/2311.08105, at small scale, with data dealt at
random and by cluster. Each replica adds batches of its own, so that compute and
tokens grow with K while inner steps stay. Expected: the loss falls with K, ever
less, and data by cluster cost next to nothing.

    dilojax sweep experiments/diloco/num_replicas.py --out=runs/num_replicas
    dilojax table experiments/diloco/num_replicas.py --out=runs/num_replicas

Cost: 21 runs of 500 steps, of 0.3 to 4.1 million tokens.

The paper starts from a model of 24,000 steps and goes on to 64 replicas, with
500 steps per round and outer momentum 0.9. Here all start from scratch, with 10
steps per round and outer momentum 0.6, and there are as many clusters as
replicas. With `:paper` the first 24,000 steps are data parallel on all
replicas, and C4 has the clusters that it was prepared with.
"""

from collections.abc import Iterator
from typing import Any

from configs import diloco_c4_150m
from configs import small

SEEDS = (0, 1, 2)
PAPER_COLUMN = 'perplexity'
PARENTS = {
  'K=4': 'K=1',
  'K=8': 'K=4',
  'K=16': 'K=8',
  'K=4_non_iid': 'K=4',
  'K=8_non_iid': 'K=8',
  'K=16_non_iid': 'K=16',
}
EXPECTED = (
  'K=1, K=4, K=8, K=16 decrease',
  'K=1, K=4_non_iid, K=8_non_iid, K=16_non_iid decrease',
  'K=8_non_iid within 1% of K=8',
  'K=16_non_iid within 1% of K=16',
)


def get_config(size='small'):
  """Returns the config that every run overrides."""
  config = {'small': small, 'paper': diloco_c4_150m}[size].get_config()
  if size == 'small':
    config.num_steps, config.every = 500, 10
  return config


def sweep(size='small') -> Iterator[tuple[str, dict[str, Any]]]:
  """Yields the name `row/seed` and the overrides of each run."""
  # None removes a field that has no effect.
  alone = {
    'method': 'data_parallel',
    'num_replicas': 1,
    'every': None,
    'outer': None,
    'final_synchronization': None,
  }
  if size == 'paper':
    alone['data_parallel_steps'] = None
  rows: dict[str, dict[str, Any]] = {'K=1': alone}
  for count in (4, 8, 16):
    rows[f'K={count}'] = {'num_replicas': count}
    clusters = {'data.num_clusters': count} if size == 'small' else {}
    rows[f'K={count}_non_iid'] = {
      'num_replicas': count,
      'data.non_iid': 1.0,
      **clusters,
    }
  for seed in SEEDS:
    for row, overrides in rows.items():
      yield f'{row}/{seed}', {'seed': seed, **overrides}
