"""Types, buffers and memory of every link: nothing changes, nothing aliases."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import dilojax as dx
from tests.transforms import training
from tests.transforms.training import KEEP

WIDE = {'w': jnp.ones((2, 3)), 'b': jnp.ones(3), 's': jnp.ones(())}
NARROW = jax.tree.map(lambda leaf: leaf.astype(jnp.bfloat16), WIDE)
MIXED = WIDE | {'w': NARROW['w']}
PARAMS = {'f32': WIDE, 'bf16': NARROW, 'mixed': MIXED}
NESTEROV = optax.sgd(0.7, momentum=0.9, nesterov=True)


def link(outer=NESTEROV, **kwargs):
  return dx.synchronize(outer, **{'every': 4, 'reduce': KEEP, **kwargs})


LINKS = {
  'plain': link(),
  'adam': link(optax.adam(0.7)),
  'scheduled': link(optax.sgd(optax.linear_schedule(1.0, 0.0, 4), 0.9)),
  'late': link(delay=1, merge=dx.mix(0.5)),
  'delta': link(delay=2, merge=dx.delta(), start=3),
  'sender': link(send=optax.trace(decay=0.5), start=1),
  'fragments': optax.partition(
    {'a': link(offset=1), 'b': link(delay=3)}, {'w': 'a', 'b': 'b', 's': 'b'}
  ),
  'until': dx.until(2, optax.trace(decay=0.9)),
  'levels': dx.hierarchical(
    optax.identity(),
    [dx.Level(NESTEROV, 2, 'replica'), dx.Level(NESTEROV, 3, 'replica')],
  ),
  'post local': dx.post_local(
    optax.identity(), NESTEROV, every=2, data_parallel_steps=2
  ),
}


def typed(tree):
  return jax.tree.map(jax.typeof, tree)


def named(fn):
  """Maps over one replica, so that the axis has a name."""
  return jax.vmap(
    fn, in_axes=None, out_axes=None, axis_size=1, axis_name='replica'
  )


@pytest.mark.parametrize('kind', PARAMS)
@pytest.mark.parametrize('name', LINKS)
def test_types_survive(name, kind):
  """Structure, dtype and weak type, in any step, and so in a scan."""
  tx, params = LINKS[name], PARAMS[kind]
  state = jax.eval_shape(tx.init, params)
  before = typed((params, state))

  def one(params, state, *, step=None, final=False):
    updates, state = tx.update(params, state, params, step=step, final=final)
    told = {'step': step, 'final': final}
    return dx.apply_updates(params, updates, state, **told), state

  for step in (None, 1, 2, 3, 4, 5, 6, 7):
    step_of = named(lambda *args, step=step: one(*args, step=step))
    assert typed(jax.eval_shape(step_of, params, state)) == before
  last = named(lambda *args: one(*args, step=5, final=True))
  assert typed(jax.eval_shape(last, params, state)) == before
  scan = named(
    lambda *args: jax.lax.scan(
      lambda carry, _: (one(*carry), None), args, length=3
    )[0]
  )
  assert typed(jax.eval_shape(scan, params, state)) == before


@pytest.mark.parametrize('kind', PARAMS)
@pytest.mark.parametrize('name', sorted(set(LINKS) - {'until'}))
def test_outer_arithmetic_is_wide(name, kind):
  state = LINKS[name].init(PARAMS[kind])
  states = jax.tree.leaves(
    state, is_leaf=lambda node: isinstance(node, dx.SynchronizeState)
  )
  states = [one for one in states if isinstance(one, dx.SynchronizeState)]
  assert states
  for one in states:
    shared = (one.anchor, one.arrived, one.outer, one.send, one.reduce)
    dtypes = {leaf.dtype.name for leaf in jax.tree.leaves(shared)}
    assert dtypes <= {'float32', 'int32'}


def test_wider_params_keep_their_width():
  with jax.enable_x64(True):
    tx = link(every=1)
    params = jnp.ones(3, jnp.float64)
    updates, state = tx.update(params * 1e-12, tx.init(params), params, step=1)
    assert updates.dtype == state.anchor.dtype == jnp.float64
    np.testing.assert_allclose(state.anchor - 1, 1.33e-12, rtol=1e-3)


def test_inner_updates_may_be_wider_than_params():
  tx = optax.chain(optax.scale(-0.1), link(every=1))
  updates, _ = tx.update(WIDE, tx.init(NARROW), NARROW, step=1)
  assert typed(updates) == typed(WIDE)


# Buffers.


def pointers(tree):
  return [leaf.unsafe_buffer_pointer() for leaf in jax.tree.leaves(tree)]


@pytest.mark.parametrize('name', LINKS)
def test_no_two_leaves_share_a_buffer(name):
  params = jax.tree.map(jnp.array, WIDE)
  found = pointers((params, LINKS[name].init(params)))
  assert len(set(found)) == len(found)


@pytest.mark.parametrize('name', ['plain', 'delta', 'fragments', 'levels'])
def test_params_and_state_can_be_donated_twice(name):
  """A donated buffer that cannot be used warns, and warnings are errors."""
  tx = LINKS[name]

  def two(params, state):
    for step in (3, 4):
      updates, state = tx.update(params, state, params, step=step)
      params = dx.apply_updates(params, updates, state, step=step)
    return params, state

  # A leading axis of one replica, which the mesh of a program would have.
  program = jax.jit(named(two), donate_argnums=(0, 1))
  params = jax.tree.map(jnp.array, WIDE)
  state = tx.init(params)
  for _ in range(2):
    params, state = program(params, state)
    found = pointers((params, state))
    assert len(set(found)) == len(found)


@pytest.mark.parametrize('how', ['vmap', 'shard_map', 'pmap'])
def test_donation_is_used_in_every_mode(how):
  tx = dx.diloco(optax.adam(0.1), NESTEROV, every=2)
  state = tx.init(training.ORIGIN)
  axes = (0, dx.replica_axes(state))
  program = training.map_yourself(
    lambda *args: training.inner_step(tx, *args),
    (*axes, 0),
    axes,
    how,
    donate_argnums=(0, 1),
  )
  args = training.copies((training.ORIGIN, state), axes)
  targets = jnp.asarray(training.TARGETS)
  args = program(*args, targets)  # Puts them where they belong.
  for _ in range(3):
    donated = args
    args = program(*args, targets)
    assert all(leaf.is_deleted() for leaf in jax.tree.leaves(donated))
  assert args[1][1].step == 4


def test_moving_a_replica_moves_no_anchor():
  """After a synchronization the two are equal, and not the same."""
  tx = link(every=1)
  params = jax.tree.map(jnp.array, WIDE)
  updates, state = tx.update(params, tx.init(params), params, step=1)
  params = dx.apply_updates(params, updates, state, step=1)
  anchor = jax.tree.map(np.array, state.anchor)
  moved = jax.tree.map(lambda leaf: leaf + 1, params)
  _, state = tx.update(
    jax.tree.map(jnp.zeros_like, params), state, moved, step=2
  )
  # One step further: the replica has moved by 1, so the anchor moves on.
  for name in WIDE:
    assert not np.array_equal(state.anchor[name], anchor[name])


# Memory.


def test_quiet_steps_keep_no_copy_of_the_params():
  tx = optax.chain(optax.sgd(0.1), link())
  params = {'w': jnp.ones((256, 256))}

  def temporary(tx, **kwargs):
    def one(params, state, grads):
      updates, state = tx.update(grads, state, params, **kwargs)
      return optax.apply_updates(params, updates), state

    program = jax.jit(one, donate_argnums=(0, 1))
    args = params, jax.eval_shape(tx.init, params), params
    compiled = program.lower(*args).compile()
    return compiled.memory_analysis().temp_size_in_bytes

  assert temporary(tx, step=1) <= temporary(optax.sgd(0.1)) + 64
