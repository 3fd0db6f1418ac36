"""What the links of an optimizer send, and when, told by their states."""

from collections.abc import Iterator
import dataclasses
from typing import Any, NamedTuple

import jax
import optax

from dilojax import schedule as schedule_lib
from dilojax.transforms import _sharing


class Link(NamedTuple):
  """A link of an optimizer that communicates.

  Attributes:
    schedule: When it does.
    axis_names: Over which axes; empty if unknown.
    nbytes: Bytes of the message that a replica sends each time.
    overwrites: Whether a landing leaves nothing of the replica's own params.
      None for a link of updates, which nothing lands of.
    result_nbytes: Bytes of the mean that comes back, where it has a format of
      its own; else 0.
    op: The collective that moves the message, in XLA's words.
    is_anchorless: Whether replicas land on a mean that is no anchor.
    name: Name of the fragment, or of another part of a partition; else empty.
  """

  schedule: schedule_lib.Schedule
  axis_names: tuple[str, ...]
  nbytes: int
  overwrites: bool | None
  result_nbytes: int = 0
  op: str = 'all-reduce'
  is_anchorless: bool = False
  name: str = ''


def links(state: optax.OptState, params: optax.Params) -> list[Link]:
  """Lists the links that communicate, in the order of the chain.

  Args:
    state: State of any optimizer, or its abstract form.
    params: Params of one replica, or their abstract form.

  Returns:
    When, over which axes, and how many bytes each of them sends.
  """
  always = schedule_lib.Schedule(every=1, offset=1)
  found: list[Link] = []
  names: list[str] = []
  for name, node in _named_states(state):
    if _sharing.is_route(node):
      traffic = node.traffic(jax.tree.leaves(params), None)
      found.append(_link(always, node.names, traffic, None))
    elif hasattr(node, 'plan') and hasattr(node, 'reduce'):
      plan = node.plan
      link = _link(
        plan.schedule,
        _sharing.names_along(node),
        _traffic(node),
        plan.overwrites,
      )
      found.append(link._replace(is_anchorless=not hasattr(node, 'anchor')))
    elif hasattr(node, 'link'):
      stop = node.plan.schedule.stop
      for link in links(node.link, params):
        schedule = dataclasses.replace(link.schedule, stop=stop)
        found.append(link._replace(schedule=schedule))
    while len(names) < len(found):
      names.append(name)
  return [link._replace(name=name) for name, link in zip(names, found)]


def _link(schedule, names, traffic, overwrites):
  return Link(
    schedule,
    names,
    traffic.nbytes,
    overwrites,
    traffic.result_nbytes,
    traffic.op,
  )


def _traffic(node):
  """Counts what a link sends in a synchronization."""
  # A link without an anchor knows by itself what its messages are.
  leaves = jax.tree.leaves(getattr(node, 'anchor', ()))
  codec = _sharing.codec_of(getattr(node, 'send', ()))
  routes = [
    each for each in _sharing.marks(node.reduce) if _sharing.is_route(each)
  ]
  if not routes:
    return _sharing.SharedOver(()).traffic(leaves, codec)
  # Of several, as in a chain of reductions, each sends.
  each = [route.traffic(leaves, codec) for route in routes]
  return _sharing.Traffic(
    each[0].op,
    sum(traffic.nbytes for traffic in each),
    sum(traffic.result_nbytes for traffic in each),
  )


def _named_states(state: optax.OptState) -> Iterator[tuple[str, Any]]:
  """Yields our states, each with the last key of a dict on the way to it."""
  is_ours = lambda node: _sharing.is_link(node) or _sharing.is_route(node)
  for path, node in jax.tree.leaves_with_path(state, is_leaf=is_ours):
    keys = [key.key for key in path if isinstance(key, jax.tree_util.DictKey)]
    if is_ours(node):
      yield (str(keys[-1]) if keys else ''), node
