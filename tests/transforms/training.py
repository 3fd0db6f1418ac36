"""Replicas that walk to their targets: what the tests of the links train."""

import jax
import jax.numpy as jnp
import numpy as np
import optax

import dilojax as dx
from dilojax import replicas

K, DIM, LR = 4, 3, 0.1
TARGETS = np.arange(K * DIM, dtype=np.float32).reshape(K, DIM)
MEAN = TARGETS.mean(axis=0)
ORIGIN = jnp.zeros(DIM)
KEEP = optax.identity()


def loss(params, target):
  """A quadratic: a step of SGD shrinks the distance by 1 - LR."""
  distances = jax.tree.map(lambda leaf: leaf - target, params)
  return 0.5 * optax.tree.norm(distances, squared=True)


def sgd_then(outer, **kwargs):
  """Makes local SGD and a link, given the mean over all replicas."""
  return lambda mean: optax.chain(
    optax.sgd(LR), dx.synchronize(outer, **{'reduce': mean, **kwargs})
  )


def inner_step(tx, params, state, target, *, step=None, final=False):
  """Takes an inner step of one replica, and lands exactly."""
  grads = jax.grad(loss)(params, target)
  told = {'step': step, 'final': final}
  updates, state = tx.update(grads, state, params, **told)
  return dx.apply_updates(params, updates, state, **told), state


def train(tx, params, state, target, num_steps, *, static=False, final=False):
  """Trains one replica: unrolled when steps are static, else in a scan."""
  if static:
    for step in range(1, num_steps + 1):
      params, state = inner_step(
        tx, params, state, target, step=step, final=final and step == num_steps
      )
    return params, state
  scanned = lambda carry, _: (inner_step(tx, *carry, target), None)
  return jax.lax.scan(scanned, (params, state), length=num_steps)[0]


def prepare(
  make_tx, num_steps, params=ORIGIN, *, devices=K, targets=TARGETS, **kwargs
):
  """Returns a program that trains the replicas, and its arguments."""
  placement = replicas.place(len(targets), devices)
  tx = make_tx(dx.mean_over(placement.axis_names()))
  state = tx.init(params)
  axes = (0, dx.replica_axes(state))
  program = replicas.over_replicas(
    lambda *args: train(tx, *args, num_steps, **kwargs),
    placement,
    in_axes=(*axes, 0),
    out_axes=axes,
  )
  args = replicas.spread((params, state), placement, axes)
  targets = replicas.put(jnp.asarray(targets), placement, 0)
  return jax.jit(program, donate_argnums=(0, 1)), (*args, targets)


def run(make_tx, *args, **kwargs):
  """Trains, and returns params and state of all replicas."""
  program, args = prepare(make_tx, *args, **kwargs)
  return program(*args)


def map_yourself(fn, in_axes, out_axes, how, **kwargs):
  """Maps one replica's function as a user would, without our placement."""
  if how == 'vmap':
    return jax.jit(jax.vmap(fn, in_axes, out_axes, 'replica'), **kwargs)
  if how == 'pmap':
    return jax.pmap(
      fn,
      'replica',
      in_axes=in_axes,
      out_axes=out_axes,
      devices=jax.devices()[:K],
      **kwargs,
    )
  mesh = jax.make_mesh(
    (K,), ('replica',), (jax.sharding.AxisType.Auto,), devices=jax.devices()[:K]
  )
  absent = lambda axis: axis is None
  specs = lambda axes: jax.tree.map(
    lambda axis: jax.P() if axis is None else jax.P('replica'),
    axes,
    is_leaf=absent,
  )
  private = lambda change, axes, tree: jax.tree.map(
    lambda axis, part: part if axis is None else jax.tree.map(change, part),
    axes,
    tree,
    is_leaf=absent,
  )

  def alone(*args):
    args = private(lambda leaf: leaf[0], in_axes, args)
    return private(lambda leaf: leaf[None], out_axes, fn(*args))

  mapped = jax.shard_map(
    alone, mesh=mesh, in_specs=specs(in_axes), out_specs=specs(out_axes)
  )
  return jax.jit(mapped, **kwargs)


def copies(tree, axes, num_replicas=K):
  """Copies the private parts of a tree for every replica."""
  copy = lambda leaf: jnp.broadcast_to(leaf, (num_replicas, *jnp.shape(leaf)))
  return jax.tree.map(
    lambda axis, part: part if axis is None else jax.tree.map(copy, part),
    axes,
    tree,
    is_leaf=lambda axis: axis is None,
  )
