r"""What do replicas cost at equal tokens, and does it shrink with the model?

Table 4 of https://arxiv.org/abs/2503.09799, at three small sizes: data
parallelism, and DiLoCo with the same batch over M = 1, 2, 4 replicas, for 20
tokens per param. Expected: M = 1 is better than data parallelism, more replicas
are worse, and their cost in percent shrinks with the size.

    dilojax sweep experiments/scaling_laws/replicas_by_size.py \
      --out=runs/replicas_by_size
    dilojax table experiments/scaling_laws/replicas_by_size.py \
      --out=runs/replicas_by_size

Cost: 36 runs, of 0.8, 1.6 and 2.6 million tokens. Sizes have 41,000, 80,000 and
131,000 params here, and 35M, 90M and 180M in the paper.

The paper tunes inner learning rate, batch and outer learning rate for each
cell, and has 30 steps per round and outer momentum 0.9. Here all cells have the
same, with 10 steps per round and outer momentum 0.6. With `:paper` batch and
learning rate are those that the paper's fits (table 10) give for M = 2, and
all have its outer learning rate of 0.6.
"""

from collections.abc import Iterator
from typing import Any

from configs import scaling_10b
from configs import small

SEEDS = (0, 1, 2)
# Inner steps and peak of the learning rate; layers, heads, width.
SIZES = {
  'small': {
    'size1': (400, 3e-3, 2, 2, 32),
    'size2': (780, 3e-3, 2, 3, 48),
    'size3': (1_280, 3e-3, 2, 4, 64),
  },
  'paper': {
    'size1': (10_681, 6.0e-3, 6, 8, 512),
    'size2': (27_466, 2.6e-3, 9, 12, 768),
    'size3': (54_932, 1.4e-3, 12, 16, 1024),
  },
}
PAPER_COLUMN = 'loss'
PARENTS = {
  f'size{size}_M={count}': f'size{size}_data_parallel'
  for size in (1, 2, 3)
  for count in (1, 2, 4)
}
EXPECTED = (
  'size1_M=1 < size1_data_parallel',
  'size2_M=1 < size2_data_parallel',
  'size3_M=1 < size3_data_parallel',
  'size1_data_parallel, size1_M=2, size1_M=4 increase',
  'size2_data_parallel, size2_M=2, size2_M=4 increase',
  'size3_data_parallel, size3_M=2, size3_M=4 increase',
  'size3_M=4/size3_data_parallel < size1_M=4/size1_data_parallel',
)


def get_config(size='small'):
  """Returns the config that every run overrides."""
  config = {'small': small, 'paper': scaling_10b}[size].get_config()
  if size == 'small':
    config.every = 10
  config.outer.lr = {'small': 0.7, 'paper': 0.6}[size]
  return config


def sweep(size='small') -> Iterator[tuple[str, dict[str, Any]]]:
  """Yields the name `row/seed` and the overrides of each run."""
  # None removes a field that has no effect.
  each_step = {
    'method': 'data_parallel',
    'every': None,
    'outer': None,
    'final_synchronization': None,
  }
  batch, head_dim = {'small': (16, 16), 'paper': (32, 64)}[size]
  for seed in SEEDS:
    for name, (steps, lr, layers, heads, dim) in SIZES[size].items():
      model = {
        'num_steps': steps,
        'inner.peak_lr': lr,
        'model.num_layers': layers,
        'model.num_heads': heads,
        'model.head_dim': head_dim,
        'model.dim': dim,
        'model.mlp_dim': 4 * dim,
      }
      shared = {'seed': seed, **model}
      parallel = {**over(4, batch), **each_step}
      yield f'{name}_data_parallel/{seed}', {**shared, **parallel}
      for count in (1, 2, 4):
        yield f'{name}_M={count}/{seed}', {**shared, **over(count, batch)}


def over(num_replicas: int, batch: int) -> dict[str, int]:
  """Shares a batch out to replicas and parts of a few sequences."""
  own = batch // num_replicas
  return {
    'num_replicas': num_replicas,
    'data.batch_size': own,
    'inner.accumulate': max(1, own // 16),
  }
