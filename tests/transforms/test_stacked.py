"""Layers in one leaf: the same numbers as layers in a leaf each."""

import hypothesis
from hypothesis import strategies
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import dilojax as dx
from dilojax import audit
from dilojax import replicas
from dilojax.transforms import _stacked
from tests.transforms.training import K

NUM_LAYERS, DIM, EVERY = 5, 3, 4
NESTEROV = optax.sgd(0.4, momentum=0.9, nesterov=True)
LAYERS = {
  'embed': jnp.ones(DIM),
  'layers': [
    {'w': jnp.full(DIM, 1.0 * i), 'b': jnp.full(1, -1.0 * i)}
    for i in range(NUM_LAYERS)
  ],
}


def stack(params):
  """Puts all layers into one leaf each, along axis 1."""
  layers = jax.tree.map(lambda *leaf: jnp.stack(leaf, 1), *params['layers'])
  return {'embed': params['embed'], 'layers': layers}


def loss(params, batch):
  """Of either form; `batch` scales the pull of a replica."""
  if isinstance(params['layers'], list):
    params = stack(params)
  layers, out = params['layers'], params['embed'] * batch
  for i in range(NUM_LAYERS):
    out = jnp.sin(out + layers['w'][:, i]) + layers['b'][0, i]
  return jnp.sum(out**2)


def trained(fragments, params, num_steps, *, devices, static, **kwargs):
  """Trains replicas, and returns their params, state and the anchor."""
  placement = replicas.place(K, devices)
  tx = dx.streaming_diloco(
    optax.adam(0.01),
    NESTEROV,
    every=EVERY,
    fragments=fragments,
    axis_name=placement.axis_names(),
    **kwargs,
  )
  state = tx.init(params)
  axes = (0, dx.replica_axes(state))

  def train(params, state, batch):
    def inner_step(carry, step=None):
      params, state = carry
      grads = jax.grad(loss)(params, batch)
      updates, state = tx.update(grads, state, params, step=step)
      return dx.apply_updates(params, updates, state, step=step), state

    carry = params, state
    if static:
      for step in range(1, num_steps + 1):
        carry = inner_step(carry, step)
      return carry
    return jax.lax.scan(
      lambda carry, _: (inner_step(carry), None), carry, length=num_steps
    )[0]

  program = replicas.over_replicas(train, placement, (*axes, 0), axes)
  batch = replicas.put(jnp.linspace(0.5, 2.0, K), placement, 0)
  args = replicas.spread((params, state), placement, axes)
  return jax.jit(program)(*args, batch)


@pytest.mark.slow
@pytest.mark.parametrize(
  ('num_steps', 'devices', 'static', 'order', 'delay', 'alpha'),
  [
    (2, 1, True, 'strided', 1, 0.5),
    (12, 4, False, 'strided', 2, 0.5),
    (12, 2, False, 'sequential', 0, 0.0),
  ],
)
def test_stacked_layers_train_like_others(
  num_steps, devices, static, order, delay, alpha
):
  how = {'layers_per_fragment': 2, 'order': order}
  rest = {
    'devices': devices,
    'static': static,
    'delay': delay,
    'merge': dx.mix(alpha),
  }
  apart, apart_state = trained(dx.by_layer(**how), LAYERS, num_steps, **rest)
  fragments = dx.by_stacked_layer('layers', axis=1, **how)
  got, state = trained(fragments, stack(LAYERS), num_steps, **rest)
  anchors = [
    jax.jit(dx.anchor_of)(state, jax.tree.map(lambda leaf: leaf[0], params))
    for state, params in ((state, got), (apart_state, apart))
  ]
  for one, other in (
    (got, jax.vmap(stack)(apart)),
    (anchors[0], stack(anchors[1])),
  ):
    jax.tree.map(
      lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5),
      one,
      other,
    )


@pytest.mark.parametrize(('static', 'num_steps'), [(False, 5), (True, 1)])
def test_parts_land_exactly(static, num_steps):
  """In steps 1 and 5 lands fragment_1: layers 1 and 3."""
  fragments = dx.by_stacked_layer('layers', axis=1, num_fragments=3)
  got, state = trained(
    fragments,
    stack(LAYERS),
    num_steps,
    devices=1,
    static=static,
    delay=0,
    merge=dx.overwrite(),
  )
  anchor = dx.anchor_of(state, jax.tree.map(lambda leaf: leaf[0], got))
  for name, leaf in got['layers'].items():
    equal = np.all(leaf == anchor['layers'][name][None], axis=(0, 1))
    np.testing.assert_array_equal(equal, [False, True, False, True, False])


def test_links_count_their_parts():
  params = stack(LAYERS)
  fragments = dx.by_stacked_layer('layers', axis=1, num_fragments=3)
  tx = dx.streaming_diloco(
    optax.sgd(0.1), NESTEROV, every=EVERY, fragments=fragments
  )
  links = dx.links(jax.eval_shape(tx.init, params), params)
  assert [link.nbytes for link in links] == [4 * 4 * 3, 4 * 4 * 2, 4 * 3]


@hypothesis.example(num=7, axis=1, order='strided', size=3)
@hypothesis.settings(deadline=None, max_examples=15)
@hypothesis.given(
  strategies.integers(1, 9),
  strategies.integers(0, 2),
  strategies.sampled_from(['strided', 'sequential']),
  strategies.integers(1, 4),
)
def test_parts_are_disjoint_and_together_the_leaf(num, axis, order, size):
  shape = [2, 3, 2]
  shape[axis] = num
  leaf = np.arange(np.prod(shape), dtype=np.float32).reshape(shape)
  params = {'layers': leaf, 'rest': [np.float32(0), {}, None]}
  labels = dx.by_stacked_layer(
    'layers', axis=axis, layers_per_fragment=size, order=order
  )(params)
  parts = _stacked.split(params, labels)
  found = parts['layers'].parts
  together = np.concatenate([np.ravel(part) for part in found])
  np.testing.assert_array_equal(np.sort(together), np.ravel(leaf))
  assert all(1 <= part.shape[axis] <= size for part in found)
  np.testing.assert_array_equal(_stacked.join(parts)['layers'], leaf)
  # The layers of every part are those that `by_layer` gives it.
  apart = {'layers': [0.0] * num}
  names = dx.by_layer(layers_per_fragment=size, order=order)(apart)['layers']
  index = np.moveaxis(leaf, axis, 0)
  for name, part in zip(labels['layers'].parts, found):
    own = [i for i in range(num) if names[i] == name]
    np.testing.assert_array_equal(np.moveaxis(part, axis, 0), index[own])


def test_nothing_is_gathered_inside_a_replica():
  """Fault of others: XLA gathers a leaf that is cut where it is sharded."""
  placement = replicas.place(2, 4, fsdp=2)
  params = {'embed': jnp.ones(16), 'layers': jnp.ones((16, 6))}
  fragments = dx.by_stacked_layer('layers', axis=1, num_fragments=3)
  tx = dx.streaming_diloco(
    optax.sgd(0.1),
    NESTEROV,
    every=6,
    fragments=fragments,
    delay=0,
    axis_name=placement.axis_names(),
  )
  state = tx.init(params)
  axes = (0, dx.replica_axes(state))

  def one_step(step):
    def train(params, state):
      updates, state = tx.update(params, state, params, step=step)
      return dx.apply_updates(params, updates, state, step=step), state

    program = replicas.over_replicas(train, placement, axes, axes)
    args = replicas.spread((params, state), placement, axes)
    return audit.collectives(jax.jit(program).lower(*args).compile())

  assert one_step(1) == []
  # Fragment 1 of layers 1, 3 and 5, of which a device has half the rows.
  found = one_step(2)
  assert {one.op for one in found} == {'all-reduce'}
  assert sum(one.nbytes for one in found) == 4 * 3 * 16 // 2


@pytest.mark.parametrize(
  ('make', 'words'),
  [
    (
      lambda: dx.by_stacked_layer('layers', axis=-1, num_fragments=2),
      '`axis` must be an int of at least 0, got -1',
    ),
    (
      lambda: dx.by_stacked_layer('(', num_fragments=2),
      '`stacked` must be a reg',
    ),
    (lambda: dx.by_stacked_layer('layers'), 'one of `num_fragments`'),
    (
      lambda: dx.by_stacked_layer('blocks', num_fragments=2)(stack(LAYERS)),
      "got 'blocks', which finds none among embed layers/b layers/w",
    ),
    (
      lambda: dx.by_stacked_layer('layers', num_fragments=2)(stack(LAYERS)),
      r'along `axis` 0, got layers/b: \(1, 5\), layers/w: \(3, 5',
    ),
    (
      # A vector among matrices, as where models scan along axis 1.
      lambda: dx.by_stacked_layer('layers', axis=1, num_fragments=2)(
        {'layers': {'w': jnp.ones((3, 4)), 'scale': jnp.ones(4)}}
      ),
      r'along `axis` 1, got layers/scale: \(4,\), layers/w: \(3, 4\)',
    ),
    (
      lambda: dx.by_stacked_layer('layers', axis=1, num_fragments=7)(
        stack(LAYERS)
      ),
      'from 2 to 6 with 5 layers and one fragment .* got 7',
    ),
  ],
)
def test_misuse_is_refused(make, words):
  with pytest.raises(ValueError, match=words):
    make()
