"""Does the best outer learning rate grow with replicas, and with the round?

Figure 7 of https://arxiv.org/abs/2503.09799, at small scale: the same batch
over one replica and over eight, and eight with rounds four times as long, each
with four outer learning rates. Expected: from the lowest to the highest rate,
the loss changes in favour of the highest more with eight replicas than with
one, and with long rounds more than with short ones.

    dilojax sweep experiments/scaling_laws/outer_lr.py --out=runs/outer_lr
    dilojax table experiments/scaling_laws/outer_lr.py --out=runs/outer_lr

Cost: 36 runs of 1.3 million tokens.

Rounds have 10 steps here, and 40; in the paper 30, and up to 300. Outer
momentum is 0.8 here, for 64 and 16 rounds, and 0.9 in the paper. The inner
learning rate is tuned there for each, and here for none. The paper's values
are the best rates of the model of 550M params.
"""

from collections.abc import Iterator
from typing import Any

from configs import scaling_10b
from configs import small

SEEDS = (0, 1, 2)
RATES = (0.2, 0.4, 0.7, 1.0)
GROUPS = ('M=1', 'M=8', 'M=8_long')
PAPER_COLUMN = 'best outer learning rate'
PARENTS = {
  f'{group}_lr={rate}': f'{group}_lr={RATES[0]}'
  for group in GROUPS
  for rate in RATES[1:]
}
EXPECTED = (
  'M=8_lr=1.0/M=8_lr=0.2 < M=1_lr=1.0/M=1_lr=0.2',
  'M=8_long_lr=1.0/M=8_long_lr=0.2 < M=8_lr=1.0/M=8_lr=0.2',
  'M=1_lr=0.4 < M=1_lr=1.0',
  'M=8_lr=0.7 < M=8_lr=0.2',
)


def get_config(size='small'):
  """Returns the config that every run overrides."""
  config = {'small': small, 'paper': scaling_10b}[size].get_config()
  if size == 'small':
    config.num_steps, config.outer.momentum = 640, 0.8
    config.eval_every = 320
  else:  # The model of 35M params.
    config.num_steps, config.inner.peak_lr = 10_681, 6.0e-3
    config.model.num_layers, config.model.num_heads = 6, 8
    config.model.dim, config.model.mlp_dim = 512, 2048
  return config


def sweep(size='small') -> Iterator[tuple[str, dict[str, Any]]]:
  """Yields the name `row/seed` and the overrides of each run."""
  short, long, batch = {'small': (10, 40, 16), 'paper': (30, 100, 32)}[size]
  groups = dict(zip(GROUPS, [(1, short), (8, short), (8, long)]))
  for seed in SEEDS:
    for group, (count, every) in groups.items():
      own = batch // count
      shared = {
        'seed': seed,
        'num_replicas': count,
        'every': every,
        'data.batch_size': own,
        'inner.accumulate': max(1, own // 16),
      }
      for rate in RATES:
        yield f'{group}_lr={rate}/{seed}', {**shared, 'outer.lr': rate}
