"""Which examples a replica sees at a step."""

from collections.abc import Callable
import functools
from typing import NamedTuple

import numpy as np

from dilojax.data import _dataset
from dilojax.data import _permutation

_BLOCK_STEPS = 256


class Streams(NamedTuple):
  """The training data of all replicas, as functions.

  Attributes:
    batch: From the step, counted from 1, and the replica, counted from 0, to
      its batch: a dict of arrays `[batch_size, ...]`.
    ids: From the same to the indices of the batch in `dataset.train`, int64
      `[batch_size]`.
    epoch_steps: Number of steps in an epoch, the same for every replica.
  """

  batch: Callable[[int, int], dict[str, np.ndarray]]
  ids: Callable[[int, int], np.ndarray]
  epoch_steps: int


def streams(
  dataset: _dataset.Dataset,
  *,
  num_replicas: int,
  batch_size: int,
  seed: int,
  non_iid: float = 0.0,
) -> Streams:
  """Deals the training examples out to the replicas.

  In an epoch every replica gets equally many examples, no example goes to two
  replicas, and none comes twice. What does not divide stays out: fewer than
  `num_replicas` examples, and each replica's last, incomplete batch; which
  ones changes from epoch to epoch. A batch depends on the dataset, the
  arguments below, the step and the replica: there is no state to save.

  With `non_iid` above 0 that fraction of the examples, chosen once by `seed`,
  is sorted by cluster and cut into one equal piece per replica. A replica keeps
  its piece in all epochs. At 1 a cluster has one replica, except where equal
  pieces cut through a cluster or hold several. The other examples are dealt
  anew in every epoch. A replica sees both kinds mixed, in an order of its own.

  Args:
    dataset: Any dataset.
    num_replicas: Number of replicas.
    batch_size: Number of examples in a batch of one replica.
    seed: Non-negative int. Different seeds give different orders.
    non_iid: Fraction of the examples dealt by cluster, from 0 to 1. Above 0 the
      dataset must have clusters.

  Returns:
    The streams.

  Raises:
    ValueError: If an argument is out of range, if the dataset has no clusters
      to deal by, or if it is too small for one batch per replica.

  Examples:
    >>> from dilojax import data
    >>> dataset = data.synthetic(
    ...   seq_len=8, num_sequences=100, num_symbols=64, heldout_fraction=0.1,
    ...   seed=0,
    ... )
    >>> streams = data.streams(dataset, num_replicas=3, batch_size=5, seed=0)
    >>> streams.epoch_steps
    6
    >>> streams.batch(1, 2)['tokens'].shape
    (5, 9)
  """
  _check_positive('num_replicas', num_replicas)
  _check_positive('batch_size', batch_size)
  if seed < 0:
    raise ValueError(f'`seed` must be at least 0, got {seed}.')
  if not 0 <= non_iid <= 1:
    raise ValueError(f'`non_iid` must be from 0 to 1, got {non_iid}.')
  if non_iid and dataset.clusters is None:
    raise ValueError(
      f'`non_iid` ({non_iid}) needs clusters, and this {dataset.name!r} dataset'
      ' has none: give a text corpus `num_clusters`, or set `non_iid` to 0.'
    )
  count = len(dataset.train)
  if count < num_replicas * batch_size:
    raise ValueError(
      f'`num_replicas` ({num_replicas}) disjoint streams of at least one batch'
      f' of `batch_size` ({batch_size}) need {num_replicas * batch_size}'
      f' training sequences, {dataset.name!r} has {count}. Choose fewer or'
      ' smaller batches, a shorter `seq_len`, or a larger corpus.'
    )

  def key(epoch, purpose):
    sequence = np.random.SeedSequence(seed, spawn_key=(epoch, purpose))
    return sequence.generate_state(6, np.uint64)

  pieces, rest = np.zeros([num_replicas, 0], np.int64), None
  if non_iid and dataset.clusters is not None:
    # Epoch 0 as any other; purposes 0 and 1 + replica are taken below.
    order = _permutation.permute(
      np.arange(count), count, key(0, num_replicas + 1)
    )
    dealt = order[: round(non_iid * count) // num_replicas * num_replicas]
    rest = order[len(dealt) :]
    by_cluster = np.argsort(dataset.clusters()[dealt], kind='stable')
    pieces = dealt[by_cluster].reshape(num_replicas, -1)
  num_kept = pieces.shape[1]
  num_rest = count - pieces.size
  num_own = num_kept + num_rest // num_replicas
  epoch_steps = num_own // batch_size

  # A permutation of many places costs little more than that of a few.
  @functools.lru_cache(2 * num_replicas)
  def ids_of_block(epoch, block, replica):
    first = block * _BLOCK_STEPS
    last = min(first + _BLOCK_STEPS, epoch_steps)
    places = np.arange(first * batch_size, last * batch_size)
    if num_kept:
      places = _permutation.permute(places, num_own, key(epoch, 1 + replica))
    is_kept = places < num_kept
    drawn = _permutation.permute(
      replica + num_replicas * (places[~is_kept] - num_kept),
      num_rest,
      key(epoch, 0),
    )
    chosen = np.empty(places.shape, np.int64)
    chosen[is_kept] = pieces[replica, places[is_kept]]
    chosen[~is_kept] = drawn if rest is None else rest[drawn]
    return chosen.reshape(-1, batch_size)

  def ids(step, replica):
    if step < 1:
      raise ValueError(f'`step` is counted from 1, got {step}.')
    if not 0 <= replica < num_replicas:
      raise ValueError(
        f'`replica` must be from 0 to {num_replicas - 1}, got {replica}.'
      )
    epoch, index = divmod(step - 1, epoch_steps)
    block, row = divmod(index, _BLOCK_STEPS)
    return ids_of_block(epoch, block, replica)[row].copy()

  def batch(step, replica):
    return dataset.train[ids(step, replica)]

  return Streams(batch, ids, epoch_steps)


def heldout_batches(
  dataset: _dataset.Dataset, *, num_sequences: int, batch_size: int
) -> list[dict[str, np.ndarray]]:
  """Chooses examples to evaluate on, evenly spread over those held out.

  Args:
    dataset: Any dataset.
    num_sequences: Number of examples, a multiple of `batch_size`.
    batch_size: Number of examples in a batch.

  Returns:
    The batches, dicts of arrays `[batch_size, ...]`. They depend on nothing but
    the arguments, so that all runs are measured on the same text.

  Raises:
    ValueError: If the numbers do not divide, or ask for more than there is.
  """
  _check_positive('num_sequences', num_sequences)
  _check_positive('batch_size', batch_size)
  if num_sequences % batch_size:
    raise ValueError(
      f'`num_sequences` ({num_sequences}) must be a multiple of `batch_size`'
      f' ({batch_size}).'
    )
  count = len(dataset.heldout)
  if num_sequences > count:
    raise ValueError(
      f'`num_sequences` ({num_sequences}) must be at most the number of'
      f' held-out sequences of {dataset.name!r} ({count}). Raise'
      ' `heldout_fraction`, or evaluate on fewer.'
    )
  chosen = np.arange(num_sequences) * count // num_sequences
  return [dataset.heldout[ids] for ids in chosen.reshape(-1, batch_size)]


def _check_positive(name, value):
  if value < 1:
    raise ValueError(f'`{name}` must be at least 1, got {value}.')
