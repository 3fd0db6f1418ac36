"""Which fields a config has, given its choices, and whether they fit."""

from collections.abc import Mapping
from typing import Any

from dilojax import _choices
from dilojax import _functions
from dilojax import _kinds
from dilojax import _near


def check(config: Mapping) -> None:
  """Raises a ValueError that names every field that is not as it must be."""
  want, have = expected(config), flatten(config)
  problems = [
    *(
      _wrong(name, value, want[name])
      if name in want
      else _superfluous(name, value, want, have)
      for name, value in have.items()
    ),
    *(
      f'`{name}` is missing: it must be {field.allowed}.'
      for name, field in want.items()
      if name not in have
    ),
  ]
  found = [problem for problem in problems if problem]
  if found:
    raise ValueError('\n'.join(found))


def expected(config: Mapping) -> dict[str, _kinds.Field]:
  """Returns the fields that a config must have, by dotted name."""
  data = _below(
    'data', {'batch_size': _kinds.at_least(1), **_chosen('data', config)}
  )
  corpus = _group(config, 'data')
  if corpus.get('corpus') in _choices.CLUSTERED and corpus.get('non_iid'):
    data['data.num_clusters'] = _kinds.at_least(2)
  inner = {
    'peak_lr': _kinds.POSITIVE,
    'warmup_steps': _kinds.at_least(0),
    'clip_norm': _kinds.LIMIT,
    'accumulate': _kinds.at_least(1),
    **_chosen('inner', config),
  }
  mesh = {
    'num_devices': _kinds.COUNT,
    'fsdp': _kinds.COUNT,
    'tensor': _kinds.at_least(1),
  }
  return {
    **_choices.TOP,
    **_of_method(config),
    **_below('inner', inner),
    **data,
    **_below('model', _chosen('model', config)),
    **_below('mesh', mesh),
  }


def flatten(config: Mapping, prefix: str = '') -> dict[str, Any]:
  """Returns the fields of nested groups by dotted name.

  A group without fields counts as one, so that it does not pass unseen.
  """
  flat = {}
  for name, value in config.items():
    path = f'{prefix}{name}'
    is_full = isinstance(value, Mapping) and value
    flat |= flatten(value, f'{path}.') if is_full else {path: value}
  return flat


def _group(config, name):
  """Returns a group, empty if it is missing or no group."""
  group = config.get(name)
  return group if isinstance(group, Mapping) else {}


def _below(
  prefix: str, fields: Mapping[str, _kinds.Field]
) -> dict[str, _kinds.Field]:
  return {f'{prefix}.{name}': field for name, field in fields.items()}


def _chosen(name: str, config: Mapping) -> dict[str, _kinds.Field]:
  """Returns the fields of a group that depend on the choices in it."""
  group, fields = _group(config, name), {}
  for key, choices in _choices.CHOICES[name].items():
    choice = group.get(key)
    if name == 'outer' and _functions.is_reference(choice):
      fields |= {key: _choices.OUTER, **_arguments(choice, group)}
      continue
    brings = choices.get(choice, {}) if isinstance(choice, str) else {}
    field = _choices.OUTER if name == 'outer' else _kinds.one_of(*choices)
    fields |= {key: field, **brings}
  return fields


def _arguments(reference, group):
  """Returns the arguments that a function must get, and those it gets."""
  return {
    name: _kinds.ANNOTATED.get(argument.kind, _kinds.PLAIN)
    for name, argument in _functions.arguments(reference).items()
    if argument.is_required or name in group
  }


def _of_method(config):
  outer = _below('outer', _chosen('outer', config))
  rounds = {**_choices.REPLICAS, **_choices.ROUNDS}
  methods = {
    'data_parallel': _choices.REPLICAS,
    'local_sgd': rounds,
    'diloco': {**rounds, **outer, **_options(config)},
    'post_local': {**rounds, **_choices.SWITCH, **outer},
    'hierarchical': _hierarchical(config),
    'noloco': {**rounds, **_below('gossip', _choices.GOSSIP)},
    'sparta': {**_choices.REPLICAS, **_below('subset', _choices.SUBSET)},
    'loscar_sgd': {**rounds, **_choices.LOSCAR},
    'dreamddp': {
      **_choices.REPLICAS,
      **_choices.TURNS,
      'final_synchronization': _kinds.FLAG,
    },
  }
  methods |= _asynchronous(config)
  method = config.get('method')
  fields = methods.get(method, {}) if isinstance(method, str) else {}
  return {'method': _kinds.one_of(*methods), **fields}


def _asynchronous(config):
  """Returns the fields of methods with workers and servers."""
  shared = {
    **_choices.WORKERS,
    **_below('times', _chosen('times', config)),
    **_below('network', _chosen('network', config)),
  }
  if 'crashes' in config:
    shared |= _below('crashes', _choices.CRASHES)
  rounds = {**shared, **_choices.WORKER_ROUNDS}
  server = _below('server', _choices.SERVER)
  late = {'server.grace': _kinds.NOT_NEGATIVE}
  if 'staleness' in config:
    late |= _below('staleness', _chosen('staleness', config))
  if 'compensation' in config:
    late |= {'compensation': _kinds.FINITE}
  quorum = _below('quorum', _choices.QUORUM) if 'quorum' in config else {}
  meets = {'exchange': _kinds.one_of('ring', 'server')}
  return {
    'async_local_sgd': {**rounds, **server, **late},
    'halos': {
      **rounds,
      **server,
      **_below('local', {**_choices.SERVER, **_choices.UPWARDS}),
    },
    'synchronous': {
      **rounds,
      **_below('outer', _chosen('outer', config)),
      **(quorum or meets),
    },
    **{
      name: {**shared, **_below('server', {**_choices.LR, **own})}
      for name, own in _choices.GRADIENTS.items()
    },
  }


def _options(config):
  """Returns what DiLoCo has beside, if a config asks for it."""
  offset = {} if 'fragments' in config else {'offset': _kinds.at_least(1)}
  groups = {
    'overlap': {**offset, 'delay': _kinds.at_least(0)},
    'fragments': {},
    'wire': {'error_feedback': _kinds.RATIO},
  }
  fields: dict[str, _kinds.Field] = {}
  for name, own in groups.items():
    if name in config:
      fields |= _below(name, {**own, **_chosen(name, config)})
  if 'subset' in config:
    fields |= _below('subset', _choices.SUBSET)
  return fields | {
    name: _choices.OPTIONS[name] for name in _choices.OPTIONS if name in config
  }


def _hierarchical(config):
  fields: dict[str, _kinds.Field] = {'final_synchronization': _kinds.FLAG}
  level = {
    'axis': _kinds.TEXT,
    **_choices.REPLICAS,
    'every': _kinds.at_least(1),
  }
  levels = _group(config, 'levels')
  for name in levels or ('level_1',):
    prefix = f'levels.{name}'
    outer = _chosen('outer', _group(levels, name))
    fields |= {**_below(prefix, level), **_below(f'{prefix}.outer', outer)}
  return fields


def _wrong(name, value, field):
  """Says what is wrong with the value of a field, or nothing."""
  kinds = (int, float) if field.kind is float else (field.kind,)
  # A bool is an int to Python, but not to people.
  fits = isinstance(value, kinds) and (
    field.kind is object or isinstance(value, bool) == (field.kind is bool)
  )
  if fits and field.holds(value):
    return ''
  return f'`{name}` must be {field.allowed}, got {value!r}.'


def _superfluous(name, value, want, have):
  """Tells a field of another choice from one that no choice knows."""
  if any(key.startswith(f'{name}.') for key in want):
    # The fields of an empty group are told by themselves.
    is_group = isinstance(value, Mapping)
    return '' if is_group else f'`{name}` must be a group, got {value!r}.'
  blamed = _blamed(name, want)
  if not blamed:
    return f'`{name}` is unknown, got {value!r}.{_near.hint(name, want)}'
  if any(_wrong(key, have.get(key), want[key]) for key in blamed):
    return ''  # Of which choice it is will show when that is one.
  chosen = ', '.join(f'`{key}` {have[key]!r}' for key in blamed)
  return f'`{name}` has no effect with {chosen}: remove it.'


def _blamed(name, want):
  """Returns the fields whose choice a field is no part of; none if unknown."""
  *path, last = name.split('.')
  if name == 'data.num_clusters':
    return ['data.corpus', 'data.non_iid'] if 'data.non_iid' in want else []
  choices = (
    _choices.CHOICES[path[-1]] if path and path[-1] in _choices.CHOICES else {}
  )
  keys = [
    '.'.join([*path, key])
    for key, named in choices.items()
    if any(last in fields for fields in named.values())
  ]
  if any(key in want for key in keys):
    return keys
  # Groups that another method would have; `near` helps within those it has.
  has_group = path and any(key.startswith(f'{path[0]}.') for key in want)
  is_of_method = (
    path[0] in _choices.GROUPS_OF_METHODS and not has_group
    if path
    else last in _choices.GROUPS_OF_METHODS
    or last
    in {
      **_choices.REPLICAS,
      **_choices.ROUNDS,
      **_choices.SWITCH,
      **_choices.OPTIONS,
      **_choices.LOSCAR,
      **_choices.TURNS,
      **_choices.WORKERS,
      **_choices.WORKER_ROUNDS,
      'exchange': None,
      'compensation': None,
    }
  )
  return ['method'] if is_of_method else []
