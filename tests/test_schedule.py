"""Which step has which event: against counting by hand, and by the thousand."""

import hypothesis
from hypothesis import strategies as st
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dilojax import schedule as schedule_lib

settings = hypothesis.settings(
  max_examples=60, deadline=None, database=None, derandomize=True
)


@st.composite
def schedules(draw, longest=12):
  every = draw(st.integers(1, longest))
  return schedule_lib.Schedule(
    every=every,
    offset=draw(st.integers(1, every)),
    delay=draw(st.integers(0, every - 1)),
    start=draw(st.integers(0, 10)),
    stop=draw(st.none() | st.integers(1, 40)),
  )


def launches(schedule, last):
  """Counts launches off, without a modulus."""
  first = schedule.start + schedule.offset
  stop = last if schedule.stop is None else min(last, schedule.stop)
  return list(range(first, stop + 1, schedule.every))


@settings
@hypothesis.given(schedules(), st.integers(1, 60))
def test_events_are_those_counted_off(schedule, last):
  launched = launches(schedule, last)
  landed = [step + schedule.delay for step in launched]
  landed = [step for step in landed if step <= last]
  steps = range(1, last + 1)
  assert [step for step in steps if schedule.launches(step)] == launched
  assert [step for step in steps if schedule.lands(step)] == landed
  assert schedule.num_launches(last) == len(launched)
  assert schedule.num_landings(last) == len(landed)
  starts = [schedule.start] if 1 <= schedule.start <= last else []
  assert [step for step in steps if schedule.starts(step)] == starts
  assert schedule.num_messages(last) == len(launched) + len(starts)
  in_flight = [
    step for step in launched if step <= last < step + schedule.delay
  ]
  assert schedule.in_flight(last) == bool(in_flight)
  assert len(in_flight) <= 1


@settings
@hypothesis.given(schedules(), st.integers(1, 60))
def test_events_are_named(schedule, step):
  names = schedule.events(step)
  assert ('launch' in names) == schedule.launches(step)
  assert ('land' in names) == schedule.lands(step)
  assert ('start' in names) == schedule.starts(step)
  # With a delay no two events fall on one step; without, a launch lands.
  assert names in {(), ('start',), ('launch',), ('land',), ('launch', 'land')}
  assert (names == ('launch', 'land')) <= (schedule.delay == 0)


@settings
@hypothesis.given(schedules())
def test_arrays_are_decided_alike(schedule):
  """A running step is decided as a traced one, by the step alone."""
  steps = range(1, 50)
  for decide in (schedule.launches, schedule.lands, schedule.starts):
    want = [bool(decide(step)) for step in steps]
    assert np.asarray(decide(np.arange(1, 50))).tolist() == want
    backwards = [bool(decide(step)) for step in reversed(steps)]
    assert backwards[::-1] == want


def test_tracers_are_decided_alike():
  schedule = schedule_lib.Schedule(5, 2, delay=3, start=4, stop=20)
  steps = jnp.arange(1, 40, dtype=jnp.int32)
  for decide in (schedule.launches, schedule.lands, schedule.starts):
    got = jax.jit(jax.vmap(decide))(steps)
    assert got.tolist() == [bool(decide(step)) for step in range(1, 40)]


@pytest.mark.parametrize('every', [1, 2, 7, 10, 100])
def test_outer_steps_are_the_floor_of_the_rounds(every):
  schedule = schedule_lib.Schedule(every, every)
  for step in range(1, 3 * every + 2):
    assert schedule.num_launches(step) == step // every


@pytest.mark.parametrize(
  ('every', 'num_fragments'), [(100, 37), (10, 4), (2, 4), (7, 3)]
)
def test_periods_are_never_rounded(every, num_fragments):
  """Uneven offsets: each fragment is sent once in any `every` steps."""
  offsets = [number * every // num_fragments or every
             for number in range(num_fragments)]  # fmt: skip
  for offset in offsets:
    schedule = schedule_lib.Schedule(every, offset)
    steps = [step for step in range(1, 5 * every + 1)
             if schedule.launches(step)]  # fmt: skip
    assert len(steps) == 5
    assert set(np.diff(steps)) == {every}


def test_a_landing_needs_its_launch():
  """A bare residue, (8 + 5) mod 10, would already land at step 3."""
  schedule = schedule_lib.Schedule(every=10, offset=8, delay=5)
  landed = [step for step in range(1, 34) if schedule.lands(step)]
  assert landed == [13, 23, 33]


@settings
@hypothesis.given(schedules(), st.integers(1, 60), st.booleans())
def test_final_events_leave_nothing_in_flight(schedule, step, overwrites):
  names = schedule.final_events(step, overwrites)
  pending = [
    launched
    for launched in launches(schedule, step - 1)
    if launched + schedule.delay >= step
  ]
  if schedule.start and step <= schedule.start:
    assert names == ('start',)
  elif pending:
    assert names == (('land',) if overwrites else ('land', 'meet'))
  else:
    assert names == ('meet',)


# Programs.


@st.composite
def plans(draw):
  several = draw(st.lists(schedules(), max_size=4))
  first = draw(st.integers(1, 20))
  return (
    several,
    first,
    draw(st.integers(first, first + 60)),
    draw(st.integers(1, 30)),
    draw(st.integers(1, 30)),
  )


def cut(several, first, last, period, max_steps):
  return list(
    schedule_lib.segments(
      several,
      first,
      last,
      is_stop=lambda step: step % period == 0,
      max_steps=max_steps,
    )
  )


def steps_of(segments, first):
  """Spells the runs out: (step, kind), by segment."""
  spelled, step = [], first
  for runs in segments:
    spelled.append([])
    for run in runs:
      for _ in range(run.num_steps):
        spelled[-1].append((step, run.kind))
        step += 1
  return spelled


@settings
@hypothesis.given(plans())
def test_every_step_is_in_one_segment_with_its_events(plan):
  several, first, last, _, max_steps = plan
  segments = cut(*plan)
  spelled = steps_of(segments, first)
  flat = [pair for segment in spelled for pair in segment]
  assert [step for step, _ in flat] == list(range(first, last + 1))
  for step, kind in flat:
    assert kind == tuple(one.events(step) for one in several)
  assert all(1 <= len(segment) <= max_steps for segment in spelled)
  for segment, runs in zip(spelled, segments):
    for run in runs:
      # The step to trace stands for all of the run.
      assert run.kind == tuple(one.events(run.step) for one in several)
    kinds = [run.kind for run in runs]
    assert all(one != other for one, other in zip(kinds, kinds[1:]))
    assert segment


@settings
@hypothesis.given(plans())
def test_segments_end_where_the_host_wants_the_state(plan):
  _, first, last, period, _ = plan
  ends = [segment[-1][0] for segment in steps_of(cut(*plan), first)]
  wanted = {step for step in range(first, last + 1) if step % period == 0}
  assert wanted <= set(ends)
  assert ends[-1] == last


@settings
@hypothesis.given(schedules(), st.integers(1, 40))
def test_a_flight_stays_in_one_program_when_it_fits(schedule, last):
  hypothesis.assume(schedule.delay > 0)
  never = 10**6
  spelled = steps_of(cut([schedule], 1, last, never, never), 1)
  segment_of = {
    step: number for number, part in enumerate(spelled) for step, _ in part
  }
  for step in launches(schedule, last):
    landing = step + schedule.delay
    if landing <= last:
      assert segment_of[step] == segment_of[landing]
      # And it is the end of a round, so that rounds look alike.
      assert landing == spelled[segment_of[step]][-1][0]


@settings
@hypothesis.given(schedules())
def test_few_programs_for_many_rounds(schedule):
  """Patterns are few however long the training is."""
  never = 10**6
  start = max(schedule.start, 1)
  patterns = lambda num_rounds: {
    tuple((run.kind, run.num_steps) for run in runs)
    for runs in cut(
      [schedule], 1, start + num_rounds * schedule.every, never, never
    )
  }
  assert len(patterns(30)) <= 5
  assert len(patterns(60)) <= 5


def test_a_round_is_a_program():
  quiet, meet = ((),), (('launch', 'land'),)
  Run = schedule_lib.Run
  schedule = schedule_lib.Schedule(4, 4)
  assert cut([schedule], 1, 10, 100, 100) == [
    (Run(quiet, 1, 3), Run(meet, 4, 1)),
    (Run(quiet, 5, 3), Run(meet, 8, 1)),
    (Run(quiet, 9, 2),),
  ]
  # A resumed training starts within a round.
  assert cut([schedule], 3, 8, 100, 100) == [
    (Run(quiet, 3, 1), Run(meet, 4, 1)),
    (Run(quiet, 5, 3), Run(meet, 8, 1)),
  ]


def test_data_parallel_steps_are_one_run():
  """Each has an event, and all are alike."""
  always = schedule_lib.Schedule(1, 1)
  runs = cut([always], 1, 100, 50, 1000)
  assert [[run.num_steps for run in segment] for segment in runs] == [
    [50],
    [50],
  ]
