"""Bytes that cross replica axes: what is compiled, and what a run claims."""

from collections.abc import Callable, Iterable, Sequence
import math
from typing import Any, NamedTuple

import jax

from dilojax import _collectives
from dilojax import _ledger
from dilojax import build
from dilojax import replicas
from dilojax import transforms

# A device sums the messages of its replicas before it sends them.
_SUMS = ('all-reduce', 'reduce-scatter')


class Total(NamedTuple):
  """Bytes that cross a replica axis in a run, per replica.

  Attributes:
    axis: The axis.
    compiled: In the compiled programs.
    ledger: In the ledger of the run.
    least: The ledger's bytes, or those that the shards of a replica add up to:
      each device sends what is not sharded, and blocks end where shards do.
    most: The greater of these, with what makes rows equally long.
    padding: Bytes beside `compiled` that fill whole tiles.
  """

  axis: str
  compiled: int
  ledger: int
  least: int
  most: int
  padding: int

  @property
  def agrees(self) -> bool:
    """Whether the programs send what the ledger says."""
    return self.least <= self.compiled <= self.most


def payload(
  one: _collectives.Collective,
  crossed: Sequence[str],
  setup: build.Setup,
  links: Sequence[transforms.Link],
) -> float:
  """Returns the bytes of a collective that count, per replica, each time.

  Args:
    one: The collective.
    crossed: Axes that it crosses.
    setup: The run.
    links: Its links.
  """
  placement = setup.placement
  inside = _num_inside(placement)
  along = [axis for axis in crossed if axis in placement.num_replicas]
  returns = any(
    links[number].result_nbytes
    for axis in along
    for number in _crossing(links, axis, placement)
  )
  if one.carries == 'all-gather' and along and returns:
    return one.result_nbytes * inside
  if not along or one.carries in _SUMS:
    return one.nbytes * inside
  per_device = placement.total * inside / placement.mesh.size
  return one.nbytes * inside / max(1, per_device)


def sent(
  found: Iterable[_collectives.Collective],
  axis: str,
  setup: build.Setup,
  links: Sequence[transforms.Link],
  lengths: Sequence[int],
) -> tuple[float, int]:
  """Returns what crosses an axis when a program runs, per replica.

  Args:
    found: Collectives of the program.
    axis: A replica axis.
    setup: The run.
    links: Its links.
    lengths: Lengths of the program's loops.

  Returns:
    Bytes that count, and bytes beside them that fill whole tiles.
  """
  across = [
    (one, crossed)
    for one in found
    if axis in (crossed := _collectives.axes(one, setup.placement.mesh))
  ]
  # An all-reduce in parts: what a replica contributes enters the first.
  is_cut = any(one.op == 'reduce-scatter' for one, _ in across)
  nbytes, padding = 0.0, 0
  for one, crossed in across:
    if is_cut and (one.carries == 'all-gather' or one.op == 'send'):
      continue
    times = one.times(lengths)
    nbytes += times * payload(one, crossed, setup, links)
    padding += times * one.padding * _num_inside(setup.placement)
  return nbytes, padding


def total(
  axis: str,
  setup: build.Setup,
  links: Sequence[transforms.Link],
  runs: Sequence[tuple[float, int]],
) -> Total:
  """Compares what crosses a replica axis in a run with the ledger.

  Args:
    axis: The axis.
    setup: The run.
    links: Its links.
    runs: What :func:`sent` returned for each program that the run runs.
  """
  placement = setup.placement
  inside, count = _num_inside(placement), placement.num_replicas[axis]
  shards = _links(setup, lambda shape: shape)
  # Of a leaf each replica owns as many values, the last one some too many.
  rows = _links(setup, lambda shape: (-(-math.prod(shape) // count),))
  ledger = least = most = 0
  for number in _crossing(links, axis, placement):
    claim = _claim(setup, links[number])
    shard = inside * _claim(setup, shards[number])
    is_cut = links[number].op == 'all-to-all'
    owned = inside * count * _claim(setup, rows[number]) * is_cut
    ledger += claim
    least += min(claim, shard)
    most += max(claim, shard, owned)
  compiled = round(sum(nbytes for nbytes, _ in runs))
  padding = sum(padding for _, padding in runs)
  return Total(axis, compiled, ledger, least, most, padding)


def one_replica(setup: build.Setup) -> Any:
  """Returns the abstract params and optimizer state of a replica."""

  def init():
    params = setup.model.init(jax.random.key(0))
    return params, setup.tx.init(params)

  return jax.eval_shape(init)


def _num_inside(placement) -> int:
  """Returns the number of devices inside a replica."""
  return (
    placement.mesh.shape[replicas.FSDP] * placement.mesh.shape[replicas.TENSOR]
  )


def _crossing(links, axis, placement) -> list[int]:
  """Numbers the links that communicate along a replica axis."""
  names = set(placement.mapped(axis))
  return [
    number
    for number, link in enumerate(links)
    if names & set(link.axis_names) and placement.num_replicas[axis] > 1
  ]


def _links(setup, change: Callable) -> list[transforms.Link]:
  """Returns the links as if a device's shards, changed, were all there is."""
  tree = one_replica(setup)

  def own(leaf, sharding):
    shape = change(sharding.shard_shape(leaf.shape))
    return jax.ShapeDtypeStruct(shape, leaf.dtype)

  wanted = replicas.shardings(tree, setup.placement, None)
  params, opt_state = jax.tree.map(own, tree, wanted)
  return transforms.links(opt_state, params)


def _claim(setup, link) -> int:
  """Returns the bytes of a link in a whole run, by the ledger's count."""
  link = link._replace(nbytes=link.nbytes + link.result_nbytes)
  [row] = _ledger.advance(
    _ledger.start(1),
    [link],
    1,
    setup.num_steps,
    tokens_per_step=0,
    final=setup.final,
  )
  return row['bytes_sent']
