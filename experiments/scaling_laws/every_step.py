"""Is an outer step after every inner step the worst choice?

The ablation of H in https://arxiv.org/abs/2503.09799, at small scale and equal
tokens, for one replica and for four. Expected: with Nesterov's outer momentum,
an outer step after each inner one is worse than one after 5, also with a lower
outer learning rate; then the loss grows with H for four replicas.

    dilojax sweep experiments/scaling_laws/every_step.py --out=runs/every_step
    dilojax table experiments/scaling_laws/every_step.py --out=runs/every_step

Cost: 27 runs of 1.6 million tokens.

The paper finds so with outer momentum 0.9, and the best of seven outer learning
rates for each H, from 0.05 to 1. Here outer momentum is 0.6, and the outer
learning rate 0.7, or 0.2 in the rows `low`. Data parallelism averages gradients
before AdamW sees them, and `M=4_H=1` the params that it has led to.
"""

from collections.abc import Iterator
from typing import Any

from configs import scaling_10b
from configs import small

SEEDS = (0, 1, 2)
BASELINE = 'data_parallel'
EXPECTED = (
  'M=1_H=5 < M=1_H=1',
  'M=1_H=5 < M=1_H=1_low',
  'M=4_H=5 < M=4_H=1',
  'M=4_H=5 < M=4_H=1_low',
  'M=4_H=5 < M=4_H=30',
)


def get_config(size='small'):
  """Returns the config that every run overrides."""
  config = {'small': small, 'paper': scaling_10b}[size].get_config()
  if size == 'small':
    config.num_steps = 800
  else:  # The model of 35M params.
    config.num_steps, config.inner.peak_lr = 10_681, 6.0e-3
    config.model.num_layers, config.model.num_heads = 6, 8
    config.model.dim, config.model.mlp_dim = 512, 2048
  return config


def sweep(size='small') -> Iterator[tuple[str, dict[str, Any]]]:
  """Yields the name `row/seed` and the overrides of each run."""
  batch = {'small': 16, 'paper': 32}[size]
  rounds = {
    'H=1': {'every': 1},
    'H=1_low': {'every': 1, 'outer.lr': 0.2},
    'H=5': {'every': 5},
    'H=30': {'every': 30},
  }
  over = lambda count: {
    'num_replicas': count,
    'data.batch_size': batch // count,
    'inner.accumulate': max(1, batch // count // 16),
  }
  # None removes a field that has no effect.
  each_step = {
    'method': 'data_parallel',
    'every': None,
    'outer': None,
    'final_synchronization': None,
  }
  for seed in SEEDS:
    yield f'data_parallel/{seed}', {'seed': seed, **over(4), **each_step}
    for count in (1, 4):
      for row, overrides in rounds.items():
        name = f'M={count}_{row}/{seed}'
        yield name, {'seed': seed, **over(count), **overrides}
