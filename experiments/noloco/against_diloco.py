"""Is the mean of a pair as good as the mean of all?

Table 2 of https://arxiv.org/abs/2506.10911, at small scale and equal tokens:
data parallelism, DiLoCo, and NoLoCo, whose replicas meet one other replica a
round, drawn anew. Expected, as in most rows of the paper: NoLoCo is better than
its DiLoCo, which has rounds twice as long; data parallelism is better than
both; and more replicas are worse.

    dilojax sweep experiments/noloco/against_diloco.py --out=runs/noloco
    dilojax table experiments/noloco/against_diloco.py --out=runs/noloco

Cost: 21 runs of 2 million tokens.

The row `diloco_often` is not in the paper: DiLoCo with NoLoCo's rounds, and so
as many messages of params; it is the one to compare a pair with. DiLoCo is
heavy ball with 0.7 and 0.3, as in the paper's code, and NoLoCo 0.7 and 0.5 with
a pull of 0.7. The paper has 50 and 100 steps per round, and 25,000 steps; here
are 10, 20, and 1,000. NoLoCo is evaluated at the mean of its replicas, which
end with a meeting of pairs. The paper's values are those of C4.
"""

from collections.abc import Iterator
from typing import Any

from configs import noloco
from configs import small
from configs import streaming_1b

SEEDS = (0, 1, 2)
PAPER_COLUMN = 'perplexity'
PARENTS = {
  'K=4_diloco': 'data_parallel',
  'K=4_diloco_often': 'K=4_diloco',
  'K=4_noloco': 'K=4_diloco',
  'K=8_diloco': 'data_parallel',
  'K=8_diloco_often': 'K=8_diloco',
  'K=8_noloco': 'K=8_diloco',
}
EXPECTED = (
  'K=4_noloco < K=4_diloco',
  'K=8_noloco < K=8_diloco',
  'data_parallel < K=4_noloco',
  'data_parallel < K=8_noloco',
  'K=4_noloco < K=8_noloco',
)


def get_config(size='small'):
  """Returns the config that every run overrides."""
  config = {'small': small, 'paper': streaming_1b}[size].get_config()
  config.outer.name = 'heavy_ball'
  config.outer.lr, config.outer.momentum = 0.7, 0.3
  config.every = {'small': 20, 'paper': 100}[size]
  if size == 'small':
    return config
  config.num_steps, config.data.path = 25_000, 'data/c4_128000'
  config.model.vocab_size, config.model.dim = 128_000, 768
  config.model.num_layers, config.model.num_heads = 12, 16
  config.model.head_dim, config.model.mlp_dim = 48, 3072
  config.inner.name, config.inner.peak_lr = 'adam', 6e-4
  config.inner.final_lr_ratio = 0.1
  del config.inner.weight_decay
  return config


def sweep(size='small') -> Iterator[tuple[str, dict[str, Any]]]:
  """Yields the name `row/seed` and the overrides of each run."""
  batch, often = {'small': (16, 10), 'paper': (512, 50)}[size]
  over = lambda count: {
    'num_replicas': count,
    'data.batch_size': batch // count,
  }
  # None removes a field that has no effect.
  each_step = {
    'method': 'data_parallel',
    'every': None,
    'outer': None,
    'final_synchronization': None,
  }
  in_pairs = {
    'method': 'noloco',
    'every': often,
    'outer': None,
    'gossip': noloco.get_config().gossip.to_dict(),
  }
  for seed in SEEDS:
    yield f'data_parallel/{seed}', {'seed': seed, **over(4), **each_step}
    for count in (4, 8):
      shared = {'seed': seed, **over(count)}
      yield f'K={count}_diloco/{seed}', shared
      yield f'K={count}_diloco_often/{seed}', {**shared, 'every': often}
      yield f'K={count}_noloco/{seed}', {**shared, **in_pairs}
