"""What an asynchronous training consists of: workers, servers, links, times."""

from collections.abc import Callable
from typing import Any, NamedTuple

import optax

from dilojax import simulate

Params = Any


class Worker(NamedTuple):
  """One that trains in rounds, from the params that its server hands out.

  Attributes:
    num_steps: Inner steps of a round.
    server: Number of its server.
  """

  num_steps: int
  server: int = 0


class Server(NamedTuple):
  """One that holds params, and moves them when messages arrive.

  Without `quorum` a message is applied when it arrives. With it, an update
  waits for so many and has their mean.

  Attributes:
    rule: Optimizer of its params. Its `update` gets a message, and without
      `quorum` also `worker`, the sender's number among those that send to it,
      `staleness`, the updates since the sender got its params, and `launched`,
      these params. See :func:`dilojax.delayed_nesterov`.
    parent: Number of the server that it sends to, None for the last.
    push_every: Arrivals from the moment at which it has the parent's params to
      its next message.
    alpha: Weight of its own params when the parent's arrive.
    quorum: Messages that an update waits for, None for none.
    grace: Seconds for which more messages are waited for, after the last that
      had to come; those of one such time are answered together.
    is_weighted: Whether a mean is weighted by inner steps.
    meet: From the bytes of a message to the seconds of a collective in which
      workers exchange theirs; None if they send them to the server.
    site: Where it is, a number of the network.
  """

  rule: optax.GradientTransformation
  parent: int | None = None
  push_every: int | None = None
  alpha: float = 0.0
  quorum: int | None = None
  grace: float = 0.0
  is_weighted: bool = False
  meet: Callable[[int], float] | None = None
  site: int = 0


class Work(NamedTuple):
  """What a worker does in a round.

  Attributes:
    init: From the number of a worker to its private state.
    inputs: From the number of a worker, how many inner steps it has done, how
      many all have done, and how many it does now, to what `run` needs, such
      as batches and learning rates.
    run: From params, private state and inputs to a message, the private state
      after the round, and a dict of scalars. A program of its own: the same
      for all workers, so that nothing depends on what runs beside it.
  """

  init: Callable[[int], Any]
  inputs: Callable[[int, int, int, int], Any]
  run: Callable[[Params, Any, Any], tuple[Params, Any, dict[str, Any]]]


class System(NamedTuple):
  """An asynchronous training.

  Attributes:
    workers: The workers.
    servers: The servers; the last that messages reach comes first.
    work: What a worker does.
    times: How long the inner steps of each worker take.
    network: What lies between the sites of workers and servers.
    shared: The classes of links on which messages wait for each other, see
      :class:`dilojax.simulate.Links`.
    crashes: When workers are down, None for never. A round that is under way
      is lost then, and so is what it did: its data comes again.
    nbytes: Bytes of a message, None for those of the params.
  """

  workers: tuple[Worker, ...]
  servers: tuple[Server, ...]
  work: Work
  times: simulate.WorkerTimes
  network: simulate.Network
  shared: tuple[str, ...] = ()
  crashes: simulate.Crashes | None = None
  nbytes: int | None = None


def check(system: System) -> None:
  """Checks that workers and servers fit together.

  Raises:
    ValueError: If there is no worker, a server that is not there is named, the
      servers are no tree, or a number is out of range.
  """
  workers, servers = system.workers, system.servers
  if not workers or not servers:
    raise ValueError(
      f'`workers` and `servers` must not be empty, got {len(workers)} and'
      f' {len(servers)}.'
    )
  for k, worker in enumerate(workers):
    if not 0 <= worker.server < len(servers):
      raise ValueError(
        f'`workers[{k}].server` must be from 0 to {len(servers) - 1}, got'
        f' {worker.server}.'
      )
    if worker.num_steps < 1:
      raise ValueError(
        f'`workers[{k}].num_steps` must be at least 1, got'
        f' {worker.num_steps}: a round without a step never ends a wait.'
      )
  if servers[0].parent is not None:
    raise ValueError(
      '`servers[0]` is the last that messages reach: its `parent` must be'
      f' None, got {servers[0].parent}.'
    )
  simulate.check_workers(
    len(workers),
    times=system.times,
    network=system.network,
    **({'crashes': system.crashes} if system.crashes else {}),
  )
  for j, server in enumerate(servers):
    _check_server(system, j, server)
  for k, worker in enumerate(workers):
    own, server = system.network.worker_sites[k], servers[worker.server]
    if server.meet is None:
      simulate.transfer_seconds(system.network, own, server.site, 0)
      simulate.transfer_seconds(system.network, server.site, own, 0)


def senders(system: System, server: int) -> list[tuple[str, int]]:
  """Lists who sends to a server: its workers, then servers below it."""
  below = [
    ('server', j)
    for j, each in enumerate(system.servers)
    if each.parent == server
  ]
  own = [
    ('worker', k)
    for k, each in enumerate(system.workers)
    if each.server == server
  ]
  return own + below


def _check_server(system, j, server):
  count = len(senders(system, j))
  if not count:
    raise ValueError(f'`servers[{j}]` has nobody that sends to it.')
  if server.quorum is not None and not 1 <= server.quorum <= count:
    raise ValueError(
      f'`servers[{j}].quorum` must be from 1 to {count}, the number of those'
      f' that send to it, got {server.quorum}.'
    )
  if not 0 <= server.grace < float('inf'):
    raise ValueError(
      f'`servers[{j}].grace` must be a finite number of seconds from 0, got'
      f' {server.grace}.'
    )
  if server.meet is not None and server.quorum != count:
    raise ValueError(
      f'`servers[{j}].meet` needs a `quorum` of all {count}, got'
      f' {server.quorum}: a collective waits for its members.'
    )
  if not 0 <= server.alpha <= 1:
    raise ValueError(
      f'`servers[{j}].alpha` must be from 0 to 1, got {server.alpha}.'
    )
  if j == 0:
    for name in ('push_every', 'alpha'):
      if getattr(server, name):
        raise ValueError(
          f'`servers[0].{name}` has no effect: it sends to nobody.'
        )
    return
  if server.parent is None or not 0 <= server.parent < j:
    raise ValueError(
      f'`servers[{j}].parent` must be from 0 to {j - 1}, got {server.parent}.'
    )
  above = system.servers[server.parent].site
  simulate.transfer_seconds(system.network, server.site, above, 0)
  simulate.transfer_seconds(system.network, above, server.site, 0)
  if server.push_every is None or server.push_every < 1:
    raise ValueError(
      f'`servers[{j}].push_every` must be at least 1, got {server.push_every}.'
    )
