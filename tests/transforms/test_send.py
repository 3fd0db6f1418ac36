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
