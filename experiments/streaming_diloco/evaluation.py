"""Which params to evaluate: the anchor, the replicas' mean, or a replica?

Table 3 of https://arxiv.org/abs/2501.18512, at small scale: all of the same
runs. Expected: the anchor is as good as the mean of the replicas, and both are
better than a replica.

    dilojax sweep experiments/streaming_diloco/evaluation.py --out=runs/eval
    dilojax table experiments/streaming_diloco/evaluation.py --out=runs/eval

Cost: 9 runs of `configs/small.py` with 30 steps per round. The rows with a
point in their name are other metrics of the same runs.

No run ends with a synchronization, which would make all replicas of `diloco`
one; the last steps are the middle of a round for it, and for a fragment of the
others. Their messages land a step late, in 32 bits, overwriting the replica or
mixed in by a half. The inner learning rate has fallen to a tenth by then, which
draws replicas together.

The paper evaluates a model of 500M params with two replicas, whose fragments
have three layers, and has outer momentum 0.9. Here are four replicas and
fragments of one layer; outer settings are those of
`experiments/streaming_diloco/quality.py`.
"""

from collections.abc import Iterator
from typing import Any

from configs import small
from configs import streaming
from configs import streaming_1b

SEEDS = (0, 1, 2)
ROWS = ('diloco', 'overwrite', 'mix')
OTHERS = {'mean': 'eval/mean/loss', 'replica': 'eval/replica_0/loss'}
VIEWS = {
  f'{row}.{name}': (row, metric)
  for row in ROWS
  for name, metric in OTHERS.items()
}
PARENTS = {view: row for view, (row, _) in VIEWS.items()}
PAPER_COLUMN = 'loss'
EXPECTED = (
  'diloco < diloco.replica',
  'overwrite < overwrite.replica',
  'mix < mix.replica',
  'mix.mean < mix.replica',
  'mix within 0.4% of mix.mean',
)


def get_config(size='small'):
  """Returns the config that every run overrides."""
  config = {'small': small, 'paper': streaming_1b}[size].get_config()
  config.every = 30
  config.final_synchronization = False
  config.fragments = streaming.get_config().fragments
  config.fragments.layers_per_fragment = {'small': 1, 'paper': 3}[size]
  return config


def sweep(size='small') -> Iterator[tuple[str, dict[str, Any]]]:
  """Yields the name `row/seed` and the overrides of each run."""
  steps = get_config(size).num_steps
  # Half a round before the end; an offset is at least 1.
  middle = (steps - 15) % 30 or 30
  mixing = {'outer.lr': 1.0, 'outer.momentum': 0.8} if size == 'small' else {}
  rows = {
    'diloco': {
      'fragments': None,
      'overlap': {'offset': middle, 'delay': 0, 'merge': 'overwrite'},
    },
    'overwrite': {'overlap': {'delay': 1, 'merge': 'overwrite'}},
    'mix': {'overlap': {'delay': 1, 'merge': 'mix', 'alpha': 0.5}, **mixing},
  }
  for seed in SEEDS:
    for row in ROWS:
      yield f'{row}/{seed}', {'seed': seed, **rows[row]}
