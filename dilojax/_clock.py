"""What a run on a virtual clock consists of, and what a worker does."""

import math
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

from dilojax import _optimizer
from dilojax import _segment
from dilojax import _terminal
from dilojax import _workers
from dilojax import asynchronous
from dilojax import build
from dilojax import data
from dilojax import models
from dilojax import processes


class Setup(NamedTuple):
  """What a run on a virtual clock consists of.

  A step is an inner step of each worker, on average: so many of `num_workers`
  each are part of the params after it.

  Attributes:
    model: Functions of params.
    system: Workers, servers, times and links.
    lr: Inner learning rate by the step that the workers are at, from 0.
    dataset: The corpus.
    streams: Batches of every worker.
    heldout: Batches of sequences that no worker trains on.
    devices: Devices that compute rounds.
    seed: Seed of the params.
    num_steps: Steps to the end.
    batch_size: Sequences per inner step of a worker.
    eval_every: Steps between evaluations.
    log_every: Steps between records.
    checkpoint_every: Steps between checkpoints.
    keep_checkpoints: Number of newest checkpoints kept.
  """

  model: models.Model
  system: asynchronous.System
  lr: np.ndarray
  dataset: data.Dataset
  streams: data.Streams
  heldout: list[dict]
  devices: list[jax.Device]
  seed: int
  num_steps: int
  batch_size: int
  eval_every: int
  log_every: int
  checkpoint_every: int
  keep_checkpoints: int

  @property
  def num_workers(self) -> int:
    """Number of workers."""
    return len(self.system.workers)


def make(config: build.Config, *, dataset: data.Dataset | None = None) -> Setup:
  """Builds a run.

  Args:
    config: As in `configs/`, of an asynchronous method.
    dataset: The corpus of the config, None to load it.

  Returns:
    The parts of the run.

  Raises:
    ValueError: As :func:`dilojax.build.make`.
  """
  config = build.resolve(config)
  build.check(config)
  if processes.count() > 1:
    raise ValueError(
      f'`method` {config["method"]!r} runs in one process, got'
      f' {processes.count()}: start it without a launcher.'
    )
  model = build.make_model(config)
  dataset = build.make_dataset(config) if dataset is None else dataset
  build.check_corpus(config, dataset)
  streams = data.streams(
    dataset,
    num_replicas=config['num_workers'],
    batch_size=config['data']['batch_size'],
    seed=config['seed'],
    non_iid=config['data'].get('non_iid', 0.0),
  )
  schedule = _optimizer.make_lr(config)
  lr = np.asarray(jax.vmap(schedule)(jnp.arange(config['num_steps'])))
  wanted = config['eval_sequences']
  return Setup(
    model=model,
    system=_workers.make(config, _make_work(config, model, streams, lr)),
    lr=lr,
    dataset=dataset,
    streams=streams,
    heldout=data.heldout_batches(
      dataset,
      num_sequences=wanted,
      batch_size=math.gcd(wanted, config['data']['batch_size']),
    ),
    devices=jax.devices()[: config['mesh']['num_devices'] or None],
    seed=config['seed'],
    num_steps=config['num_steps'],
    batch_size=config['data']['batch_size'],
    eval_every=config['eval_every'],
    log_every=config['log_every'],
    checkpoint_every=config['checkpoint_every'],
    keep_checkpoints=config['keep_checkpoints'],
  )


def describe(setup: Setup) -> list[str]:
  """Says in a few lines what a run will do, before it does."""
  params = jax.eval_shape(setup.model.init, jax.random.key(0))
  leaves = jax.tree.leaves(params)
  num_params = sum(leaf.size for leaf in leaves)
  system = setup.system
  nbytes = system.nbytes or sum(
    leaf.size * leaf.dtype.itemsize for leaf in leaves
  )
  counted = _terminal.counted
  steps = sorted({worker.num_steps for worker in system.workers})
  often = f'{steps[0]}' if len(steps) == 1 else f'{steps[0]} to {steps[-1]}'
  return [
    f'Corpus {setup.dataset.name} ({setup.dataset.fingerprint}):'
    f' {len(setup.dataset.train):,} sequences to train on,'
    f' {len(setup.dataset.heldout):,} held out.',
    f'Model of {num_params:,} params; {counted(setup.num_workers, "worker")} on'
    f' {counted(len(setup.devices), "device")},'
    f' {counted(len(system.servers), "server")},'
    f' {counted(len(system.network.links), "site")}.',
    f'Rounds of {often} inner steps; messages of {nbytes:,} bytes.',
    f'{counted(setup.num_steps, "step")} of each worker, on average.',
  ]


def _make_work(config, model, streams, lr):
  """Returns what a worker does in a round."""
  most = max(_workers.num_steps(config))
  count, last = config['num_workers'], len(lr) - 1

  def inputs(k, first, clock, num_steps):
    batches = [streams.batch(first + i + 1, k) for i in range(num_steps)]

    def stack(*each):
      stacked = np.zeros((most, *each[0].shape), each[0].dtype)
      stacked[:num_steps] = each
      return stacked

    # All are at the same step of the schedule, that of the mean worker.
    at = np.minimum(clock // count + np.arange(most), last)
    return {
      'batches': jax.tree.map(stack, *batches),
      'lr': lr[at],
      'steps': np.int32(num_steps),
    }

  if _workers.sends_gradients(config):
    grad_fn = _segment.make_grad(model, config['inner']['accumulate'])
    return asynchronous.Work(lambda k: None, inputs, _make_gradient(grad_fn))
  tx = optax.inject_hyperparams(
    lambda lr: _optimizer.make_inner(config, lr), hyperparam_dtype=jnp.float32
  )(lr=0.0)
  params = jax.eval_shape(model.init, jax.random.key(0))
  zeros = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), params)
  return asynchronous.Work(
    lambda k: tx.init(zeros),
    inputs,
    _make_round(_segment.make_grad(model, config['inner']['accumulate']), tx),
  )


def _make_round(grad_fn, tx):
  """Returns the program of inner steps; its message is a pseudo-gradient."""

  @jax.jit
  def run(params, private, inputs):
    def step(i, carry):
      end, private, total = carry
      batch = jax.tree.map(lambda leaf: leaf[i], inputs['batches'])
      loss, grads = grad_fn(end, batch)
      given = {**private.hyperparams, 'lr': inputs['lr'][i]}
      updates, private = tx.update(
        grads, private._replace(hyperparams=given), end
      )
      return optax.apply_updates(end, updates), private, total + loss

    carry = (params, private, jnp.float32(0))
    end, private, total = jax.lax.fori_loop(0, inputs['steps'], step, carry)
    message = optax.tree.sub(params, end)
    return message, private, {'loss': total / inputs['steps']}

  return run


def _make_gradient(grad_fn):
  """Returns the program of a gradient."""

  @jax.jit
  def run(params, private, inputs):
    batch = jax.tree.map(lambda leaf: leaf[0], inputs['batches'])
    loss, grads = grad_fn(params, batch)
    return grads, private, {'loss': loss}

  return run
