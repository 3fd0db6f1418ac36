"""Corpora tokenized once and read from disk or from a bucket."""

from collections.abc import Generator
import contextlib
import functools
import itertools
import json
import os
import pathlib
import shutil
from typing import Any

import numpy as np

from dilojax.data import _arrays
from dilojax.data import _clusters
from dilojax.data import _corpora
from dilojax.data import _dataset
from dilojax.data import _documents
from dilojax.data import _tokenizers

_FORMAT = 'dilojax tokens 1'
_METADATA = 'dataset.json'
_TOKENIZER = 'tokenizer.json'
_BPE_BYTES = 1 << 28


def prepare(
  documents: _documents.Documents,
  *,
  out: str,
  heldout_fraction: float,
  tokenizer: str = 'bytes',
  vocab_size: int | None = None,
  num_clusters: int | None = None,
) -> dict[str, Any]:
  """Tokenizes documents into arrays that :func:`tokens` reads lazily.

  The folder `out` gets the token ids of both sides (`train/`, `heldout/`:
  sharded zarr arrays), `dataset.json`, and `tokenizer.json` unless the tokens
  are bytes. It appears under its name when all is written. Copy it to a bucket
  with the bucket's own tool. Memory does not grow with the text, except for
  some 60 bytes per document.

  Args:
    documents: From :func:`dilojax.data.stdlib_documents` or
      :func:`dilojax.data.file_documents`.
    out: Folder to make. If it holds the result of the same call on the same
      text it is left as it is; anything else there is refused.
    heldout_fraction: Fraction of the distinct documents to hold out.
    tokenizer: `'bytes'`, `'bpe'` to train byte-level BPE on the training side
      (on at most 256 MiB of it, chosen evenly), or the path of a Hugging Face
      `tokenizers` JSON file.
    vocab_size: Number of tokens of BPE; None for the others, which have theirs.
    num_clusters: Number of clusters of documents, None for no clusters.

  Returns:
    The content of `dataset.json`.

  Raises:
    ValueError: If an argument is out of range or has no effect, if `out` cannot
      be made or holds something else, or if a document cannot be read.
  """
  _documents.check_fraction(heldout_fraction)
  _clusters.check_num_clusters(num_clusters)
  opened = None
  if tokenizer == 'bpe':
    _tokenizers.check_bpe_vocab(vocab_size)
  elif vocab_size is not None:
    raise ValueError(
      f'`vocab_size` ({vocab_size}) has no effect with the tokenizer'
      f" {tokenizer!r}: give it with 'bpe' only."
    )
  else:
    opened = _tokenizers.open_tokenizer(tokenizer)
  if '://' in out:
    raise ValueError(
      f'`out` must be a local folder, got {out!r}: prepare locally, then copy.'
    )
  split = _documents.split(documents.read(), heldout_fraction)
  request = {
    'documents': split.digest,
    'tokenizer': 'bpe' if opened is None else opened.fingerprint,
    'vocab_size': vocab_size,
    'num_clusters': num_clusters,
  }
  if os.path.lexists(out):
    return _already_there(out, request)
  with _appearing(out) as folder:
    side = lambda is_heldout: (
      text
      for text, held in zip(documents.read(), split.heldout)
      if held == is_heldout
    )
    if opened is None:
      chosen = _bpe_texts(side(False), split)
      opened = _tokenizers.train_bpe(chosen, vocab_size, folder / _TOKENIZER)
    elif tokenizer != 'bytes':
      shutil.copyfile(tokenizer, folder / _TOKENIZER)
    predict = None
    if num_clusters is not None:
      count = int((~split.heldout).sum())
      wanted = set(_clusters.sample(count).tolist())
      fitted = [text for i, text in enumerate(side(False)) if i in wanted]
      predict = _clusters.fit(fitted, num_clusters)
    counts = [
      _write_side(folder, name, side(name == 'heldout'), opened, predict)
      for name in ('train', 'heldout')
    ]
    metadata = {
      'format': _FORMAT,
      'name': documents.name,
      'fingerprint': _corpora.fingerprint(split.digest, opened.fingerprint),
      'tokenizer': opened.name,
      'vocab_size': opened.vocab_size,
      'separator': opened.separator,
      'num_clusters': num_clusters,
      'facts': {**documents.facts, **_corpora.facts(split, *counts)},
      'request': request,
    }
    text = json.dumps(metadata, indent=2) + '\n'
    (folder / _METADATA).write_text(text)
  return metadata


def tokens(path: str, *, seq_len: int) -> _dataset.Dataset:
  """Opens what :func:`prepare` wrote, on disk or in a bucket.

  Nothing but metadata is read at first; a batch reads its ranges of tokens.
  Fingerprint, split and sequences equal those of the same documents in memory.

  Args:
    path: The folder, or a URL that tensorstore knows, such as
      `gs://bucket/folder` or `s3://bucket/folder`.
    seq_len: Number of targets in a sequence.

  Returns:
    The dataset. It has clusters if they were prepared.

  Raises:
    ValueError: If there is no prepared corpus, if it is damaged, or if one side
      has no sequence.
  """
  if seq_len < 1:
    raise ValueError(f'`seq_len` must be at least 1, got {seq_len}.')
  root = _arrays.kvstore(path)
  metadata = _read_metadata(root, path)
  counts = metadata['facts']
  dtype = _tokenizers.token_dtype(metadata['vocab_size'])
  sides = {}
  for name in ('train', 'heldout'):
    array = _arrays.open_array(root, name, path)
    expected = (counts[f'{name}_tokens'],)
    if array.shape != expected or array.dtype.numpy_dtype != dtype:
      raise ValueError(
        f'`path` ({path!r}) is damaged: {name!r} must be {dtype} {expected},'
        f' got {array.dtype.numpy_dtype} {array.shape}. Prepare it again.'
      )
    sides[name] = _arrays.StoredWindows(array, seq_len)
  _dataset.check_windows(
    seq_len, counts['train_tokens'], counts['heldout_tokens']
  )

  @functools.cache
  def clusters():
    read = lambda name: _arrays.open_array(root, name, path).read().result()
    return _clusters.of_windows(
      read('train_clusters'),
      read('train_lengths'),
      seq_len,
      len(sides['train']),
    )

  return _dataset.Dataset(
    name=metadata['name'],
    fingerprint=metadata['fingerprint'],
    vocab_size=metadata['vocab_size'],
    train=sides['train'],
    heldout=sides['heldout'],
    clusters=None if metadata['num_clusters'] is None else clusters,
    bytes_per_token=counts['heldout_bytes'] / counts['heldout_tokens'],
    facts={
      **counts,
      'train_sequences': len(sides['train']),
      'heldout_sequences': len(sides['heldout']),
    },
  )


def _already_there(out, request):
  hint = 'remove it, or choose another `out`.'
  try:
    metadata = _read_metadata(_arrays.kvstore(out), out)
  except ValueError as error:
    raise ValueError(
      f'`out` ({out!r}) exists and is no prepared corpus: {hint}'
    ) from error
  differing = [
    name for name in request if metadata['request'].get(name) != request[name]
  ]
  if differing:
    raise ValueError(
      f'`out` ({out!r}) holds a corpus prepared from other'
      f' {", ".join(differing)}: {hint}'
    )
  return metadata


@contextlib.contextmanager
def _appearing(out: str) -> Generator[pathlib.Path]:
  # Whatever stops the work, `out` is whole or absent.
  target = pathlib.Path(out).absolute()
  partial = target.with_name(f'.{target.name}.{os.getpid()}.partial')
  try:
    partial.mkdir(parents=True)
  except OSError as error:
    raise ValueError(f'`out` ({out!r}) cannot be made: {error}.') from error
  try:
    yield partial
    partial.rename(target)
  finally:
    shutil.rmtree(partial, ignore_errors=True)


def _bpe_texts(texts, split):
  sizes = split.num_bytes[~split.heldout]
  fraction = min(1.0, _BPE_BYTES / sizes.sum())
  # Document i is taken where the running count passes the next integer.
  taken = np.diff(np.floor(np.arange(len(sizes) + 1) * fraction)) > 0
  return itertools.compress(texts, taken)


def _write_side(folder, name, texts, tokenizer, predict) -> int:
  lengths, clusters, num_tokens = [], [], 0

  def blocks():
    nonlocal num_tokens
    for group in _tokenizers.groups(texts):
      flat, counts = tokenizer.encode(group)
      if flat.size and flat.max() >= tokenizer.vocab_size:
        raise ValueError(
          f'`tokenizer` ({tokenizer.name!r}) gave the token {flat.max()}, its'
          f' vocabulary has {tokenizer.vocab_size}.'
        )
      num_tokens += len(flat)
      if predict is not None and name == 'train':
        lengths.append(counts)
        clusters.append(predict(group))
      yield flat

  dtype = _tokenizers.token_dtype(tokenizer.vocab_size)
  _arrays.write(folder / name, dtype, blocks())
  if lengths:
    _arrays.write(folder / 'train_lengths', np.dtype(np.int64), lengths)
    _arrays.write(folder / 'train_clusters', np.dtype(np.int32), clusters)
  return num_tokens


def _read_metadata(root, path):
  read = root.read(_METADATA).result()
  if read.state != 'value':
    raise ValueError(
      f'`path` ({path!r}) holds no prepared corpus: there is no {_METADATA}.'
      ' Write one with `dilojax prepare`.'
    )
  try:
    metadata = json.loads(read.value)
    is_ours = metadata['format'] == _FORMAT
  except (ValueError, KeyError, TypeError) as error:
    raise ValueError(
      f'`path` ({path!r}) is damaged: {_METADATA} is not what `dilojax'
      f' prepare` writes ({error!r}).'
    ) from error
  if not is_ours:
    raise ValueError(
      f'`path` ({path!r}) must have the format {_FORMAT!r}, got'
      f' {metadata["format"]!r}. Prepare it again.'
    )
  return metadata
