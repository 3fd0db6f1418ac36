"""Every rule of `synchronize` against its definition, on every placement."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import dilojax as dx
from tests.transforms import training
from tests.transforms.training import DIM
from tests.transforms.training import LR
from tests.transforms.training import ORIGIN
from tests.transforms.training import TARGETS
from tests.transforms.training import K

NUM_STEPS = 17


def descend(lr):
  return lambda pseudo_grad: -lr * pseudo_grad


def accelerate(lr, momentum, *, looks_ahead):
  """PyTorch's recursions: without dampening, and from zero."""
  buffer = np.zeros(DIM)

  def shift(pseudo_grad):
    nonlocal buffer
    buffer = momentum * buffer + pseudo_grad
    ahead = pseudo_grad + momentum * buffer
    return -lr * (ahead if looks_ahead else buffer)

  return shift


def adapt(lr, b1=0.9, b2=0.999, eps=1e-8):
  first, second, count = np.zeros(DIM), np.zeros(DIM), 0

  def shift(pseudo_grad):
    nonlocal first, second, count
    count += 1
    first = b1 * first + (1 - b1) * pseudo_grad
    second = b2 * second + (1 - b2) * pseudo_grad**2
    mean = first / (1 - b1**count)
    spread = np.sqrt(second / (1 - b2**count))
    return -lr * mean / (spread + eps)

  return shift


OUTERS = {
  'sgd': (optax.sgd(0.7), lambda: descend(0.7)),
  'nesterov': (
    optax.sgd(0.7, momentum=0.9, nesterov=True),
    lambda: accelerate(0.7, 0.9, looks_ahead=True),
  ),
  'heavy ball': (
    optax.sgd(0.5, momentum=0.8),
    lambda: accelerate(0.5, 0.8, looks_ahead=False),
  ),
  'adam': (optax.adam(0.1), lambda: adapt(0.1)),
}


def odd(now, launched, anchor):
  """A rule of a user, in which all three have their say."""
  return jax.tree.map(lambda a, b, c: a + 2 * b - 2 * c, now, launched, anchor)


MERGES = {
  'overwrite': (dx.overwrite(), lambda z, y, anchor: anchor + 0 * z),
  'mix 0': (dx.mix(0), lambda z, y, anchor: anchor + 0 * z),
  'mix 1/4': (dx.mix(0.25), lambda z, y, anchor: 0.25 * z + 0.75 * anchor),
  'mix 1': (dx.mix(1), lambda z, y, anchor: z),
  'delta': (dx.delta(), lambda z, y, anchor: anchor + z - y),
  'odd': (odd, odd),
}

# every, offset, delay, start, outer, merge
FRAGMENTS = [
  (1, 1, 0, 0, 'sgd', 'overwrite'),
  (5, 5, 0, 0, 'nesterov', 'overwrite'),
  (5, 2, 0, 0, 'adam', 'overwrite'),
  (4, 1, 0, 0, 'heavy ball', 'mix 1/4'),
  (6, 2, 0, 0, 'sgd', 'odd'),
  (10, 8, 5, 0, 'nesterov', 'overwrite'),
  (7, 3, 6, 0, 'nesterov', 'mix 1/4'),
  (4, 1, 3, 0, 'sgd', 'delta'),
  (5, 4, 2, 0, 'adam', 'mix 0'),
  (5, 5, 2, 0, 'nesterov', 'mix 1'),
  (3, 2, 1, 1, 'sgd', 'odd'),
  (3, 2, 0, 4, 'heavy ball', 'overwrite'),
  (4, 4, 3, 5, 'nesterov', 'delta'),
]
NAMES = [str(rule) for rule in FRAGMENTS]


def make_tx(mean):
  """Gives every fragment its own rule."""
  links = {
    str(rule): dx.synchronize(
      OUTERS[outer][0],
      every=every,
      offset=offset,
      delay=delay,
      start=start,
      merge=MERGES[merge][0],
      reduce=mean,
    )
    for rule in FRAGMENTS
    for every, offset, delay, start, outer, merge in [rule]
  }
  labels = {name: name for name in NAMES}
  return optax.chain(optax.sgd(LR), optax.partition(links, labels))


def define(every, offset, delay, start, outer, merge, num_steps=NUM_STEPS):
  """What the documentation says, for all replicas at once, in numpy."""
  move, rule = OUTERS[outer][1](), MERGES[merge][1]
  replicas, anchor = np.zeros((K, DIM)), np.zeros(DIM)
  arrived = launched = None
  for step in range(1, num_steps + 1):
    replicas = replicas + LR * (TARGETS - replicas)
    if step == start:
      anchor = replicas.mean(axis=0)
      replicas = np.tile(anchor, (K, 1))
    launches = range(start + offset, num_steps + 1, every)
    if step in launches:
      launched, arrived = replicas, anchor - replicas.mean(axis=0)
    if step - delay in launches:
      anchor = anchor + move(arrived)
      replicas = rule(replicas, launched, np.tile(anchor, (K, 1)))
  return replicas, anchor


def train(placement):
  params = {name: ORIGIN for name in NAMES}
  if isinstance(placement, tuple):
    devices, static = placement
    return training.run(
      make_tx, NUM_STEPS, params, devices=devices, static=static
    )
  tx = make_tx(dx.mean_over('replica'))
  state = tx.init(params)
  axes = (0, dx.replica_axes(state))
  program = training.map_yourself(
    lambda *args: training.train(tx, *args, NUM_STEPS),
    (*axes, 0),
    axes,
    placement,
  )
  args = training.copies((params, state), axes)
  return program(*args, jnp.asarray(TARGETS))


@pytest.mark.parametrize(
  'placement',
  [(1, False), (2, False), (4, False), (4, True), 'pmap', 'shard_map']
  + [
    pytest.param(each, marks=pytest.mark.slow)
    for each in ((1, True), (2, True))
  ],
  ids=str,
)
def test_rules_are_their_definitions(placement):
  """On one, two and four devices, in dynamic and in static steps."""
  params, state = train(placement)
  anchors = dx.anchor_of(state, jax.tree.map(lambda leaf: leaf[0], params))
  close = functools.partial(np.testing.assert_allclose, rtol=2e-5, atol=1e-6)
  for name, rule in zip(NAMES, FRAGMENTS):
    replicas, anchor = define(*rule)
    close(params[name], replicas, err_msg=name)
    close(anchors[name], anchor, err_msg=name)
