"""Tests for `dilojax._cells`."""

import math

import pytest

from dilojax import _cells


@pytest.mark.parametrize(
  ('values', 'text'),
  [
    ([1.25], '1.25'),
    ([1.0, 1.0], '1.00 ± 0.00'),
    ([1.0, 3.0], '2.00 ± 1.00'),
    ([0.0, 1.0, 2.0, 3.0], f'1.50 ± {math.sqrt(5 / 3) / 2:.2f}'),
  ],
)
def test_mean_and_error(values, text):
  assert _cells.mean_and_error(values, digits=2) == text


@pytest.mark.parametrize(
  ('count', 'text'),
  [
    (0, '0 B'),
    (999, '999 B'),
    (1000, '1 kB'),
    (999_999, '1 MB'),
    (1_250_000, '1.25 MB'),
    (10**9, '1 GB'),
    (4 * 10**15, '4 PB'),
    (12 * 10**18, '12 EB'),
  ],
)
def test_nbytes(count, text):
  assert _cells.nbytes(count) == text


def test_a_bar_does_not_end_a_cell():
  assert _cells.grid(('a',), [('x|y',)]).splitlines()[2] == r'| x\|y |'
