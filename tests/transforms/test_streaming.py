"""Streaming DiLoCo against a second program, its identities, and misuse."""

import collections

import hypothesis
from hypothesis import strategies
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import dilojax as dx
from tests.transforms import training
from tests.transforms.training import LR
from tests.transforms.training import ORIGIN
from tests.transforms.training import TARGETS
from tests.transforms.training import K

PARAMS = {'a': ORIGIN, 'b': ORIGIN + 1, 'c': ORIGIN - 2}
EACH = {name: name for name in PARAMS}
EVERY = 7  # Three fragments do not divide it.
OFFSETS = {'a': 7, 'b': 2, 'c': 4}
NESTEROV = optax.sgd(0.4, momentum=0.9, nesterov=True)
MEAN = dx.mean_over('replica')


def trajectory(tx, num_steps, params=PARAMS, *, static=True, final=False):
  """Returns params and state of all replicas after every step."""

  def train(target):
    state = tx.init(params)

    def step(carry, number=None):
      last = final and number == num_steps
      carry = training.inner_step(tx, *carry, target, step=number, final=last)
      return carry, carry

    carry = (params, state)
    if not static:
      return jax.lax.scan(
        lambda carry, _: step(carry), carry, length=num_steps
      )[1]
    history = []
    for number in range(1, num_steps + 1):
      carry, seen = step(carry, number)
      history.append(seen)
    return jax.tree.map(lambda *leaves: jnp.stack(leaves), *history)

  return jax.jit(jax.vmap(train, axis_name='replica'))(jnp.asarray(TARGETS))


def stream(
  outer=NESTEROV, *, inner=None, every=EVERY, fragments=EACH, **kwargs
):
  inner = optax.sgd(LR) if inner is None else inner
  return dx.streaming_diloco(
    inner, outer, every=every, fragments=fragments, **kwargs
  )


def second_program(outer, num_steps, *, delays, alpha):
  """Streaming DiLoCo once more: a loop, a fragment at a time."""
  history = {}
  for name, start in PARAMS.items():
    anchor, replicas = start, jnp.tile(start, (K, 1))
    state, in_flight, seen = outer.init(anchor), collections.deque(), []

    for step in range(1, num_steps + 1):
      replicas = replicas - LR * (replicas - TARGETS)
      late = step - OFFSETS[name]
      if late >= 0 and late % EVERY == 0:
        in_flight.append(
          (step + delays[name], (anchor[None] - replicas).mean(0))
        )
      if in_flight and in_flight[0][0] == step:
        arrived = in_flight.popleft()[1]
        shift, state = outer.update(arrived, state, anchor)
        anchor = anchor + shift
        replicas = alpha * replicas + (1 - alpha) * anchor[None]
      seen.append(replicas)
    history[name] = np.stack(seen, axis=1)
  return history


OUTERS = {
  'sgd': optax.sgd(0.7),
  'nesterov': NESTEROV,
  'adam': optax.adam(0.1),
  'clipped': optax.chain(optax.clip_by_global_norm(1.0), optax.sgd(0.7)),
  'schedule': optax.sgd(optax.linear_schedule(1.0, 0.1, 3), momentum=0.5),
}


@pytest.mark.parametrize('outer', OUTERS)
def test_any_outer_optimizer(outer):
  """Each fragment has a state of its own, which counts its rounds."""
  got, _ = trajectory(stream(OUTERS[outer], delay=2), 24, static=False)
  want = second_program(
    OUTERS[outer], 24, delays=dict.fromkeys(EACH, 2), alpha=0.5
  )
  for name in EACH:
    np.testing.assert_allclose(got[name], want[name], rtol=2e-5, atol=1e-5)


@pytest.mark.parametrize('static', [False, True])
@pytest.mark.parametrize(
  ('delay', 'alpha'),
  [
    (0, 0.0),
    (1, 0.5),
    (5, 0.25),  # Two or three on their way at once.
    (6, 0.0),
    ({'a': 0, 'b': 6, 'c': 3}, 0.5),
  ],
)
def test_delays(delay, alpha, static):
  tx = stream(delay=delay, merge=dx.mix(alpha))
  got, _ = trajectory(tx, 18, static=static)
  delays = delay if isinstance(delay, dict) else dict.fromkeys(EACH, delay)
  want = second_program(NESTEROV, 18, delays=delays, alpha=alpha)
  for name in EACH:
    np.testing.assert_allclose(got[name], want[name], rtol=2e-5, atol=1e-5)


# Identities.


def test_one_fragment_at_once_is_diloco():
  tx = stream(fragments=dx.by_bytes(1), delay=0, merge=dx.mix(0.0))
  got, _ = trajectory(tx, 16)
  want, _ = trajectory(dx.diloco(optax.sgd(LR), NESTEROV, every=EVERY), 16)
  jax.tree.map(np.testing.assert_array_equal, got, want)


def test_replicas_that_take_nothing_train_alone():
  got, _ = trajectory(stream(merge=dx.mix(1.0)), 16)
  want, _ = trajectory(optax.sgd(LR), 16)
  for name in EACH:
    np.testing.assert_allclose(got[name], want[name], rtol=1e-5, atol=1e-6)


def test_only_the_fragment_that_lands_is_equal_on_all():
  got, _ = trajectory(stream(delay=0, merge=dx.overwrite()), 14)
  equal = lambda name, step: bool(
    np.ptp(got[name][:, step - 1], axis=0).max() == 0
  )
  for name, offset in OFFSETS.items():
    steps = [step for step in range(1, 15) if equal(name, step)]
    assert steps == [offset, offset + EVERY]


def test_once_per_round():
  """Counted by a schedule in the outer optimizer."""
  outer = optax.scale_by_schedule(lambda count: 0.1)
  _, state = trajectory(stream(outer, delay=0), 3 * EVERY)
  for name, offset in OFFSETS.items():
    link = state[1].inner_states[name].inner_state
    counts = np.diff(link.outer.count[0], prepend=0)
    steps = np.flatnonzero(counts) + 1
    np.testing.assert_array_equal(steps, offset + EVERY * np.arange(3))


@hypothesis.given(strategies.integers(1, 300), strategies.data())
def test_offsets_are_spread_evenly(every, data):
  num = data.draw(strategies.integers(1, every))
  found = dx.offsets(every, num)
  assert found[0] == every
  assert len(set(found)) == num
  assert all(1 <= offset <= every for offset in found)
  turns = sorted(found)
  gaps = np.diff([*turns, turns[0] + every])
  assert gaps.sum() == every
  assert gaps.max() - gaps.min() <= 1


def test_offsets_of_the_paper():
  assert dx.offsets(100, 2) == (100, 50)
  assert dx.offsets(100, 8) == (100, 12, 25, 37, 50, 62, 75, 87)


# The end, dtypes, and what is inside.


def test_the_end_lands_what_is_in_flight():
  tx = stream(delay=2, merge=dx.overwrite())
  # b was launched after step 9, a and c have nothing on their way.
  params, state = trajectory(tx, 10, final=True)
  want, _ = trajectory(tx, 11)
  np.testing.assert_allclose(params['b'][:, 9], want['b'][:, 10], rtol=1e-6)
  for name in EACH:
    last = params[name][:, -1]
    np.testing.assert_array_equal(last, np.broadcast_to(last[:1], last.shape))
    link = state[1].inner_states[name].inner_state
    np.testing.assert_array_equal(last, link.anchor[name][:, -1])


def test_dtypes_are_kept():
  params = {
    'a': ORIGIN.astype(jnp.bfloat16),
    'b': ORIGIN.astype(jnp.float16),
    'c': ORIGIN,
  }
  got, state = trajectory(stream(delay=1), 8, params)
  assert jax.tree.map(lambda leaf: leaf.dtype, got) == jax.tree.map(
    lambda leaf: leaf.dtype, params
  )
  for name in EACH:
    link = state[1].inner_states[name].inner_state
    assert link.anchor[name].dtype == link.arrived[name].dtype == jnp.float32


def test_fragments_come_from_params_not_from_updates():
  """Bytes of updates in another dtype would pack in another way."""
  params = {
    'a': jnp.zeros(6, jnp.bfloat16),
    'b': jnp.zeros(4),
    'c': jnp.zeros(1),
  }
  tx = dx.in_turns(
    lambda name, _: optax.scale(1.0 + (name == 'fragment_0')),
    dx.by_bytes(2),
    every=2,
  )
  updates = jax.tree.map(lambda leaf: jnp.ones(leaf.shape), params)
  got, _ = tx.update(updates, tx.init(params), params)
  assert [leaf[0] for leaf in jax.tree.leaves(got)] == [1, 2, 1]


def test_partitions_and_frozen_leaves_inside():
  params = {'w': jnp.eye(3), 'b': ORIGIN, 'frozen': ORIGIN + 0.3}
  inner = optax.partition(
    {
      'muon': optax.contrib.muon(0.02),
      'adamw': optax.adamw(0.01),
      'frozen': optax.set_to_zero(),
    },
    {'w': 'muon', 'b': 'adamw', 'frozen': 'frozen'},
  )

  def train(tx):
    def one(target):
      towards = lambda leaf: leaf - jnp.broadcast_to(target, leaf.shape)
      state, here = tx.init(params), params
      for step in (1, 2):
        grads = jax.tree.map(towards, here)
        updates, state = tx.update(grads, state, here, step=step)
        here = dx.apply_updates(here, updates, state, step=step)
      return here

    return jax.jit(jax.vmap(one, axis_name='replica'))(jnp.asarray(TARGETS))

  got = train(
    stream(
      inner=inner,
      every=2,
      fragments=dx.by_bytes(2),
      delay=0,
      merge=dx.overwrite(),
    )
  )
  np.testing.assert_array_equal(
    got['frozen'], np.tile(params['frozen'], (K, 1))
  )
  # The last landing, after step 2, is that of w alone.
  assert np.ptp(got['w'], axis=0).max() == 0
  assert np.ptp(got['b'], axis=0).max() > 0


def test_leaves_under_a_mask_stay_private():
  link = lambda _, offset: dx.synchronize(
    NESTEROV, every=EVERY, offset=offset, reduce=MEAN
  )
  fragments = dx.by_pattern({'first': 'a', 'second': 'c'})
  tx = optax.chain(
    optax.sgd(LR),
    optax.masked(
      dx.in_turns(link, fragments, every=EVERY),
      {'a': True, 'b': False, 'c': True},
    ),
  )
  got, _ = trajectory(tx, 14, static=False)
  alone, _ = trajectory(optax.sgd(LR), 14, static=False)
  np.testing.assert_array_equal(got['b'], alone['b'])
  for name, step in (('a', 7), ('a', 14), ('c', 3), ('c', 10)):
    assert np.ptp(got[name][:, step - 1], axis=0).max() == 0


def test_replicas_on_several_devices():
  make_tx = lambda mean: stream(delay=2, reduce=mean)
  got, _ = training.run(make_tx, 10, PARAMS, devices=4)
  want, _ = trajectory(stream(delay=2), 10)
  for name in EACH:
    np.testing.assert_allclose(
      got[name], want[name][:, -1], rtol=1e-5, atol=1e-6
    )


# Misuse.


@pytest.mark.parametrize(
  ('every', 'num_fragments', 'delay'),
  [(3, 3, 2), (3, 1, 0), (1, 1, 0), (37, 3, 36)],
)
def test_legal_schedules(every, num_fragments, delay):
  params = [0.0] * num_fragments
  tx = stream(every=every, fragments=dx.by_bytes(num_fragments), delay=delay)
  links = dx.links(tx.init(params), jax.tree.map(jnp.asarray, params))
  found = {(link.schedule.every, link.schedule.delay) for link in links}
  assert found == {(every, delay)}
  assert [link.schedule.offset for link in links] == [
    *dx.offsets(every, num_fragments)
  ]


@pytest.mark.parametrize(
  ('make', 'text'),
  [
    (
      lambda: stream(every=6, delay=9),
      '`delay` (9) reaches the next launch: choose less than `every` (6), or a'
      ' larger `every`.',
    ),
    (
      lambda: stream(every=6, delay={'a': 1, 'b': 6, 'c': 0}),
      '`delay` (6) reaches the next launch: choose less than `every` (6), or a'
      ' larger `every`.',
    ),
    (lambda: stream(delay=-1), '`delay` must be at least 0, got -1.'),
    (lambda: stream(every=0), '`every` must be at least 1, got 0.'),
    (
      lambda: stream(every=2, delay=1).init(PARAMS),
      '`num_fragments` must be at most `every` (2), got 3: two fragments would'
      ' launch in the same step. Make larger fragments, or a larger `every`.',
    ),
    (
      lambda: stream(delay={'a': 1, 'b': 2, 'x': 0}).init(PARAMS),
      "`delay` must have the fragments ['a', 'b', 'c'], got {'a': 1, 'b': 2,"
      " 'x': 0}.",
    ),
    (
      lambda: stream(fragments=dict.fromkeys(PARAMS, 3)).init(PARAMS),
      '`fragments` must give strings, one for every leaf, got [3].',
    ),
    (
      lambda: stream(fragments={}).init({}),
      '`fragments` must give strings, one for every leaf, got none: `params`'
      ' has no leaf.',
    ),
    (
      lambda: stream().update(PARAMS, stream().init(PARAMS)),
      '`in_turns` finds the fragments of params: pass `params` to `update`.',
    ),
    (
      lambda: dx.offsets(4, 0),
      '`num_fragments` must be an int of at least 1, got 0.',
    ),
  ],
)
def test_misuse_is_refused(make, text):
  with pytest.raises(ValueError, match='`') as refused:
    make()
  assert str(refused.value) == text
