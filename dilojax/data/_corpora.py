"""Corpora that fit into memory."""

import functools
import hashlib

import numpy as np

from dilojax.data import _clusters
from dilojax.data import _dataset
from dilojax.data import _documents
from dilojax.data import _tokenizers


def python_stdlib(
  *,
  seq_len: int,
  heldout_fraction: float,
  tokenizer: str = 'bytes',
  num_clusters: int | None = None,
) -> _dataset.Dataset:
  """Loads the source text of Python's standard library.

  A document is a file, see :func:`dilojax.data.stdlib_documents`. Documents are
  held out as :func:`dilojax.data.files` says, and cut in the same way.

  Args:
    seq_len: Number of targets in a sequence.
    heldout_fraction: Fraction of the distinct documents to hold out.
    tokenizer: As for :func:`dilojax.data.files`.
    num_clusters: As for :func:`dilojax.data.files`.

  Returns:
    The dataset.

  Raises:
    ValueError: As for :func:`dilojax.data.files`.
  """
  _check(seq_len, heldout_fraction, num_clusters)
  opened = _tokenizers.open_tokenizer(tokenizer)
  documents = _documents.stdlib_documents()
  return _in_memory(documents, opened, seq_len, heldout_fraction, num_clusters)


def files(
  pattern: str,
  *,
  seq_len: int,
  heldout_fraction: float,
  tokenizer: str = 'bytes',
  num_clusters: int | None = None,
) -> _dataset.Dataset:
  """Loads text files and files of JSON lines.

  The distinct documents with the smallest SHA-256 are held out, so a held-out
  document, or a copy of it, never occurs in training. On either side the
  documents follow each other in order, a separator token after each, and are
  cut into windows of `seq_len + 1` tokens at stride `seq_len`; the remainder is
  dropped. A window may hold the end of one document and the start of the next.

  Args:
    pattern: Glob pattern, see :func:`dilojax.data.file_documents`.
    seq_len: Number of targets in a sequence.
    heldout_fraction: Fraction of the distinct documents to hold out, rounded to
      at least one document.
    tokenizer: `'bytes'`: 256 token ids, 0 is the separator. Or the path of a
      Hugging Face `tokenizers` JSON file.
    num_clusters: Number of clusters of documents, by k-means on byte bigrams. A
      sequence has the cluster of the document at its middle. None for no
      clusters; then :func:`dilojax.data.streams` deals iid only.

  Returns:
    The dataset.

  Raises:
    ValueError: If an argument is out of range, if a file is missing, empty, not
      UTF-8 or not the JSON expected, or if one side has no sequence.
  """
  _check(seq_len, heldout_fraction, num_clusters)
  opened = _tokenizers.open_tokenizer(tokenizer)
  documents = _documents.file_documents(pattern)
  return _in_memory(documents, opened, seq_len, heldout_fraction, num_clusters)


def digits(*, heldout_fraction: float) -> _dataset.Dataset:
  """Loads scikit-learn's handwritten digits: 1797 images of 8 by 8 pixels.

  Pixels are scaled to `[0, 1]`. Images are held out by a hash of their pixels.
  The cluster of an image is its label.

  Args:
    heldout_fraction: Fraction of the distinct images to hold out.

  Returns:
    The dataset, with `image` and `label` in an example.

  Raises:
    ValueError: If `heldout_fraction` is out of range.
  """
  _documents.check_fraction(heldout_fraction)
  import sklearn.datasets

  pixels, labels = map(
    np.asarray, sklearn.datasets.load_digits(return_X_y=True)
  )
  images = np.reshape(np.asarray(pixels / 16, np.float32), [-1, 8, 8])
  labels = np.asarray(labels, np.int32)
  split = _documents.split(map(np.ndarray.tobytes, images), heldout_fraction)
  dtypes = {'image': np.float32, 'label': np.int32}
  rows = lambda side: _dataset.Rows(
    {'image': images[side], 'label': labels[side]}, dtypes
  )
  train, heldout = rows(~split.heldout), rows(split.heldout)
  return _dataset.Dataset(
    name='digits',
    fingerprint=fingerprint(split.digest, labels.tobytes().hex()),
    vocab_size=None,
    train=train,
    heldout=heldout,
    clusters=lambda: train.arrays['label'],
    bytes_per_token=None,
    facts={
      'train_sequences': len(train),
      'heldout_sequences': len(heldout),
    },
  )


def synthetic(
  *,
  seq_len: int,
  num_sequences: int,
  num_symbols: int,
  heldout_fraction: float,
  seed: int,
) -> _dataset.Dataset:
  r"""Draws Markov text of order 1, whose entropy is known.

  Each row of the transition matrix :math:`P` is drawn from a Dirichlet
  distribution with concentration 0.3. A document is one sequence, a walk of its
  own that starts from the stationary distribution :math:`\pi`, so the best mean
  loss on any of its targets is the entropy rate

  .. math:: h = -\sum_i \pi_i \sum_j P_{ij} \log P_{ij},

  in nats, `facts['entropy']`. Documents are held out by their hash. A symbol
  counts as one byte.

  Args:
    seq_len: Number of targets in a sequence.
    num_sequences: Number of sequences, training and held-out together.
    num_symbols: Size of the alphabet, from 2 to 256; the `vocab_size`.
    heldout_fraction: Fraction of the distinct sequences to hold out.
    seed: Seed of the matrix and of the text.

  Returns:
    The dataset.

  Raises:
    ValueError: If an argument is out of range.
  """
  _check(seq_len, heldout_fraction, None)
  if num_sequences < 2:
    raise ValueError(
      f'`num_sequences` must be at least 2, got {num_sequences}.'
    )
  if not 2 <= num_symbols <= 256:
    raise ValueError(f'`num_symbols` must be from 2 to 256, got {num_symbols}.')
  if seed < 0:
    raise ValueError(f'`seed` must be at least 0, got {seed}.')
  rng = np.random.default_rng(seed)
  transition = rng.dirichlet(np.full([num_symbols], 0.3), num_symbols)
  # The left eigenvector of eigenvalue 1: pi (P - I) = 0 and sum(pi) = 1.
  system = np.vstack([transition.T - np.eye(num_symbols), np.ones(num_symbols)])
  target = np.append(np.zeros(num_symbols), 1.0)
  stationary = np.linalg.lstsq(system, target)[0]
  logs = np.log(np.maximum(transition, np.finfo(np.float64).tiny))
  entropy = -stationary @ (transition * logs).sum(axis=1)

  def draw(probabilities):
    uniform = rng.random([num_sequences, 1])
    below = np.cumsum(probabilities, axis=-1)[..., :-1] < uniform
    return below.sum(axis=1).astype(np.uint8)

  walks = [draw(stationary)]
  for _ in range(seq_len):
    walks.append(draw(transition[walks[-1]]))
  text = np.stack(walks, axis=1)
  split = _documents.split(map(np.ndarray.tobytes, text), heldout_fraction)
  rows = lambda side: _dataset.Rows(
    {'tokens': text[side]}, {'tokens': np.int32}
  )
  train, heldout = rows(~split.heldout), rows(split.heldout)
  return _dataset.Dataset(
    name='synthetic',
    fingerprint=fingerprint(split.digest, str(num_symbols)),
    vocab_size=num_symbols,
    train=train,
    heldout=heldout,
    clusters=None,
    bytes_per_token=1.0,
    facts={
      'train_sequences': len(train),
      'heldout_sequences': len(heldout),
      'entropy': float(entropy),
    },
  )


def fingerprint(*parts: str) -> str:
  """Digests strings to 16 hexadecimal digits."""
  return hashlib.sha256('\n'.join(parts).encode()).hexdigest()[:16]


def facts(
  split: _documents.Split, num_train_tokens: int, num_heldout_tokens: int
) -> dict[str, int]:
  """Counts documents, UTF-8 bytes and tokens on both sides of a split."""
  return {
    'train_documents': int((~split.heldout).sum()),
    'heldout_documents': int(split.heldout.sum()),
    'train_bytes': int(split.num_bytes[~split.heldout].sum()),
    'heldout_bytes': int(split.num_bytes[split.heldout].sum()),
    'train_tokens': num_train_tokens,
    'heldout_tokens': num_heldout_tokens,
  }


def _in_memory(documents, tokenizer, seq_len, heldout_fraction, num_clusters):
  texts = list(documents.read())
  split = _documents.split(texts, heldout_fraction)
  side = lambda is_heldout: [
    text for text, held in zip(texts, split.heldout) if held == is_heldout
  ]
  train_texts = side(False)
  train, lengths = tokenizer.encode(train_texts)
  heldout, _ = tokenizer.encode(side(True))
  _dataset.check_windows(seq_len, len(train), len(heldout))
  counts = facts(split, len(train), len(heldout))
  train_rows = _dataset.windows(train, seq_len)
  heldout_rows = _dataset.windows(heldout, seq_len)

  @functools.cache
  def clusters():
    chosen = _clusters.sample(len(train_texts))
    predict = _clusters.fit([train_texts[i] for i in chosen], num_clusters)
    return _clusters.of_windows(
      predict(train_texts), lengths, seq_len, len(train_rows)
    )

  return _dataset.Dataset(
    name=documents.name,
    fingerprint=fingerprint(split.digest, tokenizer.fingerprint),
    vocab_size=tokenizer.vocab_size,
    train=train_rows,
    heldout=heldout_rows,
    clusters=None if num_clusters is None else clusters,
    bytes_per_token=counts['heldout_bytes'] / counts['heldout_tokens'],
    facts={
      **documents.facts,
      **counts,
      'train_sequences': len(train_rows),
      'heldout_sequences': len(heldout_rows),
    },
  )


def _check(seq_len, heldout_fraction, num_clusters):
  if seq_len < 1:
    raise ValueError(f'`seq_len` must be at least 1, got {seq_len}.')
  _documents.check_fraction(heldout_fraction)
  _clusters.check_num_clusters(num_clusters)
