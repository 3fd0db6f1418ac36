"""Tests for `experiments/halos/clock.py`.

The numbers were computed apart from this library, in decimal arithmetic, from
the formulas in the experiment's docstring, and rounded to four digits.
"""

import pytest

from dilojax import exact
from experiments.halos import clock

# 8 * 4 * 70,426,624 / (Gbit/s * 1e9).
TRANSFERS = [
  [0.02254, 4.197, 2.410, 11.16],
  [4.197, 0.02254, 5.838, 19.26],
  [2.410, 5.838, 0.02254, 17.75],
  [11.16, 19.26, 17.75, 0.02254],
]
# max(1, ceil(8 v)) and max(1, ceil(32 v)).
ROUNDS = {
  'HALoS': [3, 8, 8, 4, 6, 5, 7, 2, 8, 2, 8, 1, 8, 5, 5, 7],
  'Async': [9, 32, 30, 13, 21, 19, 26, 7, 31, 5, 32, 4, 30, 19, 19, 28],
}
# 0.238391 H_k / v.
COMPUTE = {
  'HALoS': [
    *(2.796, 1.907, 2.089, 2.492, 2.260, 2.036, 2.096, 2.229),
    *(2.030, 3.276, 1.931, 2.021, 2.092, 2.099, 2.051, 1.921),
  ],
  'Async': [
    *(8.388, 7.629, 7.834, 8.100, 7.911, 7.737, 7.786, 7.802),
    *(7.867, 8.190, 7.722, 8.083, 7.844, 7.977, 7.795, 7.683),
  ],
}
# With twice the transfer from the region itself, and from r0.
EVENTS = {
  'HALoS': [
    *(2.841, 1.952, 2.134, 2.538, 2.305, 2.081, 2.141, 2.274),
    *(2.075, 3.321, 1.976, 2.066, 2.137, 2.144, 2.097, 1.966),
  ],
  'Async': [
    *(8.433, 7.674, 7.879, 8.146, 16.30, 16.13, 16.18, 16.20),
    *(12.69, 13.01, 12.54, 12.90, 30.16, 30.29, 30.11, 30.00),
  ],
}


@pytest.fixture(scope='module')
def found():
  cells = clock.compute()
  # The paper prints nothing, and no two cells share a place.
  assert exact.count(cells) == (0, 0)
  table = {(cell.row, cell.column): float(f'{cell.ours:.4g}') for cell in cells}
  assert len(table) == len(cells) == 16 + 2 * 2 + 2 * 16 * 3 + 4 * 3 + 2 * 2
  return table


def test_params_are_those_of_the_model():
  """Untied embeddings, six layers with biases, a last normalization."""
  vocabulary, width, hidden = 50_304, 512, 2_048
  attention = width * 3 * width + 3 * width + width * width + width
  mlp = 2 * width * hidden + hidden + width
  layer = attention + mlp + 2 * 2 * width
  total = 2 * vocabulary * width + 6 * layer + 2 * width
  assert total == clock.NUM_PARAMS == 70_426_624


def test_messages_between_regions(found):
  for source, row in enumerate(TRANSFERS):
    for target, seconds in enumerate(row):
      assert found[f'r{source}', f'to r{target}, s'] == seconds


def test_all_reduce_is_bound_by_the_best_ring(found):
  """r2-r3; any ring with r1-r3 is bound by 0.117."""
  row = 'ring r0-r1-r2-r3'
  assert found[row, 'Gbit/s'] == 0.127
  # 17.745 * 2 * 15 / 16, and * 2 * 3 / 4.
  assert found[row, 'all-reduce, s'] == 33.27
  assert found[f'{row}, n = 4', 'all-reduce, s'] == 26.62


@pytest.mark.parametrize('method', ['HALoS', 'Async'])
def test_workers(found, method):
  for column, expected in (
    ('steps', ROUNDS),
    ('compute, s', COMPUTE),
    ('event, s', EVENTS),
  ):
    for worker, value in enumerate(expected[method]):
      assert found[f'{method}, worker {worker}', column] == value, column


def test_methods(found):
  column = lambda name: [
    found.get((method, name))
    for method in ('DiLoCo', 'DiLoCo+DynUpd', 'Async Local-SGD', 'HALoS')
  ]
  assert column('steps') == [512, 325, 325, 87]
  # 32 * 0.238391 * 0.907 / 0.107, and that of worker 0; and 33.27 more.
  assert column('compute, s') == [64.66, 8.388, None, None]
  assert column('event, s') == [97.94, 41.66, None, None]
  assert column('steps/s') == [5.228, 7.801, 24.02, 40.64]
  assert column('of DiLoCo') == [1.0, 1.492, 4.595, 7.775]


def test_who_waits(found):
  """The docstring's expectations."""
  share = lambda row: 1 - found[row, 'compute, s'] / found[row, 'event, s']
  workers = lambda method: [f'{method}, worker {each}' for each in range(16)]
  assert (
    found['DiLoCo', 'compute, s'] > 8 * found['Async, worker 1', 'compute, s']
  )
  assert share('DiLoCo+DynUpd') > 0.5
  assert max(map(share, workers('HALoS'))) < 0.03
  waits = [share(row) for row in workers('Async')]
  assert max(waits[:4]) < 0.01 < 0.3 < min(waits[4:])
