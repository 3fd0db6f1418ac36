"""How much of the gap to data parallelism does rare synchronization close?

The comparison of table 2 of https://arxiv.org/abs/2311.08105, at small scale
and from scratch. Between one replica (equal steps) and data parallelism on
four (equal tokens) lies a gap of held-out loss; DiLoCo sends 1/50 of what data
parallelism sends. Expected: it closes at least 40% of the gap, and more if the
first quarter of the steps is data parallel.

    dilojax sweep experiments/diloco/gap_closed.py --out=runs/gap_closed
    dilojax table experiments/diloco/gap_closed.py --out=runs/gap_closed --keep

Cost: 12 runs of `configs/diloco.py`, a quarter of them on one replica.

The paper starts from a model of 24,000 steps, has eight replicas, 500 steps
per round and outer momentum 0.9; its DiLoCo is better than data parallelism.
Momentum 0.9 is too high for 40 rounds, hence 0.6 here.
"""

from collections.abc import Iterator
from typing import Any

from configs import diloco

SEEDS = (0, 1, 2)
METRIC = 'eval/anchor/loss'
PAPER_COLUMN = 'eval/perplexity'
BASELINE = 'one_replica'
EXPECTED = (
  'diloco < one_replica',
  'post_local < diloco',
  'data_parallel < post_local',
  'diloco closes 40% of the gap from one_replica to data_parallel',
)


def get_config():
  """Returns the config that every run overrides."""
  return diloco.get_config()


def sweep() -> Iterator[tuple[str, dict[str, Any]]]:
  """Yields the name `row/seed` and the overrides of each run."""
  # None removes a field that has no effect.
  each_step = {
    'method': 'data_parallel',
    'every': None,
    'outer': None,
    'final_synchronization': None,
  }
  rows = {
    'one_replica': {'num_replicas': 1, **each_step},
    'diloco': {},
    'post_local': {'method': 'post_local', 'data_parallel_steps': 500},
    'data_parallel': each_step,
  }
  for seed in SEEDS:
    for row, overrides in rows.items():
      yield f'{row}/{seed}', {'seed': seed, **overrides}
