"""What a corpus is to the rest: two sequences of examples, and facts."""

from collections.abc import Callable, Mapping
import dataclasses
from typing import Any, NamedTuple

import numpy as np


class Dataset(NamedTuple):
  """A corpus, split into examples to train on and examples held out.

  Attributes:
    name: Name of the corpus, such as `'python_stdlib'`.
    fingerprint: 16 hexadecimal digits that depend on the documents, their
      order, the tokenizer and the split, and on nothing else.
    vocab_size: Token ids are below it. None for images.
    train: Training examples. `len(train)` is their number; `train[i]` is a dict
      of numpy arrays, `{'tokens': int32 [seq_len + 1]}` or
      `{'image': float32 [8, 8], 'label': int32 []}`. With an int array as index
      the arrays have its shape in front.
    heldout: The same for the examples held out.
    clusters: Function without arguments that returns the document cluster of
      each training example, int32 `[len(train)]`. It computes them when first
      called. None where the corpus has no clusters.
    bytes_per_token: UTF-8 bytes of the held-out text for each of its tokens,
      separators counted as tokens but not as text. So `nats_per_token /
      (log(2) * bytes_per_token)` are bits per byte. None for images.
    facts: Counts that describe the corpus, ready for JSON.
  """

  name: str
  fingerprint: str
  vocab_size: int | None
  train: Any
  heldout: Any
  clusters: Callable[[], np.ndarray] | None
  bytes_per_token: float | None
  facts: dict


@dataclasses.dataclass(frozen=True)
class Rows:
  """Examples that lie in memory, as the rows of arrays of equal length.

  Attributes:
    arrays: Arrays whose leading axis enumerates examples.
    dtypes: What an example's arrays are cast to, since tokens rest in the
      narrowest type that holds them.
  """

  arrays: Mapping[str, np.ndarray]
  dtypes: Mapping[str, type]

  def __len__(self) -> int:
    """Returns the number of examples."""
    return len(next(iter(self.arrays.values())))

  def __getitem__(self, index: int | np.ndarray) -> dict[str, np.ndarray]:
    """Returns one example for an int, stacked examples for an array."""
    return {
      name: np.asarray(array[index], self.dtypes[name])
      for name, array in self.arrays.items()
    }


def num_windows(num_tokens: int, seq_len: int) -> int:
  """Counts the windows of `seq_len + 1` tokens at stride `seq_len`."""
  return max(0, (num_tokens - 1) // seq_len)


def windows(tokens: np.ndarray, seq_len: int) -> Rows:
  """Cuts tokens into windows of `seq_len + 1` at stride `seq_len`.

  Neighbours share one token, the target of one and the input of the other, so
  every token but the first is a target once. A remainder is dropped.

  Args:
    tokens: Token ids of any int type, `[num_tokens]`, not fewer than a window.
    seq_len: Number of targets in a window.

  Returns:
    Windows that are views until they are asked for.
  """
  view = np.lib.stride_tricks.sliding_window_view(tokens, seq_len + 1)
  return Rows({'tokens': view[::seq_len]}, {'tokens': np.int32})


def check_windows(
  seq_len: int, num_train_tokens: int, num_heldout_tokens: int
) -> None:
  """Checks that both sides of a split hold at least one window."""
  for side, count in (
    ('training', num_train_tokens),
    ('held-out', num_heldout_tokens),
  ):
    if count < seq_len + 1:
      raise ValueError(
        f'`seq_len` ({seq_len}) leaves no {side} sequence: one takes'
        f' {seq_len + 1} tokens, the {side} text has {count}. Choose a shorter'
        ' `seq_len`, a larger corpus, or another `heldout_fraction`.'
      )
