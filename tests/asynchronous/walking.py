"""Workers that walk to targets of their own: asynchronous trainings to test."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax

from dilojax import asynchronous
from dilojax import simulate

INNER = optax.adam(0.1)
PARAMS = {'w': jnp.zeros(3), 'b': jnp.ones((2, 2))}
MOST = 8  # Inner steps of a round.


def noise(k, step):
  """Returns what a worker's target is off by in a step."""
  key = jax.random.fold_in(jax.random.fold_in(jax.random.key(0), k), step)
  return jax.random.normal(key, (3,))


@functools.cache
def table(k):
  """Returns the targets of a worker in its first steps."""
  return np.stack([np.full(3, k) + noise(k, step) for step in range(400)])


@jax.jit
def run(params, private, inputs):
  """Takes inner steps; counts them, and returns the pseudo-gradient."""

  def step(i, carry):
    params, private, losses = carry
    pull = lambda each: jnp.mean((each['w'] - inputs['targets'][i]) ** 2)
    loss = lambda each: pull(each) + jnp.mean(each['b'] ** 2)
    value, grads = jax.value_and_grad(loss)(params)
    updates, private = INNER.update(grads, private, params)
    return optax.apply_updates(params, updates), private, losses + value

  carry = (params, private, 0.0)
  end, private, losses = jax.lax.fori_loop(0, inputs['steps'], step, carry)
  measured = {'loss': losses / inputs['steps']}
  return optax.tree.sub(params, end), private, measured


def inputs(k, first, clock, num_steps):
  """Returns the targets of a round."""
  del clock
  targets = np.zeros((MOST, 3), np.float32)
  targets[:num_steps] = table(k)[first : first + num_steps]
  return {'targets': targets, 'steps': np.int32(num_steps)}


WORK = asynchronous.Work(lambda k: INNER.init(PARAMS), inputs, run)


def system(
  num_steps,
  servers,
  *,
  speeds=None,
  of=None,
  bandwidth=np.inf,
  latency=0.0,
  work=WORK,
  times=None,
  sites=None,
  **more,
):
  """Returns a system of workers, one for each number of steps."""
  count = len(num_steps)
  of = of or [0] * count
  sites = sites or [0] * count
  size = max(sites) + 1
  network = simulate.connect(
    np.full((size, size), bandwidth), sites, latency=latency
  )
  return asynchronous.System(
    workers=tuple(
      asynchronous.Worker(steps, server) for steps, server in zip(num_steps, of)
    ),
    servers=tuple(servers),
    work=work,
    times=times or simulate.fixed_times(1.0, speeds or [1.0] * count),
    network=network,
    **more,
  )


def updates(loop, count):
  """Advances by updates of the last server; yields params after each."""
  for moved in loop.advance():
    if moved:
      count -= 1
      yield loop.state.servers[0].params
    if not count:
      return


def after(loop, count):
  """Advances by so many updates, and returns the params."""
  return list(updates(loop, count))[-1]
