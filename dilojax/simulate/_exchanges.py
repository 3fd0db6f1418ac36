"""What a training step computes, and what it sends, layer by layer."""

from collections.abc import Iterable, Sequence
import math
import operator
from typing import Any, NamedTuple

from dilojax import schedule as schedule_lib

ORDERS = ('strided', 'sequential')
RULES = ('exact', 'rounded')


class Layers(NamedTuple):
  """What a replica's step does in each layer, the first layer first.

  Attributes:
    forward: Seconds of the forward pass, one number per layer.
    backward_activation: Seconds for the gradient of the layer's input. That
      of the first layer is not needed and not counted.
    backward_parameter: Seconds for the gradient of the layer's params.
    num_params: Number of params.
  """

  forward: Sequence[float]
  backward_activation: Sequence[float]
  backward_parameter: Sequence[float]
  num_params: Sequence[float]


class Link(NamedTuple):
  """A link, which carries one message after the other.

  Attributes:
    bandwidth: Bits per second; infinity is allowed. An array simulates one
      link for each of its elements.
    latency: Seconds that the link is busy with a message of any size, beyond
      its bits.
  """

  bandwidth: Any = math.inf
  latency: float = 0.0


class Exchange(NamedTuple):
  """Layers that are reduced over a link in the same steps.

  Attributes:
    layers: Numbers of the layers, from 0. Each is a message of its own.
    schedule: In which steps they are sent, and the delay.
    bits: Bits on the link for each param.
    level: Number of the link, from 0 for the innermost.
  """

  layers: Sequence[int]
  schedule: schedule_lib.Schedule
  bits: float
  level: int = 0


def even_layers(num_layers: int, seconds: float, num_params: Any) -> Layers:
  r"""Spreads a step evenly over its layers.

  Forward pass, gradient of the input and gradient of the params take
  :math:`T / 3L` in each of :math:`L` layers.

  Args:
    num_layers: Number of layers :math:`L`.
    seconds: Seconds :math:`T` of a step without communication. The first layer
      needs no gradient of its input, which leaves :math:`(1 - 1/3L) T`.
    num_params: Number of params of the model, or a list of those per layer.

  Returns:
    The layers.

  Raises:
    ValueError: If an argument is out of range, or the list has another length.

  Examples:
    >>> from dilojax import simulate
    >>> simulate.even_layers(2, seconds=0.6, num_params=10).num_params
    (5.0, 5.0)
  """
  check_count('num_layers', num_layers)
  if not is_number(seconds) or not 0 < seconds < math.inf:
    raise ValueError(
      f'`seconds` must be a finite number above 0, got {seconds!r}.'
    )
  if is_number(num_params):
    num_params = (num_params / num_layers,) * num_layers
  times = (seconds / (3 * num_layers),) * num_layers
  layers = Layers(times, times, times, tuple(num_params))
  check_layers(layers)
  return layers


def together(
  num_layers: int,
  *,
  every: int = 1,
  delay: int = 0,
  bits: float = 16.0,
  level: int = 0,
) -> tuple[Exchange, ...]:
  """Sends all layers in the same steps: data parallelism, DiLoCo.

  Args:
    num_layers: Number of layers.
    every: Number of steps per round; 1 for data parallelism.
    delay: Number of steps from a launch to its landing. A message with delay 0
      is needed by the next forward pass.
    bits: Bits on the link for each param.
    level: Number of the link, from 0 for the innermost.

  Returns:
    One exchange.

  Raises:
    ValueError: If an argument is out of range.

  Examples:
    >>> from dilojax import simulate
    >>> [diloco] = simulate.together(24, every=100)
    >>> diloco.schedule.launches(100), len(diloco.layers)
    (True, 24)
  """
  return in_turns(
    num_layers,
    every=every,
    num_fragments=1,
    delay=delay,
    bits=bits,
    level=level,
  )


def in_turns(
  num_layers: int,
  *,
  every: int,
  num_fragments: int,
  order: str = 'strided',
  rule: str = 'exact',
  delay: int = 0,
  bits: float = 16.0,
  level: int = 0,
) -> tuple[Exchange, ...]:
  r"""Sends fragments of whole layers in turns: Streaming DiLoCo.

  Of :math:`P` fragments, number :math:`p` has the layers
  :math:`p, p + P, p + 2P, \ldots` when strided, and consecutive ones when
  sequential. There are two rules for who sends when:

  * 'exact', that of our own runs: each fragment every :math:`H` steps, first
    after step :math:`\lfloor pH/P \rfloor`, with 0 read as :math:`H`;
  * 'rounded': one fragment every :math:`n = \mathrm{round}(H/P)` steps, half
    to even, so that each is sent every :math:`nP` steps.

  Args:
    num_layers: Number of layers.
    every: Number :math:`H` of steps per round.
    num_fragments: Number :math:`P` of fragments, at most `num_layers`.
    order: 'strided' or 'sequential'.
    rule: 'exact' or 'rounded'.
    delay: Number of steps from a launch to its landing. Nothing depends on it
      here: it may be longer than a round.
    bits: Bits on the link for each param.
    level: Number of the link, from 0 for the innermost.

  Returns:
    One exchange per fragment.

  Raises:
    ValueError: If an argument is out of range, or there are more fragments
      than steps in a round.

  Examples:
    >>> from dilojax import simulate
    >>> for exchange in simulate.in_turns(5, every=100, num_fragments=3):
    ...   print(exchange.layers, exchange.schedule.offset)
    (0, 3) 100
    (1, 4) 33
    (2,) 66

  References:
    Douillard et al., `Streaming DiLoCo with overlapping communication
    <https://arxiv.org/abs/2501.18512>`_, 2025
  """
  for name, count in (
    ('num_layers', num_layers),
    ('every', every),
    ('num_fragments', num_fragments),
  ):
    check_count(name, count)
  for name, choice, choices in (
    ('order', order, ORDERS),
    ('rule', rule, RULES),
  ):
    if choice not in choices:
      raise ValueError(
        f'`{name}` must be one of {", ".join(choices)}, got {choice!r}.'
      )
  interval = every // num_fragments
  if rule == 'rounded':
    interval = round(every / num_fragments)
  if num_fragments > num_layers or not interval:
    raise ValueError(
      f'`num_fragments` must be at most the number of layers, {num_layers},'
      f' and leave a step for each in a round of {every}, got {num_fragments}.'
    )
  turns = range(num_fragments)
  if rule == 'rounded':
    period = interval * num_fragments
    offsets = [interval * (turn + 1) for turn in turns]
  else:
    period = every
    offsets = [turn * every // num_fragments or every for turn in turns]
  strided = order == 'strided'
  fragment_of = [
    layer % num_fragments if strided else layer * num_fragments // num_layers
    for layer in range(num_layers)
  ]
  exchanges = tuple(
    Exchange(
      tuple(layer for layer in range(num_layers) if fragment_of[layer] == turn),
      schedule_lib.Schedule(period, offset, delay),
      bits,
      level,
    )
    for turn, offset in zip(turns, offsets)
  )
  check_exchanges(exchanges, num_layers, num_links=level + 1)
  return exchanges


def check_layers(layers: Layers):
  """Refuses layers that cannot be."""
  sizes = {name: len(values) for name, values in layers._asdict().items()}
  if len(set(sizes.values())) > 1 or not len(layers.forward):
    raise ValueError(
      f'`layers` must have as many numbers in each field, got {sizes}.'
    )
  for name, values in layers._asdict().items():
    for value in values:
      if not is_number(value) or not 0 <= value < math.inf:
        raise ValueError(
          f'`layers.{name}` must be finite numbers of at least 0, got'
          f' {value!r}.'
        )
  activation = layers.backward_activation[1:]
  if not any([*layers.forward, *activation, *layers.backward_parameter]):
    raise ValueError('`layers` must take some time, got 0 seconds in all.')


def check_exchanges(
  exchanges: Iterable[Exchange], num_layers: int, num_links: int
):
  """Refuses exchanges of layers or over links that are not there."""
  for exchange in exchanges:
    layers = list(exchange.layers)
    if (
      not all(map(is_int, layers))
      or not all(0 <= layer < num_layers for layer in layers)
      or len(set(layers)) < len(layers)
    ):
      raise ValueError(
        f'`layers` of an exchange must be different ints from 0 to'
        f' {num_layers - 1}, got {exchange.layers!r}.'
      )
    if not is_number(exchange.bits) or not 0 < exchange.bits < math.inf:
      raise ValueError(
        f'`bits` must be a finite number above 0, got {exchange.bits!r}.'
      )
    if not is_int(exchange.level) or not 0 <= exchange.level < num_links:
      raise ValueError(
        f'`level` must be an int from 0 to {num_links - 1}, the number of a'
        f' link, got {exchange.level!r}.'
      )
    when = exchange.schedule
    check_count('every', when.every)
    if not is_int(when.offset) or not 1 <= when.offset <= when.every:
      raise ValueError(
        f'`offset` must be an int from 1 to `every` ({when.every}), got'
        f' {when.offset!r}.'
      )
    if not is_int(when.delay) or when.delay < 0:
      raise ValueError(
        f'`delay` must be an int of at least 0, got {when.delay!r}.'
      )


def check_count(name: str, count: Any):
  """Refuses what is no number of things."""
  if not is_int(count) or count < 1:
    raise ValueError(f'`{name}` must be an int of at least 1, got {count!r}.')


def is_int(value: Any) -> bool:
  """Tells whether a value is a whole number, of Python or numpy."""
  try:
    operator.index(value)
  except TypeError:
    return False
  return not isinstance(value, bool)


def is_number(value: Any) -> bool:
  """Tells whether a value is a single number."""
  if isinstance(value, (str, bytes, bool)) or getattr(value, 'ndim', 0):
    return False
  try:
    float(value)
  except (TypeError, ValueError):
    return False
  return True
