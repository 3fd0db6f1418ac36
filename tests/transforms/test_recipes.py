"""Methods by name: each equals what it is composed of, or a known method."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import dilojax as dx
from dilojax import wire
from tests.transforms import meeting
from tests.transforms import training
from tests.transforms.training import LR
from tests.transforms.training import TARGETS
from tests.transforms.training import K

MEAN = dx.mean_over('replica')
SGD = optax.sgd(LR)
NESTEROV = optax.sgd(0.7, momentum=0.9, nesterov=True)
PARAMS = {'embed': jnp.zeros(3), 'layers': [jnp.zeros(3), jnp.zeros(3)]}
LAYERS = dx.by_layer(num_fragments=2, outside='ends')


def last(tx, num_steps, params=None):
  *_, (params, state) = meeting.trajectory(tx, num_steps, params=params)
  return params, state


def test_sparseloco_of_everything_is_outer_sgd():
  """All values of a block, none rounded: nothing is kept for later."""
  tx = dx.sparseloco(
    SGD, every=2, lr=0.7, fraction=1.0, values='float32', block_size=4
  )
  params, (_, state) = last(tx, 6)
  want, (_, wanted) = last(dx.diloco(SGD, optax.sgd(0.7), every=2), 6)
  np.testing.assert_allclose(params, want, rtol=1e-5)
  np.testing.assert_allclose(state.anchor, wanted.anchor, rtol=1e-5)
  np.testing.assert_array_equal(state.send.kept, 0)


def test_sparseloco_divides_by_all_replicas():
  """Whoever does not send an entry counts as 0 there."""
  tx = dx.sparseloco(
    SGD, every=1, lr=1.0, fraction=1 / 3, values='float32', block_size=3
  )
  _, (_, state) = last(tx, 1)
  # The largest entry of a target is its last.
  steps = LR * TARGETS
  want = steps.mean(axis=0) * [0, 0, 1]
  np.testing.assert_allclose(state.anchor, want, rtol=1e-5)
  np.testing.assert_allclose(state.send.kept, -steps * [1, 1, 0], rtol=1e-5)


def test_sparseloco_sends_few_bits():
  params = {'w': jnp.zeros((64, 128))}
  state = dx.sparseloco(SGD, every=2).init(params)
  (link,) = dx.links(state, params)
  codec = wire.top_k(1 / 64, 4096, 'statistical')
  assert (link.op, link.nbytes) == ('all-gather', codec.nbytes((64, 128)))
  # 64 indices of 12 bits and values of 2 per block, and a codebook.
  assert link.nbytes / (4 * 64 * 128) < 0.01


@pytest.mark.parametrize(
  ('alias', 'reduce'),
  [
    (dx.eager_diloco, dx.eager(MEAN)),
    (dx.delayed_diloco, dx.one_round_late(MEAN)),
  ],
  ids=['eager', 'delayed'],
)
def test_late_rounds_in_turns_are_those_of_each_fragment(alias, reduce):
  """Fragments that are each a whole training: the leaves do not interact."""
  tx = alias(SGD, NESTEROV, every=4, fragments=LAYERS)
  params, _ = last(tx, 9, PARAMS)
  for leaf, offset in (('embed', 4), (0, 4), (1, 2)):
    got = params['embed'] if leaf == 'embed' else params['layers'][leaf]
    link = dx.synchronize(NESTEROV, every=4, offset=offset, reduce=reduce)
    want, _ = last(optax.chain(SGD, link), 9)
    np.testing.assert_allclose(got, want, rtol=1e-5)
  whole, _ = last(alias(SGD, NESTEROV, every=2), 5)
  link = dx.synchronize(NESTEROV, every=2, reduce=reduce)
  want, _ = last(optax.chain(SGD, link), 5)
  np.testing.assert_array_equal(whole, want)


def test_cocodc_without_correction_is_streaming_with_the_delta_rule():
  kwargs = {'every': 6, 'fragments': LAYERS, 'delay': 2}
  make = lambda strength: dx.cocodc(SGD, NESTEROV, strength=strength, **kwargs)
  got, _ = last(make(0.0), 9, PARAMS)
  streaming = dx.streaming_diloco(SGD, NESTEROV, merge=dx.delta(), **kwargs)
  want, _ = last(streaming, 9, PARAMS)
  meeting.assert_trees_close(got, want, rtol=0)
  other, _ = last(make(0.5), 9, PARAMS)
  assert np.any(other['embed'] != want['embed'])


def test_decoupled_merge_averages_directions_but_of_embeddings():
  """In the first round anchors are at 0, and targets are at distances."""
  tx = dx.decoupled_merge(
    SGD, optax.sgd(1.0), every=4, delay=1, fragments=LAYERS
  )
  _, state = last(tx, 5, PARAMS)
  walked = lambda steps: (1 - (1 - LR) ** steps) * TARGETS
  units = TARGETS / np.linalg.norm(TARGETS, axis=1, keepdims=True)
  direction = units.mean(axis=0) / np.linalg.norm(units.mean(axis=0))
  radial = lambda steps: (
    np.linalg.norm(walked(steps), axis=1).mean() * direction
  )
  found = {}
  for node in jax.tree.leaves(
    state, is_leaf=lambda node: isinstance(node, dx.SynchronizeState)
  ):
    if isinstance(node, dx.SynchronizeState):
      for path, leaf in jax.tree.leaves_with_path(node.anchor):
        found[jax.tree_util.keystr(path)] = leaf
  np.testing.assert_allclose(
    found["['embed']"], walked(4).mean(axis=0), rtol=1e-5
  )
  np.testing.assert_allclose(found["['layers'][0]"], radial(4), rtol=1e-4)
  np.testing.assert_allclose(found["['layers'][1]"], radial(2), rtol=1e-4)


def test_decoupled_merge_takes_weights():
  """Of one replica alone: its own displacement, at outer sgd(1)."""
  tx = dx.decoupled_merge(
    SGD, optax.sgd(1.0), every=2, delay=1, fragments={'w': 'all'}
  )
  params = {'w': jnp.zeros(3)}
  state = tx.init(params)

  def train(target, weight):
    carry = params, state
    for step in (1, 2, 3):
      grads = jax.grad(training.loss)(carry[0], target)
      updates, new = tx.update(
        grads, carry[1], carry[0], step=step, weight=weight
      )
      carry = optax.apply_updates(carry[0], updates), new
    return carry[0]['w']

  weight = jnp.array([0.0, 0.0, 5.0, 0.0])
  got = jax.jit(jax.vmap(train, axis_name='replica'))(TARGETS, weight)
  want = (1 - (1 - LR) ** 2) * np.broadcast_to(TARGETS[2], (K, 3))
  np.testing.assert_allclose(got, want, rtol=1e-5)


def test_muloco_gives_muon_the_matrices_between_layers():
  params = {
    'embed': jnp.ones((4, 3)),
    'layers': [{'w': jnp.ones((3, 3)), 'norm': jnp.ones(5)}],
    'head': jnp.ones((3, 4)),
  }
  tx = dx.muloco(0.1, every=2)
  # Each optimizer has momentum of what it is given, and 3 coefficients.
  _, inner, link = tx.init(params)
  sizes = {
    name: {leaf.shape for leaf in jax.tree.leaves(part)} - {(), (3,)}
    for name, part in inner.inner_states.items()
  }
  assert sizes == {'muon': {(3, 3)}, 'adamw': {(4, 3), (5,), (3, 4)}}
  assert link.plan.schedule.every == 2
  mine = dx.muloco(
    0.1,
    hidden=lambda params: jax.tree.map(lambda leaf: leaf.ndim == 2, params),
  )
  _, inner, _ = mine.init(params)
  leaves = jax.tree.leaves(inner.inner_states['muon'])
  assert {(4, 3), (3, 4)} < {leaf.shape for leaf in leaves}


def test_muloco_is_muon_inside_diloco():
  """With feedback of exact messages, nothing is kept."""
  shapes = {'w': (2, 3)}
  targets = meeting.gradients(shapes=shapes)
  send = dx.error_feedback(wire.float32(), 0.9)
  tx = dx.muloco(0.1, every=2, clip_norm=1e9, send=send)
  muon = optax.contrib.muon(0.1, beta=0.95)
  by_hand = dx.diloco(muon, NESTEROV, every=2)

  def run(tx):
    params = {'w': jnp.zeros((2, 3))}
    state = tx.init(params)
    axes = (0, dx.replica_axes(state))

    def one(params, state, target):
      grads = optax.tree.sub(params, target)
      updates, state = tx.update(grads, state, params)
      return dx.apply_updates(params, updates, state), state

    step = training.map_yourself(one, (*axes, 0), axes, 'vmap')
    args = training.copies((params, state), axes)
    for _ in range(5):
      args = step(*args, targets)
    return args

  params, (_, _, state) = run(tx)
  want, _ = run(by_hand)
  np.testing.assert_allclose(params['w'], want['w'], rtol=1e-4, atol=1e-6)
  np.testing.assert_array_equal(state.send.kept['w'], 0)
