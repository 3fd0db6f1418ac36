"""Fragments that are averaged in turns, each before its local step."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import dilojax as dx
from dilojax import _ledger
from dilojax import audit
from dilojax import replicas
from dilojax import simulate
from tests.transforms import meeting
from tests.transforms import training
from tests.transforms.training import DIM
from tests.transforms.training import LR
from tests.transforms.training import TARGETS
from tests.transforms.training import K

SGD = optax.sgd(LR)
PARAMS = {'a': jnp.zeros(DIM), 'b': jnp.zeros(DIM), 'c': jnp.ones(DIM)}
TURNS = [['c'], [], ['a', 'b']]


def last(tx, num_steps, **kwargs):
  kwargs = {'params': PARAMS, **kwargs}
  *_, (params, _) = meeting.trajectory(tx, num_steps, **kwargs)
  return params


def by_hand(turns, num_steps, *, decay=0.0, momentum=0.0):
  """Follows the equation, with x <- mean - LR (g + decay mean)."""
  x = {name: np.tile(np.asarray(leaf), (K, 1)) for name, leaf in PARAMS.items()}
  b = {name: 0 * leaf for name, leaf in x.items()}
  for step in range(num_steps):
    for name, leaf in x.items():
      g = leaf - TARGETS
      if name in turns[step % len(turns)]:
        leaf = np.tile(leaf.mean(axis=0), (K, 1))
      b[name] = momentum * b[name] + g
      x[name] = leaf - LR * (b[name] + decay * leaf)
  return x


@pytest.mark.parametrize('num_steps', [1, 3, 7])
@pytest.mark.parametrize(
  'turns',
  [
    TURNS,
    [['a', 'b', 'c']],
    # All units in the last step: average, then step, every three steps.
    [[], [], ['a', 'b', 'c']],
    [['a'], ['b'], ['c'], []],
  ],
)
def test_fragments_start_from_the_mean_when_it_is_their_turn(turns, num_steps):
  inner = optax.sgd(LR, momentum=0.5)
  got = last(dx.dreamddp(inner, turns), num_steps)
  want = by_hand(turns, num_steps, momentum=0.5)
  meeting.assert_trees_close(got, want)


def test_the_inner_optimizer_sees_the_mean_and_the_gradient_does_not():
  """Decoupled weight decay shrinks what the step starts from."""
  inner = optax.chain(optax.add_decayed_weights(0.3), SGD)
  got = last(dx.dreamddp(inner, TURNS), 8)
  meeting.assert_trees_close(got, by_hand(TURNS, 8, decay=0.3))


@pytest.mark.parametrize('turn', [1, 3])
def test_it_is_a_late_mean_that_keeps_the_step_in_between(turn):
  """For optimizers that ask for gradients alone: launched a step before."""
  turns = [['a', 'b', 'c'] if step == turn else [] for step in (1, 2, 3)]
  inner = optax.adam(LR)
  link = dx.synchronize(
    optax.sgd(1.0),
    every=3,
    offset=turn - 1 or 3,
    delay=1,
    merge=dx.delta(),
    reduce=dx.mean_over('replica'),
  )
  got = last(dx.dreamddp(inner, turns), 8)
  meeting.assert_trees_close(
    got, last(optax.chain(inner, link), 8), rtol=1e-4, atol=1e-6
  )


def test_averaging_moves_the_mean_of_the_replicas_only_through_the_step():
  """SGD is linear and these losses have one curvature: not at all."""
  mean = lambda params: jax.tree.map(lambda leaf: leaf.mean(axis=0), params)
  meeting.assert_trees_close(
    mean(last(dx.dreamddp(SGD, TURNS), 8)), mean(last(SGD, 8))
  )


def test_one_replica_trains_as_if_alone():
  inner = optax.adamw(LR)
  given = {'targets': TARGETS[:1]}
  got = last(dx.dreamddp(inner, TURNS), 8, **given)
  meeting.assert_trees_close(got, last(inner, 8, **given), rtol=1e-6)


def still(tx, params, num_steps, **kwargs):
  """Returns what averaging alone makes of the replicas."""

  def run(params):
    state = tx.init(params)
    for step in range(1, num_steps + 1):
      updates = optax.tree.zeros_like(params)
      told = {'step': step, **(kwargs if step == num_steps else {})}
      updates, state = tx.update(updates, state, params, **told)
      params = optax.apply_updates(params, updates)
    return params

  return jax.vmap(run, axis_name='replica')(params)


def agrees(leaf):
  return np.allclose(leaf, leaf[:1], rtol=1e-6)


@pytest.mark.parametrize('every', [1, 2, 4, 7])
def test_plsgd_averages_as_many_units_in_each_step(every):
  """Each of five once per round: ceil(5 / every) after every step."""
  names = [f'layer_{number}' for number in range(5)]
  units = [simulate.Unit(name, 1.0, 1.0) for name in reversed(names)]
  plan = simulate.plan_plsgd(units, every=every)
  tx = dx.dreamddp(optax.identity(), plan.turns)
  params = {name: jnp.arange(2.0)[:, None] * jnp.ones((2, 3)) for name in names}
  for step in range(1, every + 1):
    after = still(tx, params, step)
    count = min(5, step * -(-5 // every))
    assert [name for name in names if agrees(after[name])] == names[5 - count :]


def test_extra_fragments_are_averaged_once_more():
  tx = dx.dreamddp(optax.identity(), [['a'], ['b']], extra=[[], ['a']])
  differ = jnp.arange(2.0)[:, None] * jnp.ones((2, 3))
  state = tx.init({'a': jnp.zeros(3), 'b': jnp.zeros(3)})

  def second(a):
    params = {'a': a, 'b': a}
    updates = optax.tree.zeros_like(params)
    updates, _ = tx.update(updates, state, params, step=2)
    return optax.apply_updates(params, updates)

  after = jax.vmap(second, axis_name='replica')(differ)
  assert agrees(after['a'])
  assert agrees(after['b'])


def test_parts_of_stacked_layers_take_turns():
  layers = jnp.arange(2.0)[:, None, None] * jnp.ones((2, 4, 3))
  fragments = dx.by_stacked_layer('layers', layers_per_fragment=2)
  turns = [['fragment_0'], ['fragment_1']]
  tx = dx.dreamddp(optax.identity(), turns, fragments=fragments)
  after = still(tx, {'layers': layers}, 1)['layers']
  np.testing.assert_array_equal(after[:, ::2], 0.5)  # Strided.
  np.testing.assert_array_equal(after[:, 1::2], layers[:, 1::2])


@pytest.mark.parametrize('num_steps', [3, 4, 5])
def test_the_end_is_the_mean_of_all(num_steps):
  """And the ledger counts one message of each in place of a turn."""
  tx = dx.dreamddp(SGD, TURNS, extra=[['b'], [], []])
  axes = (0, dx.replica_axes(tx.init(PARAMS)))
  train = lambda *args: training.train(
    tx, *args, num_steps, static=True, final=True
  )
  args = training.copies((PARAMS, tx.init(PARAMS)), axes)
  args = (*args, jnp.asarray(TARGETS))
  run = training.map_yourself(train, (*axes, 0), axes, 'vmap')
  params, _ = run(*args)
  assert all(map(agrees, jax.tree.leaves(params)))
  mean = jax.tree.map(lambda leaf: leaf.mean(axis=0), last(SGD, num_steps))
  got = jax.tree.map(lambda leaf: leaf[0], params)
  meeting.assert_trees_close(got, mean)

  links = dx.links(tx.init(PARAMS), PARAMS)
  [row] = _ledger.advance(
    _ledger.start(1), links, 1, num_steps, tokens_per_step=1, final=True
  )
  # The turns before the last step, all in the end, and `b` in steps 1 and 4.
  count = {3: 1 + 3 + 1, 4: 3 + 3 + 2, 5: 4 + 3 + 2}[num_steps]
  assert row['bytes_sent'] == 4 * DIM * count


@functools.cache
def trained(how, static, cuts=(7,)):
  tx = dx.dreamddp(optax.adamw(LR), TURNS)
  state = tx.init(PARAMS)
  axes = (0, dx.replica_axes(state))
  args = training.copies((PARAMS, state), axes)
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
    ('pmap', False, (7,)),
    ('shard_map', False, (7,)),
    ('shard_map', True, (7,)),
    ('vmap', True, (7,)),
    ('vmap', False, (2, 5)),
  ],
)
def test_all_modes_and_resumed_trainings_agree(how, static, cuts):
  for got, want in zip(trained(how, static, cuts), trained('vmap', False)):
    np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-6)


def test_only_the_fragments_of_a_turn_travel():
  placement = replicas.place(K, K)
  tx = dx.dreamddp(SGD, TURNS, extra=[[], [], ['c']])
  state = tx.init(PARAMS)
  axes = (0, dx.replica_axes(state))
  args = replicas.spread((PARAMS, state), placement, axes)

  def sent(step, **kwargs):
    told = {'step': step, **kwargs}

    def one(params, state):
      updates, state = tx.update(params, state, params, **told)
      return dx.apply_updates(params, updates, state, **told), state

    program = replicas.over_replicas(one, placement, axes, axes)
    found = audit.collectives(jax.jit(program).lower(*args).compile())
    assert {each.op for each in found} <= {'all-reduce'}
    return sum(each.nbytes for each in found)

  leaf = 4 * DIM
  assert [sent(step) for step in (1, 2, 3, 4)] == [leaf, 0, 3 * leaf, leaf]
  # All meet after the last step: a turn before it would be sent in vain.
  assert sent(1, final=True) == 3 * leaf
  links = dx.links(state, PARAMS)
  assert [
    (link.name, link.schedule.offset, link.nbytes, link.overwrites)
    for link in links
  ] == [
    ('extra_3', 3, leaf, None),
    ('turn_1', 1, leaf, False),
    ('turn_3', 3, 2 * leaf, False),
  ]
  assert all(link.is_anchorless and link.schedule.every == 3 for link in links)


def test_modules_are_named_by_their_first_keys():
  params = {'embed': 0.0, 'layer_00': {'mlp': {'up': 0.0}, 'norm': 0.0}}
  assert dx.by_module()(params) == {
    'embed': 'embed',
    'layer_00': {'mlp': {'up': 'layer_00'}, 'norm': 'layer_00'},
  }
  assert jax.tree.leaves(dx.by_module(3)(params)) == [
    'embed',
    'layer_00/mlp/up',
    'layer_00/norm',
  ]
  with pytest.raises(ValueError, match='`depth` must be an int of at least 1'):
    dx.by_module(0)


@pytest.mark.parametrize(
  ('turns', 'kwargs', 'match'),
  [
    ([], {}, '`turns` must have at least one step'),
    (['a', 'b'], {}, "got the text 'a': put it in brackets"),
    ([['a'], ['a']], {}, r"each fragment once, got \['a'\] more often"),
    ([['a']], {'extra': [[], []]}, r'as many steps as `turns` \(1\), got 2'),
    ([['a']], {'extra': [['a']]}, r"other fragments .* got \['a'\]"),
  ],
)
def test_turns_that_cannot_be_are_refused(turns, kwargs, match):
  with pytest.raises(ValueError, match=match):
    dx.dreamddp(SGD, turns, **kwargs)


def test_params_that_do_not_fit_are_refused():
  tx = dx.dreamddp(SGD, [['a'], ['x']])
  match = r"\['b', 'c'\] have no turn, and \['x'\] are none of theirs"
  with pytest.raises(ValueError, match=match):
    tx.init(PARAMS)
  tx = dx.dreamddp(SGD, [['a']], extra=[['x']])
  with pytest.raises(ValueError, match=r"`extra` .*\['x'\]"):
    tx.init({'a': jnp.zeros(2)})
  tx = dx.dreamddp(SGD, [['a']])
  with pytest.raises(ValueError, match=r"integers or booleans at \['a'\]"):
    tx.init({'a': jnp.zeros(2, int)})
  with pytest.raises(ValueError, match='pass `params` to `update`'):
    tx.update(PARAMS, tx.init({'a': jnp.zeros(2)}))
  few = dx.dreamddp(SGD, [['a']], fragments=['a'])
  with pytest.raises(ValueError, match=r'every leaf of `params` \(3\), got 1'):
    few.init(PARAMS)
