"""Arrays of tokens on disk or in a bucket, by tensorstore."""

from collections.abc import Iterable
import dataclasses
import os
import pathlib

import numpy as np
import tensorstore as ts

from dilojax.data import _dataset

# A shard is one file; a chunk is the least that a range read fetches.
_SHARD, _CHUNK = 1 << 25, 1 << 14
_CACHE_BYTES = 1 << 26


@dataclasses.dataclass(frozen=True)
class StoredWindows:
  """As :func:`dilojax.data._dataset.windows`, of a stored array."""

  array: ts.TensorStore
  seq_len: int

  def __len__(self) -> int:
    """Returns the number of windows."""
    return _dataset.num_windows(self.array.shape[0], self.seq_len)

  def __getitem__(self, index: int | np.ndarray) -> dict[str, np.ndarray]:
    """Returns one window for an int, stacked windows for an array."""
    ids = np.asarray(index)
    if np.any(ids < -len(self)) or np.any(ids >= len(self)):
      raise IndexError(f'index {index} is out of range for {len(self)} windows')
    ids = np.where(ids < 0, ids + len(self), ids)
    places = ids[..., None] * self.seq_len + np.arange(self.seq_len + 1)
    return {'tokens': self.array[places].read().result().astype(np.int32)}


def write(
  folder: pathlib.Path, dtype: np.dtype, blocks: Iterable[np.ndarray]
) -> None:
  """Writes an array of unknown length, a shard at a time.

  Args:
    folder: Where the array goes.
    dtype: Its type.
    blocks: Its parts, in order, of any lengths.
  """
  little = {'name': 'bytes', 'configuration': {'endian': 'little'}}
  sharding = {
    'chunk_shape': [_CHUNK],
    'codecs': [little],
    'index_codecs': [little, {'name': 'crc32c'}],
  }
  array = ts.open(
    {'driver': 'zarr3', 'kvstore': kvstore(str(folder)).spec().to_json()},
    create=True,
    dtype=dtype,
    shape=[0],
    chunk_layout=ts.ChunkLayout(
      write_chunk_shape=[_SHARD], read_chunk_shape=[_CHUNK]
    ),
    codec=ts.CodecSpec(
      {
        'driver': 'zarr3',
        'codecs': [{'name': 'sharding_indexed', 'configuration': sharding}],
      }
    ),
  ).result()
  held, size, end = [], 0, 0

  def flush(array, values):
    array = array.resize(exclusive_max=[end + len(values)]).result()
    array[end : end + len(values)].write(values).result()
    return array

  for block in blocks:
    held.append(block)
    size += len(block)
    # Whole shards only: a shard written twice is read and rewritten.
    while size >= _SHARD:
      joined = np.concatenate(held)
      array = flush(array, joined[:_SHARD])
      end += _SHARD
      held, size = [joined[_SHARD:]], size - _SHARD
  if size:
    flush(array, np.concatenate(held))


def kvstore(path: str) -> ts.KvStore:
  """Opens a folder or a URL; nothing is read or written yet."""
  if '://' in path:
    spec = path.rstrip('/') + '/'
  else:
    spec = {'driver': 'file', 'path': os.path.abspath(path) + '/'}
  try:
    return ts.KvStore.open(spec).result()
  except ValueError as error:
    raise ValueError(
      f'`path` must be a folder or a URL that tensorstore knows, got {path!r}:'
      f' {error}'
    ) from error


def open_array(root: ts.KvStore, name: str, path: str) -> ts.TensorStore:
  """Opens the array `name` below `root`, of which `path` is for messages."""
  try:
    return ts.open(
      {'driver': 'zarr3', 'kvstore': (root / f'{name}/').spec().to_json()},
      # Nobody changes a prepared corpus: no look at the file's date per read.
      open=True,
      read=True,
      recheck_cached_data=False,
      recheck_cached_metadata=False,
      context=ts.Context({'cache_pool': {'total_bytes_limit': _CACHE_BYTES}}),
    ).result()
  except ValueError as error:
    raise ValueError(
      f'`path` ({path!r}) is damaged: no array {name!r}. Prepare it again.'
      f' ({error})'
    ) from error
