"""Replicas that meet, without training: what the tests of reductions share."""

import jax
import jax.numpy as jnp
import numpy as np

import dilojax as dx
from dilojax import replicas
from tests.transforms import training
from tests.transforms.training import KEEP
from tests.transforms.training import K

MODES = ('vmap', 'pmap', 'shard_map', 'two per device')
SHAPES = {'w': (3, 4), 's': ()}


def gradients(seed=0, num_replicas=K, shapes=None):
  """Returns a tree of normal values for each replica."""
  rng = np.random.default_rng(seed)
  draw = lambda shape: jnp.asarray(
    rng.normal(size=(num_replicas, *shape)), jnp.float32
  )
  is_shape = lambda node: isinstance(node, tuple)
  shapes = SHAPES if shapes is None else shapes
  return jax.tree.map(draw, shapes, is_leaf=is_shape)


def arrived(reduce, grads, *, send=KEEP, weight=None):
  """Returns what a round of messages becomes, for every replica."""
  rounds = jax.tree.map(lambda leaf: leaf[:, None], grads)
  weights = None if weight is None else jnp.asarray(weight)
  return jax.tree.map(
    lambda leaf: leaf[:, 0], over_rounds(reduce, rounds, send, weights)[0]
  )


def over_rounds(reduce, rounds, send=KEEP, weight=None):
  """Reduces `[K, R, ...]`: what arrives, what was sent, and the last states."""

  def one(rounds, weight):
    first = jax.tree.map(lambda leaf: leaf[0], rounds)
    extra = {} if weight is None else {'weight': weight}

    def meet(states, grads):
      sending, reducing = states
      message, sending = send.update(grads, sending, grads)
      result, reducing = reduce.update(message, reducing, grads, **extra)
      return (sending, reducing), (result, decoded(message))

    states = send.init(first), reduce.init(first)
    states, (results, sent) = jax.lax.scan(meet, states, rounds)
    return results, sent, states

  if weight is None:
    mapped = jax.vmap(lambda rounds: one(rounds, None), axis_name='replica')
    return jax.jit(mapped)(rounds)
  return jax.jit(jax.vmap(one, axis_name='replica'))(rounds, weight)


def decoded(tree):
  read = lambda node: node.decode() if isinstance(node, dx.Encoded) else node
  is_encoded = lambda node: isinstance(node, dx.Encoded)
  return jax.tree.map(read, tree, is_leaf=is_encoded)


def in_mode(make_fn, mode, *args):
  """Runs one replica's function of names, in any way to map it."""
  if mode != 'two per device':
    fn = make_fn('replica')
    mapped = training.map_yourself(fn, (0,) * len(args), 0, mode)
    return mapped(*args)
  placement = replicas.place(K, K // 2)
  fn = make_fn(placement.axis_names())
  mapped = replicas.over_replicas(fn, placement, (0,) * len(args), 0)
  return jax.jit(mapped)(*(replicas.put(arg, placement, 0) for arg in args))


def trajectory(tx, num_steps, *, targets=training.TARGETS, params=None):
  """Yields params and state of all replicas after each inner step."""
  params = training.ORIGIN if params is None else params
  state = tx.init(params)
  axes = (0, dx.replica_axes(state))
  step = training.map_yourself(
    lambda *args: training.inner_step(tx, *args), (*axes, 0), axes, 'vmap'
  )
  args = training.copies((params, state), axes, len(targets))
  for _ in range(num_steps):
    args = step(*args, jnp.asarray(targets))
    yield args


def assert_trees_close(got, want, **kwargs):
  """Compares trees leaf by leaf."""
  assert jax.tree.structure(got) == jax.tree.structure(want)
  for one, other in zip(jax.tree.leaves(got), jax.tree.leaves(want)):
    np.testing.assert_allclose(one, other, **{'rtol': 1e-5, **kwargs})
