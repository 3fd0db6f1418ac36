"""What does it cost to communicate more rarely?

The ablation of H in https://arxiv.org/abs/2311.08105, at small scale: the same
steps in fewer and fewer rounds. A row is named by its part of the usual H,
which is 20 steps here and 500 in the paper. Expected: the loss grows with H,
but slowly: at most 2% from `0.1H` to `2H`. The paper has 2.9% more perplexity
with 1,000 steps per round than with 50, which is 1.1% more loss.

    dilojax sweep experiments/diloco/rounds.py --out=runs/rounds
    dilojax table experiments/diloco/rounds.py --out=runs/rounds

Cost: 18 runs of `configs/small.py`.

The paper starts from a model of 24,000 steps, has eight replicas, clustered
data, and outer momentum 0.9. Here all start from scratch, with four replicas,
data dealt at random, and outer momentum 0.6. `4H` has 13 rounds, the paper's
32. All rows have the outer settings of `1H`, as in the paper.
"""

from collections.abc import Iterator
from typing import Any

from configs import diloco_c4_150m
from configs import small

SEEDS = (0, 1, 2)
PAPER_COLUMN = 'increase of perplexity (%)'
BASELINE = '0.1H'
EXPECTED = (
  '0.1H < 2H',
  '2H within 2% of 0.1H',
  '1H < 4H',
)


def get_config(size='small'):
  """Returns the config that every run overrides."""
  config = {'small': small, 'paper': diloco_c4_150m}[size].get_config()
  if size == 'paper':
    config.data.non_iid = 1.0
  return config


def sweep(size='small') -> Iterator[tuple[str, dict[str, Any]]]:
  """Yields the name `row/seed` and the overrides of each run."""
  usual = get_config(size).every
  for seed in SEEDS:
    for part in (0.1, 0.2, 0.5, 1, 2, 4):
      every = round(part * usual)
      yield f'{part}H/{seed}', {'seed': seed, 'every': every}
