"""How many hours more does a link of 1 Gbit/s cost?

Hours of tables 1 and 7 of https://arxiv.org/abs/2501.18512: 1B params on
Dolma, data parallelism and Streaming DiLoCo in FP4, at infinite bandwidth and
at 1 Gbit/s. The ratio of the two, by the simulator of `dilojax simulate
utilization`: 24 layers, 0.1 s a step, 16 bits for each param in data
parallelism; in FP4 a fragment of three layers every 12 steps, one step late,
at 4 bits.

    dilojax table experiments/streaming_diloco/hours.py

Both hours are printed with two to four digits: a ratio agrees if it differs by
no more than their roundings can do. Expected: 4 of 6 agree, all of data
parallelism and one of FP4, where ours is 1.291.

- 250B tokens: 1.296 in the paper, within 0.002. With 4.06 bits ours would be
  that. E3M0 as we send it takes as many, since 256 values share a scale of 2
  bytes; whether the paper counts scales it does not say.
- 25B tokens: 0.67 is a tenth of 6.75 that is cut, and 0.88 of 8.75 that is
  rounded, which makes 1.313. It is no other ratio than that of 250B.

Table 4 of the paper takes 13.3 bits in place of 16, which fits no row here.
Hours themselves would need the tokens of a step, which are not printed: 6.75
hours for 250B at 0.1 s are 1.03M of them.
"""

import pathlib

from dilojax import exact
from dilojax import simulate

NUM_LAYERS = 24
SECONDS = 0.1
NUM_PARAMS = 1e9
# A multiple of 12: the run ends as a round of fragments does.
NUM_STEPS = 4800
LINK = simulate.Link(bandwidth=1e9)


def compute() -> list[exact.Cell]:
  """Returns the cells of the table."""
  cells = []
  for row in _published():
    infinite, slow = row['hours_inf_bw'], row['hours_1gbps']
    if infinite:
      paper = float(slow) / float(infinite)
      within = sum(
        _half_width(hours) / float(hours) for hours in (slow, infinite)
      )
      name = f'{row["method"]}, {row["tokens"]}'
      ours = ratio(row['method'])
      cells.append(exact.Cell(name, 'ratio', ours, f'{paper:.4g}', within))
  return cells


def ratio(method: str, bits: float = 16) -> float:
  """Returns the time at 1 Gbit/s over that at infinite bandwidth.

  Args:
    method: 'data_parallel' or 'streaming_fp4'.
    bits: Bits for each param in data parallelism; FP4 takes a fourth.
  """
  layers = simulate.even_layers(NUM_LAYERS, SECONDS, NUM_PARAMS)
  exchanges = {
    'data_parallel': simulate.together(NUM_LAYERS, bits=bits),
    'streaming_fp4': simulate.in_turns(
      NUM_LAYERS,
      every=100,
      num_fragments=8,
      rule='rounded',
      delay=1,
      bits=bits / 4,
    ),
  }[method]
  found = simulate.utilization(layers, exchanges, [LINK], num_steps=NUM_STEPS)
  return 1 / found.utilization


def _half_width(printed):
  """Returns half a unit of the last digit."""
  return 0.5 * 10.0 ** -len(printed.partition('.')[2])


def _published():
  return exact.read(pathlib.Path(__file__).with_suffix('.csv'))
