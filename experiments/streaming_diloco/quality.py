r"""Does Streaming DiLoCo in 4 bits train as well as DiLoCo in 32?

The claim of https://arxiv.org/abs/2501.18512, section 4, at small scale: three
fragments that take turns, land one step late, are mixed in by a half, and
travel as E3M0 of 4 bits, lose nothing against DiLoCo. Expected: within 1.5% of
DiLoCo's held-out loss, at most 0.14 of its bytes, and at most about a third of
its bytes in any one step.

    dilojax sweep experiments/streaming_diloco/quality.py --out=runs/streaming
    dilojax table experiments/streaming_diloco/quality.py \
      --out=runs/streaming --keep

`dilojax audit` with this file for a config counts the bytes of a row, with its
overrides.

Cost: 12 runs of `configs/diloco.py`. The last two rows say what a loss would be
due to: `streaming_float32` sends everything in 32 bits, and
`streaming_one_rounding` sends the mean of the messages in 32 bits, so that only
the messages are rounded. Neither differs from `streaming` by more than the
seeds do: at this size, what is left of the gap to DiLoCo is that landings are
mixed, not that messages are rounded once or twice.

Each row has outer settings of its own: DiLoCo 0.7 / 0.6, as in
`experiments/diloco/gap_closed.py`; streaming 1.0 / 0.8, the best of 0.7 / 0.8,
1.0 / 0.6 and 1.0 / 0.8 after 1,000 steps with seed 3, which is none of those
below. With 0.7 / 0.6 and seed 0 it was 1.7% worse than DiLoCo.

The paper has two replicas, 30 or 100 steps per round, fragments of three
layers, and outer momentum 0.9, which is too much for rounds as few as here.
"""

from collections.abc import Iterator
from typing import Any

from configs import streaming

SEEDS = (0, 1, 2)
METRIC = 'eval/anchor/loss'
PARENTS = {
  'streaming': 'diloco',
  'streaming_float32': 'streaming',
  'streaming_one_rounding': 'streaming',
}
EXPECTED = ('streaming within 1.5% of diloco',)


def get_config():
  """Returns the config that every run overrides."""
  return streaming.get_config()


def sweep() -> Iterator[tuple[str, dict[str, Any]]]:
  """Yields the name `row/seed` and the overrides of each run."""
  # None removes a field that has no effect.
  rows = {
    'diloco': {
      'fragments': None,
      'overlap': None,
      'wire': None,
      'outer.lr': 0.7,
      'outer.momentum': 0.6,
    },
    'streaming': {},
    'streaming_float32': {'wire': None},
    'streaming_one_rounding': {'wire.result': 'float32'},
  }
  for seed in SEEDS:
    for row, overrides in rows.items():
      yield f'{row}/{seed}', {'seed': seed, **overrides}
