"""What a replica does before it sends: nothing is lost that is not said."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import dilojax as dx
from dilojax import wire
from tests.transforms import meeting
from tests.transforms.training import K

ROUNDS = 5


def exact_rounds(shape=(6,)):
  """Pseudo-gradients `[K, R, ...]` whose sums are exact in float32."""
  rng = np.random.default_rng(1)
  values = rng.integers(-64, 64, size=(K, ROUNDS, *shape)) / 8
  return jnp.asarray(values, jnp.float32)


@pytest.mark.parametrize('drops', [False, True])
@pytest.mark.parametrize('values', ['float32', 'int8'])
def test_what_was_sent_and_what_is_kept_is_what_there_was(values, drops):
  rounds = exact_rounds()
  codec = wire.top_k(0.5, block_size=4, values=values)
  reduce = dx.mean_over('replica', gather='messages')
  reduce = dx.dropping(reduce, 0.5, seed=3) if drops else reduce
  send = dx.error_feedback(codec)
  _, sent, ((_, kept, _), _) = meeting.over_rounds(reduce, rounds, send)
  total = jnp.sum(sent, axis=1) + kept
  there_was = jnp.sum(rounds, axis=1)
  if values == 'float32':
    np.testing.assert_array_equal(total, there_was)
    assert np.any(kept)
  else:
    np.testing.assert_allclose(total, there_was, atol=1e-4)


@pytest.mark.parametrize('gather', ['mean', 'messages'])
def test_what_is_not_finite_is_not_kept(gather):
  """What weighs nothing does not spoil the rounds to come, either."""
  rounds = jnp.ones((K, 2, 4)).at[1, 0].set(jnp.nan)
  weight = jnp.ones(K).at[1].set(0)
  reduce = dx.mean_over('replica', gather=gather)
  send = dx.error_feedback(wire.top_k(0.5, block_size=4))
  got, _, ((_, kept, _), _) = meeting.over_rounds(reduce, rounds, send, weight)
  assert np.all(np.isfinite(got))
  assert np.all(np.isfinite(kept))


def test_what_is_kept_decays():
  decay, rounds = 0.5, exact_rounds()
  codec = wire.top_k(0.5, block_size=2)
  send = dx.error_feedback(codec, decay)
  _, sent, ((count, kept, _), _) = meeting.over_rounds(
    dx.mean_over('replica', gather='messages'), rounds, send
  )
  want = np.zeros((K, 6), np.float32)
  for r in range(ROUNDS):
    wanted = np.asarray(rounds[:, r]) + decay * want
    pairs = wanted.reshape(K, 3, 2)
    first = np.abs(pairs[..., :1]) >= np.abs(pairs[..., 1:])
    largest = np.concatenate([first, ~first], axis=-1)
    message = np.where(largest, pairs, 0).reshape(K, 6)
    np.testing.assert_array_equal(sent[:, r], message)
    want = wanted - message
  np.testing.assert_array_equal(kept, want)
  np.testing.assert_array_equal(count, ROUNDS)


@pytest.mark.parametrize('decay', [-0.1, 1.5])
def test_a_decay_out_of_range_is_refused(decay):
  with pytest.raises(ValueError, match='`decay` must be from 0 to 1'):
    dx.error_feedback(wire.sign(), decay)


def test_draws_are_shared_or_not_and_differ_between_rounds():
  codec = wire.random_subset(0.25, block_size=8)
  rounds = jnp.ones((2, 3, 32)) * jnp.array([1.0, 2.0])[:, None, None]

  def chosen(shared):
    send = dx.encode(codec, shared_key=shared)

    def one(rounds):
      def next_round(state, grads):
        message, state = send.update(grads, state)
        return state, message.decode() != 0

      return jax.lax.scan(next_round, send.init(rounds[0]), rounds)[1]

    return np.asarray(jax.jit(jax.vmap(one))(rounds))

  alike, apart = chosen(True), chosen(False)
  np.testing.assert_array_equal(alike[0], alike[1])
  assert np.any(apart[0] != apart[1])
  for each in (alike, apart):
    assert np.any(each[:, 0] != each[:, 1])
    assert np.all(each.sum(axis=-1) == 8)


def pruned(rows, num_dropped):
  """The rule, row by row, in Python."""
  rows = np.array(rows)
  for row in rows:
    majority = np.sign(np.sign(row).sum())
    order = sorted(
      range(len(row)),
      key=lambda i: (np.sign(row[i]) * majority > 0, abs(row[i])),
    )
    row[order[:num_dropped]] = 0
  return rows


@pytest.mark.parametrize(('share', 'num_dropped'), [(0.29, 2), (0.75, 6)])
def test_entries_against_the_sign_of_their_row_go_first(share, num_dropped):
  rows = np.asarray(np.random.default_rng(0).normal(size=(5, 8)), np.float32)
  rows[0, :3] = 0
  tx = dx.sign_prune(share)
  got, _ = tx.update({'w': jnp.asarray(rows)}, tx.init(None))
  np.testing.assert_array_equal(got['w'], pruned(rows, num_dropped))
  tx = dx.sign_prune(share, axis=0)
  got, _ = tx.update(jnp.asarray(rows.T), tx.init(None))
  np.testing.assert_array_equal(got, pruned(rows, num_dropped).T)


def test_the_ends_of_pruning():
  grads = {'w': jnp.arange(6.0).reshape(2, 3), 's': jnp.ones(())}
  for share, factor in ((0.0, 1), (1.0, 0)):
    tx = dx.sign_prune(share)
    got, _ = tx.update(grads, tx.init(grads))
    want = jax.tree.map(lambda leaf, factor=factor: factor * leaf, grads)
    meeting.assert_trees_close(got, want, rtol=0)
  got, _ = dx.sign_prune(0.9).update(grads, optax.EmptyState())
  assert got['s'] == 1
  with pytest.raises(ValueError, match='`share` must be from 0 to 1'):
    dx.sign_prune(50)


@pytest.mark.parametrize('longest', [2, 3, 64, 100, 1000, 4097])
def test_a_share_of_nothing_is_refused(longest):
  params = {'w': jnp.zeros((2, longest)), 'b': jnp.zeros(2), 's': jnp.zeros(())}
  few = 0.999 / longest
  with pytest.raises(ValueError, match='must drop an entry') as error:
    dx.sign_prune(few).init(params)
  message = str(error.value)
  assert f'longest row, which has {longest}, got {few}' in message
  # The bound that it names is enough, and little more than is needed.
  bound = float(message.partition('at least ')[2].partition(',')[0])
  assert 1 / longest <= bound <= 1.01 / longest
  tx = dx.sign_prune(bound)
  grads = jax.tree.map(jnp.ones_like, params)
  got, _ = tx.update(grads, tx.init(params))
  assert np.sum(np.asarray(got['w']) == 0) == 2
  dx.sign_prune(0).init(params)


def test_rows_of_other_fragments_may_be_shorter():
  params = {'w': jnp.zeros((2, 64)), 'b': jnp.zeros(2)}
  tx = optax.partition(
    {'w': dx.sign_prune(0.1), 'b': dx.sign_prune(0.1)}, {'w': 'w', 'b': 'b'}
  )
  tx.init(params)
  with pytest.raises(ValueError, match='must drop an entry'):
    dx.sign_prune(0.1).init({'b': params['b']})


def test_the_axis_of_rows_is_there():
  with pytest.raises(ValueError, match=r'`axis` must be one of every leaf'):
    dx.sign_prune(0.5, axis=1).init({'w': jnp.zeros((2, 3)), 'b': jnp.zeros(2)})
  dx.sign_prune(0.5, axis=1).init({'w': jnp.zeros((2, 3)), 's': jnp.zeros(())})


def test_what_is_pruned_is_encoded_next():
  """A `send` of two, in a link that knows the format."""
  codec = wire.bfloat16()
  send = optax.chain(dx.sign_prune(0.5), dx.encode(codec))
  rounds = exact_rounds((2, 4))
  arrived, sent, _ = meeting.over_rounds(
    dx.mean_over('replica', gather='messages'), rounds, send
  )
  rows = np.asarray(rounds).reshape(-1, 4)
  want = pruned(rows, 2).reshape(rounds.shape)
  np.testing.assert_array_equal(sent, want)
  np.testing.assert_array_equal(
    arrived, np.broadcast_to(want.mean(axis=0), want.shape)
  )
  link = dx.synchronize(
    optax.sgd(1.0), every=2, send=send, reduce=dx.mean_over('replica')
  )
  params = jnp.zeros((2, 4))
  assert dx.links(link.init(params), params)[0].nbytes == 16
