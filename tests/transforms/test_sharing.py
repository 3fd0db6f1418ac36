"""What the states tell: who shares what, where the anchor is, what is sent."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import dilojax as dx
from dilojax import schedule as schedule_lib
from tests.transforms import training
from tests.transforms.training import KEEP

PARAMS = {'w': jnp.ones((2, 3)), 'b': jnp.ones(3, jnp.bfloat16)}
OUTER = optax.sgd(0.7, momentum=0.9)
MEAN = dx.mean_over('replica')
LABELS = {'w': 'a', 'b': 'b'}


def link(**kwargs):
  return dx.synchronize(OUTER, **{'every': 4, 'reduce': MEAN, **kwargs})


def flat(prefix, tree):
  """Spells a prefix out, leaf by leaf, with the paths."""
  full = jax.tree.map(
    lambda axis, part: jax.tree.map(lambda _: str(axis), part),
    prefix,
    tree,
    is_leaf=lambda axis: axis is None,
  )
  return {
    jax.tree_util.keystr(path): axis
    for path, axis in jax.tree.leaves_with_path(full)
  }


WRAPPERS = {
  'alone': lambda link: link,
  'chain': lambda link: optax.chain(optax.adam(0.1), link),
  'named chain': lambda link: optax.named_chain(('sync', link)),
  'partition': lambda link: optax.partition({'a': link, 'b': link}, LABELS),
  'masked': lambda link: optax.masked(link, {'w': True, 'b': False}),
  'if finite': lambda link: optax.apply_if_finite(link, 3),
  'wrapped twice': lambda link: optax.chain(
    optax.chain(optax.masked(link, {'w': True, 'b': True}))
  ),
}


@pytest.mark.parametrize('name', WRAPPERS)
def test_shared_parts_are_found_anywhere(name):
  tx = WRAPPERS[name](link(send=optax.trace(0.5), delay=2, merge=dx.delta()))
  state = tx.init(PARAMS)
  axes = flat(dx.replica_axes(state), state)
  shared = {'.step', '.anchor', '.reduce', '.outer', '.arrived'}
  assert any('.anchor' in path for path in axes)
  for path, axis in axes.items():
    is_ours = any(field in path for field in shared)
    assert axis == ('None' if is_ours else '0'), path


def test_a_state_without_links_is_private():
  state = optax.adam(0.1).init(PARAMS)
  assert set(flat(dx.replica_axes(state), state).values()) == {'0'}


def test_until_tells_of_its_link():
  tx = dx.until(3, link())
  axes = dx.replica_axes(tx.init(PARAMS))
  assert (axes.step, axes.link.anchor, axes.link.send) == (None, None, 0)


def test_an_axis_that_is_not_averaged_over_is_private():
  state = link(reduce=dx.mean_over('host')).init(PARAMS)
  axes = dx.replica_axes(state, 'region')
  assert (axes.step, axes.anchor, axes.outer) == (None, 0, 0)
  assert dx.replica_axes(state, 'host').anchor is None


def test_axes_are_a_prefix_that_survives_flattening():
  state = optax.chain(optax.adam(0.1), link()).init(PARAMS)
  leaves, structure = jax.tree.flatten(state)
  again = jax.tree.unflatten(structure, leaves)
  absent = {'is_leaf': lambda axis: axis is None}
  axes, same = dx.replica_axes(state), dx.replica_axes(again)
  assert jax.tree.leaves(axes, **absent) == jax.tree.leaves(same, **absent)
  abstract = jax.eval_shape(lambda: state)
  assert jax.tree.leaves(dx.replica_axes(abstract)) == jax.tree.leaves(axes)


# Anchors.


def test_anchor_is_the_params_before_the_first_round():
  for wrap in WRAPPERS.values():
    state = wrap(link()).init(PARAMS)
    anchor = dx.anchor_of(state, PARAMS)
    for name, leaf in PARAMS.items():
      np.testing.assert_array_equal(anchor[name], leaf)
      assert anchor[name].dtype == leaf.dtype


def test_what_has_no_anchor_is_handed_through():
  other = jax.tree.map(lambda leaf: leaf + 1, PARAMS)
  state = optax.masked(link(), {'w': True, 'b': False}).init(PARAMS)
  anchor = dx.anchor_of(state, other)
  np.testing.assert_array_equal(anchor['w'], PARAMS['w'])
  np.testing.assert_array_equal(anchor['b'], other['b'])
  plain = dx.anchor_of(optax.adam(0.1).init(PARAMS), other)
  np.testing.assert_array_equal(plain['w'], other['w'])


def test_the_last_level_has_the_say():
  levels = [dx.Level(OUTER, 2, 'host'), dx.Level(OUTER, 4, ('r', 'host'))]
  inner, near, far = dx.hierarchical(optax.sgd(0.1), levels).init(PARAMS)
  far = far._replace(anchor=jax.tree.map(lambda leaf: leaf + 1, far.anchor))
  anchor = dx.anchor_of((inner, near, far), PARAMS)
  np.testing.assert_array_equal(anchor['w'], PARAMS['w'] + 1)


@pytest.mark.parametrize('how', ['shard_map', 'vmap'])
def test_the_anchor_is_shared_by_its_type(how):
  """Whatever the private params that it replaces."""
  state = link().init(PARAMS)
  axes = dx.replica_axes(state)
  fn = training.map_yourself(dx.anchor_of, (axes, 0), None, how)
  anchor = fn(*training.copies((state, PARAMS), (axes, 0)))
  np.testing.assert_array_equal(anchor['w'], PARAMS['w'])


# Links: schedules, axes, and bytes in float32.

WHOLE, MATRIX, VECTOR = 4 * 9, 4 * 6, 4 * 3


@pytest.mark.parametrize(
  ('tx', 'want'),
  [
    (optax.adam(0.1), []),
    (link(), [((4, 4, 0, 0), ('replica',), WHOLE, True)]),
    (
      link(offset=2, delay=3, start=5, reduce=dx.mean_over(('a', 'b'))),
      [((4, 2, 3, 5), ('a', 'b'), WHOLE, True)],
    ),
    (
      link(reduce=KEEP, merge=dx.mix(0.5)),
      [((4, 4, 0, 0), (), WHOLE, False)],
    ),
    (
      link(reduce=optax.chain(MEAN, optax.trace(0.5))),
      [((4, 4, 0, 0), ('replica',), WHOLE, True)],
    ),
    (
      optax.partition({'a': link(offset=1), 'b': link(offset=3)}, LABELS),
      [
        ((4, 1, 0, 0), ('replica',), MATRIX, True),
        ((4, 3, 0, 0), ('replica',), VECTOR, True),
      ],
    ),
    (
      # Gradients travel in their own dtype.
      dx.data_parallel(optax.adam(0.1)),
      [((1, 1, 0, 0), ('replica',), MATRIX + VECTOR // 2, None)],
    ),
    (
      dx.post_local(optax.adam(0.1), OUTER, every=4, data_parallel_steps=7),
      [
        ((1, 1, 0, 0, 7), ('replica',), MATRIX + VECTOR // 2, None),
        ((4, 4, 0, 7), ('replica',), WHOLE, True),
      ],
    ),
    (
      dx.hierarchical(
        optax.adam(0.1),
        [dx.Level(OUTER, 2, 'host'), dx.Level(OUTER, 6, ('region', 'host'))],
      ),
      [
        ((2, 2, 0, 0), ('host',), WHOLE, True),
        ((6, 6, 0, 0), ('region', 'host'), WHOLE, True),
      ],
    ),
  ],
  ids=range(9),
)
def test_links_are_listed_in_order(tx, want):
  state = jax.eval_shape(tx.init, PARAMS)
  found = [link._replace(name='') for link in dx.links(state, PARAMS)]
  assert found == [
    dx.Link(schedule_lib.Schedule(*plan), names, nbytes, overwrites)
    for plan, names, nbytes, overwrites in want
  ]
