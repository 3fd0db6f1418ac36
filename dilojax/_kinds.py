"""What a field of a config may be."""

from collections.abc import Callable
import math
from typing import Any, NamedTuple


class Field(NamedTuple):
  """What a field may be.

  Attributes:
    kind: Type; an int serves as a float too.
    holds: Tells whether a value of this type is allowed.
    allowed: The same in words.
  """

  kind: type
  holds: Callable[[Any], bool]
  allowed: str


def at_least(low: int) -> Field:
  """An int from `low`."""
  return Field(int, lambda value: value >= low, f'an int of at least {low}')


def one_of(*names: str) -> Field:
  """One of some names."""
  return Field(str, lambda value: value in names, f'one of {", ".join(names)}')


# Steps are counted in int32.
NUM_STEPS = Field(
  int, lambda value: 1 <= value < 2**31, 'an int from 1 to 2147483647'
)
TEXT = Field(str, lambda value: bool(value), 'a text that is not empty')
FLAG = Field(bool, lambda value: True, 'True or False')
# Wider seeds would lose their upper half in `jax.random.key`.
SEED = Field(
  int, lambda value: 0 <= value < 2**32, 'an int from 0 to 2**32 - 1'
)
RATIO = Field(float, lambda value: 0 <= value <= 1, 'a number from 0 to 1')
FRACTION = Field(
  float, lambda value: 0 < value < 1, 'a number above 0 and below 1'
)
MEMORY = Field(
  float, lambda value: 0 <= value < 1, 'a number of at least 0 and below 1'
)
NOT_NEGATIVE = Field(
  float, lambda value: 0 <= value < math.inf, 'a finite number of at least 0'
)
POSITIVE = Field(
  float, lambda value: 0 < value < math.inf, 'a finite number above 0'
)
SHARE = Field(
  float, lambda value: 0 < value <= 1, 'a number above 0 and at most 1'
)
FINITE = Field(float, math.isfinite, 'a finite number')
PLAIN = Field(
  object,
  lambda value: isinstance(value, bool | int | float | str),
  'a number, a text, True or False',
)
# What an argument of a function may be, by its annotation.
ANNOTATED = {
  bool: FLAG,
  int: Field(int, lambda value: True, 'an int'),
  float: Field(float, lambda value: True, 'a number'),
  str: Field(str, lambda value: True, 'a text'),
}
LIMIT = Field(float, lambda value: value > 0, 'a number above 0, inf for none')
BITS = Field(int, lambda value: 1 <= value <= 8, 'an int from 1 to 8')
VALUES = one_of('float32', 'bfloat16', 'int8')
COUNT = at_least(0)  # 0 for all there are.
