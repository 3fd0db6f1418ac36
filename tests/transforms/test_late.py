"""Messages that arrive a round late: delayed, eager, and the last of them."""

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
NESTEROV = optax.sgd(0.7, momentum=0.9, nesterov=True)
ROUNDS = 4


def rounds_of(*shape):
  rng = np.random.default_rng(2)
  return jnp.asarray(rng.normal(size=(K, ROUNDS, *shape)), jnp.float32)


def late(reduce, outer=NESTEROV, **kwargs):
  return optax.chain(
    optax.sgd(LR),
    dx.synchronize(outer, reduce=reduce, **{'every': 2, **kwargs}),
  )


def test_eager_alone_is_diloco():
  """Identity 7, step by step."""
  one = TARGETS[:1]
  eager = meeting.trajectory(late(dx.eager(MEAN)), 7, targets=one)
  plain = meeting.trajectory(late(MEAN), 7, targets=one)
  for (got, (_, state)), (want, (_, wanted)) in zip(eager, plain):
    np.testing.assert_allclose(got, want, rtol=1e-5)
    np.testing.assert_allclose(state.anchor[0], wanted.anchor, rtol=1e-5)


def test_eager_terms_are_a_fresh_share_and_stale_ones():
  rounds = rounds_of(3)
  got, _, _ = meeting.over_rounds(dx.eager(MEAN), rounds)
  mean = np.asarray(rounds).mean(axis=0)
  before = np.concatenate([np.zeros_like(mean[:1]), mean[:-1]])
  own = np.asarray(rounds)
  own_before = np.concatenate([np.zeros_like(own[:, :1]), own[:, :-1]], axis=1)
  want = before + (own - own_before) / K
  np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-6)
  # Their mean over the replicas.
  np.testing.assert_allclose(
    np.mean(got, axis=0), (1 - 1 / K) * before + mean / K, atol=1e-6
  )
  # What a replica has received by now: all means, and its own latest share.
  np.testing.assert_allclose(
    np.cumsum(got, axis=1), np.cumsum(before, axis=0) + own / K, atol=1e-5
  )


def test_the_own_share_is_what_was_sent():
  """The others get it rounded, so it must be rounded here as well."""
  rounds = rounds_of(8)
  codec = wire.sign(block_size=2)
  got, sent, _ = meeting.over_rounds(
    dx.eager(dx.mean_over('replica', gather='messages')),
    rounds,
    dx.encode(codec),
  )
  np.testing.assert_allclose(got[:, 0], sent[:, 0] / K, rtol=1e-6)
  sent = np.asarray(sent)
  want = sent[:, 0].mean(axis=0) + (sent[:, 1] - sent[:, 0]) / K
  np.testing.assert_allclose(got[:, 1], want, rtol=1e-5, atol=1e-6)


def test_eager_anchors_differ_by_their_latest_shares():
  lr = 0.5
  for _, (_, state) in meeting.trajectory(
    late(dx.eager(MEAN), optax.sgd(lr)), 6
  ):
    for k in range(1, K):
      apart = state.anchor[k] - state.anchor[0]
      shares = state.reduce.own[k] - state.reduce.own[0]
      np.testing.assert_allclose(apart, -lr / K * shares, atol=1e-5)
  assert np.all(np.std(state.anchor, axis=0) > 1e-3)


@pytest.mark.parametrize('num_steps', [3, 4])
def test_the_last_synchronization_makes_eager_anchors_agree(num_steps):
  """Also in the middle of a round; without momentum."""
  make_tx = lambda mean: late(dx.eager(mean), optax.sgd(0.5))
  params, (_, state) = training.run(
    make_tx, num_steps, devices=1, static=True, final=True
  )
  np.testing.assert_allclose(
    state.anchor, np.broadcast_to(state.anchor[:1], state.anchor.shape),
    rtol=1e-5,
  )  # fmt: skip
  np.testing.assert_array_equal(params, state.anchor)


def test_delayed_is_nesterov_with_the_mean_of_the_round_before():
  every, lr, momentum = 2, 0.7, 0.9
  anchor = trace = before = np.zeros(3, np.float32)
  replica = np.zeros_like(TARGETS)
  steps = meeting.trajectory(late(dx.one_round_late(MEAN)), 8)
  for step, (params, (_, state)) in enumerate(steps, start=1):
    replica = replica - LR * (replica - TARGETS)
    if step % every == 0:
      mean = np.mean(anchor - replica, axis=0)
      trace = momentum * trace + before
      anchor = anchor - lr * (before + momentum * trace)
      replica, before = np.broadcast_to(anchor, replica.shape), mean
    np.testing.assert_allclose(params, replica, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(state.anchor, anchor, rtol=1e-4, atol=1e-5)


def test_what_is_late_takes_no_delay():
  with pytest.raises(ValueError, match='`delay` must be 0'):
    late(dx.eager(MEAN), delay=1).init(training.ORIGIN)


@pytest.mark.parametrize('wrap', [dx.eager, dx.one_round_late])
def test_losses_belong_around_what_is_late(wrap):
  tx = wrap(dx.dropping(MEAN, 0.5))
  with pytest.raises(ValueError, match='`reduce` must not be `dropping`'):
    tx.init(training.ORIGIN)


def test_eager_refuses_weights():
  grads = meeting.gradients()
  with pytest.raises(ValueError, match='`weight` must be None'):
    meeting.arrived(dx.eager(MEAN), grads, weight=jnp.ones(K))


@pytest.mark.parametrize('strength', [0.5, -2.0])
def test_a_landing_that_corrects_for_the_delay(strength):
  rng = np.random.default_rng(0)
  now, launched, anchor = (
    np.asarray(rng.normal(size=3), np.float32) for _ in range(3)
  )
  delay, every = 3, 7
  schedule = dx.synchronize(
    optax.sgd(1.0), every=every, delay=delay, reduce=MEAN
  ).init(training.ORIGIN).plan.schedule  # fmt: skip
  merge = dx.delay_compensated(strength)
  drift = (now - launched) / delay
  corrected = drift + strength * drift**2 * (anchor - launched) / every
  np.testing.assert_allclose(
    merge(now, launched, anchor, schedule=schedule),
    anchor + delay * corrected,
    rtol=1e-5,
  )


def test_no_correction_is_the_delta_rule():
  """Identity 10, in a training whose landings differ from the launch."""
  merged = lambda merge: late(MEAN, every=3, delay=2, merge=merge)
  got, (_, state) = list(
    meeting.trajectory(merged(dx.delay_compensated(0.0)), 6)
  )[-1]
  want, (_, wanted) = list(meeting.trajectory(merged(dx.delta()), 6))[-1]
  np.testing.assert_array_equal(got, want)
  np.testing.assert_array_equal(state.anchor, wanted.anchor)
  other, _ = list(meeting.trajectory(merged(dx.delay_compensated(0.5)), 6))[-1]
  assert np.any(np.abs(other - want) > 1e-4)
