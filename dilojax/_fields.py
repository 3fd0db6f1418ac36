"""Which fields a config has, given its choices, and what each may be."""

from collections.abc import Callable, Mapping
import difflib
import math
from typing import Any, NamedTuple


class Field(NamedTuple):
  """What a field may be.

  Attributes:
    kind: Type; an int serves as a float too.
    holds: Tells whether a value of this type is allowed.
    allowed: The same in words.
  """

  kind: type
  holds: Callable[[Any], bool]
  allowed: str


def at_least(low: int) -> Field:
  """An int from `low`."""
  return Field(int, lambda value: value >= low, f'an int of at least {low}')


def from_to(low: float, high: float, *, open_end: bool = False) -> Field:
  """A float from `low` to `high`, without `high` if the end is open."""
  holds = lambda value: (
    low <= value and (value < high if open_end else value <= high)
  )
  end = f'less than {high}' if open_end else f'at most {high}'
  return Field(float, holds, f'a number of at least {low} and {end}')


def above_zero() -> Field:
  """A finite float above zero."""
  holds = lambda value: value > 0 and math.isfinite(value)
  return Field(float, holds, 'a finite number above 0')


def one_of(*names: str) -> Field:
  """One of some names."""
  return Field(str, lambda value: value in names, f'one of {", ".join(names)}')


TEXT = Field(str, lambda value: bool(value), 'a text that is not empty')
FLAG = Field(bool, lambda value: True, 'True or False')

LR = {'lr': above_zero()}
MOMENTUM = {'momentum': from_to(0, 1, open_end=True)}
MOMENTS = {
  'b1': from_to(0, 1, open_end=True),
  'b2': from_to(0, 1, open_end=True),
}
DECAY = {'weight_decay': from_to(0, 10)}
NON_IID = {'non_iid': from_to(0, 1)}
SPLIT = {'heldout_fraction': from_to(0, 1, open_end=True)}
TEXTS = {'tokenizer': TEXT, 'seq_len': at_least(1), **SPLIT, **NON_IID}

# What a name in a group brings with it: group -> name -> fields.
CHOICES: dict[str, dict[str, dict[str, Field]]] = {
  'outer': {
    'sgd': LR,
    'nesterov': {**LR, **MOMENTUM},
    'heavy_ball': {**LR, **MOMENTUM},
    'adam': {**LR, **MOMENTS, 'eps': above_zero()},
  },
  'inner': {
    'adamw': {**MOMENTS, **DECAY},
    'adam': MOMENTS,
    'sgd': MOMENTUM,
    'muon': {**MOMENTUM, **MOMENTS, **DECAY},
    'lion': {**MOMENTS, **DECAY},
  },
  'schedule': {
    'constant': {},
    'cosine': {'final_lr_ratio': from_to(0, 1)},
    'wsd': {'final_lr_ratio': from_to(0, 1), 'decay_steps': at_least(1)},
  },
  'data': {
    'python_stdlib': TEXTS,
    'files': {**TEXTS, 'pattern': TEXT},
    'tokens': {'path': TEXT, 'seq_len': at_least(1), **NON_IID},
    'synthetic': {
      'seq_len': at_least(1),
      'num_symbols': at_least(2),
      'num_sequences': at_least(2),
      'corpus_seed': at_least(0),
      **SPLIT,
    },
    'digits': {**SPLIT, **NON_IID},
  },
  'model': {
    'decoder': {
      'vocab_size': at_least(2),
      'num_layers': at_least(1),
      'dim': at_least(1),
      'num_heads': at_least(1),
      'head_dim': at_least(2),
      'mlp': one_of('swiglu', 'gelu'),
      'mlp_dim': at_least(1),
      'tied_head': FLAG,
      'qk_norm': FLAG,
      'z_loss': from_to(0, 1),
      'dtype': one_of('float32', 'bfloat16'),
      'remat': FLAG,
    },
    'mlp': {'width': at_least(1), 'num_layers': at_least(1)},
    'convnet': {'width': at_least(1), 'num_layers': at_least(1)},
  },
  'merge': {
    'overwrite': {},
    'mix': {'alpha': from_to(0, 1)},
    'delta': {},
  },
}

TOP = {
  'seed': at_least(0),
  'num_steps': at_least(1),
  'eval_every': at_least(1),
  'eval_sequences': at_least(1),
  'checkpoint_every': at_least(1),
  'keep_checkpoints': at_least(1),
  'log_every': at_least(1),
  'non_finite': one_of('stop', 'skip'),
}
ROUNDS = {'every': at_least(1), 'final_synchronization': FLAG}


def _named(group: str, config: Mapping, key: str = 'name') -> dict[str, Field]:
  """Returns the fields of a group, given the name in it."""
  choices = CHOICES[group]
  name = config.get(key) if isinstance(config, Mapping) else None
  chosen = choices.get(name, {}) if isinstance(name, str) else {}
  return {key: one_of(*choices), **chosen}


def _below(prefix: str, fields: Mapping[str, Field]) -> dict[str, Field]:
  return {f'{prefix}.{name}': field for name, field in fields.items()}


def _outer(config, prefix='outer'):
  return _below(prefix, _named('outer', config.get('outer', {})))


def _diloco(config):
  fields = {'num_replicas': at_least(1), **ROUNDS, **_outer(config)}
  if 'overlap' in config:  # Late or mixed landings are a group of their own.
    merge = _named('merge', config['overlap'], 'merge')
    times = {'offset': at_least(1), 'delay': at_least(0)}
    fields |= _below('overlap', {**times, **merge})
  return fields


def _hierarchical(config):
  fields: dict[str, Field] = {'final_synchronization': FLAG}
  level = {'axis': TEXT, 'num_replicas': at_least(1), 'every': at_least(1)}
  for name in config.get('levels', {'level_1': {}}):
    prefix = f'levels.{name}'
    group = config.get('levels', {}).get(name, {})
    fields |= {**_below(prefix, level), **_outer(group, f'{prefix}.outer')}
  return fields


METHODS: dict[str, Callable[[Mapping], dict[str, Field]]] = {
  'data_parallel': lambda config: {'num_replicas': at_least(1)},
  'local_sgd': lambda config: {'num_replicas': at_least(1), **ROUNDS},
  'diloco': _diloco,
  'post_local': lambda config: {
    'num_replicas': at_least(1),
    'data_parallel_steps': at_least(1),
    **ROUNDS,
    **_outer(config),
  },
  'hierarchical': _hierarchical,
}


def _inner(config):
  inner = config.get('inner', {})
  return {
    'peak_lr': above_zero(),
    'warmup_steps': at_least(0),
    'clip_norm': from_to(0, math.inf),
    'accumulate': at_least(1),
    **_named('inner', inner),
    **_named('schedule', inner, 'schedule'),
  }


def _data(config):
  data = config.get('data', {})
  fields = {'batch_size': at_least(1), **_named('data', data, 'corpus')}
  clustered = data.get('corpus') in ('python_stdlib', 'files')
  if clustered and data.get('non_iid', 0):
    fields['num_clusters'] = at_least(2)
  return fields


def expected(config: Mapping) -> dict[str, Field]:
  """Returns the fields that a config must have, by dotted name."""
  of_method = METHODS.get(config.get('method'), lambda _: {})
  count = at_least(0)  # 0 for all there are.
  return {
    **TOP,
    'method': one_of(*METHODS),
    **of_method(config),
    **_below('inner', _inner(config)),
    **_below('data', _data(config)),
    **_below('model', _named('model', config.get('model', {}))),
    **_below(
      'mesh', {'num_devices': count, 'fsdp': count, 'tensor': at_least(1)}
    ),
  }


def flatten(config: Mapping, prefix: str = '') -> dict[str, Any]:
  """Returns the fields of nested groups by dotted name."""
  flat = {}
  for name, value in config.items():
    path = f'{prefix}{name}'
    is_group = isinstance(value, Mapping)
    flat |= flatten(value, f'{path}.') if is_group else {path: value}
  return flat


_CHOOSING = ('method', 'name', 'schedule', 'corpus', 'merge', 'non_iid')


def near(name: str, names: Any) -> str:
  """Returns a hint at the nearest name, or nothing."""
  close = difflib.get_close_matches(name, list(names), n=1, cutoff=0.6)
  return f' Did you mean `{close[0]}`?' if close else ''


def check(config: Mapping) -> None:
  """Raises a ValueError that names every field that is not as it must be."""
  want, have = expected(config), flatten(config)
  problems = []
  for name, value in have.items():
    if name not in want:
      problems.append(_superfluous(name, config, want))
    elif (problem := _problem(name, value, want[name])) is not None:
      problems.append(problem)
  for name in want.keys() - have.keys():
    problems.append(f'`{name}` is missing: {want[name].allowed}.')
  if problems:
    raise ValueError('\n'.join(sorted(problems)))


def _problem(name, value, field):
  kinds = (int, float) if field.kind is float else (field.kind,)
  is_kind = isinstance(value, kinds)
  if isinstance(value, bool) and field.kind is not bool:
    is_kind = False
  if is_kind and field.holds(value):
    return None
  return f'`{name}` must be {field.allowed}, got {value!r}.'


def _superfluous(name, config, want):
  """Tells a field of another choice from one that no choice knows."""
  choices = [name for name in want if name.rpartition('.')[2] in _CHOOSING]
  flat = flatten(config)
  group = name.partition('.')[0]
  blame = [key for key in choices if key.partition('.')[0] == group]
  known = {
    *TOP,
    *ROUNDS,
    *('num_replicas', 'data_parallel_steps', 'num_clusters', 'offset', 'delay'),
    *(
      key
      for group in CHOICES.values()
      for each in group.values()
      for key in each
    ),
  }
  if name.rpartition('.')[2] in known or group in (
    'outer',
    'overlap',
    'levels',
  ):
    blame = [key for key in blame if key in flat] or ['method']
    chosen = ', '.join(f'`{key}` {flat[key]!r}' for key in blame)
    return f'`{name}` has no effect with {chosen}: remove it.'
  return f'`{name}` is unknown.{near(name, want)}'
