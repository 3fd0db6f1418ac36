"""Rules that ask how old an arrival is: weights, corrections, and limits."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import dilojax as dx
from tests.transforms.test_server import NESTEROV
from tests.transforms.test_server import START
from tests.transforms.test_server import arrivals
from tests.transforms.test_server import assert_close
from tests.transforms.test_server import at
from tests.transforms.test_server import serve

AGES = np.arange(12)


@pytest.mark.parametrize('power', [0, 0.5, 2])
def test_polynomial(power):
  weights = dx.polynomial(power)(AGES)
  np.testing.assert_allclose(weights, (1.0 + AGES) ** -power, rtol=1e-6)


@pytest.mark.parametrize(('slope', 'start'), [(10, 4), (0.5, 0), (0, 3)])
def test_hinge(slope, start):
  weights = np.asarray(dx.hinge(slope, start)(AGES))
  late = AGES > start
  assert np.all(weights[~late] == 1)
  want = 1 / (slope * (AGES[late] - start) + 1)
  np.testing.assert_allclose(weights[late], want, rtol=1e-6)


@pytest.mark.parametrize(
  'weight', [dx.polynomial(0.5), dx.hinge(2.0, 1), lambda s: s == 2]
)
def test_arrivals_are_scaled(weight):
  deltas = arrivals(4)
  staleness = jnp.array([0, 2, 1, 5], jnp.int32)
  got, _ = serve(
    optax.chain(dx.scale_by_staleness(weight), optax.sgd(1.0)),
    deltas,
    staleness=staleness,
  )
  factors = np.array([float(weight(s)) for s in staleness])
  spread = lambda leaf: (factors * leaf.T).T
  want = jax.tree.map(
    lambda start, leaf: np.asarray(start) - np.cumsum(spread(leaf), axis=0),
    START,
    deltas,
  )
  assert_close(got, want, rtol=1e-5)


def test_weights_are_not_rounded():
  """A weight of 0.3 is no bfloat16; its product is rounded once."""
  tx = dx.scale_by_staleness(lambda s: 0.3)
  delta = jnp.asarray([3.0, 7.0, 11.0, 300.0], jnp.bfloat16)
  got, _ = tx.update(delta, tx.init(delta), staleness=0)
  want = (np.float32(0.3) * np.asarray(delta, np.float32)).astype(jnp.bfloat16)
  assert got.dtype == jnp.bfloat16
  np.testing.assert_array_equal(got, want)
  assert np.any(got != delta * jnp.bfloat16(0.3))


@pytest.mark.parametrize('strength', [0.0, 0.4, -1.5])
def test_compensation(strength):
  delta, now, then = (at(arrivals(3), number) for number in range(3))
  tx = dx.compensate_delay(strength)
  got, _ = tx.update(delta, tx.init(now), now, launched=then)
  want = jax.tree.map(
    lambda d, p, q: d + strength * d * d * (p - q), delta, now, then
  )
  assert_close(got, want)
  # Nothing to correct if the server stood still.
  still, _ = tx.update(delta, tx.init(now), now, launched=now)
  jax.tree.map(np.testing.assert_array_equal, still, delta)


def test_compensation_in_narrow_params_is_wide():
  tx = dx.compensate_delay(1.0)
  delta, now, then = (jnp.asarray(x, jnp.bfloat16) for x in (2.3125, 2.0, -1.0))
  got, _ = tx.update(delta, (), now, launched=then)
  assert got.dtype == jnp.bfloat16
  # The sum of what bfloat16 makes of the products would be 18.25.
  assert got == jnp.asarray(2.3125 + 3 * 2.3125**2, jnp.bfloat16) == 18.375


STALENESS = jnp.array([0, 3, 2, 9, 0, 4, 1, 3, 0, 2], jnp.int32)


@pytest.mark.parametrize(
  ('make', 'limit'), [(dx.drop_stale, 1), (dx.ringmaster, 3)]
)
@pytest.mark.parametrize(
  'tx',
  [
    optax.adam(optax.linear_schedule(1.0, 0.1, 5)),
    dx.delayed_nesterov(0.7, 0.9, every=2, c=0.3),
  ],
)
def test_what_is_dropped_never_was(make, tx, limit):
  """Momentum, counters and schedules are those of the others alone."""
  deltas = arrivals(10)
  got, states = serve(make(tx, limit), deltas, staleness=STALENESS)
  counts = np.asarray(STALENESS) < limit
  want, wanted = serve(tx, at(deltas, counts))
  assert_close(at(got, counts), want)
  assert_close(at(states.inner, counts), wanted)
  # Bit for bit nothing in the others.
  for number in np.flatnonzero(~counts):
    for tree in (got, states.inner):
      jax.tree.map(
        lambda leaf, n=number: np.testing.assert_array_equal(
          leaf[n], leaf[n - 1]
        ),
        tree,
      )
  np.testing.assert_array_equal(states.answer.stepped, counts)
  np.testing.assert_array_equal(states.answer.counted, counts)
  assert np.all(states.answer.handed)
  assert not np.any(states.answer.restarted)


def test_nan_that_is_too_old_does_no_harm():
  tx = dx.drop_stale(NESTEROV, 2)
  deltas = jnp.array([1.0, jnp.nan, 1.0])
  got, _ = serve(tx, deltas, jnp.zeros(()), staleness=jnp.array([0, 2, 0]))
  assert np.all(np.isfinite(got))


@pytest.mark.parametrize('batch', [1, 2, 3])
def test_rennala_is_minibatch_sgd_of_the_fresh(batch):
  rng = np.random.default_rng(batch)
  deltas = arrivals(8 * batch)
  staleness = rng.integers(0, 3, 8 * batch).astype(np.int32)
  got, states = serve(dx.rennala(NESTEROV, batch), deltas, staleness=staleness)
  fresh = np.flatnonzero(staleness == 0)
  rounds = len(fresh) // batch
  assert rounds > 1
  used = fresh[: rounds * batch].reshape(rounds, batch)
  want, _ = serve(
    NESTEROV, jax.tree.map(lambda leaf: leaf[used].mean(axis=1), deltas)
  )
  assert_close(at(got, used[:, -1]), want)
  steps = np.isin(np.arange(8 * batch), used[:, -1])
  np.testing.assert_array_equal(states.answer.stepped, steps)
  np.testing.assert_array_equal(states.answer.counted, staleness == 0)
  assert np.all(states.answer.handed)


def test_rennala_of_batch_one_is_sgd():
  deltas = arrivals(6)
  fresh = np.zeros(6, np.int32)
  got, _ = serve(dx.rennala(NESTEROV, 1), deltas, staleness=fresh)
  want, _ = serve(NESTEROV, deltas)
  assert_close(got, want)


SGD = optax.sgd(0.1)
ONE = jnp.ones(2)


@pytest.mark.parametrize(
  ('make', 'message'),
  [
    (lambda: dx.polynomial(-1), '`power` must be finite and at least 0'),
    (lambda: dx.polynomial('1'), '`power` must be a number'),
    (lambda: dx.hinge(-1.0, 2), '`slope` must be finite and at least 0'),
    (lambda: dx.hinge(1.0, float('nan')), '`start` must be finite'),
    (lambda: dx.scale_by_staleness(0.5), '`weight` must be a function'),
    (lambda: dx.scale_by_staleness(dx.polynomial), 'call it first'),
    (lambda: dx.compensate_delay(float('inf')), '`strength` must be finite'),
    (lambda: dx.drop_stale(SGD, 0), '`limit` must be at least 1, got 0'),
    (lambda: dx.drop_stale(SGD, 2.5), '`limit` must be an int, got 2.5'),
    (lambda: dx.drop_stale(None, 2), '`tx` must be an optax transformation'),
    (lambda: dx.ringmaster(SGD, -1), '`limit` must be at least 1, got -1'),
    (lambda: dx.rennala(SGD, 0), '`batch` must be at least 1, got 0'),
    (
      lambda: dx.scale_by_staleness(dx.polynomial(1)).update(ONE, ()),
      '`scale_by_staleness` needs `staleness`, the steps of',
    ),
    (
      lambda: dx.drop_stale(SGD, 2).update(ONE, ()),
      '`drop_stale` needs `staleness`',
    ),
    (
      lambda: dx.compensate_delay(1.0).update(ONE, (), ONE),
      '`compensate_delay` needs `launched`, the params that',
    ),
    (
      lambda: dx.compensate_delay(1.0).update(ONE, (), launched=ONE),
      '`compensate_delay` needs `params`',
    ),
  ],
)
def test_bad_arguments(make, message):
  with pytest.raises(ValueError, match=message):
    make()
