"""Which fields a config has, given its choices, and what each may be."""

from collections.abc import Callable, Iterable, Mapping
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


def one_of(*names: str) -> Field:
  """One of some names."""
  return Field(str, lambda value: value in names, f'one of {", ".join(names)}')


# Steps are counted in int32.
NUM_STEPS = Field(
  int, lambda value: 1 <= value < 2**31, 'an int from 1 to 2147483647'
)
TEXT = Field(str, lambda value: bool(value), 'a text that is not empty')
FLAG = Field(bool, lambda value: True, 'True or False')
# Wider seeds would lose their upper half in `jax.random.key`.
SEED = Field(
  int, lambda value: 0 <= value < 2**32, 'an int from 0 to 2**32 - 1'
)
RATIO = Field(float, lambda value: 0 <= value <= 1, 'a number from 0 to 1')
FRACTION = Field(
  float, lambda value: 0 < value < 1, 'a number above 0 and below 1'
)
MEMORY = Field(
  float, lambda value: 0 <= value < 1, 'a number of at least 0 and below 1'
)
NOT_NEGATIVE = Field(
  float, lambda value: 0 <= value < math.inf, 'a finite number of at least 0'
)
POSITIVE = Field(
  float, lambda value: 0 < value < math.inf, 'a finite number above 0'
)
SHARE = Field(
  float, lambda value: 0 < value <= 1, 'a number above 0 and at most 1'
)
FINITE = Field(float, math.isfinite, 'a finite number')
LIMIT = Field(float, lambda value: value > 0, 'a number above 0, inf for none')

LR = {'lr': POSITIVE}
MOMENTUM = {'momentum': MEMORY}
MOMENTS = {'b1': MEMORY, 'b2': MEMORY}
DECAY = {'weight_decay': NOT_NEGATIVE}
LENGTH = {'seq_len': at_least(1)}
NON_IID = {'non_iid': RATIO}
SPLIT = {'heldout_fraction': FRACTION}
TEXTS = {'tokenizer': TEXT, **LENGTH, **SPLIT, **NON_IID}
SMALL = {'width': at_least(1), 'num_layers': at_least(1)}

BLOCK = {'block_size': at_least(1)}
ROUNDING = {'rounding': one_of('nearest', 'stochastic')}
BITS = Field(int, lambda value: 1 <= value <= 8, 'an int from 1 to 8')
VALUES = one_of('float32', 'bfloat16', 'int8')

# What a choice brings with it: group -> field that chooses -> name -> fields.
CHOICES: dict[str, dict[str, dict[str, dict[str, Field]]]] = {
  'outer': {
    'name': {
      'sgd': LR,
      'nesterov': {**LR, **MOMENTUM},
      'heavy_ball': {**LR, **MOMENTUM},
      'adam': {**LR, **MOMENTS, 'eps': POSITIVE},
    }
  },
  'inner': {
    'name': {
      'adamw': {**MOMENTS, **DECAY},
      'adam': MOMENTS,
      'sgd': MOMENTUM,
      'muon': {**MOMENTUM, **MOMENTS, **DECAY},
      'lion': {**MOMENTS, **DECAY},
    },
    'schedule': {
      'constant': {},
      'cosine': {'final_lr_ratio': RATIO},
      'wsd': {'final_lr_ratio': RATIO, 'decay_steps': at_least(1)},
    },
  },
  'data': {
    'corpus': {
      'python_stdlib': TEXTS,
      'files': {**TEXTS, 'pattern': TEXT},
      'tokens': {'path': TEXT, **LENGTH, **NON_IID},
      'synthetic': {
        'num_symbols': Field(
          int, lambda value: 2 <= value <= 256, 'an int from 2 to 256'
        ),
        'num_sequences': at_least(2),
        'corpus_seed': at_least(0),
        **LENGTH,
        **SPLIT,
      },
      'digits': {**SPLIT, **NON_IID},
    }
  },
  'model': {
    'name': {
      'decoder': {
        'vocab_size': at_least(2),
        'num_layers': at_least(1),
        'dim': at_least(1),
        'num_heads': at_least(1),
        'head_dim': Field(
          int,
          lambda value: value >= 2 and value % 2 == 0,
          'an even int of at least 2',
        ),
        'mlp': one_of('swiglu', 'gelu'),
        'mlp_dim': at_least(1),
        'tied_head': FLAG,
        'qk_norm': FLAG,
        'z_loss': NOT_NEGATIVE,
        'dtype': one_of('float32', 'bfloat16'),
        'remat': FLAG,
      },
      'mlp': SMALL,
      'convnet': SMALL,
    }
  },
  'overlap': {
    'merge': {
      'overwrite': {},
      'mix': {'alpha': RATIO},
      'delta': {},
      'delay_compensated': {'strength': FINITE},
    }
  },
  'fragments': {
    'by': {
      'layers': {
        'layers_per_fragment': at_least(1),
        'order': one_of('strided', 'sequential'),
        'outside': one_of('own', 'first', 'last', 'ends'),
      },
      'bytes': {'num_fragments': at_least(1)},
    }
  },
  'wire': {
    'format': {
      'float32': {},
      'bfloat16': {},
      'float16': {},
      'float8': BLOCK,
      'int8': {**BLOCK, **ROUNDING},
      'int4': {**BLOCK, **ROUNDING},
      'e3m0': {**BLOCK, **ROUNDING},
      'statistical': {**BLOCK, 'bits': BITS},
      'sign': BLOCK,
      'top_k': {**BLOCK, 'fraction': SHARE, 'values': VALUES},
      'random_subset': {**BLOCK, 'fraction': SHARE, 'values': VALUES},
    },
    'gather': {
      'mean': {'result': one_of('message', 'bfloat16', 'float32')},
      'messages': {},
    },
  },
}

TOP = {
  'seed': SEED,
  'num_steps': NUM_STEPS,
  'eval_every': at_least(1),
  'eval_sequences': at_least(1),
  'checkpoint_every': at_least(1),
  'keep_checkpoints': at_least(1),
  'log_every': at_least(1),
  'non_finite': one_of('stop', 'skip'),
}
REPLICAS = {'num_replicas': at_least(1)}
ROUNDS = {'every': at_least(1), 'final_synchronization': FLAG}
SWITCH = {'data_parallel_steps': at_least(1)}
GOSSIP = {'lr': POSITIVE, 'momentum': MEMORY, 'pull': POSITIVE}
SUBSET = {
  'fraction': SHARE,
  'pattern': one_of('independent', 'partition', 'fresh_partition'),
}
LOSCAR = {'fraction': SHARE, 'delay': at_least(0)}
TURNS = {'turns': TEXT}
GROUPS_OF_METHODS = (
  'outer',
  'overlap',
  'levels',
  'fragments',
  'wire',
  'subset',
  'gossip',
)
# Single fields that DiLoCo may have.
OPTIONS = {
  'late': one_of('delayed', 'eager'),
  'reduce': one_of('radial_directional', 'isotropic'),
  'drop': FRACTION,
  'prune': FRACTION,
}
CLUSTERED = ('python_stdlib', 'files')
COUNT = at_least(0)  # 0 for all there are.


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


def expected(config: Mapping) -> dict[str, Field]:
  """Returns the fields that a config must have, by dotted name."""
  data = _below('data', {'batch_size': at_least(1), **_chosen('data', config)})
  corpus = _group(config, 'data')
  if corpus.get('corpus') in CLUSTERED and corpus.get('non_iid'):
    data['data.num_clusters'] = at_least(2)
  inner = {
    'peak_lr': POSITIVE,
    'warmup_steps': at_least(0),
    'clip_norm': LIMIT,
    'accumulate': at_least(1),
    **_chosen('inner', config),
  }
  mesh = {'num_devices': COUNT, 'fsdp': COUNT, 'tensor': at_least(1)}
  return {
    **TOP,
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


def near(name: str, names: Iterable[str]) -> str:
  """Returns a hint at the nearest name, or nothing."""
  # What is in a group is not meant for a field outside, but for one of a group.
  possible = [
    other
    for other in names
    if '.' not in name or '.' in other or name.startswith(f'{other}.')
  ]
  close = difflib.get_close_matches(name, possible, n=1, cutoff=0.6)
  close = [other for other in close if _is_like(name, other)]
  return f' Did you mean `{close[0]}`?' if close else ''


def _is_like(name, other):
  """Tells whether more is alike than the group."""
  last, other_last = (text.rpartition('.')[2] for text in (name, other))
  alike = difflib.SequenceMatcher(None, last, other_last).ratio()
  return alike >= 0.4 or name.startswith(f'{other}.')


def _group(config, name):
  """Returns a group, empty if it is missing or no group."""
  group = config.get(name)
  return group if isinstance(group, Mapping) else {}


def _below(prefix: str, fields: Mapping[str, Field]) -> dict[str, Field]:
  return {f'{prefix}.{name}': field for name, field in fields.items()}


def _chosen(name: str, config: Mapping) -> dict[str, Field]:
  """Returns the fields of a group that depend on the choices in it."""
  group, fields = _group(config, name), {}
  for key, choices in CHOICES[name].items():
    choice = group.get(key)
    brings = choices.get(choice, {}) if isinstance(choice, str) else {}
    fields |= {key: one_of(*choices), **brings}
  return fields


def _of_method(config):
  outer = _below('outer', _chosen('outer', config))
  rounds = {**REPLICAS, **ROUNDS}
  methods = {
    'data_parallel': REPLICAS,
    'local_sgd': rounds,
    'diloco': {**rounds, **outer, **_options(config)},
    'post_local': {**rounds, **SWITCH, **outer},
    'hierarchical': _hierarchical(config),
    'noloco': {**rounds, **_below('gossip', GOSSIP)},
    'sparta': {**REPLICAS, **_below('subset', SUBSET)},
    'loscar_sgd': {**rounds, **LOSCAR},
    'dreamddp': {**REPLICAS, **TURNS, 'final_synchronization': FLAG},
  }
  method = config.get('method')
  fields = methods.get(method, {}) if isinstance(method, str) else {}
  return {'method': one_of(*methods), **fields}


def _options(config):
  """Returns what DiLoCo has beside, if a config asks for it."""
  offset = {} if 'fragments' in config else {'offset': at_least(1)}
  groups = {
    'overlap': {**offset, 'delay': at_least(0)},
    'fragments': {},
    'wire': {'error_feedback': RATIO},
  }
  fields: dict[str, Field] = {}
  for name, own in groups.items():
    if name in config:
      fields |= _below(name, {**own, **_chosen(name, config)})
  if 'subset' in config:
    fields |= _below('subset', SUBSET)
  return fields | {name: OPTIONS[name] for name in OPTIONS if name in config}


def _hierarchical(config):
  fields: dict[str, Field] = {'final_synchronization': FLAG}
  level = {'axis': TEXT, **REPLICAS, 'every': at_least(1)}
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
  fits = isinstance(value, kinds) and isinstance(value, bool) == (
    field.kind is bool
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
    return f'`{name}` is unknown, got {value!r}.{near(name, want)}'
  if any(_wrong(key, have.get(key), want[key]) for key in blamed):
    return ''  # Of which choice it is will show when that is one.
  chosen = ', '.join(f'`{key}` {have[key]!r}' for key in blamed)
  return f'`{name}` has no effect with {chosen}: remove it.'


def _blamed(name, want):
  """Returns the fields whose choice a field is no part of; none if unknown."""
  *path, last = name.split('.')
  if name == 'data.num_clusters':
    return ['data.corpus', 'data.non_iid'] if 'data.non_iid' in want else []
  choices = CHOICES[path[-1]] if path and path[-1] in CHOICES else {}
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
    path[0] in GROUPS_OF_METHODS and not has_group
    if path
    else last in GROUPS_OF_METHODS
    or last in {**REPLICAS, **ROUNDS, **SWITCH, **OPTIONS, **LOSCAR, **TURNS}
  )
  return ['method'] if is_of_method else []
