"""Pairs: who meets whom, what the mean does, what travels."""

import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import dilojax as dx
from dilojax import audit
from dilojax import replicas
from dilojax import wire
from dilojax.transforms import _gossip
from tests.transforms import training
from tests.transforms.training import DIM
from tests.transforms.training import LR
from tests.transforms.training import ORIGIN
from tests.transforms.training import TARGETS
from tests.transforms.training import K

MOMENTUM, ETA = 0.5, 0.7


def names_of(mean):
  return mean.init(None).names


def noloco(mean, **kwargs):
  options = {'every': 2, 'axis_name': names_of(mean), **kwargs}
  return dx.noloco(optax.sgd(LR), **options)


# Who meets whom.


@pytest.mark.parametrize('size', range(1, 10))
def test_every_two_are_partners_once(size):
  found = _gossip.involutions(size)
  assert len(found) == size
  for partners in found:
    assert [partners[partner] for partner in partners] == list(range(size))
  for k in range(size):
    assert sorted(partners[k] for partners in found) == list(range(size))


@pytest.mark.parametrize('sizes', [(1,), (5,), (6,), (4, 1), (2, 4), (3, 2)])
def test_pairings_over_axes_join_every_two_once(sizes):
  members = list(itertools.product(*map(range, sizes)))
  pairings = _gossip.pairings(sizes)
  partner = lambda pairing, member: tuple(
    involution[k] for involution, k in zip(pairing, member)
  )
  for a, b in itertools.combinations(members, 2):
    assert sum(partner(pairing, a) == b for pairing in pairings) == 1
  alone = [
    sum(partner(pairing, member) == member for member in members)
    for pairing in pairings
  ]
  if all(size % 2 == 0 or size == 1 for size in sizes):
    assert not any(alone)
  elif len(sizes) == 1:
    assert set(alone) == {1}


@pytest.mark.parametrize('num_replicas', [1, 2, 3, 4, 5])
def test_drawn_partners_are_each_others(num_replicas):
  """The message of replica k is a vector that says k."""
  tx = dx.pairs_over('replica', lr=2.0, pull=0.0, seed=3)

  def meet(message, state):
    meeting = lambda state, _: tx.update(message, state)[::-1]
    return jax.lax.scan(meeting, state, length=40)[1]

  state = tx.init(None)
  axes = dx.replica_axes(state)
  meet = jax.vmap(meet, (0, axes), axis_name='replica')
  met = np.asarray(jax.jit(meet)(jnp.eye(num_replicas), state)).swapaxes(0, 1)
  whom = met - np.eye(num_replicas)
  assert set(np.unique(whom)) <= {0, 1}
  np.testing.assert_array_equal(whom, np.swapaxes(whom, 1, 2))
  np.testing.assert_array_equal(whom.sum(axis=-1), 1)
  np.testing.assert_array_equal(
    np.trace(whom, axis1=1, axis2=2), num_replicas % 2
  )
  others = whom.sum(axis=0)[~np.eye(num_replicas, dtype=bool)]
  assert np.all(others > 0)


# What becomes of the mean and of the spread.


def gossip(num_replicas, num_rounds, moves, *, momentum, starts=None, **kwargs):
  """Returns anchors `[rounds, K, DIM]` of replicas that move as they are told.

  The move of a round is the same as minus its pseudo-gradient.
  """
  send = kwargs.pop('send', optax.identity())
  link = dx.synchronize(
    optax.sgd(1.0, momentum=momentum),
    every=1,
    reduce=dx.pairs_over('replica', **kwargs),
    send=send,
  )
  axes = dx.replica_axes(link.init(ORIGIN))

  def train(params, moves):
    def one(carry, move):
      params, state = carry
      updates, state = link.update(move, state, params)
      params = dx.apply_updates(params, updates, state)
      return (params, state), state.anchor

    (_, state), anchors = jax.lax.scan(one, (params, link.init(params)), moves)
    return anchors, state

  starts = jnp.zeros((num_replicas, DIM)) if starts is None else starts
  mapped = jax.vmap(train, (0, 1), (1, axes), axis_name='replica')
  return jax.jit(mapped)(starts, moves)[0]


@pytest.mark.parametrize(
  ('num_replicas', 'pull', 'codec'),
  [(4, 0.7, None), (4, 0.0, None), (5, 1.2, None), (4, 0.7, wire.bfloat16())],
)
def test_the_mean_is_heavy_ball_whatever_the_pairs(num_replicas, pull, codec):
  shape = (6, num_replicas, DIM)
  draws = np.random.default_rng(0).integers(-8, 8, shape)
  moves = (draws / 8).astype(np.float32)  # Whole in every format.
  kwargs = {'send': dx.encode(codec), 'wire': codec} if codec else {}
  starts = jnp.arange(num_replicas * DIM).reshape(-1, DIM) / 7
  anchors = gossip(
    num_replicas,
    6,
    moves,
    momentum=MOMENTUM,
    starts=starts,
    lr=ETA,
    pull=pull,
    **kwargs,
  )
  mean, trace = starts.mean(axis=0), np.zeros(DIM)
  for move, anchor in zip(moves, anchors):
    trace = MOMENTUM * trace - ETA * move.mean(axis=0)
    mean = mean - trace
    np.testing.assert_allclose(anchor.mean(axis=0), mean, atol=1e-5)
    assert np.ptp(anchor, axis=0).min() > 0


@pytest.mark.parametrize('devices', [1, 2])
def test_two_with_one_anchor_are_heavy_ball_diloco(devices):
  outer = optax.chain(optax.scale(ETA), optax.sgd(1.0, momentum=MOMENTUM))
  options = {'devices': devices, 'targets': TARGETS[:2]}
  want, _ = training.run(
    training.sgd_then(outer, every=2), 9, static=True, **options
  )
  got, _ = training.run(noloco, 9, static=True, **options)
  np.testing.assert_allclose(got, want, rtol=1e-5)


@pytest.mark.parametrize(
  ('momentum', 'pull', 'shrinks'),
  [(0.0, 1.0, True), (0.5, 0.7, True), (0.5, 1.4, True), (0.9, 1.2, False)],
)
def test_spread_left_alone_shrinks_within_the_range(momentum, pull, shrinks):
  """The last row is within the published bounds, and beyond ours."""
  num_replicas, rounds = 8, 60
  starts = jax.random.normal(jax.random.key(0), (num_replicas, DIM))
  anchors = gossip(
    num_replicas,
    rounds,
    jnp.zeros((rounds, num_replicas, DIM)),
    momentum=momentum,
    starts=starts,
    pull=pull,
  )
  before, after = (np.std(each, axis=0).max() for each in (starts, anchors[-1]))
  assert after < before / 20 if shrinks else after > before
  np.testing.assert_allclose(
    anchors.mean(axis=1), anchors[:1].mean(axis=1).repeat(rounds, 0), atol=1e-3
  )


@pytest.mark.parametrize('devices', [1, 2, 4])
def test_the_mean_is_that_of_diloco_over_one_axis_and_two(devices):
  """With SGD on a quadratic the mean displacement depends on the mean alone."""
  outer = optax.chain(optax.scale(ETA), optax.sgd(1.0, momentum=MOMENTUM))
  diloco = training.sgd_then(outer, every=2)
  _, (_, want) = training.run(diloco, 9, static=True)
  _, (_, got) = training.run(noloco, 9, devices=devices)
  np.testing.assert_allclose(got.anchor.mean(axis=0), want.anchor, rtol=1e-5)
  assert np.ptp(got.anchor, axis=0).min() > 0.1
  assert got.reduce.count == 4


# One function in every mode; state.


@functools.cache
def trained(how, static, cuts=(9,)):
  tx = dx.noloco(optax.adam(LR), every=2, seed=1)
  state = tx.init(ORIGIN)
  axes = (0, dx.replica_axes(state))
  args = training.copies((ORIGIN, state), axes)
  for num_steps in cuts:
    fn = lambda *args, num_steps=num_steps: training.train(
      tx, *args, num_steps, static=static
    )
    fn = training.map_yourself(fn, (*axes, 0), axes, how)
    args = fn(*args, jnp.asarray(TARGETS))
  return jax.tree.leaves(args)


@pytest.mark.parametrize(
  ('how', 'static', 'cuts'),
  [
    ('pmap', False, (9,)),
    ('shard_map', False, (9,)),
    ('shard_map', True, (9,)),
    ('vmap', False, (5, 4)),
  ],
)
def test_all_modes_and_resumed_trainings_agree(how, static, cuts):
  for got, want in zip(trained(how, static, cuts), trained('vmap', False)):
    np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-6)


def test_replicas_have_anchors_of_their_own():
  state = dx.noloco(optax.sgd(LR)).init(ORIGIN)
  axes = dx.replica_axes(state)[1]
  assert (axes.step, axes.anchor, axes.outer) == (None, 0, 0)
  assert axes.reduce.count is None
  assert dx.transforms.has_private_anchor(state)


def test_params_keep_their_type():
  params = jnp.ones((K, DIM), jnp.bfloat16)
  tx = dx.noloco(optax.sgd(LR), every=1)
  step = lambda params: tx.update(-params, tx.init(params), params)[0]
  assert jax.vmap(step, axis_name='replica')(params).dtype == jnp.bfloat16


# What travels.


@pytest.mark.parametrize('pull', [0.0, 0.7])
@pytest.mark.parametrize('codec', [None, wire.e3m0()])
def test_a_replica_sends_one_message_to_one_other(pull, codec):
  params = {'w': jnp.ones((4, 64)), 'b': jnp.ones(128)}
  num_values = 384
  placement = replicas.place(K, K)
  link = dx.synchronize(
    optax.sgd(1.0, momentum=MOMENTUM),
    every=2,
    reduce=dx.pairs_over(
      'replica', pull=pull, wire=wire.bfloat16() if codec and pull else None
    ),
    send=dx.encode(codec) if codec else optax.identity(),
  )
  state = link.init(params)
  axes = (0, dx.replica_axes(state))
  args = replicas.spread((params, state), placement, axes)

  def sent(step):
    def one(params, state):
      updates, state = link.update(params, state, params, step=step)
      return dx.apply_updates(params, updates, state, step=step), state

    program = replicas.over_replicas(one, placement, axes, axes)
    return audit.collectives(jax.jit(program).lower(*args).compile())

  assert sent(1) == []
  branches = {}
  for one in sent(2):
    assert one.op == 'collective-permute'
    assert one.in_branch
    assert all(len(group) == 2 for group in one.groups)
    sizes = branches.setdefault(one.computation, [])
    sizes.append(one.nbytes)
  plain = 4 * num_values
  message = sum(codec.nbytes(p.shape) for p in params.values()) if codec else 0
  anchor = (2 * num_values if codec else plain) if pull else 0
  total = (message or plain) + anchor
  assert [sum(sizes) for sizes in branches.values()] == [total] * (K - 1)
  [told] = dx.links(state, params)
  assert (told.op, told.nbytes, told.axis_names, told.is_anchorless) == (
    'collective-permute',
    total,
    ('replica',),
    False,
  )


# Refusals.


@pytest.mark.parametrize(
  ('kwargs', 'match'),
  [
    ({'pull': 0.5}, '`pull` must be above `momentum`'),
    ({'pull': 1.5}, '`pull` must be above `momentum`.*below 1.5'),
    ({'momentum': 0.7, 'pull': 1.2}, 'below 1.02'),
    ({'momentum': 0.9}, '`momentum` leaves no room'),
    ({'momentum': 1.0}, '`momentum` must be at least 0'),
    ({'lr': 0.0}, '`lr` must be'),
    ({'every': 0}, '`every` must be'),
    ({'axis_name': ()}, '`axis_name` must be'),
  ],
)
def test_what_is_out_of_range_is_refused(kwargs, match):
  with pytest.raises(ValueError, match=match):
    dx.noloco(optax.sgd(LR), **kwargs)


def test_what_has_no_effect_is_refused():
  with pytest.raises(ValueError, match='`wire` has no effect'):
    dx.pairs_over('replica', pull=0.0, wire=wire.bfloat16())
  with pytest.raises(ValueError, match='`pull` must be finite'):
    dx.pairs_over('replica', pull=-1.0)
  tx = dx.pairs_over('replica')
  with pytest.raises(ValueError, match='pass `params`'):
    tx.update(ORIGIN, tx.init(ORIGIN))
  with pytest.raises(ValueError, match='`weight` has no meaning'):
    tx.update(ORIGIN, tx.init(ORIGIN), ORIGIN, weight=1.0)
