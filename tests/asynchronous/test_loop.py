"""Tests for `dilojax.asynchronous`: the loop, and what it must be equal to."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import dilojax as dx
from dilojax import asynchronous
from dilojax import simulate
from tests.asynchronous import walking

NESTEROV = optax.sgd(0.7, momentum=0.6, nesterov=True)


def assert_equal(got, want):
  jax.tree.map(np.testing.assert_array_equal, got, want)


def assert_close(got, want, **tolerance):
  close = lambda a, b: np.testing.assert_allclose(a, b, **tolerance)
  jax.tree.map(close, got, want)


def synchronous(num_steps, rule, num_rounds):
  """Trains with a barrier, by hand; returns the params after each round."""
  params, state = walking.PARAMS, rule.init(walking.PARAMS)
  privates = [walking.WORK.init(k) for k in range(len(num_steps))]
  found = []
  for number in range(num_rounds):
    messages = []
    for k, steps in enumerate(num_steps):
      inputs = walking.inputs(k, number * steps, 0, steps)
      message, privates[k], _ = walking.run(params, privates[k], inputs)
      messages.append(message)
    mean = jax.tree.map(lambda *each: sum(each) / len(each), *messages)
    updates, state = rule.update(mean, state, params)
    params = optax.apply_updates(params, updates)
    found.append(params)
  return found


def test_with_a_barrier_it_is_synchronous():
  server = asynchronous.Server(NESTEROV, quorum=3)
  loop = asynchronous.Loop(walking.system([4, 4, 4], [server]), walking.PARAMS)
  got = list(walking.updates(loop, 5))
  assert_close(got, synchronous([4, 4, 4], NESTEROV, 5), rtol=1e-5, atol=1e-7)
  assert loop.now == 5 * 4
  assert loop.state.counts.merged_steps == loop.state.counts.steps == 5 * 12


def test_a_barrier_waits_for_the_slowest():
  """Unless each takes as many steps as its speed allows."""
  server = asynchronous.Server(NESTEROV, quorum=3)
  speeds = [1.0, 0.5, 0.25]
  loop = asynchronous.Loop(
    walking.system([4, 4, 4], [server], speeds=speeds), walking.PARAMS
  )
  slow = list(walking.updates(loop, 3))
  assert loop.now == 3 * 16
  assert_close(slow, synchronous([4, 4, 4], NESTEROV, 3), rtol=1e-5, atol=1e-7)
  by_speed = simulate.rounds_by_speed(4, speeds, rounding='ceil')
  loop = asynchronous.Loop(
    walking.system(by_speed, [server], speeds=speeds), walking.PARAMS
  )
  fast = list(walking.updates(loop, 3))
  assert loop.now == 3 * 4
  assert_close(fast, synchronous([4, 2, 1], NESTEROV, 3), rtol=1e-5, atol=1e-7)


def test_equal_speeds_and_a_grace_period_are_synchronous():
  """Delayed Nesterov then moves as one step on the mean of a round."""
  rule = dx.delayed_nesterov(0.7, 0.6, every=3)
  server = asynchronous.Server(rule, grace=0.5)
  loop = asynchronous.Loop(walking.system([4, 4, 4], [server]), walking.PARAMS)
  got = []
  root = loop.state.servers[0]
  for _ in loop.advance():
    if root.version and root.version % 3 == 0 and not root.waiting:
      if len(got) < root.version // 3:
        got.append(root.params)
    if len(got) == 4:
      break
  assert_close(got, synchronous([4, 4, 4], NESTEROV, 4), rtol=1e-5, atol=1e-6)
  assert loop.now == 4 * (4 + 0.5)


def test_arrivals_are_in_the_order_of_the_clock():
  """Worker 1 is twice as fast: it arrives at 2, 4, 6, and worker 0 at 4."""
  launched, versions = [], []

  def update_fn(updates, state, params=None, *, worker, staleness, launched):
    del params, launched
    jax.debug.callback(
      lambda *each: versions.append(tuple(map(int, each))),
      worker,
      staleness,
      ordered=True,
    )
    return jax.tree.map(lambda leaf: -leaf, updates), state

  rule = optax.GradientTransformationExtraArgs(
    lambda params: optax.EmptyState(), update_fn
  )
  loop = asynchronous.Loop(
    walking.system([4, 4], [asynchronous.Server(rule)], speeds=[1.0, 2.0]),
    walking.PARAMS,
  )
  times = []
  for moved in loop.advance():
    if moved:
      times.append(loop.now)
    if len(times) == 6:
      break
  jax.effects_barrier()
  assert times == [2, 4, 4, 6, 8, 8]
  # At 4 both arrive; worker 0 has seen none of the update at 2.
  assert versions == [(1, 0), (0, 1), (1, 1), (1, 0), (0, 2), (1, 1)]
  del launched


def test_times_are_those_of_links_and_speeds():
  """There and back and computation: methods of HALoS' clock."""
  nbytes = sum(leaf.nbytes for leaf in jax.tree.leaves(walking.PARAMS))
  system = walking.system(
    [4, 2],
    [asynchronous.Server(optax.sgd(1.0))],
    speeds=[1.0, 0.25],
    bandwidth=8.0 * nbytes,  # A second.
    latency=0.5,
  )
  loop = asynchronous.Loop(system, walking.PARAMS)
  times = {0: [], 1: []}
  for moved in loop.advance():
    if moved:
      gone = [
        k
        for k in times
        if loop.state.workers[k].version == loop.state.servers[0].version
      ]
      times[gone[0]].append(loop.now)
    if len(times[1]) == 2:
      break
  # The first params are there at the start.
  assert times[1] == [8 + 1.5, 8 + 1.5 + 8 + 3]
  assert times[0][:2] == [4 + 1.5, 4 + 1.5 + 4 + 3]
  sent = len(times[0]) * 2 + len(times[1]) * 2
  assert abs(loop.bytes['inside'] / nbytes - sent) <= 1


def halos(push_every, alpha=0.0, rule=None, local=None):
  local = local or dx.delayed_nesterov(0.5, 0.9, every=2)
  return (
    asynchronous.Server(rule or optax.sgd(1.0)),
    asynchronous.Server(local, parent=0, push_every=push_every, alpha=alpha),
  )


def test_the_global_server_tracks_a_local_one():
  """One local server, a message per arrival, links that take no time."""
  loop = asynchronous.Loop(
    walking.system([4, 3], halos(1), speeds=[1.0, 0.7], of=[1, 1]),
    walking.PARAMS,
  )
  alone = asynchronous.Loop(
    walking.system(
      [4, 3],
      [asynchronous.Server(dx.delayed_nesterov(0.5, 0.9, every=2))],
      speeds=[1.0, 0.7],
    ),
    walking.PARAMS,
  )
  got, want = walking.updates(loop, 10), walking.updates(alone, 10)
  for one, other in zip(got, want, strict=True):
    assert_close(one, other, rtol=1e-5, atol=1e-6)
    assert loop.now == alone.now


def test_a_region_that_never_sends_is_asynchronous_local_sgd():
  loop = asynchronous.Loop(
    walking.system([4, 3], halos(10**9), speeds=[1.0, 0.7], of=[1, 1]),
    walking.PARAMS,
  )
  alone = asynchronous.Loop(
    walking.system(
      [4, 3],
      [asynchronous.Server(dx.delayed_nesterov(0.5, 0.9, every=2))],
      speeds=[1.0, 0.7],
    ),
    walking.PARAMS,
  )
  want = walking.after(alone, 9)
  for _ in loop.advance():
    if loop.state.servers[1].version == 9:
      break
  assert_equal(loop.state.servers[1].params, want)
  assert_equal(loop.state.servers[0].params, walking.PARAMS)


def test_messages_of_a_server_stand_for_what_came_before_they_were_sent():
  """What it does while they are away reaches nobody, but its steps count."""
  above, below = halos(2, alpha=0.75, local=optax.sgd(1.0))
  system = walking.system(
    [4, 4],
    [above, below._replace(site=1)],
    of=[1, 1],
    sites=[1, 1],
    speeds=[1.0, 1.0],
    latency=[[0.0, 3.0], [3.0, 0.0]],
  )
  loop = asynchronous.Loop(system, walking.PARAMS)
  top, local = loop.state.servers
  seen = {}
  for _ in loop.advance():
    seen[loop.now] = (local.params, local.merged, top.params, local.arrivals)
    if loop.now >= 12:
      break
  # Sent at 4, applied at 7, back at 10; two more arrivals at 8 in between.
  assert_close(seen[7][2], seen[4][0], rtol=1e-6, atol=1e-6)
  mixed = jax.tree.map(
    lambda own, other: 0.75 * own + 0.25 * other, seen[8][0], seen[7][2]
  )
  assert_close(seen[10][0], mixed, rtol=1e-6)
  assert_equal(seen[10][1], seen[10][0])
  assert seen[10][3] == 0
  assert seen[8][3] == 4
  assert loop.state.counts.merged_steps == 8
  for _ in loop.advance():
    if top.version == 2:
      break
  assert loop.now == 12 + 3
  assert loop.state.counts.merged_steps == 8 + 16


def test_devices_change_nothing():
  params = []
  for count in (1, 2, 5):
    system = walking.system(
      [4, 3, 5],
      halos(2, alpha=0.5),
      speeds=[1.0, 0.7, 1.3],
      of=[1, 1, 0],
    )
    loop = asynchronous.Loop(system, walking.PARAMS, jax.devices()[:count])
    params.append(walking.after(loop, 12))
  for each in params[1:]:
    assert_equal(each, params[0])


CRASHES = simulate.listed_crashes(3, [(1, 7.0, 13.0), (2, 20.0, 21.0)])


def complicated():
  """All that a state can have: messages on their way, waiting, lost rounds."""
  rule = dx.buffered(optax.sgd(0.5, momentum=0.9), 2)
  return walking.system(
    [4, 3, 5],
    (
      asynchronous.Server(rule, grace=1.0),
      asynchronous.Server(
        dx.drop_stale(optax.sgd(0.3), 2), parent=0, push_every=2, alpha=0.5
      ),
    ),
    speeds=[1.0, 0.7, 1.3],
    of=[1, 1, 0],
    sites=[0, 1, 0],
    bandwidth=300.0,
    latency=0.3,
    shared=('inside', 'between'),
    crashes=CRASHES,
  )


def test_saved_between_any_two_events_it_goes_on_bitwise():
  loop = asynchronous.Loop(complicated(), walking.PARAMS)
  saved, steps = [], 60
  for _, _ in zip(range(steps), loop.advance()):
    saved.append(jax.device_get(loop.save()))
  want = loop.save()
  kinds = set()
  for number in range(0, steps, 3):
    again = asynchronous.Loop(complicated(), walking.PARAMS)
    arrays, meta = saved[number]
    again.restore(jax.tree.map(jnp.asarray, arrays), meta)
    kinds |= {rank for _, rank, *_ in meta['queue']['events']}
    for _, _ in zip(range(steps - number - 1), again.advance()):
      pass
    got = again.save()
    assert got[1] == want[1]
    assert_equal(got[0], want[0])
  assert kinds == set(range(6))  # Every kind of event was pending once.
  assert loop.state.counts.lost_rounds == 1


def test_a_lost_round_is_done_again():
  """Its data comes again, from the state before it."""
  server = asynchronous.Server(optax.sgd(1.0))
  crashes = simulate.listed_crashes(1, [(0, 5.0, 6.5)])
  loops = [
    asynchronous.Loop(
      walking.system([4], [server], crashes=each), walking.PARAMS
    )
    for each in (None, crashes)
  ]
  got = [(walking.after(loop, 3), loop.now) for loop in loops]
  assert_equal(got[0][0], got[1][0])
  assert (got[0][1], got[1][1]) == (12, 4 + 2.5 + 8)
  assert loops[1].state.counts.lost_rounds == 1


def test_one_that_never_comes_back_changes_nothing_for_others():
  server = asynchronous.Server(optax.sgd(1.0))
  crashes = simulate.listed_crashes(2, [(1, 1.0, np.inf)])
  loop = asynchronous.Loop(
    walking.system([4, 4], [server], crashes=crashes), walking.PARAMS
  )
  alone = asynchronous.Loop(walking.system([4], [server]), walking.PARAMS)
  assert_equal(walking.after(loop, 4), walking.after(alone, 4))


def test_a_quorum_takes_who_is_there():
  """The others' messages count in the next round."""
  server = asynchronous.Server(
    optax.sgd(1.0), quorum=2, grace=1.0, is_weighted=True
  )
  system = walking.system([4, 2, 4], [server], speeds=[1.0, 0.5, 0.25])
  loop = asynchronous.Loop(system, walking.PARAMS)
  moves = []
  for moved in loop.advance():
    if moved:
      moves.append((loop.now, loop.state.counts.merged_steps))
    if len(moves) == 3:
      break
  # Workers 0 and 1 at 4, worker 2 at 16.
  assert moves == [(5, 6), (10, 12), (15, 18)]
  alone = walking.system([4, 2], [server], speeds=[1.0, 0.5])
  want = asynchronous.Loop(alone, walking.PARAMS)
  assert_equal(walking.after(want, 3), loop.state.servers[0].params)


@pytest.mark.parametrize(
  ('changes', 'message'),
  [
    ({'num_steps': []}, '`workers` and `servers` must not be empty'),
    ({'num_steps': [0, 1]}, r'`workers\[0\].num_steps` must be at least 1'),
    ({'of': [0, 3]}, r'`workers\[1\].server` must be from 0 to 0, got 3'),
    ({'speeds': [1.0]}, '`times` must be for as many workers as there are, 2'),
    ({'sites': [0, 0, 0]}, '`network` must be for as many workers'),
    ({'server': {'quorum': 3}}, r'`servers\[0\].quorum` must be from 1 to 2'),
    ({'server': {'quorum': 0}}, r'`servers\[0\].quorum` must be from 1 to 2'),
    ({'server': {'grace': -1.0}}, r'`servers\[0\].grace` must be a finite'),
    ({'server': {'alpha': 0.5}}, r'`servers\[0\].alpha` has no effect'),
    ({'server': {'push_every': 2}}, r'`servers\[0\].push_every` has no effect'),
    ({'server': {'parent': 0}}, r'its `parent` must be None, got 0'),
    ({'server': {'meet': len}}, r'`servers\[0\].meet` needs a `quorum` of all'),
    ({'bandwidth': 0.0}, 'There is no link inside site 0'),
  ],
)
def test_what_does_not_fit(changes, message):
  changes = dict(changes)
  server = asynchronous.Server(optax.sgd(1.0), **changes.pop('server', {}))
  given = {'num_steps': [4, 4], 'speeds': [1.0, 1.0], **changes}
  if not given['num_steps']:
    given |= {'speeds': [1.0], 'sites': [0]}
  with pytest.raises(ValueError, match=message):
    asynchronous.Loop(
      walking.system(given.pop('num_steps'), [server], **given), walking.PARAMS
    )


@pytest.mark.parametrize(
  ('changes', 'message'),
  [
    ({'alpha': 1.5}, r'`servers\[1\].alpha` must be from 0 to 1, got 1.5'),
    ({'push_every': 0}, r'`servers\[1\].push_every` must be at least 1, got 0'),
    ({'parent': 1}, r'`servers\[1\].parent` must be from 0 to 0, got 1'),
  ],
)
def test_trees_that_are_none(changes, message):
  top, local = halos(2)
  servers = (top, local._replace(**changes))
  with pytest.raises(ValueError, match=message):
    asynchronous.Loop(
      walking.system([4, 4], servers, of=[1, 0]), walking.PARAMS
    )


def test_a_server_without_senders():
  with pytest.raises(ValueError, match='has nobody that sends to it'):
    asynchronous.Loop(walking.system([4], halos(2), of=[0]), walking.PARAMS)
