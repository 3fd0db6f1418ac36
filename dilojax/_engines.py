"""What runs a config: replicas on devices, or workers on a virtual clock."""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from dilojax import _clock
from dilojax import _virtual
from dilojax import _workers
from dilojax import build
from dilojax import train


class Engine(NamedTuple):
  """Functions that a run consists of.

  Attributes:
    make: From a config, and a `dataset`, to a setup.
    describe: From a setup to a few lines about it.
    train: Trains a setup in a folder, see :func:`dilojax.train.train`.
    num_streams: From a setup to how many train at a time.
  """

  make: Callable[..., Any]
  describe: Callable[[Any], list[str]]
  train: Callable[..., dict[str, Any]]
  num_streams: Callable[[Any], int]


REPLICAS = Engine(
  build.make, build.describe, train.train, lambda setup: setup.placement.total
)
CLOCK = Engine(
  _clock.make,
  _clock.describe,
  _virtual.train,
  lambda setup: setup.num_workers,
)


def of(config: Mapping[str, Any]) -> Engine:
  """Returns the engine of a config, whose fields have been checked."""
  return CLOCK if _workers.is_asynchronous(config) else REPLICAS
