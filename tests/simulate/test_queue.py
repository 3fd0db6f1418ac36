"""Tests for `dilojax.simulate._queue`."""

import itertools
import json
import math
import random
import time

import pytest

from dilojax import simulate

KINDS = ('arrival', 'merge', 'evaluate')


def drain(queue):
  return [queue.pop() for _ in range(len(queue))]


def test_pops_are_sorted_whatever_the_order_of_pushes():
  events = [
    simulate.Event(time, kind, worker)
    for time in (0.0, 0.5, 2.0, math.inf)
    for kind in KINDS
    for worker in range(3)
  ]
  for seed in range(5):
    queue = simulate.Queue(KINDS)
    for event in random.Random(seed).sample(events, len(events)):
      queue.push(*event)
    assert drain(queue) == events


def test_ties_go_by_kind_then_worker_then_insertion():
  for pushes in itertools.permutations(
    [('merge', 0), ('arrival', 1), ('arrival', 0), ('arrival', 0)]
  ):
    queue = simulate.Queue(KINDS)
    for number, (kind, worker) in enumerate(pushes):
      queue.push(1.0, kind, worker, number)
    found = drain(queue)
    assert [event[1:3] for event in found] == [
      ('arrival', 0),
      ('arrival', 0),
      ('arrival', 1),
      ('merge', 0),
    ]
    assert found[0].round < found[1].round


def test_order_of_kinds_is_that_of_the_list():
  queue = simulate.Queue(KINDS[::-1])
  for kind in KINDS:
    queue.push(1.0, kind, 0)
  assert [event.kind for event in drain(queue)] == list(KINDS[::-1])


def test_peek_leaves_the_event_and_the_time():
  queue = simulate.Queue(KINDS)
  queue.push(3.0, 'arrival', 1, 4)
  assert queue.peek() == simulate.Event(3.0, 'arrival', 1, 4)
  assert (len(queue), queue.now) == (1, 0.0)
  assert queue.pop() == simulate.Event(3.0, 'arrival', 1, 4)
  assert (len(queue), queue.now) == (0, 3.0)


def play(queue, draws, num_events):
  """A clock: who arrives is sent off again."""
  found = []
  for _ in range(num_events):
    event = queue.pop()
    found.append(event)
    wait = draws[event.worker, event.round]
    queue.push(event.time + wait, event.kind, event.worker, event.round + 1)
  return found


def test_goes_on_from_json_as_if_nothing_had_been():
  rng = random.Random(0)
  # Some waits are equal, and sums of 0.1 are not exact.
  draws = {
    (worker, round): rng.choice([0.1, 0.2, 0.3, rng.random()])
    for worker in range(5)
    for round in range(200)
  }
  queue = simulate.Queue(KINDS)
  for worker in range(5):
    queue.push(0.1, 'arrival', worker)
  queue.push(math.inf, 'evaluate', 0)
  play(queue, draws, 50)
  text = json.dumps(queue.to_json(), allow_nan=False)
  resumed = simulate.Queue.from_json(json.loads(text))
  assert resumed.now == queue.now > 0
  # Ties that are pushed now come after those that were there.
  for each in (queue, resumed):
    each.push(1e3, 'merge', 0, 1)
  first, second = play(queue, draws, 100), play(resumed, draws, 100)
  assert first == second
  assert all(one.time <= other.time for one, other in zip(first, first[1:]))
  assert queue.to_json() == resumed.to_json()


def test_insertion_order_survives_json():
  queue = simulate.Queue(KINDS)
  for round in (3, 1, 2):
    queue.push(1.0, 'arrival', 0, round)
  queue = simulate.Queue.from_json(json.loads(json.dumps(queue.to_json())))
  queue.push(1.0, 'arrival', 0, 0)
  assert [event.round for event in drain(queue)] == [3, 1, 2, 0]


def test_is_fast():
  """Ten thousand events in far less than the two seconds of a whole loop."""

  def seconds():
    queue, times = simulate.Queue(KINDS), random.Random(0)
    start = time.process_time()
    for number in range(10_000):
      queue.push(times.random(), 'arrival', number % 16, number)
    drain(queue)
    return time.process_time() - start

  assert min(seconds() for _ in range(5)) < 0.1


@pytest.mark.parametrize(
  ('args', 'message'),
  [
    ((math.nan, 'arrival', 0), '`time` must be at least 2.0'),
    ((-1.0, 'arrival', 0), '`time` must be at least 2.0'),
    ((1.9, 'arrival', 0), '`time` must be at least 2.0.*got 1.9'),
    ((3.0, 'departure', 0), '`kind` must be one of arrival, merge'),
    ((3.0, 'arrival', -1), '`worker` must be at least 0, got -1'),
  ],
)
def test_events_that_cannot_be_are_refused(args, message):
  queue = simulate.Queue(KINDS)
  queue.push(2.0, 'merge', 0)
  queue.pop()
  with pytest.raises(ValueError, match=message):
    queue.push(*args)
  assert not len(queue)


def test_times_below_zero_are_refused_from_the_start():
  for time_ in (-1e-9, math.nan):
    with pytest.raises(ValueError, match='`time` must be at least 0.0'):
      simulate.Queue(KINDS).push(time_, 'merge', 0)


def test_an_empty_queue_has_no_event():
  for name in ('pop', 'peek'):
    with pytest.raises(ValueError, match='no event left'):
      getattr(simulate.Queue(KINDS), name)()


@pytest.mark.parametrize('kinds', [(), ('a', 'a'), 'arrival'])
def test_kinds_are_different_names(kinds):
  with pytest.raises(ValueError, match='`kinds` must be a list of different'):
    simulate.Queue(kinds)


@pytest.mark.parametrize(
  'changes',
  [
    {'events': [['0x1p+1', 0, 0]]},
    {'events': [['0x1p+1', 3, 0, 0, 0]]},
    {'events': [['0x1p+1', 0, -1, 0, 0]]},
    {'events': [['0x1p+1', -1, 0, 0, 0]]},
    {'events': [['0x1p+1', 0, 0, 0, 0], ['0x1p+2', 0, 0, 0, 0]]},
    {'events': [['0x1p+1', 0, 0, 1, 0]]},
    {'events': [['0x1p-1', 0, 0, 0, 0]]},
    {'events': [['nan', 0, 0, 0, 0]]},
    {'now': 'soon'},
    {'now': 'nan', 'events': []},
    {'count': 0.5},
    {'kinds': []},
  ],
)
def test_what_was_not_saved_is_refused(changes):
  saved = {
    'kinds': ['arrival', 'merge', 'evaluate'],
    'now': (1.0).hex(),
    'count': 1,
    'events': [[(2.0).hex(), 0, 0, 0, 0]],
  }
  assert simulate.Queue.from_json(saved).to_json() == saved
  with pytest.raises(ValueError, match='`saved` must be what `to_json`'):
    simulate.Queue.from_json(saved | changes)
