"""How few bits per value may a pseudo-gradient have?

The ablation of formats in https://arxiv.org/abs/2501.18512, at small scale, and
below 4 bits those of https://arxiv.org/abs/2505.23725. Expected: 4 bits cost at
most 0.5%, of any kind; 2 bits cost more, and less if what was not sent is kept
for the next message; leaving out entries is worse than rounding all of them.

    dilojax sweep experiments/streaming_diloco/bits.py --out=runs/bits
    dilojax table experiments/streaming_diloco/bits.py --out=runs/bits

Cost: 27 runs of `configs/small.py` with two replicas and 30 steps per round.
The bytes of a row include scales and places, if its format has any.

All rows have three fragments whose messages land a step late and are mixed in
by a half, with the outer settings of
`experiments/streaming_diloco/quality.py`. Each replica gets the messages of all
and averages them in 32 bits, as in the paper; E3M0 is the paper's format, with
scales of our choice. An eighth of the entries, in 32 bits, is as long as a
message of 4 bits if both replicas know which: at random they do, and the
largest are sent with their places.
"""

from collections.abc import Iterator
from typing import Any

from configs import small
from configs import streaming
from configs import streaming_1b

SEEDS = (0, 1, 2)
BASELINE = 'float32'
EXPECTED = (
  'bfloat16 within 0.5% of float32',
  'int8 within 0.5% of float32',
  'int4 within 0.5% of float32',
  'e3m0 within 0.5% of float32',
  'float32 < random_eighth',
  'e3m0 < random_eighth',
  'e3m0 < largest_eighth',
  '2_bits_kept < 2_bits',
  '2_bits_kept within 0.5% of float32',
)


def get_config(size='small'):
  """Returns the config that every run overrides."""
  config = {'small': small, 'paper': streaming_1b}[size].get_config()
  usual = streaming.get_config()
  if size == 'small':
    config.outer = usual.outer
  config.num_replicas, config.every = 2, 30
  config.fragments, config.overlap = usual.fragments, usual.overlap
  config.fragments.layers_per_fragment = {'small': 1, 'paper': 3}[size]
  return config


def sweep() -> Iterator[tuple[str, dict[str, Any]]]:
  """Yields the name `row/seed` and the overrides of each run."""
  scaled = {'block_size': 256, 'rounding': 'nearest'}
  eighth = {'block_size': 256, 'fraction': 0.125, 'values': 'float32'}
  formats = {
    'float32': None,
    'bfloat16': {'format': 'bfloat16'},
    'int8': {'format': 'int8', **scaled},
    'int4': {'format': 'int4', **scaled},
    'e3m0': {'format': 'e3m0', **scaled},
    '2_bits': {'format': 'statistical', 'block_size': 512, 'bits': 2},
    '2_bits_kept': {
      'format': 'statistical',
      'block_size': 512,
      'bits': 2,
      'error_feedback': 0.9,
    },
    'largest_eighth': {'format': 'top_k', **eighth},
    'random_eighth': {'format': 'random_subset', **eighth},
  }
  plain = {'error_feedback': 0.0, 'gather': 'messages'}
  for seed in SEEDS:
    for row, fields in formats.items():
      wire = {'wire': {**plain, **fields}} if fields else {}
      yield f'{row}/{seed}', {'seed': seed, **wire}
