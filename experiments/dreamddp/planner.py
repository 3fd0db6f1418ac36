"""How long is a step when averaging hides behind the backward pass?

The planner of https://arxiv.org/abs/2502.11058 (DreamDDP) on the profiles that
its authors released: seconds per step of five methods, with 10 steps per round.
`planner.csv` has what their planner prints, `profiles/` what it reads.

    dilojax table experiments/dreamddp/planner.py
    dilojax simulate dreamddp experiments/dreamddp/profiles/gpt2_w16_1gbit.csv \
      --every=10

Expected: all 35 cells, to the last printed digit; they are. Seconds, no
accelerator. What to know when reading them:

- The published times need the rule by which the released planner starts a
  transfer while it searches; it is not the one by which transfers can start.
  The last column, without published values, is by how much a step of the best
  plan is longer by that rule. Where it is above 0, as with 10 Gbit/s, no plan
  that sends all units in the order of the backward pass, each once, reaches
  the published time; below, one beats it.
- `asc_wfbp` is no schedule: 0.6 of all communication counts as exposed. With it
  the ratio to that method says little.
- Forward passes are in no column.
"""

import pathlib

from dilojax import exact
from dilojax import simulate

EVERY = 10
METHODS = ('ssgd', 'asc_wfbp', 'flsgd', 'plsgd', 'dreamddp')
PROFILES = {
  'GPT-2': 'gpt2',
  'Llama-2-124M': 'llama2_124m',
  'Qwen2.5-7B LoRA': 'qwen25_7b_lora',
}
FOLDER = pathlib.Path(__file__).parent


def compute() -> list[exact.Cell]:
  """Returns the table, a row for each published model and link."""
  cells = []
  for row in published():
    name = (
      f'{row["model"]}, {row["workers"]} workers, {row["link_gbit_s"]} Gbit/s'
    )
    units = profile(row)
    seconds = simulate.step_seconds(units, every=EVERY, start_rule='released')
    found = {
      **seconds,
      'speedup_over_asc_wfbp': seconds['asc_wfbp'] / seconds['dreamddp'],
      'speedup_over_flsgd': seconds['flsgd'] / seconds['dreamddp'],
    }
    cells += [
      exact.Cell(name, column, ours, row[column])
      for column, ours in found.items()
    ]
    physical = simulate.step_seconds(units, every=EVERY)['dreamddp']
    excess = 1e3 * (physical - seconds['dreamddp'])
    cells.append(exact.Cell(name, 'best plan, more (ms)', excess))
  return cells


def published() -> list[dict[str, str]]:
  """Returns the rows that the authors' planner prints."""
  return exact.read(FOLDER / 'planner.csv')


def profile(row: dict[str, str]) -> tuple[simulate.Unit, ...]:
  """Returns the profile that a row is computed from."""
  stem = f'{PROFILES[row["model"]]}_w{row["workers"]}'
  return simulate.read_profile(
    FOLDER / 'profiles' / f'{stem}_{row["link_gbit_s"]}gbit.csv'
  )
