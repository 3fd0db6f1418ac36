"""Equations that the decoder obeys, through `init`, `loss` and `evaluate`."""

import jax
import jax.extend
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from dilojax import models

SETTINGS = dict(
  vocab_size=11,
  seq_len=6,
  num_layers=2,
  dim=16,
  num_heads=2,
  head_dim=4,
  mlp_dim=24,
  mlp='swiglu',
  tied_head=False,
  qk_norm=True,
  z_loss=0.0,
  dtype='float32',
  remat=False,
)


def make(**changes):
  model = models.decoder(**{**SETTINGS, **changes})
  return model._replace(
    init=jax.jit(model.init),
    loss=jax.jit(model.loss),
    evaluate=jax.jit(model.evaluate),
  )


def draw(model, *, seq_len=6, batch_size=3, vocab_size=11):
  params = model.init(jax.random.key(0))
  shape = (batch_size, seq_len + 1)
  tokens = jax.random.randint(jax.random.key(1), shape, 0, vocab_size)
  return params, {'tokens': tokens}


def assert_trees_close(got, expected, **tolerance):
  jax.tree.map(
    lambda a, b: np.testing.assert_allclose(a, b, **tolerance), got, expected
  )


@pytest.mark.parametrize(
  'mlp', [pytest.param('swiglu', marks=pytest.mark.slow), 'gelu']
)
def test_no_token_sees_the_future(mlp):
  # Summed over the last token, the probabilities of sequences are those of the
  # shorter ones: true only if probabilities are normalized, and if the token
  # before the last, now an input, changes none of the earlier predictions.
  long, short = make(mlp=mlp), make(mlp=mlp, seq_len=5)
  params, batch = draw(long, batch_size=1)
  prefix = batch['tokens'][0, :6]
  endings = jnp.stack([jnp.append(prefix, last) for last in range(11)])
  nats = jax.vmap(
    lambda tokens: 6 * long.loss(params, {'tokens': tokens[None]})
  )(endings)
  np.testing.assert_allclose(
    -jax.nn.logsumexp(-nats),
    5 * short.loss(params, {'tokens': prefix[None]}),
    rtol=1e-5,
  )


def test_predictions_depend_on_the_order_of_the_past():
  model = make()
  params, _ = draw(model)
  loss = lambda *tokens: model.loss(params, {'tokens': jnp.array([tokens])})
  last = lambda *past: jnp.array([loss(*past, 7, i) for i in range(11)])
  spread = lambda values: values - values.mean()
  assert not np.allclose(
    spread(last(1, 2, 3, 4, 5)), spread(last(3, 2, 1, 4, 5)), atol=1e-4
  )


def test_loss_of_a_batch_is_the_mean_over_its_sequences():
  model = make(z_loss=0.1)
  params, batch = draw(model)
  each = [model.loss(params, {'tokens': row[None]}) for row in batch['tokens']]
  np.testing.assert_allclose(
    model.loss(params, batch), np.mean(each), rtol=1e-5
  )


@pytest.mark.parametrize(
  'tied_head', [True, pytest.param(False, marks=pytest.mark.slow)]
)
def test_loss_at_init_is_that_of_gaussian_logits(tied_head):
  # Logits of variance 1 that know nothing of the target: log V + 1/2.
  sizes = dict(vocab_size=256, dim=64, seq_len=32)
  model = make(tied_head=tied_head, **sizes)
  params, batch = draw(model, seq_len=32, batch_size=32, vocab_size=256)
  np.testing.assert_allclose(
    model.loss(params, batch), np.log(256) + 0.5, atol=0.1
  )


@pytest.mark.slow
def test_qk_norm_ignores_the_scale_of_queries_and_keys():
  for qk_norm in (True, False):
    model = make(qk_norm=qk_norm)
    params, batch = draw(model)
    scaled = jax.tree.map(lambda leaf: leaf, params)
    scaled['layer_00']['attention']['query'] *= 30
    scaled['layer_01']['attention']['key'] *= 20
    grown = model.loss(scaled, batch)
    same = np.allclose(grown, model.loss(params, batch), rtol=1e-4)
    assert same is qk_norm


@pytest.mark.slow
def test_tied_head_is_the_embedding():
  tied, separate = make(tied_head=True), make(tied_head=False)
  params, batch = draw(tied)
  assert 'head' not in params
  untied = {**params, 'head': params['embed'].T}
  loss, grads = jax.jit(jax.value_and_grad(tied.loss))(params, batch)
  other_loss, other_grads = jax.jit(jax.value_and_grad(separate.loss))(
    untied, batch
  )
  np.testing.assert_allclose(loss, other_loss, rtol=1e-6)
  other_grads['embed'] += other_grads.pop('head').T
  assert_trees_close(grads, other_grads, rtol=1e-4, atol=1e-6)


def test_z_loss_is_the_squared_log_normalizer():
  model = make(z_loss=0.03)
  params, batch = draw(model)
  # With all logits 0 the normalizer is the size of the vocabulary.
  flat = {**params, 'head': jnp.zeros_like(params['head'])}
  np.testing.assert_allclose(
    model.loss(flat, batch), np.log(11) + 0.03 * np.log(11) ** 2, rtol=1e-6
  )
  # In general, as found from all probabilities of a first token.
  one = make(z_loss=0.03, seq_len=1)
  nats, penalty = [], []
  for token in range(11):
    pair = {'tokens': jnp.array([[4, token]])}
    nats.append(one.evaluate(params, pair)['loss'])
    penalty.append(one.loss(params, pair) - nats[-1])
  np.testing.assert_allclose(jnp.exp(-jnp.array(nats)).sum(), 1.0, rtol=1e-5)
  # The penalty is of the distribution, not of the target.
  np.testing.assert_allclose(penalty, penalty[0], atol=1e-6)
  assert penalty[0] > 0


def test_evaluate_leaves_the_z_loss_out():
  params, batch = draw(make())
  np.testing.assert_allclose(
    make(z_loss=0.5).evaluate(params, batch)['loss'],
    make().loss(params, batch),
    rtol=1e-6,
  )


@pytest.mark.slow
def test_bfloat16_multiplies_narrow_and_keeps_params_wide():
  wide, narrow = make(), make(dtype='bfloat16')
  params, batch = draw(wide)
  loss, grads = jax.jit(jax.value_and_grad(narrow.loss))(params, batch)
  assert {leaf.dtype for leaf in jax.tree.leaves(grads)} == {
    jnp.dtype('float32')
  }
  assert loss.dtype == jnp.float32
  # 8 bits of precision, of logits of size 1.
  np.testing.assert_allclose(loss, wide.loss(params, batch), atol=2e-2)
  text = jax.jit(jax.grad(narrow.loss)).lower(params, batch).as_text()
  products = [line for line in text.splitlines() if 'dot_general' in line]
  # Of both passes, attention's included.
  assert len(products) == 3 * (2 * 9 + 1)
  assert not [line for line in products if 'xf32>' in line]


@pytest.mark.slow
def test_remat_has_the_same_gradients_and_stores_less():
  sizes = dict(num_layers=2, seq_len=64)
  plain, remat = make(**sizes), make(remat=True, **sizes)
  params, batch = draw(plain, seq_len=64, batch_size=8)
  grads = [
    jax.jit(jax.grad(model.loss))(params, batch) for model in (plain, remat)
  ]
  assert_trees_close(grads[1], grads[0], rtol=1e-4, atol=1e-6)

  def stored_bytes(model):
    # What the backward pass is handed: the arrays that its function holds.
    backward = lambda params: jax.vjp(
      lambda params: model.loss(params, batch), params
    )[1]
    leaves = jax.tree.leaves(jax.eval_shape(backward, params))
    return sum(leaf.size * leaf.dtype.itemsize for leaf in leaves)

  # A block stores its input (16 a token) and not what is inside (over 300).
  assert stored_bytes(remat) < 0.15 * stored_bytes(plain)


def test_params_are_a_plain_dict_in_the_order_of_layers():
  model = make(num_layers=11, qk_norm=False)
  params = jax.eval_shape(model.init, jax.random.key(0))
  assert type(params) is dict
  for path, leaf in jax.tree.leaves_with_path(params):
    assert all(isinstance(entry.key, str) for entry in path)
    assert leaf.dtype == jnp.float32
  layers = [name for name in sorted(params) if name.startswith('layer')]
  assert layers == [f'layer_{i:02}' for i in range(11)]


@pytest.mark.parametrize('qk_norm', [True, False])
@pytest.mark.parametrize('mlp', ['swiglu', 'gelu'])
def test_shapes_of_a_block(mlp, qk_norm):
  model = make(mlp=mlp, qk_norm=qk_norm)
  params = jax.eval_shape(model.init, jax.random.key(0))
  shapes = jax.tree.map(lambda leaf: leaf.shape, params['layer_01'])
  attention = dict.fromkeys(['query', 'key', 'value'], (16, 8))
  attention['out'] = (8, 16)
  if qk_norm:
    attention.update(query_norm=(4,), key_norm=(4,))
  layer = {'up': (16, 24), 'down': (24, 16)}
  if mlp == 'swiglu':
    layer['gate'] = (16, 24)
  norms = dict.fromkeys(['attention_norm', 'mlp_norm'], (16,))
  assert shapes == {'attention': attention, 'mlp': layer, **norms}


def test_init_is_a_function_of_the_key():
  model = make()
  first, again, other = map(model.init, map(jax.random.key, (0, 0, 1)))
  assert_trees_close(again, first, rtol=0)
  assert not np.allclose(first['embed'], other['embed'])


def test_flops_by_hand():
  # 4 layers of 4 * 128 * 128 + 2 * 128 * 512 weights and a head of 128 * 256;
  # 12 * 4 * 128 * 128 for attention; 128 tokens.
  model = make(
    vocab_size=256,
    seq_len=128,
    num_layers=4,
    dim=128,
    num_heads=4,
    head_dim=32,
    mlp_dim=512,
    mlp='gelu',
  )
  assert model.flops == 128 * (6 * 819_200 + 786_432)


@pytest.mark.parametrize('tied_head', [True, False])
@pytest.mark.parametrize('mlp', ['swiglu', 'gelu'])
def test_flops_are_those_of_the_products_in_the_program(mlp, tied_head):
  model = make(mlp=mlp, tied_head=tied_head)
  params, batch = draw(model, batch_size=1)
  jaxpr = jax.make_jaxpr(jax.grad(model.loss))(params, batch)
  assert _product_flops(jaxpr.jaxpr) == model.flops


def _product_flops(jaxpr):
  """Counts two operations for each multiplication of a `dot_general`."""
  total = 0
  for equation in jaxpr.eqns:
    if equation.primitive.name == 'dot_general':
      contracted = equation.params['dimension_numbers'][0][0]
      lhs = equation.invars[0].aval.shape
      depth = np.prod([lhs[axis] for axis in contracted])
      total += 2 * int(depth) * equation.outvars[0].aval.size
    for inner in jax.extend.core.jaxprs_in_params(equation.params):
      total += _product_flops(inner)
  return total


@pytest.mark.slow
def test_it_learns_a_sequence_by_heart():
  model = make(dim=32, head_dim=16, mlp_dim=64)
  # After a 3 comes a 5 or a 7, in turns: one token of context is too little.
  cycle = jnp.array([3, 5, 3, 7, 1, 2])
  windows = jnp.stack([jnp.roll(cycle, -i) for i in range(6)])
  batch = {'tokens': jnp.concatenate([windows, windows[:, :1]], axis=1)}
  params = model.init(jax.random.key(0))
  tx = optax.adam(1e-2)

  def step(carry, _):
    params, state = carry
    loss, grads = jax.value_and_grad(model.loss)(params, batch)
    updates, state = tx.update(grads, state, params)
    return (optax.apply_updates(params, updates), state), loss

  run = jax.jit(lambda carry: jax.lax.scan(step, carry, length=100))
  losses = run((params, tx.init(params)))[1]
  # What cannot be known is the second token of the window that starts at a 3:
  # two of the 36 predictions, one bit each.
  np.testing.assert_allclose(losses[-1], 2 * np.log(2) / 36, atol=0.01)


@pytest.mark.slow
@pytest.mark.parametrize('remat', [True, False])
def test_replicas_under_vmap_shard_map_and_alone_agree(remat):
  model = make(remat=remat, z_loss=0.1, num_layers=1)
  keys = jax.random.split(jax.random.key(0), 2)
  params = jax.vmap(model.init)(keys)
  tokens = jax.random.randint(jax.random.key(1), (2, 3, 7), 0, 11)
  grad = jax.jit(jax.grad(model.loss))
  take = lambda tree, i: jax.tree.map(lambda leaf: leaf[i], tree)
  alone = [grad(take(params, i), {'tokens': tokens[i]}) for i in range(2)]
  expected = jax.tree.map(lambda *leaves: jnp.stack(leaves), *alone)

  mapped = jax.jit(jax.vmap(grad))(params, {'tokens': tokens})
  assert_trees_close(mapped, expected, rtol=1e-4, atol=1e-6)

  mesh = jax.make_mesh((2,), ('replica',), (jax.sharding.AxisType.Auto,))
  one = lambda params, tokens: jax.tree.map(
    lambda leaf: leaf[None], grad(take(params, 0), {'tokens': tokens[0]})
  )
  sharded = jax.jit(
    jax.shard_map(
      one,
      mesh=mesh,
      in_specs=jax.P('replica'),
      out_specs=jax.P('replica'),
      check_vma=True,
    )
  )(params, tokens)
  assert_trees_close(sharded, expected, rtol=1e-4, atol=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize('remat', [True, False])
def test_shared_params_get_the_summed_gradient_in_a_shard_map(remat):
  model = make(remat=remat, tied_head=True, num_layers=1)
  params, batch = draw(model, batch_size=4)
  mesh = jax.make_mesh((2,), ('replica',), (jax.sharding.AxisType.Auto,))
  total = jax.jit(
    jax.shard_map(
      jax.grad(model.loss),
      mesh=mesh,
      in_specs=(jax.P(), jax.P('replica')),
      out_specs=jax.P(),
      check_vma=True,
    )
  )(params, batch)
  expected = jax.jit(jax.grad(lambda params: 2 * model.loss(params, batch)))(
    params
  )
  assert_trees_close(total, expected, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize(
  ('name', 'value'),
  [
    ('vocab_size', 0),
    ('seq_len', 2.0),
    ('num_layers', -1),
    ('dim', '16'),
    ('num_heads', True),
    ('head_dim', 5),
    ('mlp_dim', 0),
    ('mlp', 'relu'),
    ('tied_head', 1),
    ('qk_norm', 'no'),
    ('z_loss', -0.1),
    ('z_loss', float('nan')),
    ('dtype', 'float16'),
    ('remat', None),
  ],
)
def test_bad_settings_are_refused_by_name(name, value):
  with pytest.raises(ValueError, match=f'`{name}` must be .*got'):
    make(**{name: value})


@pytest.mark.parametrize('shape', [(3, 6), (3, 8), (7,), (2, 3, 7)])
def test_tokens_of_another_shape_are_refused(shape):
  model = make()
  params = model.init(jax.random.key(0))
  for fn in (model.loss, model.evaluate):
    with pytest.raises(ValueError, match=r'`tokens` must .*7\), got'):
      fn(params, {'tokens': jnp.zeros(shape, jnp.int32)})
