"""A small image classifier, for questions that are not about language."""

from flax import nnx
import jax
import jax.numpy as jnp

from dilojax.models import _layers
from dilojax.models import _model

KERNEL = 3
WINDOW = 2


def classifier(
  *,
  kind: str,
  width: int,
  num_layers: int,
  image_size: int = 8,
  num_classes: int = 10,
) -> _model.Model:
  """Tells the class of a small grey image.

  A batch is a dict of `image`, float32 of shape (batch, `image_size`,
  `image_size`), and `label`, int32 of shape (batch,). The loss is the mean
  cross-entropy in nats. `flops` of an image are 6 for each multiplication of an
  activation by a weight; biases, ReLUs and pooling are not counted.

  Args:
    kind: 'mlp', hidden layers of `width` units; or 'convnet', 3x3 convolutions
      with `width` channels, then a 2x2 maximum and a linear layer.
    width: Units or channels of a hidden layer.
    num_layers: Number of hidden layers.
    image_size: Height and width of an image; even for a ConvNet.
    num_classes: Number of classes.

  Returns:
    A :class:`Model`, whose `evaluate` gives `loss` and `accuracy`.

  Raises:
    ValueError: If an argument is out of range, or, from `loss` and `evaluate`,
      if the images have another shape.

  Examples:
    >>> import jax
    >>> from dilojax import models
    >>> model = models.classifier(kind='mlp', width=32, num_layers=1)
    >>> params = model.init(jax.random.key(0))
    >>> {name: layer['kernel'].shape for name, layer in params.items()}
    {'head': (32, 10), 'layer_00': (64, 32)}
    >>> model.flops
    14208
  """
  _model.check_choice('kind', kind, ('mlp', 'convnet'))
  _model.check_sizes(
    width=width,
    num_layers=num_layers,
    image_size=image_size,
    num_classes=num_classes,
  )
  if kind == 'convnet' and image_size % WINDOW:
    raise ValueError(
      f'`image_size` must be even for a ConvNet, got {image_size}.'
    )
  module = _Mlp if kind == 'mlp' else _ConvNet

  def build(rngs):
    return module(width, num_layers, image_size, num_classes, rngs)

  graph = nnx.graphdef(nnx.eval_shape(lambda: build(nnx.Rngs(0))))

  def init(key):
    return nnx.to_pure_dict(nnx.state(build(nnx.Rngs(key)), nnx.Param))

  def evaluate(params, batch):
    image_BxHxW, label_B = batch['image'], batch['label']
    if image_BxHxW.ndim != 3 or image_BxHxW.shape[1:] != (image_size,) * 2:
      raise ValueError(
        f'`image` must have the shape (batch, {image_size}, {image_size}), got'
        f' {image_BxHxW.shape}.'
      )
    logits_BxC = nnx.merge(graph, nnx.State(params))(image_BxHxW)
    log_prob_BxC = jax.nn.log_softmax(logits_BxC)
    log_prob_B = _layers.pick(log_prob_BxC, label_B)
    hit_B = logits_BxC.argmax(axis=1) == label_B
    return {'loss': -jnp.mean(log_prob_B), 'accuracy': jnp.mean(hit_B)}

  def loss(params, batch):
    return evaluate(params, batch)['loss']

  if kind == 'mlp':
    sizes = [image_size**2] + [width] * num_layers + [num_classes]
    products = sum(a * b for a, b in zip(sizes[:-1], sizes[1:]))
  else:
    channels = [1] + [width] * num_layers
    pairs = sum(a * b for a, b in zip(channels[:-1], channels[1:]))
    products = image_size**2 * KERNEL**2 * pairs
    products += (image_size // WINDOW) ** 2 * width * num_classes
  return _model.Model(init, loss, evaluate, 6 * products)


class _Mlp(nnx.Module):
  """Maps images to logits, by hidden layers of ReLUs."""

  def __init__(self, width, num_layers, image_size, num_classes, rngs):
    self.layers = tuple(f'layer_{i:02}' for i in range(num_layers))
    size = image_size**2
    for name in self.layers:
      setattr(self, name, nnx.Linear(size, width, rngs=rngs))
      size = width
    self.head = nnx.Linear(size, num_classes, rngs=rngs)

  def __call__(self, image_BxHxW):
    x_BxD = image_BxHxW.reshape(image_BxHxW.shape[0], -1)
    for name in self.layers:
      x_BxD = jax.nn.relu(getattr(self, name)(x_BxD))
    return self.head(x_BxD)


class _ConvNet(nnx.Module):
  """Maps images to logits, by convolutions and ReLUs."""

  def __init__(self, width, num_layers, image_size, num_classes, rngs):
    self.layers = tuple(f'layer_{i:02}' for i in range(num_layers))
    channels = 1
    for name in self.layers:
      conv = nnx.Conv(channels, width, (KERNEL, KERNEL), rngs=rngs)
      setattr(self, name, conv)
      channels = width
    size = (image_size // WINDOW) ** 2 * width
    self.head = nnx.Linear(size, num_classes, rngs=rngs)

  def __call__(self, image_BxHxW):
    x_BxHxWxC = image_BxHxW[..., None]
    for name in self.layers:
      x_BxHxWxC = jax.nn.relu(getattr(self, name)(x_BxHxWxC))
    window = (WINDOW, WINDOW)
    x_BxHxWxC = nnx.max_pool(x_BxHxWxC, window, strides=window)
    return self.head(x_BxHxWxC.reshape(x_BxHxWxC.shape[0], -1))
