"""Sites, the links between them, and what is in flight."""

from collections.abc import Sequence
import math
from typing import Any, NamedTuple

import numpy as np

from dilojax.simulate import _exchanges


class Network(NamedTuple):
  """Sites, with the workers and the server in them; see :func:`connect`.

  Attributes:
    links: A row for each site: its links to all sites, in one direction. That
      to itself is for what stays inside. None where there is no link.
    worker_sites: The site of each worker.
    server_site: The site of the server; the global one if there are several.
  """

  links: tuple[tuple[_exchanges.Link | None, ...], ...]
  worker_sites: tuple[int, ...]
  server_site: int

  @property
  def bandwidths(self) -> list[list[float]]:
    """Bits per second from each site to each site, 0 without a link."""
    return [
      [link.bandwidth if link else 0.0 for link in row] for row in self.links
    ]


def connect(
  bandwidths: Sequence[Sequence[float]],
  worker_sites: Sequence[int],
  *,
  latency: float | Sequence[Sequence[float]] = 0.0,
  server_site: int = 0,
) -> Network:
  """Connects sites.

  Args:
    bandwidths: Bits per second from each site to each site, a row for each
      site that sends; on the diagonal those inside a site. 0 where there is no
      link. Infinity makes messages take no time beyond the latency.
    worker_sites: The site of each worker, from 0. See :func:`even_sites`.
    latency: Seconds that a message of any size takes beyond its bits: one
      number for all links, or as many as bandwidths.
    server_site: The site of the server.

  Returns:
    The network.

  Raises:
    ValueError: If a matrix is not square, a number is out of range, or a site
      is not there.

  Examples:
    >>> from dilojax import simulate
    >>> network = simulate.connect([[1e9, 1e6], [2e6, 1e9]], [0, 0, 1])
    >>> simulate.transfer_seconds(network, 1, 0, 1_000_000)
    4.0
  """
  table = _matrix('bandwidths', bandwidths)
  size = len(table)
  delays = _matrix('latency', latency, size)
  if not (table >= 0).all():
    raise ValueError(
      '`bandwidths` must be at least 0, with 0 where there is no link, got'
      f' {table.tolist()}.'
    )
  if not ((delays >= 0) & np.isfinite(delays)).all():
    raise ValueError(
      f'`latency` must be finite and at least 0, got {delays.tolist()}.'
    )
  sites = tuple(worker_sites)
  if not sites:
    raise ValueError('`worker_sites` must have one for each worker, got none.')
  for name, site in (
    *(('worker_sites', site) for site in sites),
    ('server_site', server_site),
  ):
    if not _exchanges.is_int(site) or not 0 <= site < size:
      raise ValueError(
        f'`{name}` must be ints from 0 to {size - 1}, since `bandwidths` has'
        f' {size} sites, got {site!r}.'
      )
  numbers = range(size)
  links = tuple(
    tuple(
      _exchanges.Link(float(table[a, b]), float(delays[a, b]))
      if table[a, b]
      else None
      for b in numbers
    )
    for a in numbers
  )
  return Network(links, tuple(map(int, sites)), server_site)


def two_levels(
  worker_sites: Sequence[int],
  *,
  inside: _exchanges.Link,
  between: _exchanges.Link,
  server_site: int = 0,
) -> Network:
  """Connects sites that are all alike, and equally far from one another.

  Args:
    worker_sites: The site of each worker, from 0.
    inside: The link inside each site.
    between: The link from each site to each other site.
    server_site: The site of the server; it may be one without workers.

  Returns:
    The network.

  Raises:
    ValueError: If a number is out of range.

  Examples:
    >>> from dilojax import simulate
    >>> network = simulate.two_levels([0, 0, 1, 1],
    ...   inside=simulate.Link(1e11), between=simulate.Link(1e9, latency=0.5))
    >>> simulate.transfer_seconds(network, 0, 1, 125_000_000)
    1.5
  """
  sites = [*worker_sites, server_site]
  if not all(_exchanges.is_int(site) and site >= 0 for site in sites):
    raise ValueError(
      '`worker_sites` and `server_site` must be ints of at least 0, got'
      f' {list(worker_sites)} and {server_site!r}.'
    )
  numbers = range(max(sites) + 1)
  pick = lambda one, other: inside if one == other else between
  return connect(
    [[pick(one, other).bandwidth for other in numbers] for one in numbers],
    worker_sites,
    latency=[
      [pick(one, other).latency for other in numbers] for one in numbers
    ],
    server_site=server_site,
  )


def even_sites(num_workers: int, num_sites: int) -> tuple[int, ...]:
  """Puts equally many workers on each site, such as one with a server.

  Args:
    num_workers: Number of workers.
    num_sites: Number of sites; it divides `num_workers`.

  Returns:
    The site of each worker; those of a site follow one another.

  Raises:
    ValueError: If they do not go up.

  Examples:
    >>> from dilojax import simulate
    >>> simulate.even_sites(6, 3)
    (0, 0, 1, 1, 2, 2)
  """
  _exchanges.check_count('num_workers', num_workers)
  _exchanges.check_count('num_sites', num_sites)
  if num_workers % num_sites:
    raise ValueError(
      f'`num_sites` ({num_sites}) must divide `num_workers` ({num_workers}):'
      ' each site, or each server, has equally many. Choose other numbers, or'
      ' name the site of each worker.'
    )
  size = num_workers // num_sites
  return tuple(worker // size for worker in range(num_workers))


def check_workers(num_workers: int, **parts: Any):
  """Refuses parts of a clock that are made for other workers.

  Args:
    num_workers: Number of workers.
    **parts: By name, what has a number of workers: a :class:`Network`, or what
      has a field `num_workers`, such as :class:`WorkerTimes`, or a sequence
      with something for each worker.

  Raises:
    ValueError: If one has another number.

  Examples:
    >>> from dilojax import simulate
    >>> times = simulate.fixed_times(1.0, [1.0, 0.5])
    >>> simulate.check_workers(2, times=times, every=[8, 4])
  """
  for name, part in parts.items():
    if isinstance(part, Network):
      found = len(part.worker_sites)
    else:
      found = getattr(part, 'num_workers', None)
      found = len(part) if found is None else found
    if found != num_workers:
      raise ValueError(
        f'`{name}` must be for as many workers as there are, {num_workers}, got'
        f' {found}.'
      )


def transfer_seconds(
  network: Network, source: int, target: int, nbytes: float
) -> float:
  r"""Returns how long a message takes that has its link to itself.

  .. math::

    \varepsilon_{ab} + 8 N / W_{ab}

  Args:
    network: The network.
    source: The site :math:`a` that sends.
    target: The site :math:`b` that receives.
    nbytes: Size :math:`N` of the message in bytes.

  Returns:
    Seconds.

  Raises:
    ValueError: If there is no such site or link, or `nbytes` is below 0.

  Examples:
    >>> from dilojax import simulate
    >>> network = simulate.connect([[8e9]], [0], latency=0.25)
    >>> simulate.transfer_seconds(network, 0, 0, 1_000_000_000)
    1.25
  """
  link = link_of(network, source, target)
  check_nbytes(nbytes)
  return link.latency + 8 * nbytes / link.bandwidth


def link_of(network: Network, source: int, target: int) -> _exchanges.Link:
  """Returns a link, or refuses what is not connected."""
  num_sites = len(network.links)
  for name, site in (('source', source), ('target', target)):
    if not _exchanges.is_int(site) or not 0 <= site < num_sites:
      raise ValueError(
        f'`{name}` must be a site from 0 to {num_sites - 1}, got {site!r}.'
      )
  link = network.links[source][target]
  if link is None:
    where = f'inside site {source}'
    if source != target:
      where = f'from site {source} to site {target}'
    raise ValueError(
      f'There is no link {where}: `bandwidths[{source}][{target}]` must be'
      ' above 0 for a message to go there, got 0.'
    )
  return link


def check_nbytes(nbytes: float):
  """Refuses what is no size of a message."""
  if not 0 <= nbytes < math.inf:
    raise ValueError(f'`nbytes` must be finite and at least 0, got {nbytes}.')


def _matrix(name, values, size=None):
  """Returns a square matrix, made of one number if a size is given."""
  try:
    array = np.asarray(values, np.float64)
  except (TypeError, ValueError):  # Ragged, or no numbers.
    array = np.zeros(0)
  if size and not array.ndim and not isinstance(values, str):
    array = np.full((size, size), array)
  square = array.ndim == 2 and array.shape == (size or len(array),) * 2
  if not square or not len(array):
    raise ValueError(
      f'`{name}` must have a row and a column for each site'
      f'{f" ({size})" if size else ""}, got {values!r}.'
    )
  return array
