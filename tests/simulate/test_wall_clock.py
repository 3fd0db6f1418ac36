"""Tests for `dilojax.simulate._wall_clock`."""

import pytest

from dilojax import simulate

FAST = simulate.Link(400e9, latency=1e-4)
SLOW = simulate.Link(10e9, latency=1e-2)
SETTING = {
  'num_params': 1e9,
  'num_tokens': 20e9,
  'num_steps': 9_000,
  'num_chips': 64,
  'between': SLOW,
}


def seconds(**changes):
  return simulate.training_seconds(**{**SETTING, **changes})


def test_computation_is_six_operations_per_param_and_token():
  expected = 6 * 1e9 * 20e9 / (64 * 300e12)
  for changes in ({}, {'every': 30}, {'bits': 4}):
    assert seconds(**changes).compute == pytest.approx(expected)
  assert seconds(flops=150e12).compute == pytest.approx(2 * expected)


def test_data_parallelism_reduces_at_every_step():
  each = 2 * 16e9 / 10e9 * 63 / 64 + 1e-2
  assert seconds().communication == pytest.approx(9_000 * each)


def test_one_replica_sends_one_message_more_per_round():
  ratio = seconds(every=30).communication / seconds().communication
  assert ratio == pytest.approx(31 / 30)


@pytest.mark.parametrize('num_replicas', [2, 4, 8])
def test_replicas_send_between_sites_once_per_round(num_replicas):
  inside = 2 * 16e9 / 400e9 * (1 - num_replicas / 64) + 1e-4
  between = 2 * 16e9 / 10e9 * 63 / 64 + 1e-2
  found = seconds(every=30, num_replicas=num_replicas, inside=FAST)
  expected = 9_000 * inside + 300 * between
  assert found.communication == pytest.approx(expected)
  assert found.total == found.compute + found.communication


def test_a_chip_for_each_replica_has_nothing_to_reduce_inside():
  found = seconds(
    num_chips=8, num_replicas=8, every=30, inside=simulate.Link(1e9)
  )
  each = simulate.all_reduce_seconds(16e9, 8, SLOW)
  assert found.communication == pytest.approx(300 * each)


def test_one_member_needs_no_transfer():
  assert simulate.all_reduce_seconds(1e9, 1, SLOW) == SLOW.latency


@pytest.mark.parametrize(
  ('changes', 'message'),
  [
    ({'num_params': 0}, '`num_params` must be above 0, got 0'),
    ({'flops': -1.0}, '`flops` must be above 0'),
    ({'num_replicas': 3, 'every': 30, 'inside': FAST}, '`num_replicas` must'),
    ({'num_replicas': 2, 'inside': FAST}, 'give `every`'),
    ({'every': 0}, '`every` must be at least 1'),
    ({'num_replicas': 2, 'every': 30}, '`inside` is the link of several'),
    ({'every': 30, 'inside': FAST}, '`inside` is the link of several'),
    ({'between': simulate.Link(0.0)}, '`link` must have a bandwidth above 0'),
    ({'between': simulate.Link(1.0, -1.0)}, '`link` must have a bandwidth'),
  ],
)
def test_what_cannot_be_is_refused(changes, message):
  with pytest.raises(ValueError, match=message):
    seconds(**changes)


def test_a_message_has_a_size_and_members():
  with pytest.raises(ValueError, match='`num_bits` must be at least 0'):
    simulate.all_reduce_seconds(-1, 2, SLOW)
  with pytest.raises(ValueError, match='`num_members` must be at least 1'):
    simulate.all_reduce_seconds(1, 0, SLOW)
