"""Levels of synchronization, with momentum on each."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import dilojax as dx
from dilojax import replicas
from tests.transforms import training
from tests.transforms.training import DIM
from tests.transforms.training import LR
from tests.transforms.training import MEAN
from tests.transforms.training import ORIGIN
from tests.transforms.training import TARGETS

NEAR = optax.sgd(0.5, momentum=0.8)
FAR = optax.sgd(0.7, momentum=0.9, nesterov=True)


def train(
  num_steps,
  periods,
  *,
  outers=(NEAR, FAR),
  sizes=(2, 2),
  devices=4,
  static=False,
):
  """Trains in regions of hosts; returns params and states with their axes."""
  placement = replicas.place(dict(zip(('region', 'host'), sizes)), devices)
  levels = [
    dx.Level(outer, every, placement.axis_names(*names))
    for outer, every, names in zip(outers, periods, [['host'], []])
  ]
  tx = dx.hierarchical(optax.sgd(LR), levels)
  state = tx.init(ORIGIN)
  axes = (
    0,
    replicas.varying(placement, lambda name: dx.replica_axes(state, name)),
  )
  program = replicas.over_replicas(
    lambda *args: training.train(tx, *args, num_steps, static=static),
    placement,
    (*axes, 0),
    axes,
  )
  args = replicas.spread((ORIGIN, state), placement, axes)
  targets = TARGETS.reshape(*sizes, DIM)
  params, states = jax.jit(program)(*args, targets)
  return params, states[1:], axes[1][1:]


def define(num_steps, periods):
  """The same in numpy, region by region."""
  targets = TARGETS.reshape(2, 2, DIM)
  x, near, far = np.zeros((2, 2, DIM)), np.zeros((2, DIM)), np.zeros(DIM)
  near_buffer, far_buffer = np.zeros((2, DIM)), np.zeros(DIM)
  for step in range(1, num_steps + 1):
    x = x + LR * (targets - x)
    if step % periods[0] == 0:
      near_buffer = 0.8 * near_buffer + near - x.mean(axis=1)
      near = near - 0.5 * near_buffer
      x = np.stack([near, near], axis=1)
    if step % periods[1] == 0:
      pseudo_grad = far - x.mean(axis=(0, 1))
      far_buffer = 0.9 * far_buffer + pseudo_grad
      far = far - 0.7 * (pseudo_grad + 0.9 * far_buffer)
      x = np.tile(far, (2, 2, 1))
      near = np.tile(far, (2, 1))  # The jump is no step of the regions.
  return x, near, far, near_buffer


@functools.cache
def defined(num_steps, periods):
  return define(num_steps, periods)


@pytest.mark.parametrize('static', [False, True])
@pytest.mark.parametrize('devices', [1, 2, 4])
@pytest.mark.parametrize('periods', [(2, 6), (2, 5)])
def test_two_momenta_have_closed_form(periods, devices, static):
  params, (near, far), _ = train(13, periods, devices=devices, static=static)
  want = defined(13, periods)
  got = (params, near.anchor, far.anchor, near.outer[0].trace)
  for value, wanted in zip(got, want):
    np.testing.assert_allclose(value, wanted, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize('static', [False, True])
def test_a_higher_landing_is_the_anchor_of_all(static):
  params, (near, far), _ = train(6, (2, 3), static=static)
  anchor = np.asarray(far.anchor)
  np.testing.assert_array_equal(params, np.tile(anchor, (2, 2, 1)))
  np.testing.assert_array_equal(near.anchor, np.tile(anchor, (2, 1)))


def test_anchors_are_shared_along_their_own_axes():
  _, (near, far), (near_axes, far_axes) = train(4, (2, 6))
  regions = frozenset({'region'})
  assert near_axes.anchor == near_axes.outer == regions
  assert far_axes.anchor == far_axes.outer == frozenset()
  assert near_axes.step == frozenset()
  assert near_axes.send == frozenset({'region', 'host'})
  assert near.anchor.shape == (2, DIM)
  assert far.anchor.shape == (DIM,)
  assert np.all(near.anchor[0] != near.anchor[1])


def test_three_levels_reanchor_all_below():
  mean = optax.identity()
  links = [
    dx.Level(FAR, every, tuple(axis))
    for every, axis in [(2, 'a'), (3, 'ab'), (4, 'abc')]
  ]
  tx = dx.hierarchical(mean, links)
  state = tx.init(ORIGIN)
  one = lambda state, updates: tx.update(updates, state, ORIGIN, step=4)[1]
  for axis in 'cba':
    one = jax.vmap(one, in_axes=(None, 0), axis_name=axis)
  updates = jnp.arange(8.0 * DIM).reshape(2, 2, 2, DIM)
  _, *states = one(state, updates)
  for below in states[:2]:
    np.testing.assert_array_equal(below.anchor, states[2].anchor)
  assert np.ptp(states[2].anchor.reshape(8, DIM), axis=0).max() == 0


# Identities, with plain means on both levels.

PLAIN = (optax.sgd(1.0), optax.sgd(1.0))


def local(num_steps, every):
  make_tx = training.sgd_then(optax.sgd(1.0), every=every)
  params, _ = training.run(make_tx, num_steps, devices=1)
  return params


@pytest.mark.parametrize(
  ('sizes', 'periods', 'every'),
  [
    ((1, 4), (3, 6), 3),  # One group.
    ((4, 1), (3, 6), 6),  # One replica per group.
    ((2, 2), (3, 3), 3),  # No rounds in between.
  ],
)
def test_degenerate_levels_are_local_sgd(sizes, periods, every):
  params, _, _ = train(8, periods, outers=PLAIN, sizes=sizes, devices=1)
  np.testing.assert_allclose(params.reshape(4, DIM), local(8, every), rtol=1e-5)


def test_plain_levels_keep_the_mean():
  params, _, _ = train(7, (2, 4), outers=PLAIN)
  want = MEAN * (1 - (1 - LR) ** 7)
  np.testing.assert_allclose(params.mean(axis=(0, 1)), want, rtol=1e-5)


# Misuse.


@pytest.mark.parametrize(
  ('names', 'message'),
  [
    ([], '`levels` must have at least one level'),
    (
      ['host', 'region'],
      "`levels`: one over \\('region',\\) cannot stand above",
    ),
    ([('region', 'host'), 'host'], 'Name all axes of the level below'),
  ],
)
def test_rejects_levels_that_do_not_nest(names, message):
  levels = [dx.Level(FAR, 2, name) for name in names]
  with pytest.raises(ValueError, match=message):
    dx.hierarchical(optax.sgd(LR), levels)


def test_asks_which_axis_is_meant():
  levels = [dx.Level(FAR, 2, 'host'), dx.Level(FAR, 4, ('region', 'host'))]
  state = dx.hierarchical(optax.sgd(LR), levels).init(ORIGIN)
  with pytest.raises(ValueError, match='say which one `axis_name` asks about'):
    dx.replica_axes(state)
  _, near, far = dx.replica_axes(state, 'region')
  assert (near.anchor, far.anchor) == (0, None)
  _, near, far = dx.replica_axes(state, 'host')
  assert (near.anchor, far.anchor) == (None, None)
