"""Tests for `dilojax.simulate._utilization` and `_exchanges`."""

import dataclasses
import math

import numpy as np
import pytest

import dilojax as dx
from dilojax import schedule
from dilojax import simulate

L, T, N = 6, 1.8, 6e6
U = T / (3 * L)
LAYERS = simulate.even_layers(L, seconds=T, num_params=N)
COMPUTE = (3 * L - 1) * U  # Of a step.


def link(seconds_per_message, bits=16.0):
  """Returns a link that is busy so long with a layer's message."""
  return simulate.Link(bits * N / L / seconds_per_message)


def by_hand(layers, exchanges, links, num_steps):
  """Simulates pass by pass and message by message; returns seconds in all."""
  now, free, needed = 0.0, [0.0] * len(links), {}
  num_layers = len(layers.forward)
  for step in range(1, num_steps + 1):
    for layer in range(num_layers):
      now = max(now, needed.get((step, layer), 0.0)) + layers.forward[layer]
    for layer in reversed(range(num_layers)):
      now += layers.backward_activation[layer] if layer else 0.0
      now += layers.backward_parameter[layer]
      ready = now
      for level in range(len(links)):
        for exchange in exchanges:
          when = exchange.schedule
          if exchange.level != level or layer not in exchange.layers:
            continue
          if when.launches(step):
            bits = exchange.bits * layers.num_params[layer]
            busy = links[level].latency + bits / links[level].bandwidth
            free[level] = ready = max(free[level], ready) + busy
            key = (step + when.delay + 1, layer)
            needed[key] = max(needed.get(key, 0.0), ready)
  return max(now, *free)


# Closed forms.


def test_without_communication_all_is_computation():
  for exchanges in ([], simulate.together(L, every=50)):
    found = simulate.utilization(
      LAYERS, exchanges, [simulate.Link()], num_steps=40
    )
    assert found.utilization == 1
    assert found.exposed_seconds == 0
    assert found.bytes_sent == (0.0,)
    np.testing.assert_allclose(found.seconds, 40 * COMPUTE)


@pytest.mark.parametrize('delay', [0, 2])
def test_an_infinite_bandwidth_hides_everything(delay):
  exchanges = simulate.together(L, delay=delay)
  found = simulate.utilization(LAYERS, exchanges, [simulate.Link()])
  assert found.utilization == 1


@pytest.mark.parametrize('c', [2 * U, 3.5 * U, 40 * U])
def test_a_blocking_mean_of_the_model_has_a_closed_form(c):
  every, rounds = 7, 3
  found = simulate.utilization(
    LAYERS,
    simulate.together(L, every=every),
    [link(c)],
    num_steps=every * rounds,
  )
  # Of the forward pass after it, all but the first pass waits for the last
  # message, that of layer 0.
  step = (L + 2) * U + L * c
  exposure = step - COMPUTE
  np.testing.assert_allclose(found.exposed_seconds, rounds * exposure)
  utilization = every * COMPUTE / (every * COMPUTE + exposure)
  np.testing.assert_allclose(found.utilization, utilization)


@pytest.mark.parametrize('c', [0.3 * U, 1.9 * U])
def test_a_fast_link_exposes_the_last_message_alone(c):
  found = simulate.utilization(
    LAYERS, simulate.together(L, every=5), [link(c)], num_steps=15
  )
  # Layer 0 has no gradient of its input: its message comes a pass after that
  # of layer 1, which keeps the link busy for longer if c > u.
  np.testing.assert_allclose(found.exposed_seconds, 3 * (max(c, 2 * c - U)))


@pytest.mark.parametrize('delay', range(4))
def test_a_delay_hides_its_steps(delay):
  every, c = 10, 30 * U
  found = simulate.utilization(
    LAYERS,
    simulate.together(L, every=every, delay=delay),
    [link(c)],
    num_steps=every * 4 + delay,
  )
  # The last message, that of layer 0, begins when layers L - 1, ..., 1 are
  # sent, after (L + 2) u + (L - 1) c; it is needed `delay` steps later.
  exposure = max(0.0, (L + 2) * U + L * c - (1 + delay) * COMPUTE)
  np.testing.assert_allclose(found.exposed_seconds, 4 * exposure, atol=1e-9)


def test_a_delay_that_is_long_enough_hides_all():
  c, every = 30 * U, 20
  needed = math.ceil(((L + 2) * U + L * c) / COMPUTE) - 1
  for delay, hides in ((needed, True), (needed - 1, False)):
    found = simulate.utilization(
      LAYERS,
      simulate.together(L, every=every, delay=delay),
      [link(c)],
      num_steps=every * 3 + delay,
    )
    assert (found.exposed_seconds < 1e-9) is hides


def test_latency_adds_to_every_message():
  exchanges = simulate.together(L, every=4)
  [fast] = [link(2 * U)]
  found = simulate.utilization(
    LAYERS, exchanges, [fast._replace(latency=1.5 * U)], num_steps=8
  )
  same = simulate.utilization(LAYERS, exchanges, [link(3.5 * U)], num_steps=8)
  np.testing.assert_allclose(found.seconds, same.seconds)


def test_steps_that_only_send_take_as_long_as_their_messages():
  c, num_steps = 50 * U, 30
  found = simulate.utilization(
    LAYERS,
    simulate.together(L, delay=num_steps),
    [link(c)],
    num_steps=num_steps,
  )
  # The link begins after forward pass and two passes back, and never pauses.
  expected = (L + 2) * U + num_steps * L * c
  np.testing.assert_allclose(found.seconds, expected)


# Equal to something known.


@pytest.mark.parametrize('seed', range(20))
def test_equals_the_simulation_by_hand(seed):
  rng = np.random.default_rng(seed)
  num_layers = int(rng.integers(1, 7))
  layers = simulate.Layers(*rng.uniform(0, 2, (4, num_layers)).tolist())
  links = [
    simulate.Link(rng.uniform(0.5, 20), rng.choice([0.0, 0.3]))
    for _ in range(rng.integers(1, 3))
  ]
  exchanges = []
  for _ in range(rng.integers(1, 5)):
    every = int(rng.integers(1, 6))
    size = rng.integers(1, num_layers + 1)
    when = schedule.Schedule(
      every, int(rng.integers(1, every + 1)), int(rng.integers(0, 8))
    )
    exchanges.append(
      simulate.Exchange(
        rng.permutation(num_layers)[:size].tolist(),
        when,
        rng.uniform(0.1, 3),
        int(rng.integers(len(links))),
      )
    )
  found = simulate.utilization(layers, exchanges, links, num_steps=25)
  expected = by_hand(layers, exchanges, links, 25)
  np.testing.assert_allclose(found.seconds, expected)


def test_an_array_of_bandwidths_is_one_simulation_each():
  exchanges = simulate.in_turns(L, every=6, num_fragments=3, delay=1)
  bandwidths = np.geomspace(1e6, 1e9, 6).reshape(2, 3)
  inner = simulate.Link(3e7)
  many = simulate.utilization(
    LAYERS, exchanges, [simulate.Link(bandwidths), inner], trace=True
  )
  for index in np.ndindex(2, 3):
    one = simulate.utilization(
      LAYERS, exchanges, [simulate.Link(bandwidths[index]), inner], trace=True
    )
    assert many.utilization[index] == one.utilization
    assert many.exposed_seconds[index] == one.exposed_seconds
    np.testing.assert_array_equal(many.trace.end[:, *index], one.trace.end)


@pytest.mark.parametrize(
  ('every', 'num'), [(100, 8), (100, 37), (7, 7), (5, 1)]
)
def test_the_exact_rule_is_that_of_our_links(every, num):
  exchanges = simulate.in_turns(40, every=every, num_fragments=num)
  offsets = tuple(exchange.schedule.offset for exchange in exchanges)
  assert offsets == dx.offsets(every, num)
  assert {exchange.schedule.every for exchange in exchanges} == {every}


@pytest.mark.parametrize('order', ['strided', 'sequential'])
@pytest.mark.parametrize(('num_layers', 'num'), [(12, 4), (13, 4), (5, 5)])
def test_fragments_are_those_of_our_links(num_layers, num, order):
  params = {'layers': [0.0] * num_layers}
  names = dx.by_layer(num_fragments=num, order=order)(params)['layers']
  exchanges = simulate.in_turns(
    num_layers, every=20, num_fragments=num, order=order
  )
  for number, exchange in enumerate(exchanges):
    here = [i for i in range(num_layers) if names[i] == f'fragment_{number}']
    assert list(exchange.layers) == here


@pytest.mark.parametrize(
  ('num', 'interval'), [(8, 12), (16, 6), (36, 3), (40, 2), (1, 100)]
)
def test_the_rounded_rule_sends_one_fragment_each_interval(num, interval):
  exchanges = simulate.in_turns(
    108, every=100, num_fragments=num, rule='rounded'
  )
  for step in range(1, 3 * interval * num + 1):
    due = [i for i, e in enumerate(exchanges) if e.schedule.launches(step)]
    turn = step // interval - 1
    assert due == ([turn % num] if step % interval == 0 else [])


def test_one_fragment_in_turns_is_the_whole_model():
  for rule in ('exact', 'rounded'):
    alone = simulate.in_turns(L, every=9, num_fragments=1, rule=rule)
    assert alone == simulate.together(L, every=9)


def test_two_levels_add_up_when_only_one_message_is_on_its_way():
  layers = simulate.even_layers(1, seconds=3.0, num_params=10.0)
  exchanges = [
    *simulate.together(1, bits=2.0, level=0),
    *simulate.together(1, every=3, bits=1.0, level=1),
  ]
  links = [simulate.Link(4.0), simulate.Link(1.0, latency=0.5)]
  found = simulate.utilization(layers, exchanges, links, num_steps=6)
  # Two passes of a second; 5 s inside in each step; 10.5 s between, after it.
  np.testing.assert_allclose(found.seconds, 6 * (2 + 5) + 2 * 10.5)
  assert found.bytes_sent == (6 * 20 / 8, 2 * 10 / 8)


# Invariants.


@pytest.mark.parametrize(
  'exchanges',
  [
    simulate.together(L),
    simulate.together(L, every=10),
    simulate.in_turns(L, every=10, num_fragments=3, order='sequential'),
    simulate.in_turns(L, every=10, num_fragments=4, rule='rounded', delay=1),
  ],
)
def test_utilization_grows_with_bandwidth(exchanges):
  bandwidths = np.geomspace(1e4, 1e12, 40)
  found = simulate.utilization(
    LAYERS, exchanges, [simulate.Link(bandwidths, latency=0.01)], num_steps=100
  ).utilization
  assert (np.diff(found) >= 0).all()
  assert 0 < found[0] < 0.5 < found[-1] <= 1


@pytest.mark.parametrize(
  'when',
  [
    schedule.Schedule(every=7, offset=3, delay=2),
    schedule.Schedule(every=4, offset=4, start=9),
    schedule.Schedule(every=1, offset=1, stop=20),
    schedule.Schedule(every=5, offset=5, late=True),
  ],
)
def test_bytes_are_those_of_the_schedule(when):
  sizes = (1.0, 2.0, 5.0)
  layers = simulate.even_layers(3, seconds=1.0, num_params=sizes)
  exchange = simulate.Exchange((0, 2), when, bits=4.0)
  found = simulate.utilization(
    layers, [exchange], [simulate.Link(9.0)], num_steps=33, trace=True
  )
  messages = when.num_messages(33)
  assert found.bytes_sent == (messages * (1 + 5) * 4 / 8,)
  assert found.trace.bytes_sent.sum() == found.bytes_sent[0]
  assert found.trace.bytes_sent.shape == (33, 1)


def test_the_rules_differ_in_bytes_as_their_rounds_do():
  sent = lambda rule: simulate.utilization(
    LAYERS,
    simulate.in_turns(L, every=10, num_fragments=4, rule=rule),
    [simulate.Link()],
    num_steps=400,
  ).bytes_sent[0]
  # 10 / 4 rounds to 2: a round of 8.
  assert sent('exact') / sent('rounded') == 8 / 10


def test_a_late_link_waits_for_a_round():
  late = simulate.Exchange(
    range(L), schedule.Schedule(every=6, offset=6, late=True), 16.0
  )
  [delayed] = simulate.together(L, every=6, delay=6)
  seconds = [
    simulate.utilization(LAYERS, [each], [link(14 * U)], num_steps=60).seconds
    for each in (late, delayed)
  ]
  assert seconds[0] == seconds[1]


def test_the_trace_adds_up():
  exchanges = simulate.in_turns(L, every=6, num_fragments=3)
  found = simulate.utilization(
    LAYERS, exchanges, [link(9 * U)], num_steps=50, trace=True
  )
  trace = found.trace
  np.testing.assert_array_equal(trace.start[1:], trace.end[:-1])
  length = trace.end - trace.start
  np.testing.assert_allclose(length - trace.waited, COMPUTE)
  tail = found.seconds - trace.end[-1]
  np.testing.assert_allclose(trace.waited.sum() + tail, found.exposed_seconds)
  # Fragments leave after every other step, and hold up those after.
  assert (trace.waited[1::2] == 0).all()
  assert (trace.waited[2::2] > 0).all()
  assert found._replace(trace=None) == simulate.utilization(
    LAYERS, exchanges, [link(9 * U)], num_steps=50
  )


def test_every_input_stands_for_itself():
  base = {
    'layers': LAYERS,
    'when': schedule.Schedule(every=6, offset=6, delay=1),
    'bits': 16.0,
    'bandwidth': 16 * N / L / (20 * U),
    'latency': 0.0,
  }
  half = lambda values: [value / 2 for value in values]
  changed = {
    'every': {'when': dataclasses.replace(base['when'], every=12)},
    'delay': {'when': dataclasses.replace(base['when'], delay=2)},
    'bits': {'bits': 8.0},
    'bandwidth': {'bandwidth': 2 * base['bandwidth']},
    'latency': {'latency': 0.1},
    'params': {'layers': LAYERS._replace(num_params=half(LAYERS[3]))},
    'forward': {'layers': LAYERS._replace(forward=half(LAYERS[0]))},
    'activation': {
      'layers': LAYERS._replace(backward_activation=half(LAYERS[1]))
    },
    'parameter': {
      'layers': LAYERS._replace(backward_parameter=half(LAYERS[2]))
    },
  }

  def run(layers, when, bits, bandwidth, latency):
    found = simulate.utilization(
      layers,
      [simulate.Exchange(range(L), when, bits)],
      [simulate.Link(bandwidth, latency)],
      num_steps=60,
    )
    computed = found.seconds - found.exposed_seconds
    return computed, found.exposed_seconds, found.bytes_sent[0]

  computed, exposed, sent = run(**base)
  deviates = lambda one, other: abs(one - other) > 1e-6 * other
  for name, change in changed.items():
    others = run(**{**base, **change})
    times = name in ('forward', 'activation', 'parameter')
    assert deviates(others[0], computed) is times, name
    assert deviates(others[1], exposed), name
    assert (others[2] != sent) is (name in ('bits', 'params', 'every')), name
  # Half the bits, half the params or twice the bandwidth are the same.
  same = [run(**{**base, **changed[name]})[1] for name in ('bits', 'params')]
  same.append(run(**{**base, **changed['bandwidth']})[1])
  np.testing.assert_allclose(same, same[0])


# Read off the grid.


def test_required_bandwidth_is_the_first_that_is_enough():
  exchanges = simulate.together(L, every=10)
  grid = np.geomspace(1e5, 1e11, 61)
  targets = (0.3, 0.8, 0.95, 1.0)
  slow = simulate.Link(latency=0.2)
  found = simulate.required_bandwidth(
    LAYERS, exchanges, targets, links=[slow], grid=grid
  )
  for target, bandwidth in zip(targets[:-1], found):
    index = list(grid).index(bandwidth)
    less, enough = simulate.utilization(
      LAYERS, exchanges, [slow._replace(bandwidth=grid[index - 1 : index + 1])]
    ).utilization
    assert less < target <= enough
  assert found[-1] == math.inf


def test_required_bandwidth_keeps_the_inner_link():
  exchanges = [*simulate.together(L), *simulate.together(L, every=9, level=1)]
  inner = link(10 * U)
  found = simulate.required_bandwidth(
    LAYERS, exchanges, [0.1, 0.9], links=[inner, simulate.Link()]
  )
  alone = simulate.utilization(LAYERS, exchanges[:1], [inner])
  assert 0.1 < alone.utilization < 0.9
  assert found[0] < math.inf
  assert found[1] == math.inf


def test_the_grid_is_that_of_the_paper():
  assert len(simulate.GRID) == 50
  np.testing.assert_allclose([simulate.GRID[0], simulate.GRID[-1]], [1e8, 1e12])
  ratios = np.divide(simulate.GRID[1:], simulate.GRID[:-1])
  np.testing.assert_allclose(ratios, 10 ** (4 / 49))


# Bad input.


@pytest.mark.parametrize(
  ('make', 'message'),
  [
    (lambda: simulate.even_layers(0, 1.0, 1.0), '`num_layers`'),
    (lambda: simulate.even_layers(2, 0.0, 1.0), '`seconds`'),
    (lambda: simulate.even_layers(2, math.nan, 1.0), '`seconds`'),
    (lambda: simulate.even_layers(2, 1.0, [1.0]), 'as many numbers'),
    (lambda: simulate.even_layers(2, 1.0, [1.0, -1.0]), '`layers.num_params`'),
    (lambda: simulate.together(2, every=0), '`every`'),
    (lambda: simulate.together(2, every=2.0), '`every`'),
    (lambda: simulate.together(2, delay=-1), '`delay`'),
    (lambda: simulate.together(2, bits=0), '`bits`'),
    (lambda: simulate.together(2, level=-1), '`level`'),
    (lambda: simulate.in_turns(9, every=3, num_fragments=4), '`num_fragments`'),
    (lambda: simulate.in_turns(3, every=9, num_fragments=4), '`num_fragments`'),
    (
      lambda: simulate.in_turns(9, every=9, num_fragments=3, order='stride'),
      '`order` must be one of strided, sequential',
    ),
    (
      lambda: simulate.in_turns(9, every=9, num_fragments=3, rule='round'),
      '`rule` must be one of exact, rounded',
    ),
  ],
)
def test_makers_refuse(make, message):
  with pytest.raises(ValueError, match=message):
    make()


NO_TIME = simulate.Layers([0.0], [1.0], [0.0], [1.0])
WHEN = schedule.Schedule(every=2, offset=2)


@pytest.mark.parametrize(
  ('change', 'message'),
  [
    ({'layers': NO_TIME}, 'must take some time'),
    ({'layers': simulate.Layers([], [], [], [])}, 'as many numbers'),
    ({'links': []}, '`links`'),
    ({'links': [simulate.Link(0.0)]}, '`bandwidth`'),
    ({'links': [simulate.Link(math.nan)]}, '`bandwidth`'),
    ({'links': [simulate.Link('1')]}, '`bandwidth`'),
    ({'links': [simulate.Link(1.0, -1.0)]}, '`latency`'),
    ({'links': [simulate.Link(1.0, math.inf)]}, '`latency`'),
    (
      {'links': [simulate.Link(np.ones(2)), simulate.Link(np.ones(3))]},
      'must broadcast',
    ),
    ({'exchanges': simulate.together(L, level=1)}, '`level`.* from 0 to 0'),
    ({'exchanges': simulate.together(L + 1)}, 'ints from 0 to 5'),
    ({'exchanges': [simulate.Exchange((1, 1), WHEN, 1.0)]}, 'different ints'),
    (
      {'exchanges': [simulate.Exchange((1,), schedule.Schedule(2, 3), 1.0)]},
      '`offset`',
    ),
    ({'num_steps': 0}, '`num_steps`'),
  ],
)
def test_utilization_refuses(change, message):
  arguments = {
    'layers': LAYERS,
    'exchanges': simulate.together(L),
    'links': [simulate.Link()],
  }
  with pytest.raises(ValueError, match=message):
    simulate.utilization(**{**arguments, **change})


@pytest.mark.parametrize(
  ('change', 'message'),
  [
    ({'targets': [90]}, '0.9 for 90%'),
    ({'targets': [0.0]}, '`targets`'),
    ({'grid': [2.0, 1.0]}, '`grid`'),
    ({'grid': []}, '`grid`'),
    ({'links': [simulate.Link(np.ones(2)), simulate.Link()]}, '`links`'),
  ],
)
def test_required_bandwidth_refuses(change, message):
  arguments = {'targets': [0.5], **change}
  with pytest.raises(ValueError, match=message):
    simulate.required_bandwidth(LAYERS, simulate.together(L), **arguments)
