"""Tests for `dilojax.simulate._latency`."""

import math

import numpy as np
import pytest

from dilojax import simulate


@pytest.mark.parametrize('spread', [0.0, 0.25, 1.0, 2.0])
def test_sigma_gives_the_spread_of_log_normal_times(spread):
  sigma = simulate.log_normal_sigma(spread)
  assert math.exp(sigma**2) - 1 == pytest.approx(spread**2)


@pytest.mark.parametrize('spread', [0.25, 1.0])
def test_the_time_of_a_pair_is_the_mean_of_the_greater(spread):
  sigma = simulate.log_normal_sigma(spread)
  times = np.random.default_rng(0).lognormal(
    -(sigma**2) / 2, sigma, (200_000, 2)
  )
  greater = times.max(axis=1)
  error = greater.std() / math.sqrt(len(greater))
  assert abs(simulate.pair_exchange_time(spread) - greater.mean()) < 4 * error


def test_equal_times_wait_for_nobody_and_wild_ones_for_the_other():
  assert simulate.pair_exchange_time(0.0) == 1
  assert simulate.pair_exchange_time(1e150) == pytest.approx(2)


def test_a_tree_goes_up_and_down_one_level_for_each_doubling():
  assert simulate.tree_all_reduce_time(1) == 0
  for num_replicas in (1, 2, 64):
    deeper = simulate.tree_all_reduce_time(2 * num_replicas)
    assert deeper == simulate.tree_all_reduce_time(num_replicas) + 2


def test_two_replicas_are_one_pair():
  found = simulate.waiting_times(2, every=5, num_rounds=40, seed=3)
  assert found.all == pytest.approx(found.pairs)
  assert found.alone < found.pairs


def test_pairs_wait_less_than_all_and_more_than_none():
  for seed in range(3):
    found = simulate.waiting_times(64, every=20, num_rounds=30, seed=seed)
    assert found.alone < found.pairs < found.all


def test_the_mean_of_steps_is_that_of_a_log_normal():
  found = simulate.waiting_times(64, every=50, num_rounds=40)
  mean = math.exp(1 + 0.5 / 2)
  spread = math.sqrt(math.expm1(0.5)) / math.sqrt(64 * 50 * 40)
  assert abs(found.alone / (50 * 40 * mean) - 1) < 4 * spread


def test_one_round_of_pairs_waits_for_the_greater_of_two():
  # A step of a round is the message of an exchange; here with sigma 1.
  found = simulate.waiting_times(
    200_000, every=1, num_rounds=1, log_mean=-0.5, log_variance=1.0
  )
  expected = 1 + math.erf(1 / 2)
  assert found.pairs == pytest.approx(expected, abs=0.02)


def test_the_same_seed_gives_the_same_times():
  play = lambda seed: simulate.waiting_times(
    8, every=3, num_rounds=5, seed=seed
  )
  assert play(1) == play(1) != play(2)


@pytest.mark.parametrize(
  ('changes', 'message'),
  [
    ({'num_replicas': 3}, '`num_replicas` must be even and at least 2, got 3'),
    ({'num_replicas': 0}, '`num_replicas` must be even'),
    ({'every': 0}, '`every` must be at least 1'),
    ({'num_rounds': 0}, '`num_rounds` must be at least 1'),
    ({'log_variance': -1.0}, '`log_variance` must be at least 0'),
  ],
)
def test_what_cannot_be_is_refused(changes, message):
  given = {'num_replicas': 2, 'every': 1, 'num_rounds': 1, **changes}
  with pytest.raises(ValueError, match=message):
    simulate.waiting_times(given.pop('num_replicas'), **given)


def test_a_spread_is_no_less_than_none():
  with pytest.raises(ValueError, match='`std_over_mean` must be at least 0'):
    simulate.pair_exchange_time(-0.1)
  with pytest.raises(ValueError, match='`num_replicas` must be at least 1'):
    simulate.tree_all_reduce_time(0)
