"""Model FLOP/s of training over the FLOP/s of a large matrix product.

    python -m benchmarks.throughput

Trains the replicas of a config with its inner optimizer and without
communication. The inner steps are one program, a scan, as in the training
loop. A float32 matrix product is timed just before and just after every
repeat, in the same process and on the same cores, so that other work on the
machine slows both; the ratio of a repeat divides by their mean.

Model FLOPs are those of `models.decoder`: 6 for each entry of a matrix that a
token is multiplied by, and attention in full, without an embedding's look-up,
the optimizer, norms, or nonlinearities.
"""

import argparse
import statistics

import jax
import jax.numpy as jnp

from benchmarks import measuring
from dilojax import _position


def main() -> None:
  """Measures, and prints a table and a line of JSON."""
  args = parse_args()
  _, setup = measuring.setups(args.config)
  train, train_flops = training(setup, args.steps)
  product, product_flops = matrix_product(args.matrix, setup.placement.mesh)
  train()
  product()

  rows = []
  before = product_flops / measuring.seconds(product)
  for _ in range(args.repeats):
    mine = train_flops / measuring.seconds(train)
    after = product_flops / measuring.seconds(product)
    matmul = (before + after) / 2
    rows.append((mine, matmul, mine / matmul))
    before = after

  columns = list(zip(*rows))
  medians = tuple(map(statistics.median, columns))
  measuring.show(
    ('repeat', 'step GFLOP/s', 'matmul GFLOP/s', 'ratio'),
    [
      (name, f'{row[0] / 1e9:.1f}', f'{row[1] / 1e9:.1f}', f'{row[2]:.3f}')
      for name, row in [*enumerate(rows, start=1), ('median', medians)]
    ],
  )
  measuring.report(
    'throughput',
    ratio=measuring.median_and_range(columns[2]),
    step_flops_per_s=measuring.median_and_range(columns[0]),
    matmul_flops_per_s=measuring.median_and_range(columns[1]),
    model_flops_per_sequence=setup.model.flops,
    settings=vars(args),
  )


def training(setup, num_steps):
  """Returns a function that trains for some steps, and its model FLOPs."""
  start = _position.start(setup, _position.state_axes(setup))
  state = [start.params, start.opt_state]
  batches = measuring.batches(setup, num_steps)
  program = measuring.plain_scan(setup)

  def train():
    state[:], losses = program(*state, batches)
    return losses

  sequences = setup.placement.total * num_steps * setup.batch_size
  return train, sequences * setup.model.flops


def matrix_product(size, mesh):
  """Returns a function that multiplies on all devices, and its FLOPs."""
  # CPU devices share their cores, all of which one product occupies. Other
  # devices each get their own.
  devices = mesh.devices.flatten()
  if devices[0].platform == 'cpu':
    devices = devices[:1]
  count = len(devices)
  flat = jax.sharding.Mesh(devices, ('device',))
  shape = (size, size) if count == 1 else (count, size, size)
  spec = jax.P() if count == 1 else jax.P('device')
  matrix = jax.device_put(jnp.ones(shape), jax.NamedSharding(flat, spec))
  square = jax.jit(lambda x: x @ x)
  products = 4

  def multiply():
    for _ in range(products):
      square(matrix).block_until_ready()

  return multiply, products * count * 2 * size**3


def parse_args() -> argparse.Namespace:
  """Reads the command line."""
  parser = argparse.ArgumentParser(
    description=__doc__.partition('\n')[0],
    formatter_class=argparse.ArgumentDefaultsHelpFormatter,
  )
  number = lambda name, default, text: parser.add_argument(
    name, type=int, default=default, help=text
  )
  parser.add_argument(
    '--config', default='configs/quickstart.py', help='config'
  )
  number('--steps', 10, 'inner steps in the program')
  number('--repeats', 7, 'timed repeats, at least 5')
  number('--matrix', 2048, 'rows of the matrix product')
  return parser.parse_args()


if __name__ == '__main__':
  main()
