"""All-reduces over sites: in a ring, through one site, in a tree."""

from collections.abc import Sequence
import functools
import itertools
import math
from typing import NamedTuple

from dilojax.simulate import _exchanges
from dilojax.simulate import _latency
from dilojax.simulate import _network
from dilojax.simulate import _wall_clock

# (9 - 1)! = 40,320 orders take a tenth of a second.
MOST_SITES = 9


class Ring(NamedTuple):
  """An order of sites in which each sends to the next, the last to the first.

  Attributes:
    order: The sites, from the one with the smallest number.
    bandwidth: Bits per second of its slowest link. Infinity with one site,
      which has no link.
  """

  order: tuple[int, ...]
  bandwidth: float


def best_ring(bandwidths: Sequence[Sequence[float]]) -> Ring:
  r"""Returns the ring of all sites whose slowest link is fastest.

  .. math::

    \max_{\text{orders } \pi} \min_i W_{\pi_i \pi_{i+1}}

  All cyclic orders are compared, both ways round. Of equally good ones, it is
  the first in lexicographic order.

  Args:
    bandwidths: Bits per second from each site to each site, 0 without a link.
      The diagonal has no part in it.

  Returns:
    The ring.

  Raises:
    ValueError: If the matrix is not square, a number is below 0, there are
      more than 9 sites, or no ring connects them.

  Examples:
    >>> from dilojax import simulate
    >>> simulate.best_ring([[0, 5, 1, 4], [5, 0, 6, 1], [1, 6, 0, 7],
    ...                     [4, 1, 7, 0]])
    Ring(order=(0, 1, 2, 3), bandwidth=4.0)
  """
  rows = tuple(tuple(row) for row in bandwidths)
  if not rows or any(len(row) != len(rows) for row in rows):
    raise ValueError(
      '`bandwidths` must have a row and a column for each site, got rows of'
      f' {[len(row) for row in rows]}.'
    )
  if len(rows) > MOST_SITES:
    raise ValueError(
      f'`bandwidths` must have at most {MOST_SITES} sites, since all orders are'
      f' compared, got {len(rows)}: group sites that are close to one another.'
    )
  for value in itertools.chain(*rows):
    if not _exchanges.is_number(value) or not value >= 0:
      raise ValueError(f'`bandwidths` must be at least 0, got {value!r}.')
  ring = _best(rows)
  if not ring.bandwidth:
    raise ValueError(
      '`bandwidths` connect no ring: in every order of the'
      f' {len(rows)} sites a link is missing.'
    )
  return ring


@functools.lru_cache(maxsize=64)
def _best(rows):
  """Compares all orders that start with site 0."""
  orders = ((0, *rest) for rest in itertools.permutations(range(1, len(rows))))
  slowest = lambda order: min(
    (rows[a][b] for a, b in hops(order)), default=math.inf
  )
  best = max(orders, key=slowest)
  return Ring(best, float(slowest(best)))


def hops(order: Sequence[int]) -> list[tuple[int, int]]:
  """Returns the links of a ring, none for one site."""
  if len(order) < 2:
    return []
  return list(zip(order, [*order[1:], order[0]]))


def ring_seconds(network: _network.Network, nbytes: float) -> float:
  r"""Returns how long all workers need for an all-reduce in the best ring.

  The ring goes from site to site, and through the workers of each. With
  :math:`n` workers, :math:`W` the bandwidth of the slowest link of the ring
  and :math:`\varepsilon` the largest latency,

  .. math::

    2 \frac{n - 1}{n} \cdot \frac{8 N}{W} + 2 (n - 1) \varepsilon,

  which is 0 for one worker. Sites without workers are left out.

  Args:
    network: The network.
    nbytes: Size :math:`N` of the whole message in bytes.

  Returns:
    Seconds.

  Raises:
    ValueError: If no ring connects the workers, there are too many sites, or
      `nbytes` is below 0.

  Examples:
    >>> from dilojax import simulate
    >>> network = simulate.connect([[8.0, 8.0], [8.0, 8.0]], [0, 1])
    >>> simulate.ring_seconds(network, 3)
    3.0
  """
  _network.check_nbytes(nbytes)
  num_workers = len(network.worker_sites)
  if num_workers == 1:
    return 0.0
  links = [_network.link_of(network, *pair) for pair in worker_ring(network)]
  latency = max(link.latency for link in links)
  slowest = _exchanges.Link(
    min(link.bandwidth for link in links), 2 * (num_workers - 1) * latency
  )
  return _wall_clock.all_reduce_seconds(8 * nbytes, num_workers, slowest)


def worker_ring(network: _network.Network) -> list[tuple[int, int]]:
  """Returns the links of the workers' ring: the best one of their sites.

  That inside a site stands for those between all of its workers.

  Args:
    network: The network.

  Returns:
    Pairs of sites, those of a link inside a site being equal.

  Raises:
    ValueError: If no ring connects the workers, or there are too many sites.

  Examples:
    >>> from dilojax import simulate
    >>> network = simulate.connect([[9.0, 8.0], [8.0, 9.0]], [0, 0, 1])
    >>> simulate.worker_ring(network)
    [(0, 1), (1, 0), (0, 0)]
  """
  sites = sorted(set(network.worker_sites))
  table = network.bandwidths
  ring = best_ring([[table[a][b] for b in sites] for a in sites])
  outer = hops([sites[index] for index in ring.order])
  inner = [(a, a) for a in sites if network.worker_sites.count(a) > 1]
  return outer + inner


def star_seconds(
  network: _network.Network, nbytes: float, *, center: int | None = None
) -> float:
  """Returns how long all workers need for an all-reduce through one site.

  All send their messages, and get the mean once the last has arrived. Each has
  its link to itself, also where two are in one site.

  Args:
    network: The network.
    nbytes: Size of the message in bytes.
    center: The site in the middle, that of the server by default.

  Returns:
    Seconds.

  Raises:
    ValueError: If a link is missing, or `nbytes` is below 0.

  Examples:
    >>> from dilojax import simulate
    >>> network = simulate.connect([[8.0, 4.0], [8.0, 8.0]], [0, 1])
    >>> simulate.star_seconds(network, 3)
    9.0
  """
  center = network.server_site if center is None else center
  sites = set(network.worker_sites)
  seconds = functools.partial(_network.transfer_seconds, network)
  up = max(seconds(site, center, nbytes) for site in sites)
  return up + max(seconds(center, site, nbytes) for site in sites)


def tree_seconds(network: _network.Network, nbytes: float) -> float:
  r"""Returns how long all workers need for an all-reduce in a tree.

  :math:`2 \log_2 n` messages of :math:`n` workers follow one another, each as
  slow as the slowest between two of them.

  Args:
    network: The network.
    nbytes: Size of the message in bytes.

  Returns:
    Seconds.

  Raises:
    ValueError: If a link is missing, or `nbytes` is below 0.

  Examples:
    >>> from dilojax import simulate
    >>> network = simulate.connect([[8.0]], [0, 0, 0, 0], latency=1.0)
    >>> simulate.tree_seconds(network, 3)
    16.0
  """
  workers = network.worker_sites
  pairs = set(itertools.permutations(workers, 2))
  slowest = max(
    (_network.transfer_seconds(network, *pair, nbytes) for pair in pairs),
    default=0.0,
  )
  return _latency.tree_all_reduce_time(len(workers)) * slowest
