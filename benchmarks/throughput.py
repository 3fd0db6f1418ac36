"""Model FLOP/s of training over the FLOP/s of a large matrix product.

    python benchmarks/throughput.py

Trains K replicas of a small decoder, each with its own AdamW moments, and
without communication. The inner steps are one program, a scan, as in the
training loop. A float32 matrix product is timed just before and just after
every repeat, in the same process and on the same cores, so that other work on
the machine slows both; the ratio of a repeat divides by their mean.

Model FLOPs are those of `models.decoder`: 6 for each entry of a matrix that a
token is multiplied by, and attention in full, without an embedding's look-up,
the optimizer, norms, or nonlinearities.
"""

import argparse
import importlib.metadata
import json
import platform
import statistics
import time

import jax
import jax.numpy as jnp
import optax

from dilojax import models
from dilojax import replicas


def main() -> None:
  """Measures, and prints a table and a line of JSON."""
  args = parse_args()
  # Before any device is touched.
  if args.devices:
    jax.config.update('jax_num_cpu_devices', args.devices)
  placement = replicas.place(args.replicas, args.devices or jax.device_count())
  model = models.decoder(
    vocab_size=256,
    seq_len=args.seq_len,
    num_layers=args.layers,
    dim=args.dim,
    num_heads=args.heads,
    head_dim=args.dim // args.heads,
    mlp_dim=args.mlp_dim,
    mlp=args.mlp,
    tied_head=args.tied_head,
    qk_norm=args.qk_norm,
    z_loss=args.z_loss,
    dtype='float32',
    remat=False,
  )
  train, train_flops = training(model, placement, args)
  product, product_flops = matrix_product(args.matrix, placement.mesh)
  train()
  product()

  step_flops_s, matmul_flops_s, ratios = [], [], []
  before = product_flops / seconds(product)
  for _ in range(args.repeats):
    step_flops_s.append(train_flops / seconds(train))
    after = product_flops / seconds(product)
    matmul_flops_s.append((before + after) / 2)
    ratios.append(step_flops_s[-1] / matmul_flops_s[-1])
    before = after

  print(f'{"repeat":>8}{"step GFLOP/s":>15}{"matmul GFLOP/s":>17}{"ratio":>8}')
  for i, row in enumerate(zip(step_flops_s, matmul_flops_s, ratios)):
    print(f'{i:>8}{row[0] / 1e9:>15.1f}{row[1] / 1e9:>17.1f}{row[2]:>8.3f}')
  print(
    f'{"median":>8}{statistics.median(step_flops_s) / 1e9:>15.1f}'
    f'{statistics.median(matmul_flops_s) / 1e9:>17.1f}'
    f'{statistics.median(ratios):>8.3f}'
  )
  result = {
    'benchmark': 'throughput',
    'ratio': statistics.median(ratios),
    'ratio_min': min(ratios),
    'ratio_max': max(ratios),
    'step_flops_per_s': statistics.median(step_flops_s),
    'matmul_flops_per_s': statistics.median(matmul_flops_s),
    'seconds_per_step': train_flops
    / args.steps
    / statistics.median(step_flops_s),
    'model_flops_per_sequence': model.flops,
    'settings': vars(args),
    'device': jax.devices()[0].device_kind,
    'num_devices': placement.mesh.size,
    'versions': {
      'python': platform.python_version(),
      **{
        name: importlib.metadata.version(name)
        for name in ('jax', 'jaxlib', 'flax', 'optax')
      },
    },
  }
  print(json.dumps(result))


def parse_args() -> argparse.Namespace:
  """Reads the command line."""
  parser = argparse.ArgumentParser(
    description=__doc__.partition('\n')[0],
    formatter_class=argparse.ArgumentDefaultsHelpFormatter,
  )
  number = lambda name, default, text: parser.add_argument(
    name, type=int, default=default, help=text
  )
  number('--replicas', 4, 'number of replicas')
  number('--devices', 4, 'number of CPU devices; 0 for the devices there are')
  number('--batch', 8, 'sequences of a replica and step')
  number('--steps', 10, 'inner steps in the program, at least 10')
  number('--repeats', 7, 'timed repeats, at least 5')
  number('--matrix', 2048, 'rows of the matrix product')
  number('--layers', 4, 'layers of the decoder')
  number('--dim', 128, 'width of the decoder')
  number('--heads', 4, 'attention heads, of dim / heads entries each')
  number('--seq-len', 128, 'tokens of a sequence')
  number('--mlp-dim', 512, 'width of the MLP')
  parser.add_argument(
    '--mlp', choices=['gelu', 'swiglu'], default='gelu', help='kind of MLP'
  )
  parser.add_argument('--tied-head', action='store_true', help='tie the head')
  parser.add_argument('--qk-norm', action='store_true', help='use QK norm')
  parser.add_argument(
    '--z-loss', type=float, default=0.0, help='weight of the z-loss'
  )
  args = parser.parse_args()
  if args.dim % args.heads:
    parser.error(f'--heads ({args.heads}) must divide --dim ({args.dim}).')
  for name, least in (('steps', 10), ('repeats', 5), ('devices', 0)):
    if getattr(args, name) < least:
      parser.error(f'--{name} must be at least {least}.')
  return args


def training(model, placement, args):
  """Returns a function that trains for some steps, and its model FLOPs."""
  tx = optax.chain(optax.clip_by_global_norm(1.0), optax.adamw(1e-3))

  def run(params, state, batches):
    def step(carry, batch):
      params, state = carry
      loss, grads = jax.value_and_grad(model.loss)(params, batch)
      updates, state = tx.update(grads, state, params)
      return (optax.apply_updates(params, updates), state), loss

    (params, state), losses = jax.lax.scan(step, (params, state), batches)
    return params, state, losses

  params = model.init(jax.random.key(0))
  carry = replicas.spread((params, tx.init(params)), placement, (0, 0))
  shape = (args.replicas, args.steps, args.batch, args.seq_len + 1)
  tokens = jax.random.randint(jax.random.key(1), shape, 0, 256)
  batches = replicas.put({'tokens': tokens}, placement, 0)
  program = jax.jit(
    replicas.over_replicas(run, placement, (0, 0, 0), (0, 0, 0)),
    donate_argnums=(0, 1),
  )

  def train():
    nonlocal carry
    *carry, losses = program(*carry, batches)
    jax.block_until_ready(losses)

  examples = args.replicas * args.steps * args.batch
  return train, examples * model.flops


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


def seconds(fn):
  """Returns the wall time of a call."""
  start = time.perf_counter()
  fn()
  return time.perf_counter() - start


if __name__ == '__main__':
  main()
