"""Do outer steps help an optimizer that runs on one replica?

The comparison with one worker in https://arxiv.org/abs/2505.23725, and with it
Lookahead (https://arxiv.org/abs/1907.08610), at small scale: AdamW and Muon
alone, and with an outer step on their displacement. SNOO
(https://arxiv.org/abs/2510.15830) is DiLoCo with one replica, and MuLoCo-1 the
same around Muon. Expected: each is better than without an outer step, and
MuLoCo-1 is the best.

    dilojax sweep experiments/muloco/single_replica.py --out=runs/single_replica
    dilojax table experiments/muloco/single_replica.py --out=runs/single_replica

Cost: 15 runs of 2 million tokens. Nothing is sent.

Outer settings are those of the papers: Lookahead goes half of the way each 5
steps; SNOO and MuLoCo-1 have 30 steps per round, an outer learning rate of 0.7,
and outer momentum 0.8 and 0.6, those of the comparison. Inner learning rates
are not tuned here: 0.003 for AdamW, and 0.01 for Muon, as in
`configs/muloco.py`, whose embedding and head have AdamW. The paper tunes both
for each size. Its batch is not published: `:paper` has 256 sequences, and inner
learning rates of 0.001 and 0.03.
"""

from collections.abc import Iterator
from typing import Any

from configs import muloco
from configs import small
from configs import streaming_1b

SEEDS = (0, 1, 2)
PAPER_COLUMN = 'loss'
PARENTS = {
  'lookahead': 'adamw',
  'snoo': 'adamw',
  'muon': 'adamw',
  'muloco_1': 'muon',
}
EXPECTED = (
  'lookahead < adamw',
  'snoo < adamw',
  'muon < adamw',
  'muloco_1 < muon',
  'muloco_1 < snoo',
)


def get_config(size='small'):
  """Returns the config that every run overrides."""
  config = {'small': small, 'paper': streaming_1b}[size].get_config()
  config.num_replicas, config.every = 1, 30
  config.outer.lr, config.outer.momentum = 0.7, 0.8
  if size == 'small':
    config.num_steps, config.data.batch_size = 2_000, 8
    return config
  config.num_steps, config.data.batch_size = 11_444, 256  # 3 billion tokens.
  config.model.num_layers, config.model.num_heads = 6, 4
  config.model.dim, config.model.head_dim = 512, 128
  config.model.mlp, config.model.mlp_dim = 'swiglu', 1408
  config.inner.peak_lr, config.inner.final_lr_ratio = 1e-3, 0.1
  config.inner.warmup_steps, config.inner.accumulate = 500, 8
  return config


def sweep(size='small') -> Iterator[tuple[str, dict[str, Any]]]:
  """Yields the name `row/seed` and the overrides of each run."""
  # None removes a field that has no effect.
  alone = {
    'method': 'data_parallel',
    'every': None,
    'outer': None,
    'final_synchronization': None,
  }
  muon = {'inner.name': 'muon', 'inner.momentum': 0.95}
  muon['inner.peak_lr'] = {
    'small': muloco.get_config().inner.peak_lr,
    'paper': 0.03,
  }[size]
  rows = {
    'adamw': alone,
    'lookahead': {'every': 5, 'outer': {'name': 'sgd', 'lr': 0.5}},
    'snoo': {},
    'muon': {**alone, **muon},
    'muloco_1': {**muon, 'outer.momentum': 0.6},
  }
  for seed in SEEDS:
    for row, overrides in rows.items():
      yield f'{row}/{seed}', {'seed': seed, **overrides}
