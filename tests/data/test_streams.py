"""Streams: a partition of the corpus that depends on (seed, epoch) alone."""

import numpy as np
import pytest

from dilojax import data
from dilojax.data import _dataset
from dilojax.data import _permutation

COUNT = 101


@pytest.fixture
def dataset():
  """Examples that are their own index, in five clusters of unequal size."""
  rows = _dataset.Rows({'index': np.arange(COUNT)}, {'index': np.int32})
  clusters = np.sort(np.random.default_rng(0).integers(0, 5, COUNT) ** 2 // 4)
  return data.Dataset(
    name='count',
    fingerprint='',
    vocab_size=None,
    train=rows,
    heldout=rows,
    clusters=lambda: clusters.astype(np.int32),
    bytes_per_token=None,
    facts={},
  )


def epoch_ids(streams, epoch, replica):
  first = epoch * streams.epoch_steps + 1
  steps = range(first, first + streams.epoch_steps)
  return np.concatenate([streams.ids(step, replica) for step in steps])


@pytest.mark.parametrize('length', [1, 2, 3, 7, 64, 65, 1000])
def test_permutation_is_a_bijection(length):
  for seed in range(3):
    key = np.random.SeedSequence(seed).generate_state(6, np.uint64)
    image = _permutation.permute(np.arange(length), length, key)
    np.testing.assert_array_equal(np.sort(image), np.arange(length))


@pytest.mark.parametrize('length', [5, 33])
def test_permutation_sends_every_place_everywhere_equally_often(length):
  keys = [
    np.random.SeedSequence(seed).generate_state(6, np.uint64)
    for seed in range(500)
  ]
  images = [
    _permutation.permute(np.arange(length), length, key) for key in keys
  ]
  counts = np.stack(
    [np.bincount(column, minlength=length) for column in np.transpose(images)]
  )
  expected = len(keys) / length
  chi2 = ((counts - expected) ** 2 / expected).sum()
  # (length - 1)^2 degrees of freedom: mean and variance of chi squared.
  freedom = (length - 1) ** 2
  assert abs(chi2 - freedom) < 5 * np.sqrt(2 * freedom)


def test_permutation_has_no_fixed_or_adjacent_pairs_beyond_chance():
  length = 10_000
  key = np.random.SeedSequence(0).generate_state(6, np.uint64)
  image = _permutation.permute(np.arange(length), length, key)
  assert (image == np.arange(length)).sum() < 8
  assert (np.diff(image) == 1).sum() < 8


@pytest.mark.parametrize('num_replicas', [1, 2, 3, 4, 8])
@pytest.mark.parametrize('non_iid', [0.0, 0.4, 1.0])
def test_epoch_is_disjoint_and_covers_all_but_a_remainder(
  dataset, num_replicas, non_iid
):
  batch_size = 3
  streams = data.streams(
    dataset,
    num_replicas=num_replicas,
    batch_size=batch_size,
    seed=1,
    non_iid=non_iid,
  )
  assert streams.epoch_steps == COUNT // num_replicas // batch_size
  for epoch in range(3):
    seen = [epoch_ids(streams, epoch, k) for k in range(num_replicas)]
    assert len({len(ids) for ids in seen}) == 1
    seen = np.concatenate(seen)
    assert len(np.unique(seen)) == len(seen)
    lost = num_replicas - 1 + num_replicas * (batch_size - 1)
    assert COUNT - lost <= len(seen) <= COUNT


def test_remainder_changes_so_that_all_examples_are_seen(dataset):
  streams = data.streams(dataset, num_replicas=4, batch_size=7, seed=0)
  seen = [epoch_ids(streams, e, k) for e in range(9) for k in range(4)]
  assert len(np.unique(np.concatenate(seen))) == COUNT


def test_batch_is_a_pure_function(dataset):
  make = lambda: data.streams(
    dataset, num_replicas=4, batch_size=5, seed=3, non_iid=0.5
  )
  questions = [(step, k) for step in (1, 2, 7, 40, 9) for k in range(4)]
  first, second = make(), make()
  forward = [first.batch(*question)['index'] for question in questions]
  backward = [second.batch(*question)['index'] for question in questions[::-1]]
  for ids, again, question in zip(forward, backward[::-1], questions):
    np.testing.assert_array_equal(ids, again)
    np.testing.assert_array_equal(ids, first.ids(*question))
  # Spoiling what was returned does not spoil what comes.
  first.ids(1, 0)[:] = -1
  np.testing.assert_array_equal(first.ids(1, 0), second.ids(1, 0))


@pytest.mark.parametrize('non_iid', [0.0, 1.0])
def test_order_changes_with_epoch_and_seed(dataset, non_iid):
  streams = [
    data.streams(
      dataset, num_replicas=2, batch_size=5, seed=seed, non_iid=non_iid
    )
    for seed in (0, 1)
  ]
  orders = [
    tuple(epoch_ids(streams[seed], epoch, 1))
    for seed in (0, 1)
    for epoch in (0, 1, 2)
  ]
  assert len(set(orders)) == len(orders)
  kept = [set(order) for order in orders[:3]]
  # By cluster a replica keeps its piece, up to the incomplete last batch.
  overlap = len(kept[0] & kept[1]) / len(kept[0])
  assert overlap > 0.85 if non_iid else overlap < 0.7


def test_blocks_of_steps_leave_no_seam():
  dataset = data.synthetic(
    seq_len=1,
    num_sequences=2000,
    num_symbols=256,
    heldout_fraction=0.01,
    seed=0,
  )
  streams = data.streams(dataset, num_replicas=2, batch_size=1, seed=0)
  assert streams.epoch_steps > 512
  for replica in range(2):
    ids = epoch_ids(streams, 0, replica)
    assert len(np.unique(ids)) == streams.epoch_steps


def mean_distance(dataset, non_iid):
  """Total variation between the clusters of a replica and of the corpus."""
  streams = data.streams(
    dataset, num_replicas=4, batch_size=1, seed=0, non_iid=non_iid
  )
  clusters = dataset.clusters()
  share = lambda ids: np.bincount(clusters[ids], minlength=5) / len(ids)
  whole = share(np.arange(COUNT))
  return np.mean(
    [abs(share(epoch_ids(streams, 0, k)) - whole).sum() / 2 for k in range(4)]
  )


def test_non_iid_interpolates_between_iid_and_apart(dataset):
  distances = [mean_distance(dataset, degree) for degree in (0, 0.5, 1)]
  assert distances[0] < 0.2 < distances[1] < distances[2]
  # A mixture of both has half of the distance, up to chance.
  assert abs(distances[1] - distances[2] / 2) < 0.15


def test_non_iid_one_keeps_clusters_whole(dataset):
  clusters = np.repeat(np.arange(4, dtype=np.int32), 25)[np.arange(100)]
  even = dataset._replace(
    train=_dataset.Rows({'index': np.arange(100)}, {'index': np.int32}),
    clusters=lambda: clusters,
  )
  streams = data.streams(
    even, num_replicas=4, batch_size=5, seed=0, non_iid=1.0
  )
  for replica in range(4):
    ids = epoch_ids(streams, 0, replica)
    assert set(clusters[ids]) == {replica}


def test_clusters_are_not_computed_for_iid(dataset):
  def fail():
    raise AssertionError

  lazy = dataset._replace(clusters=fail)
  data.streams(lazy, num_replicas=2, batch_size=5, seed=0).batch(1, 0)


def test_heldout_batches_spread_evenly(dataset):
  batches = data.heldout_batches(dataset, num_sequences=30, batch_size=5)
  assert [batch['index'].shape for batch in batches] == [(5,)] * 6
  ids = np.concatenate([batch['index'] for batch in batches])
  gaps = np.diff(ids)
  assert ids[0] == 0
  assert set(gaps) == {COUNT // 30, COUNT // 30 + 1}
  everything = data.heldout_batches(
    dataset, num_sequences=COUNT, batch_size=COUNT
  )
  np.testing.assert_array_equal(everything[0]['index'], np.arange(COUNT))


@pytest.mark.parametrize(
  ('arguments', 'message'),
  [
    ({'num_replicas': 0}, '`num_replicas` must be at least 1, got 0'),
    ({'batch_size': 0}, '`batch_size` must be at least 1, got 0'),
    ({'seed': -1}, '`seed` must be at least 0, got -1'),
    ({'non_iid': 1.5}, '`non_iid` must be from 0 to 1, got 1.5'),
    ({'non_iid': float('nan')}, '`non_iid` must be from 0 to 1, got nan'),
    (
      {'num_replicas': 6, 'batch_size': 17},
      r'`num_replicas` \(6\) disjoint .* need 102 .* has 101',
    ),
  ],
)
def test_streams_refuses(dataset, arguments, message):
  arguments = {'num_replicas': 2, 'batch_size': 5, 'seed': 0, **arguments}
  with pytest.raises(ValueError, match=message):
    data.streams(dataset, **arguments)


def test_streams_refuses_non_iid_without_clusters(dataset):
  with pytest.raises(ValueError, match="'count' dataset has none: give"):
    data.streams(
      dataset._replace(clusters=None),
      num_replicas=2,
      batch_size=5,
      seed=0,
      non_iid=0.5,
    )


def test_streams_refuses_steps_and_replicas_out_of_range(dataset):
  streams = data.streams(dataset, num_replicas=2, batch_size=5, seed=0)
  with pytest.raises(ValueError, match='`step` is counted from 1, got 0'):
    streams.batch(0, 0)
  for replica in (-1, 2):
    with pytest.raises(ValueError, match='`replica` must be from 0 to 1'):
      streams.ids(1, replica)


@pytest.mark.parametrize(
  ('num_sequences', 'batch_size', 'message'),
  [
    (20, 3, r'`num_sequences` \(20\) must be a multiple of `batch_size` \(3\)'),
    (104, 4, r'`num_sequences` \(104\) must be at most .* \(101\)'),
    (0, 4, '`num_sequences` must be at least 1'),
    (4, 0, '`batch_size` must be at least 1'),
  ],
)
def test_heldout_batches_refuses(dataset, num_sequences, batch_size, message):
  with pytest.raises(ValueError, match=message):
    data.heldout_batches(
      dataset, num_sequences=num_sequences, batch_size=batch_size
    )
