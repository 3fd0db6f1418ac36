"""Tests for `experiments/intellect1/utilisation.py`."""

import pytest

from dilojax import exact
from experiments.intellect1 import utilisation


def test_the_row_global_is_a_tenth_lower_and_all_others_agree():
  cells = utilisation.compute()
  assert exact.count(cells) == (5, 7)
  others = [cell for cell in cells if exact.agrees(cell) is False]
  assert [(cell.row, exact.printed(cell), cell.paper) for cell in others] == [
    ('global', '35.9', '36.0'),
    ('global', '82.9', '83.0'),
  ]


def test_computation_and_synchronization_make_a_round():
  share = utilisation.utilisation(570.0)
  assert share == pytest.approx(0.8)
  assert utilisation.utilisation(0.0) == 1


def printed(seconds, syncs):
  shares = [utilisation.utilisation(sync, seconds) for sync in syncs]
  return [f'{100 * share:.1f}' for share in shares]


def test_seconds_before_rounding_would_give_all_utilisations():
  expected = ['95.7', '85.6', '83.0']
  syncs = (103, 382.4, 468.6)
  assert [round(sync) for sync in syncs] == [103, 382, 469]
  assert printed(2281, syncs) == expected
  # With the printed seconds no time of computation does.
  for tenths in range(22_000, 24_000):
    assert printed(tenths / 10, (103, 382, 469)) != expected


def test_no_baseline_gives_all_flops_utilisations():
  shares = [utilisation.utilisation(sync, 2281) for sync in (103, 382.4, 468.6)]
  for base in range(43_250, 43_350):
    found = [f'{base / 1000 * share:.1f}' for share in shares]
    assert found != ['41.4', '37.1', '36.0']
