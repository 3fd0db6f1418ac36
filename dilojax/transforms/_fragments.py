"""Fragments: which params are synchronized together."""

from collections.abc import Callable, Mapping, Sequence
import math
import re
from typing import Any

import jax
import jax.numpy as jnp
import optax

# Params to a tree of names, as `optax.partition` takes it.
Fragments = Callable[[optax.Params], Any]
LayerOf = str | Callable[[str], int | None]

# `layer_3`, `layers/3`, `block3`, `TransformerBlock_3`, `h/3`, but not
# `layer_norm_3`.
_LAYER = r'(?i)(?:^|/)(?:[^/]*(?:layer|block)s?|h)[_./]?(\d+)(?:/|$)'
# `3`, `dense_3`: for params that are nothing but layers.
_NUMBER = r'(?:^|/)(?:[^/]*[^/\d])?(\d+)(?:/|$)'
EMBEDDINGS = r'(?i)(?<!un)emb|wte|wpe'
_OUTSIDE = 'outside'


def by_layer(
  *,
  num_fragments: int | None = None,
  layers_per_fragment: int | None = None,
  order: str = 'strided',
  outside: str = 'own',
  embeddings: str = EMBEDDINGS,
  layer_of: LayerOf | None = None,
) -> Fragments:
  r"""Makes fragments of whole layers.

  Of :math:`P` fragments of layers, number :math:`p` has the layers
  :math:`p, p + P, p + 2P, \ldots` when strided, and consecutive ones when
  sequential. Their sizes differ by one layer at most.

  Args:
    num_fragments: Number of fragments in all, that of the params outside the
      layers included.
    layers_per_fragment: Greatest number of layers in a fragment, in place of
      `num_fragments`. The paper has 3.
    order: 'strided' or 'sequential'.
    outside: Where params go that are in no layer, such as embeddings, final
      norm and head: to a fragment of their 'own', to the 'first', to the
      'last', or to both 'ends' as in MuLoCo, embeddings with the first, all
      others with the last.
    embeddings: Regular expression that finds embeddings for 'ends'.
    layer_of: Says in which layer a param is, given its path such as
      'layer_03/mlp/up': a function that returns a number, or None outside; or
      a regular expression whose first group is the number. By default a layer
      is `layer_3`, `layers/3`, `block3` or the like; where no path has these,
      the first number that ends a key, as in a list of layers.

  Returns:
    A function from params to their fragments' names: `fragment_0`, ..., and
    `outside`. It asks for structure alone, so abstract params do.

  Raises:
    ValueError: If an argument is out of range, or, given params, if there are
      no layers, or too few.

  Examples:
    >>> import dilojax as dx
    >>> params = {'embed': 0.0, 'layers': [0.0, 0.0, 0.0, 0.0, 0.0]}
    >>> dx.by_layer(layers_per_fragment=3)(params)['layers']
    ['fragment_0', 'fragment_1', 'fragment_0', 'fragment_1', 'fragment_0']
    >>> dx.by_layer(num_fragments=2, outside='first')(params)['embed']
    'fragment_0'

  References:
    Douillard et al., `Streaming DiLoCo with overlapping communication
    <https://arxiv.org/abs/2501.18512>`_, 2025; Thérien et al., `MuLoCo: Muon
    is a practical inner optimizer for DiLoCo
    <https://arxiv.org/abs/2505.23725>`_, 2025
  """
  check_layers(num_fragments, layers_per_fragment, order, outside)

  def labels(params):
    paths, structure = paths_of(params)
    numbers = _layer_numbers(paths, layer_of)
    layers = sorted({number for number in numbers if number is not None})
    rank = {number: i for i, number in enumerate(layers)}
    without = [path for path, n in zip(paths, numbers) if n is None]
    names, fragment_of = spread_layers(
      len(rank),
      num_fragments,
      layers_per_fragment,
      order,
      own=bool(without) and outside == 'own',
    )
    place = place_outside(without, names, outside, embeddings)
    found = [
      place(path) if number is None else names[fragment_of[rank[number]]]
      for path, number in zip(paths, numbers)
    ]
    return jax.tree.unflatten(structure, found)

  return labels


def by_bytes(num_fragments: int) -> Fragments:
  """Makes fragments of about equal bytes.

  Packs greedily: the largest leaf first, each into the lightest fragment. A
  leaf is never cut, so a fragment outweighs the lightest by one leaf at most.

  Args:
    num_fragments: Number of fragments, at least 1.

  Returns:
    A function from params to their fragments' names, `fragment_0`, .... With
    a bare :func:`optax.partition` pass the names, not the function: it would
    be called with updates, whose dtypes, and with them the packing, may differ.

  Raises:
    ValueError: If `num_fragments` is below 1, or, given params, if they have
      fewer leaves.

  Examples:
    >>> import jax.numpy as jnp, dilojax as dx
    >>> params = [jnp.zeros(3), jnp.zeros(5), jnp.zeros(2)]
    >>> dx.by_bytes(2)(params)
    ['fragment_1', 'fragment_0', 'fragment_1']

  References:
    `Decoupled DiLoCo
    <https://arxiv.org/abs/2604.21428>`_, 2026 (24 fragments of equal size)
  """
  check_count('num_fragments', num_fragments)
  names = _names(num_fragments)

  def labels(params):
    leaves, structure = jax.tree.flatten(params)
    if len(leaves) < num_fragments:
      raise ValueError(
        f'`num_fragments` must be at most the number of leaves,'
        f' {len(leaves)}, got {num_fragments}: a leaf is not cut.'
      )
    sizes = [_nbytes(leaf) for leaf in leaves]
    # The number of leaves breaks ties, so that empty arrays fill no fragment
    # before each has a leaf.
    loads = [(0, 0, number) for number in range(num_fragments)]
    found = [''] * len(leaves)
    for i in sorted(range(len(leaves)), key=lambda i: -sizes[i]):
      nbytes, count, number = min(loads)
      loads[number] = (nbytes + sizes[i], count + 1, number)
      found[i] = names[number]
    return jax.tree.unflatten(structure, found)

  return labels


def by_pattern(patterns: Mapping[str, str]) -> Fragments:
  """Makes fragments by regular expressions over paths.

  Args:
    patterns: Regular expression of every fragment, by its name. It is searched
      for in paths such as 'layers/3/mlp/up'. Each leaf must be found by exactly
      one.

  Returns:
    A function from params to their fragments' names.

  Raises:
    ValueError: If an expression is none, or, given params, if a leaf is in no
      fragment or in several, or a fragment has no leaf.

  Examples:
    >>> import dilojax as dx
    >>> fragments = dx.by_pattern({'body': '^layers/', 'ends': 'embed|head'})
    >>> fragments({'embed': 0.0, 'layers': [0.0, 0.0], 'head': 0.0})
    {'embed': 'ends', 'head': 'ends', 'layers': ['body', 'body']}
  """
  if not patterns:
    raise ValueError('`patterns` must name at least one fragment, got none.')
  finders = {
    name: compiled(f'patterns[{name!r}]', pattern)
    for name, pattern in patterns.items()
  }

  def labels(params):
    paths, structure = paths_of(params)
    found = [
      [name for name, finder in finders.items() if finder.search(path)]
      for path in paths
    ]
    wrong = [
      f'{path!r} in {names or "none"}'
      for path, names in zip(paths, found)
      if len(names) != 1
    ]
    used = {name for names in found for name in names}
    wrong += [f'no leaf in {name!r}' for name in finders if name not in used]
    if wrong:
      raise ValueError(
        '`patterns` must find every leaf exactly once, got'
        f' {listed(wrong, ", ")}, with the patterns {dict(patterns)}.'
      )
    return jax.tree.unflatten(structure, [names[0] for names in found])

  return labels


def check_layers(num_fragments, layers_per_fragment, order, outside):
  """Refuses what no params could make right."""
  given = {
    'num_fragments': num_fragments,
    'layers_per_fragment': layers_per_fragment,
  }
  given = {name: n for name, n in given.items() if n is not None}
  if len(given) != 1:
    raise ValueError(
      'Give one of `num_fragments` and `layers_per_fragment`, got'
      f' {given or "neither"}.'
    )
  for name, count in given.items():
    check_count(name, count)
  _check_choice('order', order, ('strided', 'sequential'))
  _check_choice('outside', outside, ('own', 'first', 'last', 'ends'))


def spread_layers(
  num_layers, num_fragments, layers_per_fragment, order, *, own
):
  """Returns the names of the fragments of layers, and every layer's number."""
  if num_fragments is None:
    num = math.ceil(num_layers / layers_per_fragment)
  else:
    num = num_fragments - own
  if not 1 <= num <= num_layers:
    shares = ' and one fragment for the params outside' if own else ''
    raise ValueError(
      f'`num_fragments` must be from {1 + own} to {num_layers + own} with'
      f' {num_layers} layers{shares}, got {num_fragments}.'
    )
  strided = order == 'strided'
  layers = range(num_layers)
  return _names(num), tuple(
    layer % num if strided else layer * num // num_layers for layer in layers
  )


def place_outside(paths, names, outside, embeddings):
  """Returns where the params on these paths, outside all layers, go."""
  is_embedding = compiled('embeddings', embeddings).search
  if outside == 'ends' and paths and not any(map(is_embedding, paths)):
    raise ValueError(
      f'`embeddings` must find those of the params, got {embeddings!r}, which'
      f' finds none among {listed(paths)}.'
    )
  places = {'own': _OUTSIDE, 'first': names[0], 'last': names[-1]}
  ends = lambda path: names[0] if is_embedding(path) else names[-1]
  return ends if outside == 'ends' else lambda _: places[outside]


def paths_of(params):
  """Returns the paths of all leaves, and the structure."""
  leaves, structure = jax.tree.flatten_with_path(params)
  write = lambda path: jax.tree_util.keystr(path, simple=True, separator='/')
  return [write(path) for path, _ in leaves], structure


def compiled(name, pattern):
  """Compiles a regular expression that a user gave."""
  try:
    return re.compile(pattern)
  except (re.error, TypeError) as error:
    raise ValueError(
      f'`{name}` must be a regular expression, got {pattern!r}: {error}.'
    ) from error


def check_count(name, count):
  """Refuses what is no number of things."""
  if not _is_int(count) or count < 1:
    raise ValueError(f'`{name}` must be an int of at least 1, got {count!r}.')


def listed(items: Sequence[Any], separator: str = ' ') -> str:
  """Writes the first items of a list that may be long."""
  more = len(items) - 12
  text = separator.join(str(item) for item in items[:12])
  return text + (f'{separator}and {more} more' if more > 0 else '')


def _layer_numbers(paths, layer_of):
  if callable(layer_of):
    numbers = [layer_of(path) for path in paths]
    for path, number in zip(paths, numbers):
      if number is not None and not _is_int(number):
        raise ValueError(
          f'`layer_of` must return an int or None, got {number!r} for {path!r}.'
        )
  elif layer_of is not None:
    numbers = _first_group(layer_of, paths)
  else:
    numbers = _first_group(_LAYER, paths)
    if all(number is None for number in numbers):
      numbers = _first_group(_NUMBER, paths)
  if all(number is None for number in numbers):
    raise ValueError(
      '`params` must have layers, got none among the paths'
      f' {listed(paths) or "(there are none)"}. Say with `layer_of` which'
      ' layer a path is in, or use by_bytes or by_pattern.'
    )
  return numbers


def _first_group(pattern, paths):
  """Returns the number that a regular expression finds in each path."""
  finder = compiled('layer_of', pattern)
  if not finder.groups:
    raise ValueError(
      f'`layer_of` must have a group that is the number, got {pattern!r}.'
    )
  found = [finder.search(path) for path in paths]
  return [None if match is None else int(match[1]) for match in found]


def _names(num_fragments):
  # Of equal width, so that sorted names are in the order of their numbers.
  digits = len(str(num_fragments - 1))
  return [f'fragment_{i:0{digits}}' for i in range(num_fragments)]


def _nbytes(leaf):
  return math.prod(jnp.shape(leaf)) * jnp.result_type(leaf).itemsize


def _check_choice(name, choice, choices):
  if choice not in choices:
    raise ValueError(
      f'`{name}` must be one of {", ".join(choices)}, got {choice!r}.'
    )


def _is_int(value):
  return isinstance(value, int) and not isinstance(value, bool)
