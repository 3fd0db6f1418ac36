"""Tests for `experiments/streaming_diloco/hours.py`."""

import pytest

from dilojax import exact
from experiments.streaming_diloco import hours


def test_data_parallelism_agrees_and_two_rows_of_fp4_do_not():
  cells = hours.compute()
  assert exact.count(cells) == (4, 6)
  others = [cell for cell in cells if not exact.agrees(cell)]
  assert [cell.row for cell in others] == [
    'streaming_fp4, 25B',
    'streaming_fp4, 250B',
  ]
  assert {exact.printed(cell) for cell in others} == {'1.291'}


def test_data_parallelism_has_the_closed_form_of_a_busy_link():
  # Of 24 layers: 26 passes are not hidden, and all messages.
  layer = hours.SECONDS / (3 * hours.NUM_LAYERS)
  message = 16 * hours.NUM_PARAMS / 1e9
  expected = (26 * layer + message) / (71 * layer)
  assert hours.ratio('data_parallel') == pytest.approx(expected)


def test_other_bits_fit_as_the_docstring_says():
  cells = hours.compute()
  last = cells[-1]
  assert exact.agrees(last._replace(ours=hours.ratio(last.row[:13], 4 * 4.06)))
  for cell in cells:
    ours = hours.ratio(cell.row.partition(',')[0], bits=13.3)
    assert not exact.agrees(cell._replace(ours=ours))
