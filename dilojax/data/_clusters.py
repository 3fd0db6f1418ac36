"""Clusters of documents, for replicas whose data differ."""

from collections.abc import Callable, Sequence

import numpy as np

_NUM_FEATURES = 256
_NUM_FITTED = 4096


def fit(texts: Sequence[bytes], num_clusters: int) -> Callable:
  """Fits k-means to the byte bigrams of documents.

  A document is a direction: the square roots of the frequencies of its byte
  bigrams, hashed to 256 values, less their mean, at length 1. It weighs as much
  as it has bytes, so the clusters divide the text rather than its files. No
  tokenizer takes part: runs with different tokenizers have the same clusters.
  The start is fixed; one thread computes, so the number of cores does not
  matter.

  Args:
    texts: Documents to fit, such as :func:`sample` chooses.
    num_clusters: Number of clusters, from 2 to the number of documents.

  Returns:
    A function from documents to their clusters, int32 `[num_documents]`.

  Raises:
    ValueError: If there are fewer documents than clusters.
  """
  if len(texts) < num_clusters:
    raise ValueError(
      f'`num_clusters` ({num_clusters}) must be at most the number of training'
      f' documents ({len(texts)}).'
    )
  import sklearn.cluster
  import threadpoolctl

  weights = np.array([len(text) for text in texts], np.float64)
  mean = np.average(_points(texts), axis=0, weights=weights)

  def directions(texts):
    points = _points(texts) - mean
    lengths = np.linalg.norm(points, axis=1, keepdims=True)
    return points / np.maximum(lengths, 1e-9)

  with threadpoolctl.threadpool_limits(1):
    kmeans = sklearn.cluster.KMeans(num_clusters, n_init=2, random_state=0)
    kmeans.fit(directions(texts), sample_weight=weights)
  centers = kmeans.cluster_centers_
  norms = (centers**2).sum(axis=1)

  def predict(texts):
    distances = norms - 2 * directions(texts) @ centers.T
    return np.argmin(distances, axis=1).astype(np.int32)

  return predict


def sample(num_documents: int) -> np.ndarray:
  """Chooses the documents to fit: at most 4096, evenly spread."""
  count = min(num_documents, _NUM_FITTED)
  return np.arange(count) * num_documents // max(count, 1)


def of_windows(
  clusters: np.ndarray, lengths: np.ndarray, seq_len: int, num_windows: int
) -> np.ndarray:
  """Gives each window the cluster of the document at its middle token.

  Args:
    clusters: Cluster of each document, int32 `[num_documents]`.
    lengths: Number of tokens of each document, `[num_documents]`.
    seq_len: Distance between the starts of two windows.
    num_windows: Number of windows.

  Returns:
    Cluster of each window, int32 `[num_windows]`.
  """
  middles = np.arange(num_windows) * seq_len + seq_len // 2
  documents = np.searchsorted(np.cumsum(lengths), middles, side='right')
  return clusters[documents]


def check_num_clusters(num_clusters: int | None) -> None:
  """Checks the number of clusters, None for no clusters."""
  if num_clusters is not None and num_clusters < 2:
    raise ValueError(
      '`num_clusters` must be at least 2, or None for a corpus without'
      f' clusters, got {num_clusters}.'
    )


def _points(texts):
  counts = np.stack([_bigrams(text) for text in texts]).astype(np.float64)
  return np.sqrt(counts / np.maximum(counts.sum(axis=1, keepdims=True), 1))


def _bigrams(text):
  values = np.frombuffer(text, np.uint8).astype(np.uint32)
  pairs = values[:-1] * np.uint32(256) + values[1:]
  # Multiplicative hashing: the high bits of a product with an odd constant.
  buckets = (pairs * np.uint32(2654435761)) >> np.uint32(24)
  return np.bincount(buckets, minlength=_NUM_FEATURES)
