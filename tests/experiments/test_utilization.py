"""Tests for `experiments/streaming_diloco/utilization.py`."""

import csv
import math

import pytest

from dilojax import exact
from dilojax import simulate
from experiments.streaming_diloco import utilization


@pytest.fixture(scope='module')
def cells():
  return utilization.compute()


def rows():
  with utilization.PAPER.open() as file:
    yield from csv.DictReader(line for line in file if line[0] != '#')


def test_all_cells_but_one_are_those_of_the_paper(cells):
  assert exact.count(cells) == (74, 75)
  [other] = [cell for cell in cells if not exact.agrees(cell)]
  assert (other.row, other.column) == ('10B streaming_overlap_H100', '50 %')
  assert (exact.printed(other), other.paper) == ('1.4', '1.7')


def test_the_other_cell_is_one_point_of_the_grid_away():
  [row] = [
    row
    for row in rows()
    if (row['model'], row['method']) == ('10B', 'streaming_overlap_H100')
  ]
  layers, exchanges = utilization.setting(row)
  for factor, printed in ((1.0, 1.39), (1 / 1.01, 1.68)):
    [found] = simulate.required_bandwidth(
      layers._replace(
        **{
          name: [factor * seconds for seconds in getattr(layers, name)]
          for name in layers._fields[:3]
        }
      ),
      exchanges,
      [0.5],
    )
    assert round(found / 1e9, 2) == printed


def test_bits_and_time_are_one_constant():
  # The docstring's other reading of 13.3 bits.
  for row in rows():
    layers, exchanges = utilization.setting(row)
    wide = [each._replace(bits=each.bits * 16 / 13.3) for each in exchanges]
    slow = layers._replace(
      **{
        name: [seconds * 16 / 13.3 for seconds in getattr(layers, name)]
        for name in layers._fields[:3]
      }
    )
    one, other = (
      simulate.utilization(*inputs, [simulate.Link(5e9)], num_steps=300)
      for inputs in ((layers, exchanges), (slow, wide))
    )
    assert math.isclose(one.utilization, other.utilization, rel_tol=1e-9)


def test_rounds_are_as_the_docstring_says():
  found = {
    row['model']: utilization.setting(row)[1][0].schedule.every
    for row in rows()
    if row['method'] == 'streaming_H100'
  }
  assert found == {'1B': 96, '10B': 96, '100B': 108}
