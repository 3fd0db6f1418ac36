"""The parts of the links of a method, from a config."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import optax

from dilojax import transforms
from dilojax import wire

Config = Mapping[str, Any]


def make_codec(fields: Config) -> wire.Codec:
  """Builds a wire format from the group `wire`."""
  others = ('format', 'error_feedback', 'gather', 'result')
  given = {name: value for name, value in fields.items() if name not in others}
  make: Callable = {
    'float32': wire.float32,
    'bfloat16': wire.bfloat16,
    'float16': wire.float16,
    'float8': wire.float8,
    'int8': wire.int8,
    'int4': wire.int4,
    'e3m0': wire.e3m0,
    'statistical': wire.statistical,
    'sign': wire.sign,
    'top_k': wire.top_k,
    'random_subset': wire.random_subset,
  }[fields['format']]
  return make(**given)


def make_send(
  config: Config, over_shards: Callable
) -> optax.GradientTransformation:
  """Builds what a replica does to a pseudo-gradient before it leaves."""
  # Pruning looks at whole rows, which shards do not have.
  links: list[Any] = []
  if 'prune' in config:
    links.append(transforms.sign_prune(config['prune']))
  if 'wire' in config:
    fields = config['wire']
    codec, decay = make_codec(fields), fields['error_feedback']
    seed = config['seed']
    encode = (
      transforms.error_feedback(codec, decay, seed=seed)
      if decay
      else transforms.encode(codec, seed=seed)
    )
    is_decoded = config.get('reduce') == 'radial_directional'
    links.append(encode if is_decoded else over_shards(encode))
  return optax.chain(*links) if links else optax.identity()


def make_reduce(
  config: Config, names: Sequence[str], over_shards: Callable
) -> optax.GradientTransformation:
  """Builds what becomes of the replicas' messages."""
  kind = config.get('reduce', 'mean')
  if kind == 'radial_directional':
    reduce: Any = transforms.radial_directional_mean(names)
  elif 'wire' in config:
    reduce = over_shards(transforms.mean_over(names, **_options(config)))
  else:
    reduce = transforms.mean_over(names)
  if kind == 'isotropic':
    reduce = transforms.isotropic(reduce)
  late = {'delayed': transforms.one_round_late, 'eager': transforms.eager}
  if 'late' in config:
    reduce = late[config['late']](reduce)
  if 'drop' not in config:
    return reduce
  return transforms.dropping(
    reduce, config['drop'], axis_name=names, seed=config['seed']
  )


def _options(config):
  """Returns what `mean_over` is told about messages."""
  fields = config['wire']
  result = {
    'message': None,
    'bfloat16': wire.bfloat16(),
    'float32': wire.float32(),
  }[fields.get('result', 'message')]
  return {'gather': fields['gather'], 'result': result}


def make_merge(overlap: Config) -> transforms.Merge:
  """Builds how an anchor enters a replica, from the group `overlap`."""
  makes = {
    'overwrite': transforms.overwrite,
    'mix': lambda: transforms.mix(overlap['alpha']),
    'delta': transforms.delta,
    'delay_compensated': lambda: transforms.delay_compensated(
      overlap['strength']
    ),
  }
  return makes[overlap['merge']]()


def make_fragments(fields: Config) -> Callable:
  """Builds the function that names fragments, from the group `fragments`."""
  given = {name: value for name, value in fields.items() if name != 'by'}
  if fields['by'] == 'bytes':
    return transforms.by_bytes(**given)
  return transforms.by_layer(**given)


def make_diloco(
  config: Config,
  inner: optax.GradientTransformation,
  outer: optax.GradientTransformation,
  names: Sequence[str],
  over_shards: Callable,
) -> optax.GradientTransformationExtraArgs:
  """Builds DiLoCo and what it becomes with fragments, delays and formats."""
  overlap = config.get('overlap', {'delay': 0, 'merge': 'overwrite'})
  shared = {
    'every': config['every'],
    'delay': overlap['delay'],
    'merge': make_merge(overlap),
    'send': make_send(config, over_shards),
    'reduce': make_reduce(config, names, over_shards),
  }
  if 'subset' in config:
    fields = config['subset']
    subset = transforms.subset_mean_over(names, **fields, seed=config['seed'])
    inner = optax.chain(inner, subset)
  if 'fragments' in config:
    fragments = make_fragments(config['fragments'])
    return transforms.streaming_diloco(
      inner, outer, fragments=fragments, **shared
    )
  link = transforms.synchronize(outer, offset=overlap.get('offset'), **shared)
  return optax.chain(inner, link)
