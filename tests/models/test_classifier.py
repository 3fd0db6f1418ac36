"""Equations that the classifier obeys, and what it learns."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
import sklearn.datasets

from dilojax import models

KINDS = ['mlp', 'convnet']


def digits():
  data = sklearn.datasets.load_digits()
  image = jnp.array(data.images / 16, jnp.float32)
  return {'image': image, 'label': jnp.array(data.target, jnp.int32)}


@pytest.mark.slow
@pytest.mark.parametrize(('kind', 'num_layers'), [('mlp', 2), ('convnet', 1)])
def test_it_learns_digits(kind, num_layers):
  model = models.classifier(kind=kind, width=16, num_layers=num_layers)
  data = digits()
  train = jax.tree.map(lambda leaf: leaf[:1500], data)
  held_out = jax.tree.map(lambda leaf: leaf[1500:], data)
  params = model.init(jax.random.key(0))
  tx = optax.adam(1e-2)

  def step(carry, rows):
    params, state = carry
    batch = jax.tree.map(lambda leaf: leaf[rows], train)
    grads = jax.grad(model.loss)(params, batch)
    updates, state = tx.update(grads, state, params)
    return (optax.apply_updates(params, updates), state), None

  rows = jax.random.randint(jax.random.key(1), (300, 50), 0, 1500)
  run = jax.jit(lambda carry: jax.lax.scan(step, carry, rows)[0])
  params, _ = run((params, tx.init(params)))
  # One in ten by chance; a linear model reaches 0.9.
  assert model.evaluate(params, held_out)['accuracy'] > 0.85


@pytest.mark.parametrize('kind', KINDS)
def test_loss_and_accuracy_of_known_logits(kind):
  model = models.classifier(kind=kind, width=4, num_layers=2)
  batch = jax.tree.map(lambda leaf: leaf[:40], digits())
  params = jax.tree.map(jnp.zeros_like, model.init(jax.random.key(0)))
  params['head']['bias'] = jnp.zeros(10).at[3].set(np.log(11.0))
  # Class 3 has 11 of 20 parts of the probability, the others one each.
  result = model.evaluate(params, batch)
  share = float(np.mean(batch['label'] == 3))
  expected = np.log(20) - share * np.log(11)
  np.testing.assert_allclose(result['loss'], expected, rtol=1e-5)
  np.testing.assert_allclose(result['accuracy'], share, rtol=1e-6)
  np.testing.assert_allclose(model.loss(params, batch), expected, rtol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize('kind', KINDS)
def test_flops_are_those_of_the_compiled_forward_pass(kind):
  model = models.classifier(kind=kind, width=8, num_layers=2)
  # A convolution multiplies no zeros at the border, but is counted as if.
  count = {
    'mlp': 6 * (64 * 8 + 8 * 8 + 8 * 10),
    'convnet': 6 * (64 * 9 * (8 + 64) + 16 * 8 * 10),
  }
  assert model.flops == count[kind]
  params = model.init(jax.random.key(0))
  batch = jax.tree.map(lambda leaf: leaf[:64], digits())
  cost = jax.jit(model.loss).lower(params, batch).compile().cost_analysis()
  # A third of the count; more for biases, ReLUs and the softmax, less for the
  # border.
  ratio = cost['flops'] / (64 * model.flops / 3)
  assert 0.75 < ratio < 1.25


@pytest.mark.slow
@pytest.mark.parametrize('kind', KINDS)
def test_replicas_under_vmap_shard_map_and_alone_agree(kind):
  model = models.classifier(kind=kind, width=4, num_layers=2)
  params = jax.vmap(model.init)(jax.random.split(jax.random.key(0), 2))
  batch = jax.tree.map(
    lambda leaf: leaf[:10].reshape(2, 5, *leaf.shape[1:]), digits()
  )
  take = lambda tree, i: jax.tree.map(lambda leaf: leaf[i], tree)
  grad = jax.grad(model.loss)
  alone = [grad(take(params, i), take(batch, i)) for i in range(2)]
  expected = jax.tree.map(lambda *leaves: jnp.stack(leaves), *alone)
  mapped = jax.jit(jax.vmap(grad))(params, batch)
  mesh = jax.make_mesh((2,), ('replica',), (jax.sharding.AxisType.Auto,))
  one = lambda *args: jax.tree.map(
    lambda leaf: leaf[None], grad(*take(args, 0))
  )
  sharded = jax.jit(
    jax.shard_map(
      one, mesh=mesh, in_specs=jax.P('replica'), out_specs=jax.P('replica')
    )
  )(params, batch)
  for got in (mapped, sharded):
    jax.tree.map(
      lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-3, atol=1e-5),
      got,
      expected,
    )


@pytest.mark.parametrize('kind', KINDS)
def test_params_are_a_plain_dict_of_float32(kind):
  model = models.classifier(kind=kind, width=4, num_layers=3)
  params = jax.eval_shape(model.init, jax.random.key(0))
  assert sorted(params) == ['head', 'layer_00', 'layer_01', 'layer_02']
  for path, leaf in jax.tree.leaves_with_path(params):
    assert all(isinstance(entry.key, str) for entry in path)
    assert leaf.dtype == jnp.float32


@pytest.mark.parametrize(
  ('changes', 'name'),
  [
    ({'kind': 'resnet'}, 'kind'),
    ({'width': 0}, 'width'),
    ({'num_layers': 1.0}, 'num_layers'),
    ({'image_size': 0}, 'image_size'),
    ({'kind': 'convnet', 'image_size': 7}, 'image_size'),
    ({'num_classes': True}, 'num_classes'),
  ],
)
def test_bad_settings_are_refused_by_name(changes, name):
  settings = {'kind': 'mlp', 'width': 4, 'num_layers': 1, **changes}
  with pytest.raises(ValueError, match=f'`{name}` must be .*got'):
    models.classifier(**settings)


def test_images_of_another_shape_are_refused():
  model = models.classifier(kind='mlp', width=4, num_layers=1)
  batch = {'image': jnp.zeros((3, 9, 9)), 'label': jnp.zeros(3, jnp.int32)}
  with pytest.raises(ValueError, match=r'`image` must .*8, 8\), got'):
    model.loss(model.init(jax.random.key(0)), batch)
