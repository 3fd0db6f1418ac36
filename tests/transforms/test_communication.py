"""What the links send, counted and located in the compiled program."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import dilojax as dx
from dilojax import audit
from dilojax import replicas
from tests.transforms import training
from tests.transforms.training import K

PARAMS = {
  'w': jnp.ones((8, 4)),
  'b': jnp.ones(4, jnp.bfloat16),
  'scale': jnp.ones(()),
}
NUM_BYTES = 4 * (8 * 4 + 4 + 1)  # In float32, whatever the params are.
OUTER = optax.sgd(0.7, momentum=0.9, nesterov=True)


def loss(params, batch):
  hidden = jnp.tanh(batch @ params['w'] + params['b'][None])
  return jnp.mean(hidden**2) * params['scale']


def compile_steps(
  placement, steps, link=None, *, axes_along=None, everything_private=False
):
  """Compiles inner steps, a None being a step that decides while running."""
  mean = dx.mean_over(placement.axis_names())
  make = link or (lambda mean: dx.synchronize(OUTER, every=4, reduce=mean))
  tx = optax.chain(optax.adamw(0.01), make(mean))
  state = tx.init(PARAMS)
  axes = (0, 0 if everything_private else dx.replica_axes(state))

  def train(params, state, batch):
    for step in steps:
      grads = jax.grad(loss)(params, batch)
      updates, state = tx.update(grads, state, params, step=step)
      params = dx.apply_updates(params, updates, state, step=step)
    return params, state

  program = replicas.over_replicas(train, placement, (*axes, 0), axes)
  args = replicas.spread((PARAMS, state), placement, axes)
  batch = jnp.ones((placement.total, 2, 8))
  return jax.jit(program).lower(*args, batch).compile()


def across_replicas(program, placement):
  """Lists the collectives that cross a replica axis."""
  return [
    one
    for one in audit.collectives(program)
    if set(audit.axes(one, placement.mesh)) & set(placement.num_replicas)
  ]


@pytest.mark.parametrize('devices', [2, 4])
def test_quiet_steps_send_nothing(devices):
  placement = replicas.place(K, devices)
  program = compile_steps(placement, [1, 2, 3])
  assert audit.collectives(program) == []


@pytest.mark.parametrize('devices', [2, 4])
def test_a_synchronization_sends_the_mean_alone(devices):
  placement = replicas.place(K, devices)
  found = audit.collectives(compile_steps(placement, [4]))
  assert {one.op for one in found} == {'all-reduce'}
  assert {dtype for one in found for dtype in one.dtypes} == {'f32'}
  assert sum(one.nbytes for one in found) == NUM_BYTES
  assert {audit.axes(one, placement.mesh) for one in found} == {('replica',)}
  assert not any(one.in_branch for one in found)


def test_a_late_message_is_sent_at_its_launch():
  placement = replicas.place(4, 4)
  link = lambda mean: dx.synchronize(
    OUTER, every=4, delay=2, merge=dx.delta(), reduce=mean
  )
  sent = lambda steps: sum(
    one.nbytes
    for one in audit.collectives(compile_steps(placement, steps, link))
  )
  assert sent([4]) == NUM_BYTES
  assert sent([5, 6]) == 0


def test_a_fragment_sends_its_own_leaves():
  placement = replicas.place(4, 4)
  labels = {'w': 'a', 'b': 'b', 'scale': 'b'}

  def link(mean):
    at = lambda offset: dx.synchronize(
      OUTER, every=4, offset=offset, reduce=mean
    )
    return optax.partition({'a': at(2), 'b': at(4)}, labels)

  sent = lambda step: sum(
    one.nbytes
    for one in audit.collectives(compile_steps(placement, [step], link))
  )
  assert [sent(step) for step in (1, 2, 4)] == [0, 4 * 32, 4 * 5]


@pytest.mark.parametrize('devices', [2, 4])
def test_dynamic_steps_send_within_a_branch(devices):
  placement = replicas.place(K, devices)
  found = audit.collectives(compile_steps(placement, [None]))
  assert all(one.in_branch for one in found)
  assert sum(one.nbytes for one in found) == NUM_BYTES


def test_across_replicas_goes_the_mean_at_sharded_size():
  """Inside a replica the compiler may talk as it likes."""
  placement = replicas.place(2, 8, fsdp=2, tensor=2)
  quiet = compile_steps(placement, [1])
  assert across_replicas(quiet, placement) == []
  assert audit.collectives(quiet) != []
  found = across_replicas(compile_steps(placement, [4]), placement)
  assert {one.op for one in found} == {'all-reduce'}
  assert {audit.axes(one, placement.mesh) for one in found} == {('replica',)}
  # The matrix is cut in four, the vector of four in two by each axis or both.
  assert sum(one.nbytes for one in found) in {
    4 * (8 + part + 1) for part in (1, 2, 4)
  }
  program = compile_steps(placement, [None])
  assert all(one.in_branch for one in across_replicas(program, placement))


def test_levels_cross_their_own_axes():
  placement = replicas.place({'region': 2, 'host': 2}, 4)
  levels = [
    dx.Level(OUTER, 2, placement.axis_names('host')),
    dx.Level(OUTER, 6, placement.axis_names()),
  ]
  tx = dx.hierarchical(optax.sgd(0.1), levels)
  state = tx.init(PARAMS)
  along = lambda name: dx.replica_axes(state, name)
  axes = (0, replicas.varying(placement, along))
  args = replicas.spread((PARAMS, state), placement, axes)

  def crossed(step):
    def one(params, state):
      return tx.update(params, state, params, step=step)

    program = replicas.over_replicas(one, placement, axes, axes)
    found = audit.collectives(jax.jit(program).lower(*args).compile())
    return {axis for one in found for axis in audit.axes(one, placement.mesh)}

  assert crossed(1) == set()
  assert crossed(2) == {'host'}
  assert crossed(6) == {'region', 'host'}


# Traps: what happens to those who map by hand, and map wrongly.


def subjaxprs(jaxpr):
  """Yields a jaxpr and all within it."""
  yield jaxpr
  for eqn in jaxpr.eqns:
    for value in jax.tree.leaves(
      list(eqn.params.values()), is_leaf=lambda x: hasattr(x, 'jaxpr')
    ):
      inner = getattr(value, 'jaxpr', value)
      if hasattr(inner, 'eqns'):
        yield from subjaxprs(inner)


def conditions(private):
  """Returns the shapes of the predicates under `vmap`."""
  tx = training.sgd_then(OUTER, every=4)(dx.mean_over('replica'))
  state = tx.init(training.ORIGIN)
  axes = (0, 0 if private else dx.replica_axes(state))
  args = training.copies((training.ORIGIN, state), axes)
  step = jax.vmap(
    lambda *args: training.inner_step(tx, *args),
    (*axes, 0),
    axes,
    axis_name='replica',
  )
  jaxpr = jax.make_jaxpr(step)(*args, jnp.asarray(training.TARGETS))
  return [
    eqn.invars[0].aval.shape
    for one in subjaxprs(jaxpr.jaxpr)
    for eqn in one.eqns
    if eqn.primitive.name == 'cond'
  ]


def test_the_condition_stays_one_under_vmap():
  shapes = conditions(private=False)
  assert shapes
  assert set(shapes) == {()}


def test_everything_private_communicates_at_every_step():
  """A trap, pinned: the branch becomes a selection, without a word."""
  assert conditions(private=True) == []
  placement = replicas.place(4, 2)
  program = compile_steps(placement, [None], everything_private=True)
  found = audit.collectives(program)
  assert found
  assert not any(one.in_branch for one in found)


def test_a_private_counter_alone_is_refused_by_vmap():
  tx = training.sgd_then(OUTER, every=4)(dx.mean_over('replica'))
  state = tx.init(training.ORIGIN)
  inner, link = dx.replica_axes(state)
  axes = (0, (inner, link._replace(step=0)))
  args = training.copies((training.ORIGIN, state), axes)
  step = jax.vmap(
    lambda *args: training.inner_step(tx, *args),
    (*axes, 0),
    axes,
    axis_name='replica',
  )
  with pytest.raises(ValueError, match='out_axes|axis spec None'):
    jax.eval_shape(step, *args, jnp.asarray(training.TARGETS))


@pytest.mark.parametrize('make_tx', [
  lambda _: optax.chain(
    optax.sgd(0.1), dx.synchronize(OUTER, every=2, reduce=training.KEEP)
  ),
  lambda _: dx.lookahead(optax.sgd(0.1), every=2, step_size=0.5),
])  # fmt: skip
@pytest.mark.parametrize('static', [False, True])
@pytest.mark.parametrize(
  ('devices', 'message'),
  [(4, 'out_specs|varying'), (1, 'out_axes|axis spec None')],
)
def test_without_a_mean_there_is_no_anchor(devices, message, static, make_tx):
  with pytest.raises((TypeError, ValueError), match=message):
    training.run(make_tx, 2, devices=devices, static=static)


def test_a_mean_over_one_name_of_two_is_seen_in_the_numbers():
  """Two replicas on each of two devices have two names."""
  placement = replicas.place(4, 2)
  outer, inner = placement.axis_names()
  right = training.sgd_then(optax.sgd(1.0), every=1)
  params, _ = training.run(right, 1, devices=2)
  np.testing.assert_allclose(
    params, np.tile(0.1 * training.MEAN, (4, 1)), rtol=1e-6
  )
  half = lambda _: right(dx.mean_over(inner))
  params, _ = training.run(half, 1, devices=2)
  assert not np.allclose(params, 0.1 * training.MEAN[None])
