"""The released planner's numbers, to the last digit that it prints."""

from dilojax import exact
from dilojax import simulate
from experiments.dreamddp import planner


def test_all_published_cells_agree():
  cells = planner.compute()
  assert exact.count(cells) == (35, 35)
  assert len({cell.row for cell in cells}) == 5


def test_profiles_have_the_published_numbers_of_units():
  sizes = {row['model']: planner.profile(row) for row in planner.published()}
  averaged = lambda units: sum(unit.reduce is not None for unit in units)
  assert {
    name: (len(units), averaged(units)) for name, units in sizes.items()
  } == {
    'GPT-2': (125, 125),
    'Llama-2-124M': (91, 91),
    'Qwen2.5-7B LoRA': (863, 392),
  }


def test_published_plans_wait_at_least_as_long_as_the_best():
  """By the rule by which transfers can start, whatever the search said."""
  for row in planner.published():
    units = planner.profile(row)
    given = {'every': planner.EVERY}
    best = simulate.plan_dreamddp(units, **given)
    found = simulate.plan_dreamddp(units, **given, start_rule='released')
    assert best.wait <= sum(simulate.waits(units, found.turns)) + 1e-9


def test_times_of_the_other_methods_are_sums_over_the_profile():
  row = planner.published()[0]
  units = planner.profile(row)
  backward = sum(unit.backward for unit in units)
  reduce = sum(unit.reduce for unit in units)
  cells = {
    cell.column: cell.ours
    for cell in planner.compute()
    if cell.row == 'GPT-2, 16 workers, 1 Gbit/s'
  }
  assert cells['ssgd'] == backward + reduce
  assert round(cells['flsgd'] - backward - 0.099 * reduce, 12) == 0
