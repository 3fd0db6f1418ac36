"""How long do rounds take in four regions, without a barrier and with one?

The environment of the example that was released with
https://arxiv.org/abs/2506.04531: bandwidths between regions and speeds of 16
workers in the CSVs, an inner step of 64 x 2048 tokens in 238.391 ms at speed 1,
and messages of all params of Pythia-70M: 70,426,624 floats of 32 bits.

    dilojax table experiments/halos/clock.py

All cells follow from these numbers, with the formulas of the released code:

* A message of N bytes takes 8 N / W seconds on a link of W bit/s: `to r0`, ...
  These are also the times from a region's server to the global one in r0.
* An all-reduce of n workers takes 2 (n - 1) / n * 8 N / W seconds, with W the
  slowest link of the ring of regions in which that is fastest, and n = 16. One
  member for each region would take a fifth less: the row `n = 4`.
* A worker with speed v, relative to the fastest, which is the raw 0.907, has
  H_k = max(1, ceil(H v)) steps per round, and computes for 0.238391 H_k / v
  seconds. H is 8 in HALoS and 32 elsewhere; in DiLoCo all have H steps.
* `event`: a message to the worker, its steps, and a message back. The server
  is in the worker's region in HALoS, and in r0 in Async Local-SGD. With a
  barrier it is the round: the slowest worker's steps, then the all-reduce.
* `steps/s`: the sum over workers of H_k over the time of their event, and `of
  DiLoCo` its ratio to DiLoCo's. A stale step, or one of a shorter round, counts
  in full: this says nothing of the loss.

The paper prints no values for these, so there are none beside ours. Expected:
the slowest worker holds up DiLoCo; with H_k the all-reduce is most of a round;
without a barrier only workers far from their server wait, and in HALoS nobody
does for more than a few percent of the time.
"""

from collections.abc import Sequence
import math
import pathlib
from typing import NamedTuple

from dilojax import exact
from dilojax import simulate

NUM_PARAMS = 70_426_624
NBYTES = 4 * NUM_PARAMS
STEP_SECONDS = 0.238391
HALOS_EVERY = 8
EVERY = 32
HERE = pathlib.Path(__file__).parent


class Environment(NamedTuple):
  """What the CSVs say.

  Attributes:
    regions: Names of the regions.
    network: Regions, links between them, and the workers in them.
    speeds: Speed of each worker, relative to the fastest one.
  """

  regions: tuple[str, ...]
  network: simulate.Network
  speeds: tuple[float, ...]


def environment() -> Environment:
  """Returns the published environment; the global server is in r0."""
  links = exact.read(HERE / 'bandwidth.csv')
  regions = tuple(row['region'] for row in links)
  speeds, sites = [], []
  for row in exact.read(HERE / 'speeds.csv'):
    region = regions.index(row.pop('region'))
    speeds += map(float, row.values())
    sites += [region] * len(row)
  network = simulate.connect(
    [[1e9 * float(row[region]) for region in regions] for row in links], sites
  )
  fastest = max(speeds)
  return Environment(regions, network, tuple(v / fastest for v in speeds))


def compute() -> list[exact.Cell]:
  """Returns the cells: links, workers, methods."""
  regions, network, _ = environment()
  cells = []
  for source, region in enumerate(regions):
    for target, other in enumerate(regions):
      seconds = simulate.transfer_seconds(network, source, target, NBYTES)
      cells.append(exact.Cell(region, f'to {other}, s', seconds))
  ring = simulate.best_ring(network.bandwidths)
  name = f'ring {"-".join(regions[site] for site in ring.order)}'
  one_each = network._replace(worker_sites=tuple(range(len(regions))))
  for row, members in ((name, network), (f'{name}, n = 4', one_each)):
    seconds = simulate.ring_seconds(members, NBYTES)
    cells += [
      exact.Cell(row, 'Gbit/s', ring.bandwidth / 1e9),
      exact.Cell(row, 'all-reduce, s', seconds),
    ]
  halos = asynchronous(HALOS_EVERY, network.worker_sites)
  single = asynchronous(EVERY, [network.server_site] * len(halos.rounds))
  for method, run in (('HALoS', halos), ('Async', single)):
    for worker, steps in enumerate(run.rounds):
      row = f'{method}, worker {worker}'
      cells += [
        exact.Cell(row, 'steps', steps),
        exact.Cell(row, 'compute, s', run.compute[worker]),
        exact.Cell(row, 'event, s', run.events[worker]),
      ]
  diloco, dynamic = synchronous(scaled=False), synchronous(scaled=True)
  for method, run in (
    ('DiLoCo', diloco),
    ('DiLoCo+DynUpd', dynamic),
    ('Async Local-SGD', single),
    ('HALoS', halos),
  ):
    cells.append(exact.Cell(method, 'steps', sum(run.rounds)))
    if run in (diloco, dynamic):
      cells += [
        exact.Cell(method, 'compute, s', max(run.compute)),
        exact.Cell(method, 'event, s', max(run.events)),
      ]
    cells += [
      exact.Cell(method, 'steps/s', throughput(run)),
      exact.Cell(method, 'of DiLoCo', throughput(run) / throughput(diloco)),
    ]
  return cells


class Run(NamedTuple):
  """What the workers do, again and again.

  Attributes:
    rounds: Inner steps of each worker per event.
    compute: Seconds that these take.
    events: Seconds of an event, messages included.
  """

  rounds: tuple[int, ...]
  compute: tuple[float, ...]
  events: tuple[float, ...]


def asynchronous(every: int, servers: Sequence[int]) -> Run:
  """Returns what workers do that wait for nobody.

  Args:
    every: Number of inner steps of the fastest worker.
    servers: The site of each worker's server.

  Returns:
    Rounds, and their times.
  """
  _, network, speeds = environment()
  rounds = simulate.rounds_by_speed(every, speeds, rounding='ceil')
  compute = _compute(rounds)
  return Run(
    rounds,
    compute,
    tuple(
      simulate.transfer_seconds(network, server, site, NBYTES)
      + seconds
      + simulate.transfer_seconds(network, site, server, NBYTES)
      for server, site, seconds in zip(servers, network.worker_sites, compute)
    ),
  )


def synchronous(*, scaled: bool) -> Run:
  """Returns what workers do that wait for all, with equal rounds or H_k."""
  _, network, speeds = environment()
  rounds = (EVERY,) * len(speeds)
  if scaled:
    rounds = simulate.rounds_by_speed(EVERY, speeds, rounding='ceil')
  compute = _compute(rounds)
  event = max(compute) + simulate.ring_seconds(network, NBYTES)
  return Run(rounds, compute, (event,) * len(rounds))


def throughput(run: Run) -> float:
  """Returns inner steps per second of all workers together."""
  return math.fsum(
    steps / seconds for steps, seconds in zip(run.rounds, run.events)
  )


def _compute(rounds):
  times = simulate.fixed_times(STEP_SECONDS, environment().speeds)
  return tuple(
    times.seconds(worker, 0, steps) for worker, steps in enumerate(rounds)
  )
