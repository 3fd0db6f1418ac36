"""Time of a synchronization over that of copying its state once.

    python -m benchmarks.synchronization

All replicas of a machine together: the mean of the pseudo-gradients in
float32, a Nesterov step, and the landing of every replica. Its state is what
it cannot do without reading and writing: the replicas' params, the anchor and
the outer momentum. The time to read and write that many bytes once comes from
a plain copy of as many bytes on the same devices, in turns with it.
"""

import argparse

import jax
import jax.numpy as jnp
import optax

from benchmarks import measuring
import dilojax as dx
from dilojax import replicas


def main() -> None:
  """Measures, and prints a table and a line of JSON."""
  args = parse_args()
  jax.config.update('jax_num_cpu_devices', args.replicas)
  rows = {}
  for devices in sorted({1, args.replicas}):
    placement = replicas.place(args.replicas, devices)
    fns = {
      'copy': copy(placement, args),
      'synchronization': synchronization(placement, args),
    }
    times = measuring.interleaved(fns, args.repeats)
    ratios = [
      sync / base for sync, base in zip(times['synchronization'], times['copy'])
    ]
    rows[f'{devices} devices'] = {
      'ratio': measuring.median_and_range(ratios),
      **{
        f'{name}_seconds': measuring.median_and_range(each)
        for name, each in times.items()
      },
    }
  nbytes = 4 * args.params * (args.replicas + 2)
  measuring.show(
    ('placement', 'copy ms', 'GB/s', 'synchronization ms', 'ratio', 'range'),
    [
      (
        name,
        f'{1e3 * row["copy_seconds"]["median"]:.1f}',
        f'{2e-9 * nbytes / row["copy_seconds"]["median"]:.1f}',
        f'{1e3 * row["synchronization_seconds"]["median"]:.1f}',
        f'{row["ratio"]["median"]:.2f}',
        f'{row["ratio"]["min"]:.2f} to {row["ratio"]["max"]:.2f}',
      )
      for name, row in rows.items()
    ],
  )
  measuring.report('synchronization', placements=rows, settings=vars(args))


def _params(args):
  """Returns params of the wanted size in matrices, as of a model."""
  width = 1000
  count = args.params // (args.leaves * width)
  return {
    f'leaf_{number}': jnp.ones((count, width)) for number in range(args.leaves)
  }


def synchronization(placement, args):
  """Returns a function that synchronizes, again and again."""
  tx = dx.synchronize(
    optax.sgd(0.7, momentum=0.9, nesterov=True),
    every=1,
    reduce=dx.mean_over(placement.axis_names()),
  )
  params = _params(args)
  axes = (0, dx.replica_axes(jax.eval_shape(tx.init, params)))
  start = lambda: replicas.spread((params, tx.init(params)), placement, axes)
  state = list(jax.jit(start)())
  zeros = jax.tree.map(lambda leaf: jnp.zeros((), leaf.dtype), params)

  def land(params, opt_state):
    # The inner optimizer's updates are no part of it: nothing is read for them.
    updates = jax.tree.map(
      lambda zero, leaf: jnp.broadcast_to(zero, leaf.shape), zeros, params
    )
    updates, opt_state = tx.update(updates, opt_state, params, step=1)
    params = dx.apply_updates(params, updates, opt_state, step=1)
    return params, opt_state

  program = jax.jit(
    replicas.over_replicas(land, placement, axes, axes), donate_argnums=(0, 1)
  )

  def run():
    state[:] = program(*state)
    return state

  return run


def copy(placement, args):
  """Returns a function that copies as many bytes as the state has."""
  count = args.replicas + 2
  mesh = placement.mesh
  shape = (mesh.shape['replica'], args.params * count // mesh.shape['replica'])
  sharding = jax.NamedSharding(mesh, jax.P('replica'))
  state = [jax.device_put(jnp.ones(shape), sharding)]
  # In place, as the synchronization: new memory would cost more than the copy.
  program = jax.jit(lambda leaf: leaf + 1.0, donate_argnums=0)

  def run():
    state[0] = program(state[0])
    return state[0]

  return run


def parse_args() -> argparse.Namespace:
  """Reads the command line."""
  parser = argparse.ArgumentParser(
    description=__doc__.partition('\n')[0],
    formatter_class=argparse.ArgumentDefaultsHelpFormatter,
  )
  number = lambda name, default, text: parser.add_argument(
    name, type=int, default=default, help=text
  )
  number('--params', 10_000_000, 'params of a replica')
  number('--leaves', 10, 'leaves that they are in')
  number('--replicas', 4, 'replicas')
  number('--repeats', 7, 'timed repeats, at least 5')
  return parser.parse_args()


if __name__ == '__main__':
  main()
