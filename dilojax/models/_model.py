"""What the rest of the project sees of a model."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax


class Model(NamedTuple):
  """A model and its training objective, as pure functions.

  Attributes:
    init: Maps a key to params: a nested dict of float32 arrays whose keys are
      strings.
    loss: Maps params and a batch to the mean training loss, a float32 scalar.
    evaluate: Maps params and a batch to a dict of float32 scalars: `loss`, in
      nats and without regularizers, and what else the model measures.
    flops: Number of floating-point operations that training on one example
      (a sequence, an image) takes, forward and backward, as usually counted
      for model FLOP/s: see the model's own docstring.
  """

  init: Callable[[jax.Array], Any]
  loss: Callable[[Any, Any], jax.Array]
  evaluate: Callable[[Any, Any], dict[str, jax.Array]]
  flops: int


def check_sizes(**sizes: int) -> None:
  """Refuses what is not a positive int.

  Raises:
    ValueError: If one of `sizes` is not; it names the argument.
  """
  for name, size in sizes.items():
    # A bool is an int to Python, and a slip here.
    if not isinstance(size, int) or isinstance(size, bool) or size < 1:
      raise ValueError(f'`{name}` must be an int of at least 1, got {size!r}.')


def check_choice(name: str, got: str, allowed: tuple[str, ...]) -> None:
  """Refuses what is not among `allowed`.

  Raises:
    ValueError: If `got` is not; it names the argument `name`.
  """
  if got not in allowed:
    choices = ' or '.join(map(repr, allowed))
    raise ValueError(f'`{name}` must be {choices}, got {got!r}.')
