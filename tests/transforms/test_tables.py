"""Tables with a row for every worker: IA²SGD, Ringleader, Malenia."""

import functools
from typing import NamedTuple

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

SGD = optax.sgd(1.0)


class Served(NamedTuple):
  """What happened in a sequence of arrivals, one row for each.

  Attributes:
    worker: Who arrived.
    launched: Number of the params at which its gradient was taken.
    stepped: Whether the params moved.
    shares: How much each gradient had in the step, `[arrivals, arrivals]`.
  """

  worker: np.ndarray
  launched: np.ndarray
  stepped: np.ndarray
  shares: np.ndarray


@functools.cache
def serve_apart(make, num_workers):
  """Compiles a server of gradients that each have an entry of their own."""
  start, deltas, tx = jnp.zeros(COUNT), jnp.eye(COUNT), make(SGD, num_workers)
  return jax.jit(lambda worker: serve(tx, deltas, start, worker=worker))


@functools.cache
def bookkeeping(make, num_workers, number):
  """Tells what became of every gradient in one of the orders."""
  worker = ORDERS[num_workers][number]
  params, states = serve_apart(make, num_workers)(jnp.asarray(worker))
  shares = -np.diff(np.asarray(params), axis=0, prepend=0)
  answer = jax.tree.map(np.asarray, dx.answer_of(states))
  version, held = 0, np.zeros(num_workers, int)
  launched = np.zeros(COUNT, int)
  for number, k in enumerate(worker):
    launched[number] = held[k]
    version += int(answer.stepped[number])
    if answer.handed[number]:
      held[k] = version
    if answer.restarted[number]:
      held[:] = version
  return Served(worker, launched, answer.stepped, shares)


def orders(num_workers):
  """Yields sequences of arrivals: in turn, at random, and far from fair."""
  rng = np.random.default_rng(num_workers)
  yield np.arange(COUNT) % num_workers
  for _ in range(3):
    yield rng.integers(0, num_workers, COUNT)
  for _ in range(4):
    times = rng.pareto(1.0, num_workers) + 0.1
    ends = times[:, None] * np.arange(1, COUNT + 1)
    first = np.argsort(ends, axis=None, kind='stable')[:COUNT]
    yield first // COUNT


COUNT = 150
ORDERS = {n: list(orders(n)) for n in (1, 2, 3, 7)}
# First served in one round, and in the last step of the next.
ORDERS[3].append(np.resize([0, 1, 2, 1, 0, 2, 1, 0, 1, 2], COUNT))
CASES = [(n, number) for n in ORDERS for number in range(len(ORDERS[n]))]


@pytest.mark.parametrize(('n', 'number'), CASES)
def test_ringleader_steps_n_times_a_round(n, number):
  """All have arrived before the first step; each step serves one worker."""
  served = bookkeeping(dx.ringleader, n, number)
  steps = np.flatnonzero(served.stepped)
  for start in range(0, len(steps), n):
    in_round = served.worker[steps[start : start + n]].tolist()
    assert len(set(in_round)) == len(in_round)
    assert len(in_round) == n or start + n > len(steps)
    # The first of a round closes phase 1: it is in all of its steps alone.
    first = steps[start]
    [used] = np.nonzero(served.shares[first])
    assert np.sum(served.worker[used] == served.worker[first]) == 1
    assert used[-1] == first
  if number == 0:  # In turn, a round has 2n - 1 arrivals.
    rounds, rest = divmod(COUNT, 2 * n - 1)
    assert len(steps) == n * rounds + max(rest - n + 1, 0)


@pytest.mark.parametrize(('n', 'number'), CASES)
def test_ringleader_loses_nothing(n, number):
  """Every gradient is in the tables of exactly one round."""
  served = bookkeeping(dx.ringleader, n, number)
  steps = np.flatnonzero(served.stepped)
  used = np.zeros(COUNT, int)
  for start in range(0, len(steps), n):
    in_round = steps[start : start + n]
    is_in = served.shares[in_round] > 0
    # What one step has used, the later ones of the round use as well.
    assert np.all(is_in[1:] >= is_in[:-1])
    used += is_in[-1]
    if len(in_round) == n:
      # What came before and is in no round yet, is of workers served by then.
      since = dict(zip(served.worker[in_round].tolist(), in_round))
      for left in np.flatnonzero(used[: in_round[-1]] == 0):
        assert left > since[served.worker[left]]
  assert np.all(used <= 1)


@pytest.mark.parametrize(('n', 'number'), CASES)
def test_ringleader_delays_are_short(n, number):
  """Identity 13: at most 2n - 2 steps."""
  served = bookkeeping(dx.ringleader, n, number)
  for version, step in enumerate(np.flatnonzero(served.stepped)):
    [used] = np.nonzero(served.shares[step])
    delays = version - served.launched[used]
    assert np.all(delays >= 0)
    assert np.all(delays <= 2 * n - 2)


def test_ringleader_delays_can_be_that_long():
  n = 3
  served = bookkeeping(dx.ringleader, n, len(ORDERS[n]) - 1)
  step = np.flatnonzero(served.stepped)[2 * n - 1]
  [used] = np.nonzero(served.shares[step])
  assert np.max(2 * n - 1 - served.launched[used]) == 2 * n - 2


@pytest.mark.parametrize('make', [dx.ringleader, dx.malenia])
@pytest.mark.parametrize(('n', 'number'), CASES)
def test_steps_are_on_means_of_means(make, n, number):
  """Each worker has 1/n of a step, its gradients equal parts of that."""
  served = bookkeeping(make, n, number)
  for step in np.flatnonzero(served.stepped):
    for k in range(n):
      [own] = np.nonzero((served.worker == k) & (served.shares[step] != 0))
      assert len(own)
      np.testing.assert_allclose(
        served.shares[step, own], 1 / (n * len(own)), rtol=1e-4
      )
      # They are a mean of a gradient at one place, as in the paper.
      assert len(set(served.launched[own].tolist())) == 1
  assert not np.any(served.shares[~served.stepped])


def test_ringleader_in_turn():
  """Equal times: a first step on the mini-batch, n per 2n - 1 arrivals."""
  n = 3
  deltas = arrivals(2 * n - 1)
  worker = jnp.arange(2 * n - 1) % n
  got, _ = serve(dx.ringleader(SGD, n), deltas, worker=worker)
  # All of the first round are taken at the first params.
  weights = [
    [1 / 3, 1 / 3, 1 / 3, 0, 0],
    [1 / 6, 1 / 3, 1 / 3, 1 / 6, 0],
    [1 / 6, 1 / 6, 1 / 3, 1 / 6, 1 / 6],
  ]
  for number, step in enumerate((n - 1, n, n + 1)):
    moved = np.cumsum(weights, axis=0)[number]
    assert_close(
      at(got, step),
      jax.tree.map(
        lambda start, leaf, moved=moved: (
          start - np.tensordot(moved, leaf, axes=1)
        ),
        START,
        deltas,
      ),
    )
  assert_close(at(got, n - 2), START)


@pytest.mark.parametrize('tx', [NESTEROV, optax.adam(0.1)])
def test_alone_tables_are_plain(tx):
  """One worker: each of its gradients is one step."""
  deltas = arrivals(6)
  worker = jnp.zeros(6, jnp.int32)
  want, wanted = serve(tx, deltas)
  for make in (dx.ringleader, dx.malenia):
    got, states = serve(make(tx, 1), deltas, worker=worker)
    assert_close(got, want)
    assert_close(states.inner, wanted)
    assert np.all(states.answer.stepped)
    assert np.all(states.answer.handed)
  got, _ = serve(optax.chain(dx.gradient_table(1), tx), deltas, worker=worker)
  assert_close(got, want)


@pytest.mark.parametrize('make', [dx.ringleader, dx.malenia])
def test_momentum_rests_between_steps(make):
  """Nothing moves and nothing decays at arrivals that do not step."""
  n, count = 3, 60
  worker = np.random.default_rng(0).integers(0, n, count)
  got, states = serve(
    make(optax.adam(0.1), n), arrivals(count), worker=jnp.asarray(worker)
  )
  stepped = np.asarray(states.answer.stepped)
  assert 5 < stepped.sum() < count - 5
  before = (
    jax.tree.map(lambda leaf: leaf[None], START),
    jax.tree.map(lambda leaf: leaf[None], optax.adam(0.1).init(START)),
  )
  for first, leaf in zip(
    jax.tree.leaves(before), jax.tree.leaves((got, states.inner))
  ):
    whole = np.concatenate([first, leaf])
    np.testing.assert_array_equal(whole[1:][~stepped], whole[:-1][~stepped])
  np.testing.assert_array_equal(states.inner[0].count, np.cumsum(stepped))


@pytest.mark.parametrize('batch', [1, 2])
def test_malenia_steps_once_a_round(batch):
  """With a batch of one from everybody it is mini-batch SGD."""
  n, rounds = 3, 3
  in_round = np.concatenate([np.repeat(np.arange(n - 1), batch), [n - 1]])
  deltas = arrivals(len(in_round) * rounds)
  worker = jnp.asarray(np.tile(in_round, rounds))
  got, states = serve(dx.malenia(NESTEROV, n), deltas, worker=worker)
  shares = np.where(in_round < n - 1, 1 / (n * batch), 1 / n)

  def mean(leaf):
    leaf = leaf.reshape(rounds, len(in_round), *leaf.shape[1:])
    return np.einsum('i,ri...->r...', shares, leaf)

  want, _ = serve(NESTEROV, jax.tree.map(mean, deltas))
  ends = slice(len(in_round) - 1, None, len(in_round))
  assert_close(at(got, ends), want)
  is_end = np.arange(len(worker)) % len(in_round) == len(in_round) - 1
  *moves, counted = states.answer
  for field in moves:
    np.testing.assert_array_equal(field, is_end)
  assert np.all(counted)


@pytest.mark.parametrize(('n', 'number'), CASES)
def test_malenia_uses_gradients_at_the_current_params(n, number):
  """Those that arrive; what is dropped has not arrived."""
  served = bookkeeping(dx.malenia, n, number)
  steps = np.flatnonzero(served.stepped)
  begin = 0
  for version, step in enumerate(steps):
    [used] = np.nonzero(served.shares[step])
    np.testing.assert_array_equal(used, np.arange(begin, step + 1))
    assert np.all(served.launched[used] == version)
    begin = step + 1


@pytest.mark.parametrize('n', [1, 2, 3, 7])
def test_the_table_has_the_last_of_everybody(n):
  """IA²SGD: each step is on the mean of all slots, empty ones included."""
  count = 40
  worker = np.random.default_rng(n).integers(0, n, count)
  lr = 0.2
  tx = optax.chain(dx.gradient_table(n), optax.sgd(lr))
  deltas = arrivals(count)
  got, states = serve(tx, deltas, worker=jnp.asarray(worker))
  weights = np.zeros((count, count))
  for number in range(count):
    for k in range(n):
      [sent] = np.nonzero(worker[: number + 1] == k)
      weights[number, sent[-1:]] = 1 / n
  total = lr * np.cumsum(weights, axis=0)
  want = jax.tree.map(
    lambda start, leaf: np.asarray(start) - np.tensordot(total, leaf, axes=1),
    START,
    deltas,
  )
  assert_close(got, want, rtol=1e-5, atol=2e-6)
  for slots, leaf in zip(
    jax.tree.leaves(states[0].slots), jax.tree.leaves(deltas)
  ):
    assert slots.shape == (count, n, *leaf.shape[1:])
    for k in set(worker.tolist()):
      last = np.flatnonzero(worker == k)[-1]
      np.testing.assert_array_equal(slots[-1, k], leaf[last])


def test_tables_hold_means():
  """Not sums, in the rounds to come as well, and so without growing."""
  n = 2
  worker = jnp.asarray([0, 0, 0, 1, 1, 1, 1, 0])
  values = jnp.asarray([3.0, 6.0, 9.0, 1.0, 10.0, 20.0, 60.0, 2.0])
  _, states = serve(dx.ringleader(SGD, n), values, jnp.zeros(()), worker=worker)
  first, second = states.tables
  np.testing.assert_array_equal(states.turn, [0] * 7 + [1])
  np.testing.assert_allclose(first.mean[2, 0], 6)
  np.testing.assert_array_equal(first.count[2], [3, 0])
  # Served: its arrivals wait for the next round.
  np.testing.assert_allclose(first.mean[6], [6, 1])
  np.testing.assert_allclose(second.mean[6, 1], 30, rtol=1e-6)
  np.testing.assert_array_equal(second.count[6], [0, 3])
  np.testing.assert_array_equal(states.served[6], [False, True])
  # Swap: who is there counts as arrived.
  np.testing.assert_array_equal(first.count[7], [0, 0])
  np.testing.assert_allclose(second.mean[7, 1], 30, rtol=1e-6)
  np.testing.assert_array_equal(second.count[7], [0, 3])
  assert not np.any(states.served[7])


@pytest.mark.parametrize('make', [dx.ringleader, dx.malenia])
def test_nan_leaves_with_its_round(make):
  """An optimizer that refuses it goes on with the next round."""
  tx = make(optax.apply_if_finite(SGD, 100), 2)
  values = jnp.asarray([jnp.nan, *[1.0] * 11])
  worker = jnp.arange(12) % 2
  got, states = serve(tx, values, jnp.zeros(()), worker=worker)
  assert np.all(np.isfinite(got))
  assert got[-1] < 0
  # A round is two steps of the one rule, and one of the other.
  steps = 2 if make is dx.ringleader else 1
  assert states.inner.total_notfinite[-1] == steps


def test_slow_workers_count_as_much():
  """Workers of unequal speed and aim: the tables find the middle."""
  aims = jnp.asarray([0.0, 1.0, 5.0])
  speeds = np.array([6, 3, 1])
  ends = np.arange(1, 601) / speeds[:, None]
  order = np.argsort(ends, axis=None, kind='stable')[:600] // 600

  def settled(tx):
    state = tx.init(jnp.zeros(()))

    @jax.jit
    def arrive(params, state, launched, worker):
      grad = launched - aims[worker]
      updates, state = tx.update(grad, state, params, worker=worker)
      return params + updates, state, dx.answer_of(state)

    params = jnp.zeros(())
    held = [params] * 3
    for worker in order:
      params, state, answer = arrive(params, state, held[worker], worker)
      if answer is None or answer.handed:
        held[worker] = params
      if answer is not None and answer.restarted:
        held = [params] * 3
    return float(params)

  sgd = optax.sgd(0.2)
  for tx in (
    dx.ringleader(sgd, 3),
    dx.malenia(sgd, 3),
    optax.chain(dx.gradient_table(3), sgd),
  ):
    np.testing.assert_allclose(settled(tx), 2.0, atol=0.02)
  slow = optax.with_extra_args_support(optax.sgd(0.02))
  assert settled(slow) < 1.3


ONE = jnp.ones(2)


@pytest.mark.parametrize(
  ('rule', 'make'),
  [
    ('gradient_table', dx.gradient_table),
    ('ringleader', lambda n: dx.ringleader(SGD, n)),
    ('malenia', lambda n: dx.malenia(SGD, n)),
  ],
)
def test_bad_arguments(rule, make):
  with pytest.raises(ValueError, match='`num_workers` must be at least 1'):
    make(0)
  with pytest.raises(ValueError, match='`num_workers` must be an int, got 2.5'):
    make(2.5)
  with pytest.raises(ValueError, match='`params` must be of inexact types'):
    make(2).init(jnp.arange(2))
  tx = make(2)
  state = tx.init(ONE)
  with pytest.raises(ValueError, match=f'`{rule}` needs `worker`, the number'):
    tx.update(ONE, state)
  for worker in (-1, 2, np.int64(5)):
    message = '`worker` must be from 0 to 1, since `num_workers` is 2, got'
    with pytest.raises(ValueError, match=message):
      tx.update(ONE, state, worker=worker)


@pytest.mark.parametrize('make', [dx.ringleader, dx.malenia])
def test_what_is_no_optimizer(make):
  with pytest.raises(ValueError, match='`tx` must be an optax transformation'):
    make(0.1, 2)
