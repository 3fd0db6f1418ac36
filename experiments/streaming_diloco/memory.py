"""How much memory does Streaming DiLoCo need?

The example of 100B params of https://arxiv.org/abs/2501.18512, in 108 layers
and fragments of three, counted from the states of our links, in shapes alone.

    dilojax table experiments/streaming_diloco/memory.py

The paper keeps anchors and outer momenta on the host, and only the fragment in
turn on the device. Expected: 2 of 5 cells agree.

- 20 and 1,117 GiB are cut, not rounded: 20.7 and 1,117.6.
- Without a host, the paper has 5/3 of data parallelism's memory: params, two
  moments of Adam, anchor and momentum, over params and moments. DiLoCo's state
  is that exactly. Streaming with a delay is 2 in our links: what is in flight
  has a place in the state of each fragment, of as many bytes as the fragment,
  though only one is in flight at a time. With delay 0 it is 5/3.

Nothing of ours lies on the host so far.
"""

from fractions import Fraction
import pathlib

import jax
import jax.numpy as jnp
import optax

from dilojax import exact
from dilojax import transforms

NUM_LAYERS = 108
NUM_PARAMS = 100e9
EVERY = 100
GIB = 2**30


def compute() -> list[exact.Cell]:
  """Returns the cells of the example."""
  paper = {row['item'].split(':')[-1]: row['value'] for row in _published()}
  named = lambda start: next(
    value for item, value in paper.items() if item.strip().startswith(start)
  )
  inner = optax.adamw(4e-4)
  outer = optax.sgd(0.4, momentum=0.9, nesterov=True)
  params = abstract_params()
  fragment = {
    f'layer_{number:03d}': params[f'layer_{number:03d}']
    for number in (0, NUM_LAYERS // 3, 2 * NUM_LAYERS // 3)
  }
  base = nbytes(params) + nbytes(jax.eval_shape(inner.init, params))
  link = transforms.synchronize(
    outer, every=EVERY, reduce=transforms.mean_over('replica')
  )
  on_device = nbytes(jax.eval_shape(link.init, fragment))
  factor = str(round(float(Fraction(named('memory relative to DP'))), 4))
  cells = [
    exact.Cell(
      'one fragment: anchor and momentum',
      'GiB',
      on_device / GIB,
      named('GiB for one 3-layer fragment'),
    ),
    exact.Cell(
      'params and inner Adam', 'GiB', base / GIB, named('GiB of parameters')
    ),
    exact.Cell(
      'one fragment over params and inner Adam',
      'percent',
      100 * on_device / base,
      named('extra memory with streaming offload'),
    ),
  ]
  streaming = lambda delay: transforms.streaming_diloco(
    inner,
    outer,
    every=EVERY,
    delay=delay,
    fragments=transforms.by_layer(layers_per_fragment=3),
  )
  for name, tx, published in (
    ('DiLoCo', transforms.diloco(inner, outer, every=EVERY), factor),
    ('Streaming, delay 0', streaming(0), ''),
    ('Streaming, delay 1', streaming(1), factor),
  ):
    state = jax.eval_shape(tx.init, params)
    ours = (nbytes(params) + nbytes(state)) / base
    cells.append(exact.Cell(name, 'over data parallel', ours, published))
  return cells


def abstract_params():
  """Returns the shapes of 100B params in float32."""
  # 100e9 is no multiple of 108: this is 8 params too many.
  layer = jax.ShapeDtypeStruct(
    (-(-int(NUM_PARAMS) // NUM_LAYERS),), jnp.float32
  )
  return {f'layer_{number:03d}': layer for number in range(NUM_LAYERS)}


def nbytes(tree) -> int:
  """Counts the bytes of a tree of shapes."""
  leaves = jax.tree.leaves(tree)
  return sum(leaf.size * leaf.dtype.itemsize for leaf in leaves)


def _published():
  return exact.read(pathlib.Path(__file__).with_name('claims.csv'))
