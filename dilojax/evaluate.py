"""Held-out loss of the anchor, of the replicas' mean, of each replica."""

from collections.abc import Callable, Sequence
import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from dilojax import models
from dilojax import processes
from dilojax import replicas
from dilojax import transforms


def make_evaluate(
  model: models.Model, placement: replicas.Placement, axes: Any
) -> Callable[[Any, Any, Any], dict[str, Any]]:
  """Returns the program that evaluates all that there is to evaluate.

  Args:
    model: The model; its `evaluate` gives the metrics of a batch.
    placement: Where the replicas are.
    axes: Axes of params and optimizer state.

  Returns:
    Jitted function of params, optimizer state and batches, stacked in a
    leading axis, that returns metrics of `'anchor'` and `'mean'`, one value
    each, and of `'replica'`, one per replica. Without an anchor, as in data
    parallelism, the replicas' mean serves as one; where each replica has an
    anchor of its own, as under gossip, the mean of these.
  """
  mean_over = transforms.mean_over(placement.axis_names())

  def of(params, batches):
    each = jax.lax.map(lambda batch: model.evaluate(params, batch), batches)
    return jax.tree.map(jnp.mean, each)

  def evaluate(params, opt_state, batches):
    mean, _ = mean_over.update(params, mean_over.init(params))
    anchor = transforms.anchor_of(opt_state, mean)
    if transforms.has_private_anchor(opt_state):
      anchor, _ = mean_over.update(anchor, mean_over.init(anchor))
    return {
      'anchor': of(anchor, batches),
      'mean': of(mean, batches),
      'replica': of(params, batches),
    }

  out_axes = {'anchor': None, 'mean': None, 'replica': 0}
  return jax.jit(
    replicas.over_replicas(evaluate, placement, (*axes, None), out_axes)
  )


def stack(
  batches: Sequence[dict[str, np.ndarray]], placement: replicas.Placement
) -> dict[str, jax.Array]:
  """Stacks held-out batches and puts them on all devices."""
  stacked = jax.tree.map(lambda *each: np.stack(each), *batches)
  return processes.put(stacked, jax.NamedSharding(placement.mesh, jax.P()))


def record(
  metrics: dict[str, Any], bytes_per_token: float | None
) -> dict[str, float]:
  """Names metrics for a record, and adds bits per byte.

  Args:
    metrics: What the program returned.
    bytes_per_token: Of the held-out text, or None where there is no text.

  Returns:
    Values such as `eval/anchor/loss`, in nats per token, and
    `eval/anchor/bits_per_byte`.
  """
  metrics, _ = processes.fetch(metrics, 'the end of an evaluation')
  each = metrics.pop('replica')
  count = next(iter(each.values())).size
  for k in range(count):
    pick = lambda leaf, k=k: leaf.reshape(-1)[k]
    metrics[f'replica_{k}'] = jax.tree.map(pick, each)
  return named(metrics, bytes_per_token)


def named(
  metrics: dict[str, dict[str, Any]], bytes_per_token: float | None
) -> dict[str, float]:
  """Names metrics by whose they are, and adds bits per byte."""
  found = {
    f'eval/{whose}/{name}': float(value)
    for whose, values in metrics.items()
    for name, value in values.items()
  }
  if bytes_per_token is not None:
    for whose in metrics:
      nats = found[f'eval/{whose}/loss']
      bits = bits_per_byte(nats, bytes_per_token)
      found[f'eval/{whose}/bits_per_byte'] = bits
  return found


def bits_per_byte(nats_per_token: float, bytes_per_token: float) -> float:
  """Converts a loss, so that tokenizers compare.

  Examples:
    >>> bits_per_byte(math.log(256), bytes_per_token=1.0)
    8.0
  """
  return nats_per_token / (math.log(2) * bytes_per_token)
