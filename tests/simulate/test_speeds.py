"""Tests for times of workers: `_speeds`, `_random_times` and `_crashes`."""

import fractions
import itertools
import math

import numpy as np
import pytest

from dilojax import simulate

SPEEDS = (1.0, 0.5, 0.3)
BASE = (1.0, 2.0, 0.5)
TABLE = ([1.0, 2.0, 3.0], [0.5], [4.0, 5.0])
RANDOM = {
  'drawn': lambda seed: simulate.measured_times(
    TABLE, order='drawn', seed=seed
  ),
  'log_normal': lambda seed: simulate.log_normal_times(
    BASE, log_std=0.5, seed=seed
  ),
  'log_cauchy': lambda seed: simulate.log_cauchy_times(
    BASE, log_scale=0.5, seed=seed
  ),
  'half_normal': lambda seed: simulate.half_normal_times(
    BASE, variance=(1.0, 2.0, 3.0), seed=seed
  ),
  'ringleader': lambda seed: simulate.ringleader_times(3, seed=seed),
  'bernoulli': lambda seed: simulate.bernoulli_times(
    BASE, probability=0.5, stall=7.0, seed=seed
  ),
}
MODELS = RANDOM | {
  'fixed': lambda seed: simulate.fixed_times(0.25, SPEEDS),
  'cycled': lambda seed: simulate.measured_times(TABLE),
}
each_model = pytest.mark.parametrize('make', MODELS.values(), ids=MODELS)
each_random = pytest.mark.parametrize('make', RANDOM.values(), ids=RANDOM)


def mean_within_error(draws, mean, std):
  """Four standard errors: one seed in 16,000 would fail."""
  assert abs(np.mean(draws) - mean) < 4 * std / math.sqrt(len(draws))


@each_model
def test_a_round_is_the_sum_of_its_steps(make):
  times = make(0)
  for worker, round, num_steps in itertools.product(range(3), (0, 9), (1, 40)):
    steps = times.steps(worker, round, num_steps)
    assert steps.shape == (num_steps,)
    assert (steps > 0).all()
    seconds = times.seconds(worker, round, num_steps)
    assert seconds == pytest.approx(math.fsum(steps), rel=1e-14)
    assert type(seconds) is float


@each_model
def test_draws_depend_on_seed_worker_and_round_alone(make):
  """Whatever was drawn before, and by whichever object."""
  keys = list(itertools.product(range(3), range(4)))
  times, other = make(5), make(5)
  there = {key: times.seconds(*key, 6) for key in keys}
  back = {key: other.seconds(*key, 6) for key in keys[::-1]}
  assert there == back
  assert there == {key: times.seconds(*key, 6) for key in keys}


@each_random
def test_draws_of_seeds_workers_and_rounds_differ(make):
  draws = {
    tuple(make(seed).steps(0, round, 64)) for seed in (0, 1) for round in (0, 1)
  }
  assert len(draws) == 4
  # Workers have their own numbers: ranks do not depend on base and scale.
  ranks = {tuple(np.argsort(make(0).steps(worker, 0, 64))) for worker in (0, 2)}
  assert len(ranks) == 2


@each_random
def test_a_longer_round_begins_like_a_shorter_one(make):
  long = make(0).steps(2, 3, 100)
  for num_steps in (1, 7, 64):
    np.testing.assert_array_equal(
      make(0).steps(2, 3, num_steps), long[:num_steps]
    )


def test_fixed_times_are_steps_over_speed():
  times = simulate.fixed_times(0.25, SPEEDS)
  for worker, speed in enumerate(SPEEDS):
    assert times.seconds(worker, 3, 8) == 0.25 * 8 / speed
  # Half as fast, half as many: a tie, to the last bit.
  times = simulate.fixed_times(0.238391, [0.9, 0.45])
  assert times.seconds(0, 0, 14) == times.seconds(1, 0, 7)


def test_measured_times_go_round():
  times = simulate.measured_times(TABLE)
  assert times.steps(0, 0, 4).tolist() == [1.0, 2.0, 3.0, 1.0]
  # Round 1 goes on where round 0 ended.
  assert times.steps(0, 1, 4).tolist() == [2.0, 3.0, 1.0, 2.0]
  assert times.steps(0, 1, 2).tolist() == [3.0, 1.0]
  assert times.steps(1, 7, 2).tolist() == [0.5, 0.5]


def test_measured_times_are_drawn_evenly():
  times = simulate.measured_times(TABLE, order='drawn', seed=1)
  draws = times.steps(0, 0, 30_000)
  for value in TABLE[0]:
    mean_within_error(draws == value, 1 / 3, math.sqrt(2) / 3)


@pytest.mark.parametrize('sigma', [0.1, 0.5, 1.0])
def test_log_normal_mean(sigma):
  times = simulate.log_normal_times([3.0], log_std=sigma, scale=2.0, seed=2)
  square = sigma**2
  mean = math.exp(square / 2)
  std = mean * math.sqrt(math.expm1(square))
  draws = times.steps(0, 0, 100_000)
  mean_within_error(draws, 3.0 + 2 * mean, 2 * std)
  # The logarithm is normal: mean and variance.
  logs = np.log((draws - 3.0) / 2)
  mean_within_error(logs, 0.0, sigma)
  mean_within_error(logs**2, square, math.sqrt(2) * square)


def test_half_normal_mean():
  times = simulate.half_normal_times([1.0, 5.0], variance=[9.0, 4.0], seed=3)
  for worker, (base, std) in enumerate([(1.0, 3.0), (5.0, 2.0)]):
    draws = times.steps(worker, 0, 100_000) - base
    mean = std * math.sqrt(2 / math.pi)
    mean_within_error(draws, mean, std * math.sqrt(1 - 2 / math.pi))
    mean_within_error(draws**2, std**2, math.sqrt(2) * std**2)


def test_log_cauchy_quartiles():
  """It has no mean, but quartiles: a Cauchy's are -1, 0 and 1."""
  times = simulate.log_cauchy_times([2.0], log_scale=1.5, scale=0.5, seed=4)
  draws = times.steps(0, 0, 40_000)
  for quartile, at in ((0.25, -1), (0.5, 0), (0.75, 1)):
    below = draws < 2.0 + 0.5 * math.exp(1.5 * at)
    mean_within_error(below, quartile, math.sqrt(quartile * (1 - quartile)))


@pytest.mark.parametrize('longest', [1e-3, 1.0, 1e9])
def test_log_cauchy_is_finite(longest):
  """Its exponents are in the millions."""
  times = simulate.log_cauchy_times(
    [2.0], log_scale=1e4, scale=1e5, longest=longest
  )
  draws = times.steps(0, 0, 10_000)
  assert np.isfinite(draws).all()
  assert draws.max() == pytest.approx(2.0 + longest)
  assert draws.min() == 2.0
  assert math.isfinite(times.seconds(0, 0, 10_000))


def test_ringleader_has_a_base_for_each_worker():
  num_workers = 100
  times = simulate.ringleader_times(num_workers, seed=6)
  least, squares = [], []
  for worker in range(num_workers):
    draws = np.sort(times.steps(worker, 0, 20_000))
    least.append(draws[0])
    squares.append(draws - math.floor(draws[0]))
  # No draw is below the base, and of 20,000 one is close to it.
  bases = [math.floor(value) for value in least]
  assert sorted(bases) == list(range(1, num_workers + 1))
  assert bases != sorted(bases)
  for worker in (0, 9, 99):
    mean_within_error(
      squares[worker] ** 2, worker + 1, math.sqrt(2) * (worker + 1)
    )
  other = simulate.ringleader_times(num_workers, seed=7)
  again = [math.floor(other.steps(w, 0, 20_000).min()) for w in range(9)]
  assert again != bases[:9]


def test_stalls_come_with_their_probability():
  times = simulate.bernoulli_times(
    [1.0, 2.0], probability=[0.2, 0.0], stall=10.0, seed=8
  )
  draws = times.steps(0, 0, 50_000)
  assert set(draws) == {1.0, 11.0}
  mean_within_error(draws == 11.0, 0.2, 0.4)
  assert set(times.steps(1, 0, 50_000)) == {2.0}


def test_endless_stalls_end_no_round():
  times = simulate.bernoulli_times([1.0], probability=0.1, seed=9)
  seconds = [times.seconds(0, round, 5) for round in range(4_000)]
  assert set(seconds) == {5.0, math.inf}
  done = 0.9**5
  mean_within_error(
    np.array(seconds) == 5.0, done, math.sqrt(done * (1 - done))
  )


def test_rounds_by_speed_are_exact():
  """In fractions of the decimals that were written."""
  speeds = ['0.1', '0.2', '0.3', '0.7', '0.9', '1.1', '3.3']
  exactly = [fractions.Fraction(speed) for speed in speeds]
  floats = [float(speed) for speed in speeds]
  for every in (33, 66, 99, 50, 64, 1000):
    shares = [every * speed / max(exactly) for speed in exactly]
    assert simulate.rounds_by_speed(every, floats) == tuple(
      math.floor(share) for share in shares
    )
    ceil = simulate.rounds_by_speed(every, floats, rounding='ceil')
    assert ceil == tuple(max(1, math.ceil(share)) for share in shares)
    # The unit of speeds does not matter.
    relative = [speed / max(floats) for speed in floats]
    again = simulate.rounds_by_speed(every, relative, rounding='ceil')
    assert again == ceil


def test_floor_leaves_nobody_without_a_step():
  assert simulate.rounds_by_speed(10, [1.0, 0.1]) == (10, 1)
  with pytest.raises(ValueError, match="worker 1 without a step.*'ceil'"):
    simulate.rounds_by_speed(10, [1.0, 0.09])
  rounds = simulate.rounds_by_speed(10, [1.0, 0.09], rounding='ceil')
  assert rounds == (10, 1)
  # A quotient that is 0 in floating point.
  rounds = simulate.rounds_by_speed(10, [1e308, 1e-308], rounding='ceil')
  assert rounds == (10, 1)


def test_read_step_seconds(tmp_path):
  path = tmp_path / 'seconds.csv'
  path.write_text(
    '# Measured.\nworker,seconds,note\n1,0.5,\n0,1.0,a\n0,2.0,b\n1,0.25,\n'
  )
  assert simulate.read_step_seconds(path) == [[1.0, 2.0], [0.5, 0.25]]


@pytest.mark.parametrize(
  ('text', 'message'),
  [
    ('', 'columns worker, seconds, got none'),
    ('worker,time\n0,1\n', 'columns worker, seconds, got worker, time'),
    ('worker,seconds\n', 'numbered from 0 without gaps, got'),
    ('worker,seconds\n1,1.0\n', r'without gaps, got \[1\]'),
    ('worker,seconds\n0,1.0\n0,\n', 'row 2 must have the number'),
    ('worker,seconds\n0,nan\n', 'row 1 must .* got 0 and nan'),
    ('worker,seconds\n0,0\n', 'row 1 must .* seconds above 0'),
    ('worker,seconds\n-1,1\n', 'row 1 must have a worker of at least 0'),
  ],
)
def test_other_files_are_refused(tmp_path, text, message):
  path = tmp_path / 'seconds.csv'
  path.write_text(text)
  with pytest.raises(ValueError, match=message):
    simulate.read_step_seconds(path)


def test_listed_crashes():
  crashes = simulate.listed_crashes(
    2, [(0, 20.0, math.inf), (0, 5.0, 8.0), (0, 9.0, 10.0)]
  )
  for start, end, expected in [
    (0, 5, None),
    (0, 5.5, (5, 8)),
    (7, 7.5, (5, 8)),
    (7, 30, (5, 8)),
    (8, 9, None),
    (8, 30, (9, 10)),
    (10, 20, None),
    (15, 25, (20, math.inf)),
    (1e9, math.inf, (20, math.inf)),
    # A moment.
    (5, 5, (5, 8)),
    (8, 8, None),
  ]:
    assert crashes.first(0, start, end) == expected, (start, end)
  assert crashes.first(1, 0, math.inf) is None
  assert simulate.listed_crashes(1).first(0, 0.0, math.inf) is None


def outages(crashes, worker, until):
  found, now = [], 0.0
  while now < until and (outage := crashes.first(worker, now, until)):
    found.append(outage)
    now = outage.end
  return found


def test_random_crashes_alternate_with_their_means():
  crashes = simulate.random_crashes(
    2, mean_up=[10.0, 1e4], mean_down=[2.0, 1.0], seed=1
  )
  found = outages(crashes, 0, 200_000.0)
  ups = [
    later.start - earlier.end
    for earlier, later in zip([simulate.Outage(0.0, 0.0), *found], found)
  ]
  downs = [outage.end - outage.start for outage in found]
  assert min(ups) > 0
  assert min(downs) > 0
  for draws, mean in ((ups, 10.0), (downs, 2.0)):
    mean_within_error(draws, mean, mean)
    # Exponential: the standard deviation is the mean.
    mean_within_error(np.square(draws), 2 * mean**2, math.sqrt(20) * mean**2)
  assert len(found) > 10_000 > 100 > len(outages(crashes, 1, 200_000.0)) > 0


def test_random_crashes_do_not_depend_on_what_was_asked():
  make = lambda seed: simulate.random_crashes(
    3, mean_up=10.0, mean_down=2.0, seed=seed
  )
  one, other = make(0), make(0)
  far = one.first(2, 5_000.0, 6_000.0)
  assert outages(other, 2, 6_000.0)[-1].start > far.start
  assert outages(one, 2, 6_000.0) == outages(other, 2, 6_000.0)
  assert other.first(2, 5_000.0, 6_000.0) == far
  starts = {
    make(seed).first(worker, 0.0, math.inf).start
    for seed in (0, 1)
    for worker in range(3)
  }
  assert len(starts) == 6


def test_times_and_crashes_share_no_numbers():
  """One seed serves all: what is drawn is of different streams."""
  crashes = simulate.random_crashes(1, mean_up=1.0, mean_down=1.0, seed=3)
  outage = crashes.first(0, 0.0, math.inf)
  random = np.random.Generator(
    np.random.Philox(
      counter=np.array([0, 0, 0, 0], np.uint64),
      key=np.array([3, 0], np.uint64),
    )
  )
  assert outage.start != random.standard_exponential()


@pytest.mark.parametrize(
  ('call', 'message'),
  [
    (lambda: simulate.fixed_times(0.0, [1.0]), '`step_seconds` must be'),
    (lambda: simulate.fixed_times(1.0, []), '`speeds` must have one'),
    (lambda: simulate.fixed_times(1.0, [1, 0]), r'`speeds\[1\]` .* got 0'),
    (lambda: simulate.fixed_times(1.0, [-1.0]), r'`speeds\[0\]` .* got -1.0'),
    (lambda: simulate.fixed_times(1.0, [math.nan]), 'got nan'),
    (lambda: simulate.fixed_times(1.0, [math.inf]), 'got inf'),
    (lambda: simulate.rounds_by_speed(0, [1.0]), '`every` must be an int'),
    (lambda: simulate.rounds_by_speed(8, [1, -1]), r'`speeds\[1\]`'),
    (lambda: simulate.rounds_by_speed(8, [1], rounding='up'), '`rounding` '),
    (lambda: simulate.measured_times([[1.0], []]), r'got \[1, 0\] times'),
    (lambda: simulate.measured_times([]), '`table` must have a row'),
    (lambda: simulate.measured_times([[0.0]]), r'`table\[0\]` must be'),
    (lambda: simulate.measured_times([[1]], order='x'), '`order` must be one'),
    (lambda: simulate.measured_times([[1]], seed=-1), '`seed` must be'),
    (lambda: simulate.half_normal_times([], variance=1), '`base` must have'),
    (lambda: simulate.half_normal_times([-1], variance=1), '`base` must be'),
    (
      lambda: simulate.half_normal_times([1, 2], variance=[1]),
      '`variance` must be one number, or one for each of 2 workers, got 1',
    ),
    (lambda: simulate.half_normal_times([1], variance=math.nan), 'got nan'),
    (lambda: simulate.log_normal_times([1], log_std=-1), '`log_std` must be'),
    (
      lambda: simulate.log_normal_times([1], log_std=1, scale=0),
      '`scale` must be a finite number above 0',
    ),
    (
      lambda: simulate.log_cauchy_times([1], log_scale=1, longest=math.inf),
      '`longest` must be a finite',
    ),
    (
      lambda: simulate.bernoulli_times([1], probability=1.5),
      '`probability` must be .* at most 1, got 1.5',
    ),
    (
      lambda: simulate.bernoulli_times([1], probability=0, stall=-1),
      '`stall` must be at least 0',
    ),
    (lambda: simulate.ringleader_times(0), '`num_workers` must be an int'),
    (
      lambda: simulate.listed_crashes(2, [(2, 0.0, 1.0)]),
      '`worker` must be an int from 0 to 1, got 2',
    ),
    (lambda: simulate.listed_crashes(1, [(0, 1, 1)]), '`outages` must start'),
    (
      lambda: simulate.listed_crashes(1, [(0, 3, 4), (0, 1, 3)]),
      r'must be apart, got \(1.0, 3.0\) and \(3.0, 4.0\) for worker 0',
    ),
    (
      lambda: simulate.random_crashes(1, mean_up=0, mean_down=1),
      '`mean_up` must be a finite number above 0',
    ),
    (
      lambda: simulate.random_crashes(2, mean_up=1, mean_down=[1]),
      '`mean_down` must be one number',
    ),
    (
      lambda: simulate.listed_crashes(1).first(0, 2.0, 1.0),
      '`start` and `end` must be at least 0 and in order',
    ),
    (
      lambda: simulate.random_crashes(1, mean_up=1, mean_down=1).first(
        0, math.inf, math.inf
      ),
      '`start` must be finite',
    ),
  ],
)
def test_what_cannot_be_is_refused(call, message):
  with pytest.raises(ValueError, match=message):
    call()


@each_model
@pytest.mark.parametrize(
  ('args', 'message'),
  [
    ((3, 0, 1), '`worker` must be an int from 0 to 2, got 3'),
    ((-1, 0, 1), '`worker` must be an int from 0 to 2, got -1'),
    ((0, -1, 1), '`round` must be an int of at least 0'),
    ((0, 0, 0), '`num_steps` must be an int of at least 1'),
  ],
)
def test_rounds_that_nobody_has_are_refused(make, args, message):
  times = make(0)
  assert times.num_workers == 3
  for function in (times.steps, times.seconds):
    with pytest.raises(ValueError, match=message):
      function(*args)
