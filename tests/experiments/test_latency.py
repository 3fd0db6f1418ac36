"""Tests for `experiments/noloco/latency.py`."""

import pytest

from dilojax import exact
from experiments.noloco import latency


@pytest.fixture(scope='module')
def cells():
  return latency.compute()


def test_all_cells_agree(cells):
  assert exact.count(cells) == (15, 15)
  exactly = [cell for cell in cells if cell.within is None and cell.paper]
  assert len(exactly) == 14


def test_only_the_simulated_cell_is_approximate(cells):
  [about] = [cell for cell in cells if cell.within]
  assert (about.row, about.paper) == ('1024 replicas', '20')
  assert about.ours == pytest.approx(19.1, abs=0.5)


def test_waiting_for_all_costs_more_with_more_replicas_and_shorter_rounds():
  cost = lambda *args: latency.overhead(*args, num_rounds=50)
  assert 0 < cost(16, 100) < cost(128, 100) < cost(512, 100)
  assert cost(64, 400) < cost(64, 100) < cost(64, 25)
