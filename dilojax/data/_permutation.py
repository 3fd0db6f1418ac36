"""Random permutations of any length that need no memory."""

import numpy as np

_NUM_ROUNDS = 6


def permute(places: np.ndarray, length: int, key: np.ndarray) -> np.ndarray:
  """Evaluates a pseudorandom permutation of `range(length)` at some places.

  A Feistel network over the fewest bits that hold `length`, at least 6: each
  round adds a hash of one half of the bits to the other half, which can be
  undone, so the network is a permutation of `range(2**bits)`. A place that
  lands beyond `length` is permuted again until it does not (it must, since its
  cycle comes back). It is integer arithmetic alone: the order is the same under
  every version of numpy, and no table of the length is held.

  Args:
    places: Ints from 0 to `length - 1`, of any shape.
    length: Number of elements to permute.
    key: Chooses the permutation, uint64 `[6]`.

  Returns:
    Where each place is sent, int64 of the shape of `places`.

  References:
    Black and Rogaway, `Ciphers with Arbitrary Finite Domains
    <https://doi.org/10.1007/3-540-45760-7_9>`_, 2002
  """
  # Halves of few bits mix badly.
  bits = max(6, (length - 1).bit_length())
  values = np.array(places, np.uint64)
  outside = np.ones(values.shape, bool)
  while outside.any():
    values[outside] = _network(values[outside], bits, key)
    outside = values >= np.uint64(length)
  return values.astype(np.int64)


def _network(values, bits, key):
  low_bits = np.uint64(bits // 2)
  low_mask = np.uint64((1 << (bits // 2)) - 1)
  high_mask = np.uint64((1 << (bits - bits // 2)) - 1)
  low, high = values & low_mask, values >> low_bits
  for index in range(0, _NUM_ROUNDS, 2):
    low ^= _hash(high, key[index]) & low_mask
    high ^= _hash(low, key[index + 1]) & high_mask
  return high << low_bits | low


def _hash(values, key):
  # The finalizer of SplitMix64.
  values = values + key
  values = (values ^ values >> np.uint64(30)) * np.uint64(0xBF58476D1CE4E5B9)
  values = (values ^ values >> np.uint64(27)) * np.uint64(0x94D049BB133111EB)
  return values ^ values >> np.uint64(31)
