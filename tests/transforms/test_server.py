"""Rules of a server: momentum, buffers, answers, and what all rules promise."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import dilojax as dx

START = {'w': jnp.linspace(-1.0, 1.0, 6).reshape(2, 3), 's': jnp.ones(())}
ZERO = jnp.zeros(())
SGD = optax.sgd(0.1)
NESTEROV = optax.sgd(0.7, momentum=0.9, nesterov=True)


def arrivals(count, seed=0):
  """Returns pseudo-gradients with a leading axis for the arrival."""
  rng = np.random.default_rng(seed)
  draw = lambda leaf: rng.normal(size=(count, *leaf.shape)).astype(np.float32)
  return jax.tree.map(draw, START)


def serve(tx, deltas, params=START, **told):
  """Scans over arrivals; returns params and states after each of them."""
  tx = optax.with_extra_args_support(tx)

  def arrive(carry, arrived):
    delta, told = arrived
    params, state = carry
    updates, state = tx.update(delta, state, params, **told)
    carry = optax.apply_updates(params, updates), state
    return carry, carry

  scan = jax.jit(lambda *args: jax.lax.scan(arrive, args[:2], args[2:])[1])
  return scan(params, tx.init(params), deltas, told)


def at(tree, index):
  return jax.tree.map(lambda leaf: leaf[index], tree)


def assert_close(got, want, rtol=3e-6, atol=2e-6):
  assert jax.tree.structure(got) == jax.tree.structure(want)
  jax.tree.map(
    lambda a, b: np.testing.assert_allclose(a, b, rtol=rtol, atol=atol),
    got,
    want,
  )


@pytest.mark.parametrize('c', [0.0, 0.3, 1.0])
@pytest.mark.parametrize('lr', [0.7, optax.linear_schedule(1.0, 0.1, 9)])
def test_alone_it_is_nesterov(lr, c):
  """Identity 6 of one worker, whatever the share of the momentum."""
  deltas = arrivals(10)
  got, _ = serve(dx.delayed_nesterov(lr, 0.9, every=1, c=c), deltas)
  want, _ = serve(optax.sgd(lr, momentum=0.9, nesterov=True), deltas)
  assert_close(got, want)


@pytest.mark.parametrize('n', [1, 2, 3, 5])
def test_without_a_share_a_round_is_a_synchronous_step(n):
  """Identity 6: after n arrivals Nesterov on their mean, before that SGD."""
  lr, rounds = 0.7, 4
  deltas = arrivals(n * rounds)
  got, _ = serve(dx.delayed_nesterov(lr, 0.9, every=n), deltas)
  in_rounds = jax.tree.map(
    lambda leaf: leaf.reshape(rounds, n, *leaf.shape[1:]), deltas
  )
  means = jax.tree.map(lambda leaf: leaf.mean(axis=1), in_rounds)
  want, _ = serve(NESTEROV, means)
  assert_close(at(got, slice(n - 1, None, n)), want)
  for number in range(n * rounds):
    if (number + 1) % n:
      before = at(got, number - 1) if number else START
      step = lambda p, d: p - lr * d / n
      assert_close(
        at(got, number), jax.tree.map(step, before, at(deltas, number))
      )


@pytest.mark.parametrize('c', [0.1, 0.5])
def test_with_a_share_it_is_none(c):
  deltas = arrivals(4)
  got, _ = serve(dx.delayed_nesterov(0.7, 0.9, every=2, c=c), deltas)
  mean = lambda leaf: leaf.reshape(2, 2, *leaf.shape[1:]).mean(axis=1)
  want, _ = serve(NESTEROV, jax.tree.map(mean, deltas))
  apart = lambda a, b: np.max(np.abs(np.asarray(a)[[1, 3]] - b))
  assert min(jax.tree.leaves(jax.tree.map(apart, got, want))) > 0.02


@pytest.mark.parametrize('c', [0.1, 1 / 3])
def test_shares_of_the_momentum(c):
  """The equations, written out for two rounds of three arrivals."""
  lr, mu, n = 0.3, 0.8, 3
  deltas = arrivals(6)
  got, states = serve(dx.delayed_nesterov(lr, mu, every=n, c=c), deltas)
  for leaf, start, moved, momentum in zip(
    *map(jax.tree.leaves, (deltas, START, got, states.momentum))
  ):
    d = np.asarray(leaf, np.float64)
    first = d[:3].mean(axis=0)
    second = mu * first + d[3:].mean(axis=0)
    late = 1 - c * n + c
    steps = [
      d[0] / n,
      d[1] / n,
      d[2] / n + late * mu * first,
      d[3] / n + c * mu * first,
      d[4] / n + c * mu * first,
      d[5] / n + late * mu * second,
    ]
    want = np.asarray(start) - lr * np.cumsum(steps, axis=0)
    np.testing.assert_allclose(moved, want, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(momentum[1], 0 * first)
    np.testing.assert_allclose(momentum[4], first, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(momentum[5], second, rtol=1e-5, atol=1e-6)


def test_all_of_the_momentum_is_spread():
  """Shares sum to 1: n - 1 of c, and one of 1 - cn + c."""
  n, lr, mu = 4, 0.5, 0.9
  one = jax.tree.map(jnp.ones_like, START)
  still = jax.tree.map(jnp.zeros_like, START)
  filled = lambda value: jax.tree.map(lambda leaf: value * leaf, one)
  stack = lambda *trees: jax.tree.map(lambda *x: jnp.stack(x), *trees)
  deltas = stack(*[one] * n, *[still] * n)
  for c in (0.0, 0.2, 0.25):
    got, states = serve(dx.delayed_nesterov(lr, mu, every=n, c=c), deltas)
    moved = jax.tree.map(lambda leaf: leaf[n - 1] - leaf[-1], got)
    # The momentum is 1 in the first three of the round, and then mu.
    moves = lr * mu * ((n - 1) * c + (1 - c * n + c) * mu)
    assert_close(moved, filled(moves))
    assert_close(at(states.momentum, -1), filled(mu))


def test_schedules_count_arrivals():
  lr = lambda count: jnp.where(count == 3, 1.0, 0.0)
  got, _ = serve(dx.delayed_nesterov(lr, 0.0, every=2), arrivals(6))
  for leaf in jax.tree.leaves(got):
    moved = np.any(np.diff(leaf, axis=0).reshape(5, -1) != 0, axis=1)
    assert moved.tolist() == [False, False, True, False, False]


def test_buffers_are_wide():
  """Small arrivals add up, though bfloat16 would lose them."""
  params = jnp.ones((), jnp.bfloat16)
  deltas = jnp.asarray([1.0] + [2.0**-10] * 511, jnp.bfloat16)
  for tx, buffer in (
    (dx.delayed_nesterov(0.0, 0.5, every=512), lambda s: s.momentum),
    (dx.buffered(optax.trace(0.5), 512), lambda s: s.steps[2].trace),
    (dx.drop_stale(optax.trace(1.0), 1), lambda s: s.inner.trace / 512),
  ):
    told = {'staleness': jnp.zeros(512, jnp.int32)}
    _, states = serve(tx, deltas, params, **told)
    kept = buffer(states)[-1]
    assert kept.dtype == jnp.float32
    np.testing.assert_allclose(kept, (1 + 511 / 1024) / 512, rtol=1e-5)


def test_rates_can_be_injected():
  make = optax.inject_hyperparams(dx.delayed_nesterov, static_args='every')
  tx = make(lr=optax.linear_schedule(1.0, 0.1, 9), momentum=0.9, every=2)
  deltas = arrivals(6)
  got, _ = serve(tx, deltas)
  want, _ = serve(
    dx.delayed_nesterov(optax.linear_schedule(1.0, 0.1, 9), 0.9, every=2),
    deltas,
  )
  assert_close(got, want)


@pytest.mark.parametrize('tx', [NESTEROV, optax.adam(0.1)])
def test_a_buffer_of_one_is_none(tx):
  deltas = arrivals(5)
  got, states = serve(dx.buffered(tx, 1), deltas)
  want, wanted = serve(tx, deltas)
  assert_close(got, want)
  assert_close(states.steps.inner_opt_state, wanted)
  assert np.all(states.answer.stepped)


@pytest.mark.parametrize('size', [2, 3])
def test_a_buffer_steps_on_means(size):
  """Nothing moves in between, and nothing decays."""
  deltas = arrivals(4 * size)
  got, states = serve(dx.buffered(NESTEROV, size), deltas)
  mean = lambda leaf: leaf.reshape(4, size, *leaf.shape[1:]).mean(axis=1)
  want, wanted = serve(NESTEROV, jax.tree.map(mean, deltas))
  whole = jax.tree.map(
    lambda start, leaf: jnp.repeat(jnp.stack([start, *leaf]), size, axis=0),
    (START, NESTEROV.init(START)),
    (want, wanted),
  )
  # Four steps, each seen from its arrival to the one before the next.
  seen = at(whole, slice(1, 4 * size + 1))
  assert_close((got, states.steps.inner_opt_state), seen)
  due = (np.arange(4 * size) + 1) % size == 0
  np.testing.assert_array_equal(states.answer.stepped, due)
  assert np.all(states.answer.handed)
  assert np.all(states.answer.counted)
  assert not np.any(states.answer.restarted)


def test_nan_leaves_a_buffer():
  """What the optimizer refuses is not kept for the next step."""
  tx = dx.buffered(optax.apply_if_finite(optax.sgd(1.0), 100), 2)
  got, _ = serve(tx, jnp.array([1.0, jnp.nan, jnp.nan, 1.0, 2.0, 4.0]), ZERO)
  np.testing.assert_array_equal(got, [0, 0, 0, 0, 0, -3])
  plain = dx.buffered(optax.sgd(1.0), 2)
  # Compiled, a product with a boolean would be a selection by luck.
  with jax.disable_jit():
    updates, _ = plain.update(jnp.array(jnp.nan), plain.init(ZERO), ZERO)
  assert updates == 0


def stepped(state):
  return dx.answer_of(state).stepped


def test_answers_are_found():
  staleness = jnp.array([0, 0, 5, 0])
  inside = dx.drop_stale(dx.buffered(SGD, 2), 5)
  chain = optax.chain(
    optax.scale(2.0), optax.named_chain(('a', inside), ('b', optax.scale(1.0)))
  )
  _, states = serve(chain, arrivals(4), staleness=staleness)
  # The outermost knows what it did not pass on.
  assert stepped(states).tolist() == [False, True, False, False]
  buffer = states[1]['a'].inner.answer
  assert buffer.stepped.tolist() == [False, True, True, False]
  assert dx.answer_of(states).handed.tolist() == [True] * 4
  assert dx.answer_of(NESTEROV.init(START)) is None
  assert dx.answer_of(()) is None
  table = optax.chain(dx.gradient_table(2), SGD).init(START)
  assert dx.answer_of(table) is None
  two = optax.chain(dx.drop_stale(SGD, 1), dx.buffered(SGD, 1)).init(START)
  with pytest.raises(ValueError, match='DropStaleState, BufferedState: put'):
    dx.answer_of(two)


def test_rules_in_rules_step_where_both_do():
  """What wraps an optimizer that refuses arrivals does not claim a step."""
  staleness = jnp.array([0, 0, 0, 7])
  inner = dx.drop_stale(SGD, 5)
  expected = [False, True, False, False]
  worker = jnp.array([0, 1, 0, 1])
  told = {'staleness': staleness, 'worker': worker}
  for tx in (dx.buffered(inner, 2), dx.malenia(inner, 2)):
    _, states = serve(tx, arrivals(4), **told)
    assert stepped(states).tolist() == expected
  _, states = serve(dx.ringleader(inner, 2), arrivals(4), **told)
  assert stepped(states).tolist() == [False, True, True, False]
  # A worker's own params are handed to it even if nothing moved.
  _, states = serve(dx.drop_stale(dx.malenia(SGD, 2), 5), arrivals(4), **told)
  assert stepped(states).tolist() == expected
  assert dx.answer_of(states).handed.tolist() == [False, True, False, True]
  assert dx.answer_of(states).restarted.tolist() == expected
  assert dx.answer_of(states).counted.tolist() == [True, True, True, False]


RULES = {
  'delayed_nesterov': dx.delayed_nesterov(0.5, 0.9, every=2, c=0.2),
  'buffered': dx.buffered(NESTEROV, 2),
  'scale_by_staleness': dx.scale_by_staleness(dx.polynomial(0.5)),
  'hinge': dx.scale_by_staleness(dx.hinge(1.0, 2)),
  'drop_stale': dx.drop_stale(NESTEROV, 2),
  'compensate_delay': dx.compensate_delay(0.5),
  'rennala': dx.rennala(NESTEROV, 2),
  'ringmaster': dx.ringmaster(optax.adam(0.1), 2),
  'gradient_table': dx.gradient_table(3),
  'ringleader': dx.ringleader(NESTEROV, 3),
  'malenia': dx.malenia(optax.adam(0.1), 3),
  'nested': optax.chain(
    dx.scale_by_staleness(dx.polynomial(1.0)),
    dx.drop_stale(dx.ringleader(dx.delayed_nesterov(0.5, 0.9, 2), 3), 4),
  ),
}
NARROW = jax.tree.map(lambda leaf: leaf.astype(jnp.bfloat16), START)
KINDS = {'f32': START, 'bf16': NARROW, 'mixed': START | {'w': NARROW['w']}}


@pytest.mark.parametrize('kind', KINDS)
@pytest.mark.parametrize('name', RULES)
def test_types_survive(name, kind):
  """Structure, dtype and weak type, and so in a scan; all buffers are wide."""
  tx, params = RULES[name], KINDS[kind]
  state = jax.eval_shape(tx.init, params)
  number = jax.ShapeDtypeStruct((), jnp.int32)

  def arrive(params, state, worker, staleness):
    return tx.update(
      params,
      state,
      params,
      worker=worker,
      staleness=staleness,
      launched=params,
      token=worker,  # Nobody knows this one.
    )

  after = jax.eval_shape(arrive, params, state, number, number)
  typed = lambda tree: jax.tree.map(jax.typeof, tree)
  assert typed(after) == typed((params, state))
  for leaf in jax.tree.leaves(state):
    assert leaf.dtype in (jnp.float32, jnp.int32, jnp.bool_)


@pytest.mark.parametrize('name', RULES)
def test_told_as_ints_or_traced(name):
  """Python's ints give what traced ones do, which compile once."""
  tx, count = RULES[name], 4
  worker, staleness = np.arange(count) % 3, np.arange(count) % 2
  told = {
    'worker': jnp.asarray(worker, jnp.int32),
    'staleness': jnp.asarray(staleness, jnp.int32),
    'launched': arrivals(count, seed=1),
  }
  deltas = arrivals(count)
  got, _ = serve(tx, deltas, **told)
  params, state = START, tx.init(START)
  for number in range(count):
    updates, state = tx.update(
      at(deltas, number),
      state,
      params,
      worker=int(worker[number]),
      staleness=int(staleness[number]),
      launched=at(told['launched'], number),
    )
    params = optax.apply_updates(params, updates)
    assert_close(at(got, number), params, rtol=1e-5)


MAKERS = [
  lambda tx: dx.buffered(tx, 1),
  lambda tx: dx.drop_stale(tx, 1),
  lambda tx: dx.ringleader(tx, 1),
  lambda tx: dx.malenia(tx, 1),
]


@pytest.mark.parametrize('make', MAKERS)
def test_params_and_state_can_both_be_donated(make):
  """Also if the optimizer keeps the params that it is given."""
  keeps = optax.GradientTransformation(lambda params: params, SGD.update)
  state = make(keeps).init(START)
  buffers = [
    leaf.unsafe_buffer_pointer() for leaf in jax.tree.leaves((START, state))
  ]
  assert len(set(buffers)) == len(buffers)


@pytest.mark.parametrize('make', MAKERS)
def test_arguments_reach_the_optimizer(make):
  def update(updates, state, params=None, *, loss, **extra_args):
    assert (params is None, extra_args['worker']) == (True, 0)
    return optax.tree.scale(loss, updates), state

  tx = make(
    optax.GradientTransformationExtraArgs(optax.init_empty_state, update)
  )
  # None are needed if the optimizer needs none.
  updates, _ = tx.update(
    START, tx.init(START), worker=0, staleness=0, loss=jnp.float32(3.0)
  )
  assert_close(updates, optax.tree.scale(3.0, START))


@pytest.mark.parametrize(
  ('make', 'message'),
  [
    (lambda: dx.delayed_nesterov('1', 0.9, 2), '`lr` must be a number, or'),
    (lambda: dx.delayed_nesterov(0.7, 1.0, 2), '`momentum` must be at least 0'),
    (lambda: dx.delayed_nesterov(0.7, -0.1, 2), 'less than 1, got -0.1'),
    (lambda: dx.delayed_nesterov(0.7, None, 2), '`momentum` must be a number'),
    (lambda: dx.delayed_nesterov(0.7, 0.9, 0), '`every` must be at least 1'),
    (lambda: dx.delayed_nesterov(0.7, 0.9, 2.0), '`every` must be an int'),
    (lambda: dx.delayed_nesterov(0.7, 0.9, 4, 0.26), r'\(0.25\), got 0.26'),
    (lambda: dx.delayed_nesterov(0.7, 0.9, 4, -0.1), '`c` must be from 0'),
    (lambda: dx.buffered(SGD, 0), '`size` must be at least 1, got 0'),
    (lambda: dx.buffered(SGD, True), '`size` must be an int, got True'),
    (lambda: dx.buffered(dx.buffered, 2), '`tx` must be an optax transf'),
    (lambda: dx.buffered(SGD, 2).init(jnp.arange(3)), '`params` must be of'),
  ],
)
def test_bad_arguments(make, message):
  with pytest.raises(ValueError, match=message):
    make()


def test_a_share_can_be_all_there_is():
  for every in range(1, 100):
    dx.delayed_nesterov(0.7, 0.9, every, 1 / every)
