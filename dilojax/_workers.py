"""Workers, servers, times and links, from a config."""

from collections.abc import Mapping, Sequence
import pathlib
from typing import Any

import optax

from dilojax import _choices
from dilojax import _optimizer
from dilojax import asynchronous
from dilojax import exact
from dilojax import simulate
from dilojax import transforms


def is_asynchronous(config: Mapping[str, Any]) -> bool:
  """Tells whether a config has workers and servers, on a virtual clock."""
  return config.get('method') in _choices.ASYNCHRONOUS


def sends_gradients(config: Mapping[str, Any]) -> bool:
  """Tells whether a round is a gradient, and not inner steps."""
  return config['method'] in _choices.GRADIENTS


def make(
  config: Mapping[str, Any], work: asynchronous.Work
) -> asynchronous.System:
  """Builds the system of a config.

  Args:
    config: The config, its fields checked.
    work: What a worker does in a round.

  Returns:
    The system, checked.

  Raises:
    ValueError: If the parts do not fit together.
  """
  count = config['num_workers']
  network = _network(config)
  servers = _servers(config, network)
  of = [0] * count
  if config['method'] == 'halos':
    of = [1 + site for site in network.worker_sites]
  fields = config['network']
  shared = {'none': (), 'both': ('inside', 'between')}
  wanted = fields.get('shared', 'none')
  system = asynchronous.System(
    workers=tuple(
      asynchronous.Worker(steps, server)
      for steps, server in zip(num_steps(config), of)
    ),
    servers=servers,
    work=work,
    times=_times(config),
    network=network,
    shared=shared.get(wanted, (wanted,)),
    crashes=_crashes(config),
    nbytes=fields.get('message_bytes') or None,
  )
  asynchronous.check(system)
  return system


def check(config: Mapping[str, Any]) -> None:
  """Checks what goes together in a config, its fields checked.

  Raises:
    ValueError: If something does not.
  """
  mesh = config['mesh']
  if max(mesh['fsdp'], mesh['tensor']) > 1:
    raise ValueError(
      '`mesh.fsdp` and `mesh.tensor` must be 0 or 1 with `method`'
      f' {config["method"]!r}: a worker has one device. Got {mesh["fsdp"]} and'
      f' {mesh["tensor"]}.'
    )
  if sends_gradients(config) and not _is_plain(config['inner']):
    raise ValueError(
      f'`inner` has no effect with `method` {config["method"]!r}, whose workers'
      " send gradients: choose `inner.name` 'sgd' with `inner.momentum` 0,"
      " `inner.schedule` 'constant' without warm-up, and `inner.clip_norm`"
      ' inf.'
    )
  nothing: Any = lambda *given: given
  make(config, asynchronous.Work(nothing, nothing, nothing))


def _is_plain(inner):
  return (
    (inner['name'], inner['schedule']) == ('sgd', 'constant')
    and not inner['momentum']
    and not inner['warmup_steps']
    and inner['clip_norm'] == float('inf')
  )


def num_steps(config: Mapping[str, Any]) -> tuple[int, ...]:
  """Returns the inner steps of a round of each worker."""
  if sends_gradients(config):
    return (1,) * config['num_workers']
  rounding = config['steps_by_speed']
  if rounding == 'equal':
    return (config['every'],) * config['num_workers']
  if 'speeds' not in config['times']:
    raise ValueError(
      f'`steps_by_speed` {rounding!r} needs `times.speeds`, which `times.name`'
      f" {config['times']['name']!r} does not have: choose 'equal'."
    )
  return simulate.rounds_by_speed(
    config['every'], _speeds(config), rounding=rounding
  )


def _servers(config, network):
  method, site = config['method'], network.server_site
  if method == 'synchronous':
    outer = _optimizer.make_outer(config['outer'])
    if 'quorum' in config:
      quorum = config['quorum']
      return (
        asynchronous.Server(
          outer,
          quorum=quorum['count'],
          grace=quorum['grace'],
          is_weighted=quorum['weighted'],
          site=site,
        ),
      )
    ring = lambda nbytes: simulate.ring_seconds(network, nbytes)
    return (
      asynchronous.Server(
        outer,
        quorum=config['num_workers'],
        meet=ring if config['exchange'] == 'ring' else None,
        site=site,
      ),
    )
  fields = config['server']
  if method == 'halos':
    local = config['local']
    return (
      asynchronous.Server(_delayed_nesterov(fields), site=site),
      *(
        asynchronous.Server(
          _delayed_nesterov(local),
          parent=0,
          push_every=local['push_every'],
          alpha=local['alpha'],
          site=each,
        )
        for each in range(len(network.links))
      ),
    )
  if method == 'async_local_sgd':
    rule = _delayed_nesterov(fields)
    staleness = config.get('staleness', {})
    if 'compensation' in config:
      compensate = transforms.compensate_delay(config['compensation'])
      rule = optax.chain(compensate, rule)
    if staleness.get('weight') == 'drop':
      rule = transforms.drop_stale(rule, staleness['limit'])
    elif staleness:
      weight = {
        'polynomial': lambda: transforms.polynomial(staleness['power']),
        'hinge': lambda: transforms.hinge(
          staleness['slope'], staleness['start']
        ),
      }[staleness['weight']]()
      rule = optax.chain(transforms.scale_by_staleness(weight), rule)
    return (asynchronous.Server(rule, grace=fields['grace'], site=site),)
  return (asynchronous.Server(_gradient_rule(config), site=site),)


def _gradient_rule(config):
  fields, count = config['server'], config['num_workers']
  sgd = optax.sgd(fields['lr'])
  return {
    'ringleader': lambda: transforms.ringleader(sgd, count),
    'malenia': lambda: transforms.malenia(sgd, count),
    'rennala': lambda: transforms.rennala(sgd, fields['batch']),
    'ringmaster': lambda: transforms.ringmaster(sgd, fields['limit']),
    'ia2sgd': lambda: optax.chain(transforms.gradient_table(count), sgd),
  }[config['method']]()


def _delayed_nesterov(fields):
  return transforms.delayed_nesterov(
    fields['lr'], fields['momentum'], every=fields['every'], c=fields['c']
  )


def _times(config):
  fields, count = config['times'], config['num_workers']
  name, seed = fields['name'], config['seed']
  if name == 'ringleader':
    return simulate.ringleader_times(count, seed=seed)
  if name == 'measured':
    table = simulate.read_step_seconds(fields['path'])
    return simulate.measured_times(table, order=fields['order'], seed=seed)
  speeds = _speeds(config)
  base = [fields['step_seconds'] / speed for speed in speeds]
  zeros = [0.0] * count
  return {
    'fixed': lambda: simulate.fixed_times(fields['step_seconds'], speeds),
    'log_normal': lambda: simulate.log_normal_times(
      zeros, log_std=fields['log_std'], scale=base, seed=seed
    ),
    'log_cauchy': lambda: simulate.log_cauchy_times(
      zeros,
      log_scale=fields['log_scale'],
      scale=base,
      longest=fields['longest'],
      seed=seed,
    ),
    'half_normal': lambda: simulate.half_normal_times(
      base, variance=fields['variance'], seed=seed
    ),
    'stalls': lambda: simulate.bernoulli_times(
      base,
      probability=fields['probability'],
      stall=fields['stall'],
      seed=seed,
    ),
  }[name]()


def _speeds(config) -> Sequence[float]:
  """Returns the speed of each worker, from a text of numbers."""
  text, count = config['times']['speeds'], config['num_workers']
  try:
    speeds = [float(word) for word in text.split()]
  except ValueError:
    speeds = []
  if len(speeds) == 1:
    speeds *= count
  if len(speeds) != count:
    raise ValueError(
      f'`times.speeds` must be one number, or one for each of the {count}'
      f' workers, separated by spaces, got {text!r}.'
    )
  return speeds


def _network(config):
  fields, count = config['network'], config['num_workers']
  if fields['name'] == 'instant':
    return simulate.connect([[float('inf')]], [0] * count)
  if fields['name'] == 'even':
    link = lambda gbit: simulate.Link(1e9 * gbit, fields['latency'])
    return simulate.two_levels(
      simulate.even_sites(count, fields['num_sites']),
      inside=link(fields['inside_gbit']),
      between=link(fields['between_gbit']),
    )
  path = pathlib.Path(fields['path'])
  try:
    rows = exact.read(path)
    names = [row['region'] for row in rows]
    table = [[1e9 * float(row[name]) for name in names] for row in rows]
  except (OSError, KeyError, ValueError) as error:
    raise ValueError(
      f'`network.path` {str(path)!r} must be a CSV file with the columns'
      ' `region` and one for each region, in Gbit/s:'
      f' {type(error).__name__}: {error}.'
    ) from error
  return simulate.connect(
    table, simulate.even_sites(count, len(names)), latency=fields['latency']
  )


def _crashes(config):
  if 'crashes' not in config:
    return None
  return simulate.random_crashes(
    config['num_workers'], **config['crashes'], seed=config['seed']
  )
