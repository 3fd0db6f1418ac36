"""The planner of DreamDDP: closed forms, and no plan is better."""

import itertools
import random

import pytest

from dilojax import simulate


def units_of(*times):
  return tuple(
    simulate.Unit(f'u{number}', float(backward), reduce)
    for number, (backward, reduce) in enumerate(times)
  )


def drawn(seed, num_units):
  """Draws times in halves, which floats add exactly."""
  draw = random.Random(seed)
  half = lambda high: draw.randrange(high) / 2
  return units_of(*((half(8), half(16)) for _ in range(num_units)))


def groups(num_units, every):
  """Yields all ways to cut a sequence into steps, empty ones included."""
  cuts = range(num_units + 1)
  for inner in itertools.combinations_with_replacement(cuts, every - 1):
    yield tuple(
      tuple(f'u{i}' for i in range(start, stop))
      for start, stop in itertools.pairwise((0, *inner, num_units))
    )


@pytest.mark.parametrize('every', [1, 2, 3, 4])
@pytest.mark.parametrize('num_units', [1, 2, 5, 7])
def test_no_plan_waits_less(num_units, every):
  for seed in range(40):
    units = drawn(seed, num_units)
    plan = simulate.plan_dreamddp(units, every=every)
    assert plan.wait == sum(simulate.waits(units, plan.turns))
    best = min(
      sum(simulate.waits(units, turns)) for turns in groups(num_units, every)
    )
    assert plan.wait == best


@pytest.mark.parametrize('start_rule', ['physical', 'released'])
def test_every_unit_is_averaged_once_in_the_order_of_the_backward_pass(
  start_rule,
):
  for seed, every in itertools.product(range(20), (1, 3, 9)):
    units = drawn(seed, 6)
    plan = simulate.plan_dreamddp(units, every=every, start_rule=start_rule)
    assert len(plan.turns) == every
    assert [*itertools.chain(*plan.turns)] == [unit.name for unit in units]


def test_a_round_of_one_step_waits_for_whatever_is_left():
  """The link ends at 1 + 4 + 0.5 + 3, the backward pass at 4."""
  units = units_of((1, 4), (2, 0.5), (1, 3))
  plan = simulate.plan_dreamddp(units, every=1)
  assert plan.turns == (('u0', 'u1', 'u2'),)
  assert plan.wait == 4.5


def test_a_fast_link_hides_all_but_the_last_unit():
  """What is ready last is ready when the pass ends."""
  units = units_of(*[(1, 1)] * 4)
  assert simulate.plan_dreamddp(units, every=2).wait == 1


def test_equal_units_wait_for_what_exceeds_the_backward_passes():
  """Each step has one unit, ready a second before the end of the others."""
  units = units_of(*[(1, 4)] * 3)
  plan = simulate.plan_dreamddp(units, every=3)
  assert plan.turns == (('u0',), ('u1',), ('u2',))
  assert simulate.waits(units, plan.turns) == (2, 3, 4)


def test_ties_go_to_sending_early():
  """The second unit waits 1 wherever it is sent."""
  units = units_of((1, 1), (1, 1))
  assert simulate.plan_dreamddp(units, every=2).turns == (('u0', 'u1'), ())


def test_the_rules_of_a_start_differ_as_they_say():
  """Free at 1; unit 1 is ready at 3, and the next takes 5."""
  units = units_of((1, 0), (2, 5.5), (5, 1), (0, 0))
  start_at_3 = simulate.plan_dreamddp(units, every=2)
  assert start_at_3.turns == (('u0', 'u1'), ('u2', 'u3'))
  assert start_at_3.wait == 0.5 + 1
  # From 1 + 5 it would end at 11.5, and not at 8.5, of 8.
  start_at_6 = simulate.plan_dreamddp(units, every=2, start_rule='released')
  assert start_at_6.turns == (('u0',), ('u1', 'u2', 'u3'))
  # The last step has the physical rule in either case.
  assert start_at_6.wait == sum(simulate.waits(units, start_at_6.turns)) == 1.5


def test_fills_are_what_ends_before_the_first_of_a_step_is_ready():
  """Ready at 1, 2, 3, 6: the first two again end at 1.5 and 3, not at 2.5."""
  units = units_of((1, 0.5), (1, 1), (1, 3.5), (3, 2))
  plan = simulate.plan_dreamddp(units, every=2, fills=True)
  assert plan.turns == (('u0', 'u1', 'u2'), ('u3',))
  assert plan.extra == ((), ('u0', 'u1'))
  assert plan.wait == 0.5 + 2
  # The third would end at 6.5, after the fourth is ready.
  faster = units_of((1, 0.5), (1, 1), (1, 3), (3, 9))
  plan = simulate.plan_dreamddp(faster, every=2, fills=True)
  assert plan.extra[1] == ('u0', 'u1', 'u2')


def test_fills_add_no_wait():
  for seed in range(40):
    units = drawn(seed, 7)
    bare = simulate.plan_dreamddp(units, every=3)
    plan = simulate.plan_dreamddp(units, every=3, fills=True)
    assert plan._replace(extra=bare.extra) == bare
    both = [again + turn for again, turn in zip(plan.extra, plan.turns)]
    assert simulate.waits(units, both) == simulate.waits(units, plan.turns)


def test_as_many_units_in_each_step():
  units = units_of(*[(1, 1)] * 5)
  plan = simulate.plan_plsgd(units, every=3)
  assert plan.turns == (('u0', 'u1'), ('u2', 'u3'), ('u4',))
  assert plan.wait == 1
  assert [*map(len, simulate.plan_plsgd(units, every=7).turns)] == [1] * 5 + (
    [0] * 2
  )


def test_seconds_per_step_by_hand():
  """Backward passes of 4 s, 6 s on the link, 5 steps in rounds of 2."""
  units = units_of((1, 2), (2, 1), (1, 3))
  seconds = simulate.step_seconds(units, every=2, num_steps=5)
  paid = 2 / 5  # After steps 2 and 4.
  assert seconds == pytest.approx(
    {
      'ssgd': 10,
      'asc_wfbp': 4 + 0.6 * 6,
      'flsgd': 4 + 6 * paid,
      'plsgd': 4 + 3 / 2,
      'dreamddp': 4 + 3 * paid,
    }
  )
  # The last round is not paid if it ends with the training.
  seconds = simulate.step_seconds(units, every=2, num_steps=4)
  assert seconds['flsgd'] == 4 + 6 / 4


def test_parts_without_anything_to_average_count_in_the_backward_pass_alone():
  units = units_of((1, 2), (2, 1))
  more = (*units, simulate.Unit('frozen', 7.0, None))
  assert simulate.plan_dreamddp(more, every=2) == simulate.plan_dreamddp(
    units, every=2
  )
  with_it = simulate.step_seconds(more, every=2)
  without = simulate.step_seconds(units, every=2)
  for name, seconds in with_it.items():
    assert seconds == pytest.approx(without[name] + 7)


def test_a_profile_is_read_as_it_was_written(tmp_path):
  units = (*units_of((0.1, 0.2), (0.3, 0)), simulate.Unit('x', 0.0, None))
  path = tmp_path / 'profile.csv'
  path.write_text(simulate.profile_text(units, ['a note']))
  assert path.read_text().splitlines()[:3] == [
    '# a note',
    'index,name,backward_s,comm_s',
    '0,x,0,',
  ]
  assert simulate.read_profile(path) == units


def test_a_report_says_what_each_step_does():
  """The second unit ends 1 s late; the first fits before the third, again."""
  units = units_of((1, 2), (2, 2), (1, 3))
  report = simulate.dreamddp_report(units, every=2, fills=True)
  first, second = report['steps']
  assert first == {
    'units': ['u0', 'u1'],
    'extra': [],
    'reduce_s': 4,
    'wait_s': 1,
  }
  assert second == {
    'units': ['u2'],
    'extra': ['u0'],
    'reduce_s': 5,
    'wait_s': 3,
  }
  assert report['turns'] == 'u0 u1; u2'
  table = simulate.dreamddp_table(report)
  assert '| 2    | u2       | u0    | 5.000000' in table
  assert '| dreamddp | 5.996000' in table
  assert 'again' not in simulate.dreamddp_table({**report, 'fills': False})


@pytest.mark.parametrize(
  ('kwargs', 'match'),
  [
    ({'every': 0}, '`every` must be an int of at least 1, got 0'),
    ({'every': 2.0}, '`every` must be an int of at least 1, got 2.0'),
    ({'start_rule': 'late'}, '`start_rule` must be one of physical, released'),
    ({'units': ()}, 'some to average, got 0'),
    ({'units': units_of((1, None))}, 'some to average, got 1'),
    ({'units': units_of((-1, 1))}, 'finite times of at least 0, got Unit'),
    ({'units': units_of((1, 1)) * 2}, r"names of their own, got \['u0'\]"),
  ],
)
def test_what_is_out_of_range_is_refused(kwargs, match):
  given = {'units': units_of((1, 1)), 'every': 2, **kwargs}
  with pytest.raises(ValueError, match=match):
    simulate.plan_dreamddp(given.pop('units'), **given)


def test_unknown_names_and_numbers_of_steps_are_refused():
  units = units_of((1, 1))
  with pytest.raises(ValueError, match=r"of units that are averaged.*'x'"):
    simulate.waits(units, (('u0', 'x'),))
  with pytest.raises(ValueError, match='`num_steps` must be at least 1, got 0'):
    simulate.step_seconds(units, every=1, num_steps=0)


@pytest.mark.parametrize(
  ('text', 'match'),
  [
    ('name,comm_s\n', 'has the columns name, backward_s, comm_s, got name'),
    ('', 'got none'),
    ('name,backward_s,comm_s\nu,1,x\n', r'row 1 \(u\) must have seconds'),
    ('name,backward_s,comm_s\nu,1,\n', 'some to average'),
    ('name,backward_s,comm_s\nu,1\n', 'some to average'),
  ],
)
def test_files_that_are_no_profile_are_refused(text, match, tmp_path):
  path = tmp_path / 'profile.csv'
  path.write_text(text)
  with pytest.raises(ValueError, match=match):
    simulate.read_profile(path)
