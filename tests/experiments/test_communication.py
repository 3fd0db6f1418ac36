"""Tests for what DiLoCo and Streaming DiLoCo send, by the ledger."""

import jax
import pytest

from dilojax import exact
from experiments.diloco import communication as diloco
from experiments.streaming_diloco import communication as streaming


@pytest.fixture(scope='module')
def table():
  return {(cell.row, cell.column): cell for cell in diloco.compute()}


@pytest.fixture(scope='module')
def claims():
  return {(cell.row, cell.column): cell for cell in streaming.compute()}


def test_all_cells_of_diloco_agree(table):
  assert exact.count(table.values()) == (16, 16)


def test_diloco_sends_one_message_of_a_replica_per_round(table):
  rounds = diloco.NUM_STEPS // diloco.EVERY
  ours = table['diloco', 'communication'].ours
  assert ours == diloco.NUM_REPLICAS * rounds
  less = table['data parallel / DiLoCo', 'communication'].ours
  assert less == diloco.EVERY


def test_time_times_replicas_is_compute(table):
  for method in ('baseline_finetuned', '8x_updates', '8x_batch_microbatching'):
    time = table[method, 'time'].ours
    assert time == table[method, 'compute and data'].ours
  for method in ('8x_batch_data_parallel', 'diloco'):
    time = table[method, 'time'].ours
    expected = diloco.NUM_REPLICAS * time
    assert table[method, 'compute and data'].ours == expected


def test_the_peak_agrees_and_the_total_does_not(claims):
  assert exact.count(claims.values()) == (1, 2)
  [other] = [cell for cell in claims.values() if exact.agrees(cell) is False]
  assert (exact.printed(other), other.paper) == ('394', '400')


def test_the_total_is_that_of_four_bits_and_scales(claims):
  row = 'in total: data parallel 16 bits / Streaming 4 bits'
  bits = 4 + 16 / 256
  # The norms of heads, of 64 values, fill a block of 256 with zeros.
  expected = streaming.EVERY * 16 / bits
  assert claims[row, 'whole model'].ours == pytest.approx(expected, rel=1e-4)
  without = claims[row, 'without scales'].ours
  assert without == pytest.approx(16 / 4 * streaming.EVERY)


def test_the_peak_is_that_of_a_fragment(claims):
  row = 'peak of a step: DiLoCo / Streaming'
  assert claims[row, 'layers'].ours == 24 / streaming.LAYERS_PER_FRAGMENT
  params = streaming.abstract_params()
  sizes = {
    name: sum(leaf.size for leaf in jax.tree.leaves(tree))
    for name, tree in params.items()
  }
  expected = sum(sizes.values()) / (3 * sizes['layer_00'])
  assert claims[row, 'whole model'].ours == pytest.approx(expected, rel=1e-4)
