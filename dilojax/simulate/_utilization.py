"""How much of a training's time is computation, given its links."""

import collections
from collections.abc import Iterable, Iterator, Sequence
import functools
import math
from typing import Any, NamedTuple

import numpy as np

from dilojax import schedule as schedule_lib
from dilojax.simulate import _exchanges

# Of Streaming DiLoCo: 0.1 to 1000 Gbit/s, in bits per second.
GRID = tuple(1e9 * 10.0 ** (4 * point / 49 - 1) for point in range(50))


class Utilization(NamedTuple):
  """What became of a training's time.

  Where bandwidths are arrays, times are too.

  Attributes:
    utilization: Seconds of computation over seconds in all.
    seconds: Seconds in all, the last message included.
    exposed_seconds: Those without computation.
    bytes_sent: Bytes over each link, which is those of a replica if `bits`
      are.
    trace: Step by step, if asked for.
  """

  utilization: Any
  seconds: Any
  exposed_seconds: Any
  bytes_sent: tuple[float, ...]
  trace: 'Trace | None' = None


class Trace(NamedTuple):
  """The steps, along the first axis of every array.

  Attributes:
    start: Second in which the step begins, which may be with waiting.
    end: Second in which its computation ends.
    waited: Seconds in which its forward pass waits for messages.
    bytes_sent: Bytes of the messages that it launches, per link.
  """

  start: np.ndarray
  end: np.ndarray
  waited: np.ndarray
  bytes_sent: np.ndarray


def utilization(
  layers: _exchanges.Layers,
  exchanges: Sequence[_exchanges.Exchange],
  links: Sequence[_exchanges.Link],
  *,
  num_steps: int = 2000,
  trace: bool = False,
) -> Utilization:
  r"""Simulates the steps of a replica and its messages.

  The forward pass goes up the layers, the backward pass down; in each layer
  the gradient of the input comes before that of the params. A layer's message
  can leave once the gradient of its params is there. A link carries one message
  after the other, in the order of the backward pass, and is busy with each for
  :math:`\mathrm{latency} + \mathrm{bits} / \mathrm{bandwidth}`. Computation
  goes on meanwhile. A message launched after step :math:`t` with delay
  :math:`\tau` holds up the forward pass of its layer, and no other, in step
  :math:`t + \tau + 1`.

  Of several links the first is the innermost: what a layer sends over one
  waits for what it sends over those before in the same step. With the site's
  data parallelism on the first, and DiLoCo on the second, a pseudo-gradient
  waits for the gradient that goes into it.

  Each input stands for itself: no period, delay or size follows from another.
  One message of all layers, sent in step :math:`H`, exposes
  :math:`(L + 2) u + L c - (3L - 1) u`, with :math:`u` the seconds of a layer's
  pass and :math:`c \geq 2 u` those of its message.

  Args:
    layers: What a step computes.
    exchanges: What is sent, and when; none for no communication.
    links: The links, the innermost first.
    num_steps: Number of steps.
    trace: Whether to return all steps.

  Returns:
    The utilization, and what it is made of.

  Raises:
    ValueError: If an argument is out of range.

  Examples:
    DiLoCo of a model of 1B params, in bfloat16 over 10 Gbit/s:

    >>> from dilojax import simulate
    >>> layers = simulate.even_layers(24, seconds=0.1, num_params=1e9)
    >>> diloco = simulate.together(24, every=100, bits=16)
    >>> found = simulate.utilization(layers, diloco, [simulate.Link(10e9)])
    >>> print(f'{found.utilization:.1%}')
    86.5%

  References:
    Douillard et al., `Streaming DiLoCo with overlapping communication
    <https://arxiv.org/abs/2501.18512>`_, 2025
  """
  _exchanges.check_layers(layers)
  shape = _check_links(links)
  _exchanges.check_exchanges(exchanges, len(layers.forward), len(links))
  _exchanges.check_count('num_steps', num_steps)
  forward, activation, parameter, num_params = (
    np.asarray(values, float)[:, None] for values in layers
  )
  backward = np.concatenate([parameter[:1], (activation + parameter)[1:]])
  # From the start of a layer to the end of the forward pass, and from the
  # start of the backward pass to the gradient of a layer.
  to_top = forward[::-1].cumsum(0)[::-1]
  to_grad = backward[::-1].cumsum(0)[::-1]
  queue = _queues(exchanges, links, num_params, shape)

  # One number per bandwidth.
  now = np.zeros(max(1, math.prod(shape)))
  free = [now] * len(links)
  computed = 0.0  # Added as `now` is, so that without messages the two agree.
  sent = np.zeros(len(links))
  needed = collections.defaultdict(list)
  launches = _launches(exchanges, num_steps)
  steps = []
  for step in range(1, num_steps + 1):
    start, top = now, now + to_top[0]
    for layer, arrival in needed.pop(step, ()):
      top = np.maximum(top, (arrival + to_top[layer]).max(0))
    computed = computed + to_top[0, 0] + to_grad[0, 0]
    now, before, ready = top + to_grad[0], sent.copy(), top + to_grad
    for level, due in launches.get(step, ()):
      messages = queue(level, tuple(exchange for exchange, _ in due))
      # When each would have begun in a queue that never pauses.
      begun = np.maximum(ready[messages.layer] - messages.before, free[level])
      arrival = np.maximum.accumulate(begun, 0) + messages.after
      free[level] = arrival[-1]
      ready[messages.layer] = arrival
      sent[level] += messages.nbytes
      for exchange, landing in due:
        mine = messages.owner == exchange
        needed[landing + 1].append((messages.layer[mine], arrival[mine]))
    if trace:
      waited = top - (start + to_top[0])
      steps.append((start, now, waited, sent - before))

  wall = np.max([now, *free], 0)
  outward = lambda times: times.reshape(shape) if shape else float(times[0])
  return Utilization(
    utilization=outward(computed / wall),
    seconds=outward(wall),
    exposed_seconds=outward(wall - computed),
    bytes_sent=tuple(map(float, sent)),
    trace=_trace(steps, shape) if trace else None,
  )


def required_bandwidth(
  layers: _exchanges.Layers,
  exchanges: Sequence[_exchanges.Exchange],
  targets: Iterable[float],
  *,
  links: Sequence[_exchanges.Link] = (_exchanges.Link(),),
  grid: Sequence[float] = GRID,
  num_steps: int = 2000,
) -> tuple[float, ...]:
  """Finds the first bandwidth of a grid that reaches a utilization.

  Args:
    layers: What a step computes.
    exchanges: What is sent, and when.
    targets: Utilizations, above 0 and at most 1.
    links: The links, the innermost first. The grid takes the place of the
      bandwidth of the last one.
    grid: Bandwidths in bits per second, increasing.
    num_steps: Number of steps.

  Returns:
    A bandwidth for each target, infinity where none of the grid is enough.

  Raises:
    ValueError: If an argument is out of range.

  Examples:
    >>> from dilojax import simulate
    >>> layers = simulate.even_layers(24, seconds=0.1, num_params=1e9)
    >>> diloco = simulate.together(24, every=100, bits=16)
    >>> half, most = simulate.required_bandwidth(layers, diloco, [0.5, 0.9])
    >>> print(f'{half / 1e9:.1f} and {most / 1e9:.1f} Gbit/s')
    1.7 and 16.0 Gbit/s

  References:
    Douillard et al., `Streaming DiLoCo with overlapping communication
    <https://arxiv.org/abs/2501.18512>`_, 2025 (table 4)
  """
  targets, points = tuple(targets), np.asarray(grid, float)
  for target in targets:
    if not _exchanges.is_number(target) or not 0 < target <= 1:
      raise ValueError(
        f'`targets` must be above 0 and at most 1, got {target!r}: 0.9 for 90%.'
      )
  if points.ndim != 1 or not points.size or (np.diff(points) <= 0).any():
    raise ValueError(f'`grid` must be increasing bandwidths, got {grid}.')
  _check_links(links)
  for link in links[:-1]:
    if np.ndim(link.bandwidth):
      raise ValueError(
        '`links` must have single bandwidths but for the last, got'
        f' {link.bandwidth!r}.'
      )
  links = (*links[:-1], links[-1]._replace(bandwidth=points))
  found = utilization(layers, exchanges, links, num_steps=num_steps)
  reached = [points[found.utilization >= target] for target in targets]
  return tuple(
    float(enough[0]) if len(enough) else math.inf for enough in reached
  )


class _Queue(NamedTuple):
  """Messages in the order of their link; times are messages x bandwidths."""

  layer: np.ndarray
  owner: np.ndarray  # Number of the exchange.
  nbytes: float
  before: np.ndarray  # Seconds that those before it take.
  after: np.ndarray  # The same, and it too.


def _queues(exchanges, links, num_params, shape):
  rates = [np.broadcast_to(link.bandwidth, shape).ravel() for link in links]

  @functools.cache
  def queue(level, numbers):
    messages = sorted(
      (-layer, number)
      for number in numbers
      for layer in exchanges[number].layers
    )
    owner = np.array([number for _, number in messages])
    layer = np.array([-layer for layer, _ in messages])
    each = np.array([[exchanges[number].bits] for number in owner])
    bits = each * num_params[layer]
    after = (links[level].latency + bits / rates[level]).cumsum(0)
    before = np.concatenate([np.zeros_like(after[:1]), after[:-1]])
    return _Queue(layer, owner, bits.sum() / 8, before, after)

  return queue


def _trace(steps, shape):
  start, end, waited, sent = (np.stack(column) for column in zip(*steps))
  times = (each.reshape(len(steps), *shape) for each in (start, end, waited))
  return Trace(*times, bytes_sent=sent)


def _launches(exchanges, num_steps):
  """Returns, for each step, what each level sends, and when that lands."""
  launches = collections.defaultdict(lambda: collections.defaultdict(list))
  for number, exchange in enumerate(exchanges):
    if len(exchange.layers):
      for step, landing in _messages(exchange.schedule, num_steps):
        launches[step][exchange.level].append((number, landing))
  return {step: sorted(levels.items()) for step, levels in launches.items()}


def _messages(
  when: schedule_lib.Schedule, num_steps: int
) -> Iterator[tuple[int, int]]:
  """Yields the steps in which one leaves, and in which it is applied."""
  if 0 < when.start <= num_steps:
    yield when.start, when.start
  last = num_steps if when.stop is None else min(when.stop, num_steps)
  for step in range(when.start + when.offset, last + 1, when.every):
    yield step, step + when.delay + when.every * when.late


def _check_links(links):
  if not len(links):
    raise ValueError('`links` must be at least one link, got none.')
  for link in links:
    bandwidth = np.asarray(link.bandwidth)
    if bandwidth.dtype.kind not in 'iuf' or not (bandwidth > 0).all():
      raise ValueError(
        f'`bandwidth` must be above 0, in bits per second, got'
        f' {link.bandwidth!r}.'
      )
    if (
      not _exchanges.is_number(link.latency) or not 0 <= link.latency < math.inf
    ):
      raise ValueError(
        f'`latency` must be a finite number of seconds, at least 0, got'
        f' {link.latency!r}.'
      )
  try:
    return np.broadcast_shapes(*(np.shape(link.bandwidth) for link in links))
  except ValueError as error:
    shapes = [np.shape(link.bandwidth) for link in links]
    raise ValueError(
      f'`bandwidth` of all links must broadcast, got the shapes {shapes}.'
    ) from error
