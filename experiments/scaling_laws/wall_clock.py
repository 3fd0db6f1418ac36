"""How long would DiLoCo and data parallelism train, on which network?

The idealized model of appendix A of https://arxiv.org/abs/2503.09799: chips at
300 TFLOP/s, all-reduces that waste no bandwidth, and no overlap. Its classes of
networks are in the CSV. A replica of several has the network `high` inside its
site; between sites, and for methods that have one replica, it is that of the
column.

    dilojax table experiments/scaling_laws/wall_clock.py

The paper shows this in figures and prints no numbers, so there are none beside
ours, in hours for 2.4B params, 20 tokens for each, 2^21 tokens a step, and 256
chips; messages have 16 bits for each param. Expected: on `low` several replicas
with H = 30 take a fraction of data parallelism's hours; one replica takes 1/30
more communication than data parallelism everywhere; on `high` all are equal to
that within a few percent.
"""

import pathlib

from dilojax import exact
from dilojax import simulate

NUM_PARAMS = 2.4e9
TOKENS_PER_PARAM = 20
STEP_TOKENS = 2**21
NUM_CHIPS = 256
EVERY = 30


def compute() -> list[exact.Cell]:
  """Returns the hours of each method on each network."""
  links = networks()
  methods = {'data parallel': (1, None)}
  methods |= {
    f'DiLoCo, M = {number}': (number, EVERY) for number in (1, 2, 4, 8)
  }
  num_tokens = TOKENS_PER_PARAM * NUM_PARAMS
  cells = []
  for method, (num_replicas, every) in methods.items():
    for network, link in links.items():
      seconds = simulate.training_seconds(
        num_params=NUM_PARAMS,
        num_tokens=num_tokens,
        num_steps=round(num_tokens / STEP_TOKENS),
        num_chips=NUM_CHIPS,
        between=link,
        inside=links['high'] if num_replicas > 1 else None,
        num_replicas=num_replicas,
        every=every,
      )
      cells.append(
        exact.Cell(method, f'hours, {network}', seconds.total / 3600)
      )
  return cells


def networks() -> dict[str, simulate.Link]:
  """Returns the paper's classes of networks."""
  return {
    row['network']: simulate.Link(
      float(row['bandwidth_gbit_s']) * 1e9, float(row['latency_s'])
    )
    for row in exact.read(pathlib.Path(__file__).with_suffix('.csv'))
  }
