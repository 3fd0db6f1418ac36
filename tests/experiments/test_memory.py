"""Tests for `experiments/streaming_diloco/memory.py`."""

import math

import pytest

from dilojax import exact
from experiments.streaming_diloco import memory


@pytest.fixture(scope='module')
def cells():
  return {(cell.row, cell.column): cell for cell in memory.compute()}


def test_two_cells_agree_and_two_are_cut_in_the_paper(cells):
  assert exact.count(cells.values()) == (2, 5)
  cut = [cell for cell in cells.values() if cell.column == 'GiB']
  assert [exact.printed(cell) for cell in cut] == ['21', '1118']
  assert [cell.paper for cell in cut] == ['20', '1117']
  assert [str(math.floor(cell.ours)) for cell in cut] == ['20', '1117']


def test_states_have_four_bytes_for_each_copy_of_params(cells):
  fragment = cells['one fragment: anchor and momentum', 'GiB'].ours
  assert fragment * 2**30 == pytest.approx(100e9 * 8 * 3 / 108)
  base = cells['params and inner Adam', 'GiB'].ours
  assert base * 2**30 == pytest.approx(100e9 * 12)


def test_a_delay_takes_room_for_what_is_in_flight(cells):
  column = 'over data parallel'
  for row, copies in (
    ('DiLoCo', 5),
    ('Streaming, delay 0', 5),
    ('Streaming, delay 1', 6),
  ):
    assert cells[row, column].ours == pytest.approx(copies / 3)
  assert not exact.agrees(cells['Streaming, delay 1', column])
