"""Fragments: every leaf in one, whatever the tree; by layer, bytes, pattern."""

import collections
import dataclasses

import hypothesis
from hypothesis import strategies
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import dilojax as dx
from dilojax import models

Pair = collections.namedtuple('Pair', ['left', 'right'])


@jax.tree_util.register_dataclass
@dataclasses.dataclass
class _Custom:
  child: object
  sibling: object


@dataclasses.dataclass
class _Keyless:
  """A node that gives its children no names."""

  children: tuple


jax.tree_util.register_pytree_node(
  _Keyless,
  lambda node: (node.children, None),
  lambda _, children: _Keyless(tuple(children)),
)

# Drawn twice, the same array object is at two places: a tied leaf.
LEAVES = [
  np.float32(2.0),
  1.5,
  np.zeros(1, np.float32),
  np.zeros(0, np.float32),
  np.zeros((3, 2), np.float32),
  jnp.zeros(5, jnp.bfloat16),
]
KEYS = strategies.sampled_from(['embed', 'layer_1', 'block7', 'w', '3', 'a/b'])
TREES = strategies.recursive(
  strategies.sampled_from(LEAVES) | strategies.none() | strategies.just({}),
  lambda trees: (
    strategies.lists(trees, max_size=3)
    | strategies.dictionaries(KEYS, trees, max_size=3)
    | strategies.builds(lambda a, b: (a, b), trees, trees)
    | strategies.builds(Pair, trees, trees)
    | strategies.builds(_Custom, trees, trees)
    | strategies.builds(lambda *c: _Keyless(c), trees, trees)
  ),
  max_leaves=9,
)
# One layer in each leaf of a list, whatever else is there.
LAYERED = strategies.builds(
  lambda layers, rest: {'layers': layers, 'rest': rest},
  strategies.lists(strategies.sampled_from(LEAVES), min_size=1, max_size=7),
  TREES,
)
odd_trees = hypothesis.settings(deadline=None, max_examples=40)


def check_fragments(fragments, params, num_fragments):
  """Checks that fragments are disjoint and together the tree."""
  labels = fragments(params)
  assert jax.tree.structure(labels) == jax.tree.structure(params)
  names = set(jax.tree.leaves(labels))
  assert len(names) == num_fragments
  # Names neither depend on values nor change from call to call.
  assert jax.tree.leaves(fragments(jax.eval_shape(lambda: params))) == (
    jax.tree.leaves(labels)
  )
  add_one = optax.stateless(
    lambda updates, _: jax.tree.map(lambda leaf: leaf + 1, updates)
  )
  tx = dx.in_turns(lambda *_: add_one, fragments, every=num_fragments)
  moved, _ = tx.update(params, tx.init(params), params)
  assert jax.tree.structure(moved) == jax.tree.structure(params)
  jax.tree.map(
    lambda leaf, was: np.testing.assert_array_equal(leaf, was + 1),
    moved,
    params,
  )
  return labels


@odd_trees
@hypothesis.given(TREES, strategies.integers(1, 4))
def test_bytes_partition_any_tree(params, num_fragments):
  leaves = jax.tree.leaves(params)
  hypothesis.assume(len(leaves) >= num_fragments)
  fragments = dx.by_bytes(num_fragments)
  labels = check_fragments(fragments, params, num_fragments)
  loads = collections.defaultdict(list)
  for leaf, name in zip(leaves, jax.tree.leaves(labels)):
    loads[name].append(np.size(leaf) * jnp.result_type(leaf).itemsize)
  # A greedy packing: whatever came last to a fragment found it lightest.
  lightest = min(map(sum, loads.values()))
  assert all(sum(load) - min(load) <= lightest for load in loads.values())


def test_empty_arrays_leave_no_fragment_empty():
  params = [np.zeros(0), np.zeros(0), np.zeros(0)]
  check_fragments(dx.by_bytes(3), params, 3)


@odd_trees
@hypothesis.given(
  LAYERED,
  strategies.integers(1, 4),
  strategies.sampled_from(['strided', 'sequential']),
  strategies.sampled_from(['own', 'first', 'last']),
)
def test_layers_partition_any_tree(params, size, order, outside):
  layer_of = r'^layers/(\d+)$'
  fragments = dx.by_layer(
    layers_per_fragment=size, order=order, outside=outside, layer_of=layer_of
  )
  num = -(-len(params['layers']) // size)
  own = outside == 'own' and bool(jax.tree.leaves(params['rest']))
  labels = check_fragments(fragments, params, num + own)
  layers = [int(name.removeprefix('fragment_')) for name in labels['layers']]
  counts = np.bincount(layers)
  assert counts.max() <= size
  assert counts.max() - counts.min() <= 1
  if order == 'strided':
    assert layers == [i % num for i in range(len(layers))]
  else:
    assert layers == sorted(layers)
  rest = set(jax.tree.leaves(labels['rest']))
  where = {
    'own': 'outside',
    'first': 'fragment_0',
    'last': f'fragment_{num - 1}',
  }
  assert rest <= {where[outside]}
  # The same fragments by their number.
  again = dx.by_layer(
    num_fragments=num + own, order=order, outside=outside, layer_of=layer_of
  )
  assert jax.tree.leaves(again(params)) == jax.tree.leaves(labels)


@odd_trees
@hypothesis.given(TREES)
def test_a_pattern_takes_any_tree(params):
  hypothesis.assume(jax.tree.leaves(params))
  check_fragments(dx.by_pattern({'all': ''}), params, 1)


def test_tied_leaves_are_two():
  """Traced, they are two arrays, so nothing may depend on their identity."""
  tied = jnp.zeros(4)
  params = {'embed': tied, 'layers': [jnp.zeros(3)], 'head': tied}
  names = {'a': 'embed|layers', 'b': 'head'}
  labels = check_fragments(dx.by_pattern(names), params, 2)
  assert labels == {'embed': 'a', 'layers': ['a'], 'head': 'b'}


def decoder_params(tied_head=False):
  model = models.decoder(
    vocab_size=7,
    seq_len=4,
    num_layers=11,
    dim=8,
    num_heads=2,
    head_dim=4,
    mlp_dim=8,
    mlp='gelu',
    tied_head=tied_head,
    qk_norm=True,
    z_loss=0.0,
    dtype='float32',
    remat=False,
  )
  return jax.eval_shape(model.init, jax.random.key(0))


def tops(fragments, params):
  """Returns the fragment of each top-level key, of which none is cut."""
  names = {
    key: set(jax.tree.leaves(label)) for key, label in fragments(params).items()
  }
  assert all(len(found) == 1 for found in names.values())
  return {key: found.pop() for key, found in names.items()}


def test_layers_of_our_decoder():
  params = decoder_params()
  found = tops(dx.by_layer(layers_per_fragment=3), params)
  for layer in range(11):
    assert found[f'layer_{layer:02}'] == f'fragment_{layer % 4}'
  for name in ('embed', 'final_norm', 'head'):
    assert found[name] == 'outside'
  assert len(found) == 14


def test_both_ends_as_in_muloco():
  params = decoder_params()
  fragments = dx.by_layer(num_fragments=3, outside='ends', order='sequential')
  found = tops(fragments, params)
  assert found['embed'] == 'fragment_0'
  assert found['head'] == found['final_norm'] == 'fragment_2'
  layers = [found[f'layer_{layer:02}'] for layer in range(11)]
  assert layers == sorted(layers)
  assert set(layers) == {'fragment_0', 'fragment_1', 'fragment_2'}


@pytest.mark.parametrize(
  ('paths', 'numbers'),
  [
    (['embed_0', 'layer_3/w', 'layer_4/norm_1/w'], [None, 3, 4]),
    (['layers/0/fc_1', 'layers/10/fc_2', 'layers/9/w'], [0, 10, 9]),
    (['wte', 'h/0/attn', 'h/1/attn', 'ln_f'], [None, 0, 1, None]),
    (['TransformerBlock_1/x', 'layer_norm_7/x'], [1, None]),
    (['Embed_0', 'Block_2/Layer_5/w', 'Block_0/w'], [None, 2, 0]),
    (['0/w', '0/b', '1/w'], [0, 0, 1]),
    (['dense_1/kernel', 'dense_2/kernel', 'head'], [1, 2, None]),
  ],
)
def test_layers_found_by_default(paths, numbers):
  params = {}
  for path in paths:
    *above, last = path.split('/')
    node = params
    for key in above:
      node = node.setdefault(key, {})
    node[last] = 0.0
  ranks = sorted(set(numbers) - {None})
  if len(ranks) < len(numbers) and None in numbers:
    ranks.append(None)
  fragments = dx.by_layer(num_fragments=len(ranks))
  labels = jax.tree.leaves(fragments(params))
  order = [
    jax.tree_util.keystr(path, simple=True, separator='/')
    for path, _ in jax.tree.leaves_with_path(params)
  ]
  found = dict(zip(order, labels))
  want = lambda n: 'outside' if n is None else f'fragment_{ranks.index(n)}'
  assert [found[path] for path in paths] == [want(n) for n in numbers]


def test_a_function_may_say_the_layer():
  params = {'x': {'one': 0.0, 'two': 0.0}, 'y': 0.0}
  layer_of = {'x/one': 1, 'x/two': 2}.get
  fragments = dx.by_layer(num_fragments=3, layer_of=layer_of)
  assert fragments(params) == {
    'x': {'one': 'fragment_0', 'two': 'fragment_1'},
    'y': 'outside',
  }


def test_names_sort_by_number():
  params = [0.0] * 12
  assert dx.by_layer(num_fragments=12)(params) == sorted(
    dx.by_layer(num_fragments=12)(params)
  )


LAYERS = {'embed': 0.0, 'layers': [0.0, 0.0]}


@pytest.mark.parametrize(
  ('make', 'words'),
  [
    (lambda: dx.by_layer(), 'one of `num_fragments` and `layers_per_fragment`'),
    (
      lambda: dx.by_layer(num_fragments=1, layers_per_fragment=1),
      'one of `num_fragments`',
    ),
    (lambda: dx.by_layer(num_fragments=0), '`num_fragments` must be .* got 0'),
    (lambda: dx.by_layer(num_fragments=True), 'got True'),
    (lambda: dx.by_layer(num_fragments=2, order='odd'), "strided.* got 'odd'"),
    (lambda: dx.by_layer(num_fragments=2, outside='in'), "own.* got 'in'"),
    (
      lambda: dx.by_layer(num_fragments=4)(LAYERS),
      'from 2 to 3 with 2 layers and one fragment .* got 4',
    ),
    (
      lambda: dx.by_layer(num_fragments=1)(LAYERS),
      'from 2 to 3 with 2 layers and one fragment .* got 1',
    ),
    (
      lambda: dx.by_layer(num_fragments=3, outside='first')(LAYERS),
      'from 1 to 2 with 2 layers, got 3',
    ),
    (
      lambda: dx.by_layer(num_fragments=2)({'embed': 0.0, 'head': 0.0}),
      'none among the paths embed head. Say with `layer_of`',
    ),
    (lambda: dx.by_layer(num_fragments=2)({}), r'the paths \(there are none\)'),
    (
      lambda: dx.by_layer(num_fragments=2, layer_of='layers')(LAYERS),
      "must have a group .* got 'layers'",
    ),
    (
      lambda: dx.by_layer(num_fragments=2, layer_of=lambda _: 'x')(LAYERS),
      "must return an int or None, got 'x' for 'embed'",
    ),
    (
      lambda: dx.by_layer(num_fragments=2, outside='ends')(
        {'unembed': 0.0, 'layers': [0.0, 0.0]}
      ),
      '`embeddings` must find .* finds none among unembed',
    ),
    (lambda: dx.by_bytes(3)([0.0, 0.0]), 'number of leaves, 2, got 3'),
    (lambda: dx.by_bytes(0), '`num_fragments` must be .* got 0'),
    (lambda: dx.by_pattern({}), '`patterns` must name at least one'),
    (lambda: dx.by_pattern({'a': '('}), r"patterns\['a'\].* got '\('"),
    (
      lambda: dx.by_pattern({'a': 'e', 'b': 'embed', 'c': 'x'})(
        {'embed': 0.0, 'own': 0.0}
      ),
      r"'embed' in \['a', 'b'\], 'own' in none, no leaf in 'c', with the"
      r" patterns \{'a': 'e',",
    ),
  ],
)
def test_misuse_is_refused(make, words):
  with pytest.raises(ValueError, match=words):
    make()
