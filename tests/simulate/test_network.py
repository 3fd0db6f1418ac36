"""Tests for networks: `_network`, `_rings` and `_links`."""

import itertools
import json
import math
import random

import numpy as np
import pytest

from dilojax import simulate

# Bits per second; site 2 cannot send to site 0.
BANDWIDTHS = [[800.0, 8.0, 16.0], [80.0, 800.0, 4.0], [0.0, 2.0, 800.0]]
LATENCY = [[0.0, 1.0, 2.0], [3.0, 0.5, 4.0], [5.0, 6.0, 0.0]]
SITES = (0, 0, 1, 2)


def network(**changes):
  return simulate.connect(
    **{
      'bandwidths': BANDWIDTHS,
      'worker_sites': SITES,
      'latency': LATENCY,
      **changes,
    }
  )


def even(num_workers, num_sites, bandwidth, latency=0.0):
  return simulate.connect(
    [[bandwidth] * num_sites] * num_sites,
    simulate.even_sites(num_workers, num_sites),
    latency=latency,
  )


def test_a_transfer_is_latency_and_bits_over_bandwidth():
  found = network()
  for source, target in itertools.product(range(3), range(3)):
    if (source, target) == (2, 0):
      continue
    for nbytes in (0, 1, 1000):
      seconds = simulate.transfer_seconds(found, source, target, nbytes)
      assert seconds == (
        LATENCY[source][target] + 8 * nbytes / BANDWIDTHS[source][target]
      )


def test_directions_differ():
  assert simulate.transfer_seconds(network(latency=0.0), 0, 1, 10) == 10.0
  assert simulate.transfer_seconds(network(latency=0.0), 1, 0, 10) == 1.0


def test_infinite_bandwidth_costs_nothing():
  found = even(4, 2, math.inf)
  assert simulate.transfer_seconds(found, 0, 1, 1e12) == 0.0
  for seconds in (
    simulate.ring_seconds,
    simulate.star_seconds,
    simulate.tree_seconds,
  ):
    assert seconds(found, 1e12) == 0.0


def test_bandwidths_come_back():
  assert network().bandwidths == BANDWIDTHS
  assert network(bandwidths=np.array(BANDWIDTHS)) == network()


def test_a_missing_link_is_named_where_it_is_needed():
  found = network()
  message = 'no link from site 2 to site 0: `bandwidths.2..0.` must be above 0'
  for call in (
    lambda: simulate.transfer_seconds(found, 2, 0, 1),
    lambda: simulate.star_seconds(found, 1),
    lambda: simulate.tree_seconds(found, 1),
    lambda: simulate.Links(found).begin(0.0, 2, 0, 1),
    lambda: simulate.Links(found).count(2, 0, 1),
  ):
    with pytest.raises(ValueError, match=message):
      call()
  alone = network(bandwidths=np.ones((3, 3)) - np.eye(3))
  with pytest.raises(ValueError, match='no link inside site 1'):
    simulate.transfer_seconds(alone, 1, 1, 1)


def test_two_levels():
  inside, between = simulate.Link(800.0, 0.5), simulate.Link(8.0, 2.0)
  found = simulate.two_levels(
    [0, 1, 1], inside=inside, between=between, server_site=2
  )
  assert len(found.links) == 3
  for source, target in itertools.product(range(3), range(3)):
    link = inside if source == target else between
    assert found.links[source][target] == link
  assert (found.worker_sites, found.server_site) == ((0, 1, 1), 2)


def test_even_sites():
  for num_sites, size in itertools.product((1, 2, 5), (1, 3)):
    sites = simulate.even_sites(num_sites * size, num_sites)
    assert sorted(sites) == list(sites)
    assert [sites.count(site) for site in range(num_sites)] == [
      size
    ] * num_sites
  with pytest.raises(ValueError, match=r'`num_sites` \(3\) must divide `num_w'):
    simulate.even_sites(4, 3)


def brute_force(bandwidths):
  """All orders from all starts, and the links between them written out."""
  numbers = range(len(bandwidths))
  return max(
    min(
      bandwidths[order[index]][order[(index + 1) % len(order)]]
      for index in numbers
    )
    for order in itertools.permutations(numbers)
  )


@pytest.mark.parametrize('num_sites', [2, 3, 4, 5, 6])
def test_best_ring_is_that_of_brute_force(num_sites):
  rng = random.Random(num_sites)
  for _ in range(20):
    # Few values, so that there are ties, and one way differs from the other.
    table = [
      [rng.randint(1, 9) for _ in range(num_sites)] for _ in range(num_sites)
    ]
    ring = simulate.best_ring(table)
    assert ring.bandwidth == brute_force(table)
    order = ring.order
    assert sorted(order) == list(range(num_sites))
    slowest = min(table[a][b] for a, b in zip(order, order[1:] + order[:1]))
    assert slowest == ring.bandwidth


def test_best_ring_finds_the_one_that_was_hidden():
  rng = random.Random(0)
  hidden = [0, *rng.sample(range(1, 9), 8)]
  table = [[1.0] * 9 for _ in range(9)]
  for a, b in zip(hidden, hidden[1:] + hidden[:1]):
    table[a][b] = 2.0
  assert simulate.best_ring(table) == (tuple(hidden), 2.0)


def test_small_rings():
  assert simulate.best_ring([[0.0]]) == ((0,), math.inf)
  assert simulate.best_ring([[0, 3.0], [2.0, 0]]) == ((0, 1), 2.0)


@pytest.mark.parametrize(
  ('table', 'message'),
  [
    ([[0.0] * 10] * 10, '`bandwidths` must have at most 9 sites.*got 10'),
    ([[0, 1], [0, 0]], '`bandwidths` connect no ring'),
    ([[0, 1, 1], [1, 0, 0], [1, 0, 0]], 'order of the 3 sites'),
    ([[0, 1]], r'got rows of \[2\]'),
    ([], '`bandwidths` must have a row'),
    ([[0, -1], [1, 0]], '`bandwidths` must be at least 0, got -1'),
    ([[0, math.nan], [1, 0]], '`bandwidths` must be at least 0, got nan'),
  ],
)
def test_what_is_no_ring_is_refused(table, message):
  with pytest.raises(ValueError, match=message):
    simulate.best_ring(table)


@pytest.mark.parametrize('num_workers', [2, 4, 16])
def test_ring_sends_everything_twice_but_for_one_share(num_workers):
  found = even(num_workers, 2, 100.0, latency=0.25)
  transfer = 2 * (num_workers - 1) / num_workers * 8 * 50 / 100.0
  hops = 2 * (num_workers - 1)
  assert simulate.ring_seconds(found, 50) == pytest.approx(
    transfer + 0.25 * hops
  )


def test_ring_of_one_worker_takes_no_time():
  assert simulate.ring_seconds(even(1, 1, 8.0, latency=1.0), 100) == 0.0
  # Not even a link is needed.
  assert simulate.ring_seconds(simulate.connect([[0.0]], [0]), 100) == 0.0


def test_ring_is_bound_by_its_slowest_link():
  """Also inside a site, if there is more than one worker in it."""
  table = [[1.0, 8.0, 2.0], [8.0, 50.0, 8.0], [8.0, 8.0, 50.0]]
  seconds = lambda sites: simulate.ring_seconds(
    simulate.connect(table, sites), 3
  )
  # 0, 1, 2 and not 0, 2, 1.
  assert seconds([0, 1, 2]) == pytest.approx(4 / 3 * 24 / 8)
  assert seconds([0, 1, 2, 2]) == pytest.approx(3 / 2 * 24 / 8)
  assert seconds([0, 0, 1, 2]) == pytest.approx(3 / 2 * 24 / 1)
  # Site 2 has nobody; all in one site.
  assert seconds([0, 1]) == pytest.approx(24 / 8)
  assert seconds([1, 1, 1]) == pytest.approx(4 / 3 * 24 / 50)


def test_ring_uses_the_latency_of_its_links_alone():
  table = [[9, 9, 1], [1, 9, 9], [9, 1, 9]]
  latency = [[7.0, 0.5, 7.0], [7.0, 7.0, 0.25], [0.75, 7.0, 7.0]]
  found = simulate.connect(table, [0, 1, 2], latency=latency)
  assert simulate.worker_ring(found) == [(0, 1), (1, 2), (2, 0)]
  assert simulate.ring_seconds(found, 0) == 4 * 0.75


def test_star_waits_for_the_slowest_both_ways():
  slow = simulate.connect([[8, 4, 2], [1, 8, 8], [2, 8, 8]], SITES)
  # Up: 24 bits at 1 from site 1. Down: 24 bits at 2 to site 2.
  assert simulate.star_seconds(slow, 3) == 24.0 + 12.0
  # At site 1: up at 4 from site 0, down at 1 to site 0.
  assert simulate.star_seconds(slow, 3, center=1) == 6.0 + 24.0


@pytest.mark.parametrize('num_workers', [1, 2, 8])
def test_tree_takes_two_messages_per_level(num_workers):
  found = even(num_workers, 1, 8.0, latency=1.0)
  seconds = simulate.tree_seconds(found, 3)
  assert seconds == 2 * math.log2(num_workers) * 4.0


def messages(rng, num_messages):
  now, found = 0.0, []
  for _ in range(num_messages):
    now += rng.choice([0.0, 0.1, rng.random()])
    source, target = rng.choice([(0, 0), (0, 1), (1, 0), (1, 1)])
    found.append((now, source, target, rng.randint(0, 20)))
  return found


CONTENDED = simulate.connect([[800.0, 80.0], [40.0, 400.0]], [0, 1])


def test_without_contention_every_message_starts_at_once():
  links = simulate.Links(CONTENDED)
  for now, *message in messages(random.Random(0), 100):
    seconds = simulate.transfer_seconds(CONTENDED, *message)
    assert links.begin(now, *message) == (now, now + seconds)
  assert set(links.state) == {'bytes inside', 'bytes between'}


@pytest.mark.parametrize('shared', [['between'], ['inside', 'between']])
def test_shared_links_conserve_work(shared):
  links = simulate.Links(CONTENDED, shared)
  done: dict = {}
  for now, source, target, nbytes in messages(random.Random(1), 400):
    start, end = links.begin(now, source, target, nbytes)
    seconds = simulate.transfer_seconds(CONTENDED, source, target, nbytes)
    assert start >= now, 'no negative waits'
    assert end == start + seconds
    done.setdefault((source, target), []).append((now, start, end, seconds))
  assert len(done) == 4
  for (source, target), all_of in done.items():
    if (source == target) and 'inside' not in shared:
      assert all(now == start for now, start, _, _ in all_of)
      continue
    # One after the other, in order, and idle only when nothing waits.
    free, idle = 0.0, 0.0
    for now, start, end, _ in all_of:
      assert start == max(now, free)
      idle += start - free
      free = end
    work = math.fsum(seconds for *_, seconds in all_of)
    assert free == pytest.approx(work + idle)
    assert any(start > now for now, start, _, _ in all_of)


def test_directions_and_classes_do_not_hold_up_one_another():
  links = simulate.Links(even(2, 2, 8.0), ['between'])
  assert links.begin(0.0, 0, 1, 5) == (0.0, 5.0)
  assert links.begin(0.0, 1, 0, 5) == (0.0, 5.0)
  assert links.begin(0.0, 0, 0, 5) == (0.0, 5.0)
  assert links.begin(0.0, 0, 0, 5) == (0.0, 5.0)
  assert links.begin(0.0, 0, 1, 5) == (5.0, 10.0)


def test_bytes_are_counted_by_class():
  links = simulate.Links(CONTENDED, ['between'])
  expected = {'inside': 0, 'between': 0}
  for now, source, target, nbytes in messages(random.Random(2), 100):
    links.begin(now, source, target, nbytes)
    expected['inside' if source == target else 'between'] += nbytes
  assert links.bytes == expected
  before = links.state
  assert links.count(0, 1, np.int64(7)) == 'between'
  assert links.bytes == expected | {'between': expected['between'] + 7}
  # Counting takes no link's time.
  after = links.state
  assert json.loads(json.dumps(after)) == after
  assert after.pop('bytes between') - before.pop('bytes between') == 7
  assert before == after


def test_state_goes_through_json():
  all_of = messages(random.Random(3), 200)
  links = simulate.Links(CONTENDED, ['inside', 'between'])
  for message in all_of[:100]:
    links.begin(*message)
  text = json.dumps(links.state, allow_nan=False)
  resumed = simulate.Links(CONTENDED, ['inside', 'between'])
  resumed.restore(json.loads(text))
  assert resumed.state == links.state
  ends = [[each.begin(*m) for m in all_of[100:]] for each in (links, resumed)]
  assert ends[0] == ends[1]
  assert resumed.state == links.state
  # What is handed out is a copy.
  links.state['busy 0 1'] = 1e9
  assert resumed.state == links.state


@pytest.mark.parametrize(
  'state',
  [
    {},
    {'bytes inside': 0, 'bytes between': 0, 'busy 0 0': 1.0},
    {'bytes inside': 0, 'bytes between': 0, 'busy 0 2': 1.0},
    {'bytes inside': 0, 'bytes between': -1},
    {'bytes inside': 0, 'bytes between': math.nan},
  ],
)
def test_the_state_of_other_links_is_refused(state):
  links = simulate.Links(CONTENDED, ['between'])
  with pytest.raises(ValueError, match='`state` must be that of the same'):
    links.restore(state)


@pytest.mark.parametrize(
  ('changes', 'message'),
  [
    ({'bandwidths': []}, '`bandwidths` must have a row'),
    ({'bandwidths': [[1.0, 2.0]]}, '`bandwidths` must have a row'),
    ({'bandwidths': [[1.0, 2.0], [1.0]]}, '`bandwidths` must have a row'),
    ({'bandwidths': 1.0}, '`bandwidths` must have a row'),
    ({'bandwidths': [['fast']]}, '`bandwidths` must have a row'),
    ({'bandwidths': -np.ones((3, 3))}, '`bandwidths` must be at least 0'),
    ({'bandwidths': [[1, math.nan], [1, 1]], 'latency': 0}, 'at least 0'),
    ({'latency': [[0.0]]}, r'`latency` must have .* each site \(3\)'),
    ({'latency': -1.0}, '`latency` must be finite and at least 0'),
    ({'latency': math.nan}, '`latency` must be finite'),
    ({'latency': math.inf}, '`latency` must be finite'),
    ({'worker_sites': []}, '`worker_sites` must have one for each'),
    (
      {'worker_sites': [0, 3]},
      '`worker_sites` must be ints from 0 to 2.*has 3 sites, got 3',
    ),
    ({'worker_sites': [0, -1]}, '`worker_sites` must be ints from 0 to 2'),
    ({'worker_sites': [0.5]}, '`worker_sites` must be ints'),
    ({'server_site': 3}, '`server_site` must be ints from 0 to 2'),
  ],
)
def test_what_cannot_be_is_refused(changes, message):
  with pytest.raises(ValueError, match=message):
    network(**changes)


@pytest.mark.parametrize(
  ('call', 'message'),
  [
    (lambda: simulate.transfer_seconds(CONTENDED, 0, 2, 1), '`target` must be'),
    (lambda: simulate.transfer_seconds(CONTENDED, -1, 0, 1), '`source` must'),
    (lambda: simulate.transfer_seconds(CONTENDED, 0, 1, -1), '`nbytes` must'),
    (lambda: simulate.ring_seconds(CONTENDED, math.nan), '`nbytes` must'),
    (lambda: simulate.Links(CONTENDED, ['outside']), '`shared` must be a list'),
    (lambda: simulate.Links(CONTENDED, 'inside'), '`shared` must be a list'),
    (
      lambda: simulate.Links(CONTENDED).begin(-1.0, 0, 1, 1),
      '`now` must be finite and at least 0',
    ),
    (
      lambda: simulate.Links(CONTENDED).begin(math.nan, 0, 1, 1),
      '`now` must be finite and at least 0',
    ),
    (lambda: simulate.Links(CONTENDED).count(0, 1, -1), '`nbytes` must'),
    (
      lambda: simulate.two_levels(
        [-1], inside=simulate.Link(), between=simulate.Link()
      ),
      '`worker_sites` and `server_site` must be ints of at least 0',
    ),
  ],
)
def test_messages_that_cannot_be_are_refused(call, message):
  with pytest.raises(ValueError, match=message):
    call()


def test_parts_are_for_the_same_workers():
  parts = {
    'network': CONTENDED,
    'times': simulate.fixed_times(1.0, [1.0, 0.5]),
    'crashes': simulate.listed_crashes(2),
    'every': [8, 4],
  }
  simulate.check_workers(2, **parts)
  for name, part in parts.items():
    with pytest.raises(
      ValueError, match=f'`{name}` must be for as many workers.* 3, got 2'
    ):
      simulate.check_workers(3, **{name: part})
