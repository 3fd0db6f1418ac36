"""How long do replicas wait for a pair, and how long for all?

Figure 5 of https://arxiv.org/abs/2506.10911, in two parts.

    dilojax table experiments/noloco/latency.py

A: two messages with log-normal times take 1 + erf(sigma / 2) of their mean
until both are there; the all-reduce of a tree takes 2 log2(n) messages.
Expected: all cells agree to four decimals. The paper draws this and prints no
digits: the CSV beside this file is its formula, evaluated.

B: inner steps take log-normal times (logarithm: mean 1, variance 0.5), messages
take none. All 1,024 replicas wait for the slowest in each round of 100 steps,
or each for a partner. "About 20%" more time: ours is a simulation, and the
paper's a statement in words, hence within a tenth of 20. The text has 250
rounds, as here; the caption 500, which changes our number by 0.2.
"""

import pathlib

from dilojax import exact
from dilojax import simulate

NUM_ROUNDS = 250
# 20 is "about 20%".
ABOUT = 0.1


def compute() -> list[exact.Cell]:
  """Returns the cells of both parts."""
  cells = []
  for row in _published():
    name = f'std / mean = {row["std_over_mean"]}'
    spread = float(row['std_over_mean'])
    sigma = simulate.log_normal_sigma(spread)
    ratio = simulate.pair_exchange_time(spread)
    cells += [
      exact.Cell(name, 'sigma', sigma, row['sigma']),
      exact.Cell(name, 'pair', ratio, row['ratio']),
    ]
  for num_replicas in (2, 16, 128, 1024):
    time = simulate.tree_all_reduce_time(num_replicas)
    cells.append(exact.Cell(f'{num_replicas} replicas', 'tree', time))
  for num_replicas, every in ((16, 100), (128, 100), (1024, 100)):
    paper = '20' if (num_replicas, every) == (1024, 100) else ''
    cells.append(
      exact.Cell(
        f'{num_replicas} replicas',
        f'more time, percent, H = {every}',
        overhead(num_replicas, every),
        paper,
        within=ABOUT if paper else None,
      )
    )
  return cells


def overhead(num_replicas: int, every: int, num_rounds: int = NUM_ROUNDS):
  """Returns how much longer all take than pairs, in percent."""
  found = simulate.waiting_times(
    num_replicas, every=every, num_rounds=num_rounds
  )
  return 100 * (found.all / found.pairs - 1)


def _published():
  return exact.read(pathlib.Path(__file__).with_suffix('.csv'))
