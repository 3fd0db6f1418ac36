"""How much does it matter if pseudo-gradients get lost?

The ablation of dropped communication in https://arxiv.org/abs/2311.08105, at
small scale: in each round the pseudo-gradient of a replica is lost with some
probability, and that replica goes on from its own params. Expected: the loss
grows with the probability, but slowly; half of them lost cost at most 2%. The
paper has 2.1% more perplexity then, which is 0.8% more loss.

    dilojax sweep experiments/diloco/dropped.py --out=runs/dropped
    dilojax table experiments/diloco/dropped.py --out=runs/dropped

Cost: 24 runs of `configs/small.py`.

The paper starts from a model of 24,000 steps and has eight replicas, 500 steps
per round and outer momentum 0.9. Here all start from scratch, with four
replicas and four clusters, 20 steps per round, and outer momentum 0.6. The last
step is a synchronization that may lose messages as any other. With `:paper` the
runs have the 64,000 steps that follow on the pretraining, without it.
"""

from collections.abc import Iterator
from typing import Any

from configs import diloco_c4_150m
from configs import small

SEEDS = (0, 1, 2)
PAPER_COLUMN = 'increase of perplexity (%)'
PARENTS = {
  'drop=0.1': 'drop=0',
  'drop=0.3': 'drop=0',
  'drop=0.5': 'drop=0',
  'drop=0.1_non_iid': 'drop=0_non_iid',
  'drop=0.3_non_iid': 'drop=0_non_iid',
  'drop=0.5_non_iid': 'drop=0_non_iid',
}
EXPECTED = (
  'drop=0 < drop=0.5',
  'drop=0.5 within 2% of drop=0',
  'drop=0_non_iid < drop=0.5_non_iid',
  'drop=0.5_non_iid within 2% of drop=0_non_iid',
)


def get_config(size='small'):
  """Returns the config that every run overrides."""
  config = {'small': small, 'paper': diloco_c4_150m}[size].get_config()
  if size == 'paper':
    config.method = 'diloco'  # Messages are lost in this method alone.
    del config.data_parallel_steps
    config.num_steps = 64_000
  return config


def sweep(size='small') -> Iterator[tuple[str, dict[str, Any]]]:
  """Yields the name `row/seed` and the overrides of each run."""
  clusters = {'data.num_clusters': 4} if size == 'small' else {}
  for seed in SEEDS:
    for probability in (0, 0.1, 0.3, 0.5):
      lost = {'drop': probability} if probability else {}
      row = f'drop={probability}'
      yield f'{row}/{seed}', {'seed': seed, **lost}
      dealt = {'data.non_iid': 1.0, **clusters}
      yield f'{row}_non_iid/{seed}', {'seed': seed, **lost, **dealt}
