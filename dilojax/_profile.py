"""Measures how long the backward pass takes for each part of a model."""

from collections.abc import Callable
import math
import time
from typing import Any

import jax
import jax.numpy as jnp
import optax

from dilojax import build
from dilojax import models
from dilojax import simulate
from dilojax import transforms


def profile(
  setup: build.Setup,
  *,
  bandwidth: float,
  latency: float = 0.0,
  depth: int = 1,
  repeats: int = 20,
) -> tuple[simulate.Unit, ...]:
  r"""Measures a model's units on one device, and computes their all-reduces.

  Gradients of the last unit alone, of the last two, and so on, are programs of
  their own, and a unit's time is by how much one takes longer than the one
  before: the shortest of `repeats` runs of each, taken in turns. Noise that
  would make a time negative makes it 0. The unit that comes first in the
  backward pass has the start of the pass in its time.

  The limits: a program with fewer gradients may be compiled better than their
  share of the whole; a device is measured alone, with all cores of a CPU to
  itself; and with `inner.accumulate` it is one part of a batch.

  An all-reduce of :math:`n` bytes takes :math:`l + 2 \frac{K-1}{K} 8n / w` for
  :math:`K` replicas, latency :math:`l` and :math:`w` bits per second, which is
  a ring that wastes nothing.

  Args:
    setup: The run.
    bandwidth: Bits per second :math:`w` between replicas.
    latency: Seconds :math:`l` of an all-reduce, however small.
    depth: As of :func:`by_module`.
    repeats: Number of runs of each program, at least 1.

  Returns:
    The units, in the order of the backward pass.

  Raises:
    ValueError: If an argument is out of range, or there is one replica.
  """
  check(bandwidth, latency, repeats)
  num_replicas = setup.placement.total
  if num_replicas < 2:
    raise ValueError(
      f'`num_replicas` must be at least 2, got {num_replicas}: one has nobody'
      ' to average with.'
    )
  params = jax.jit(setup.model.init)(jax.random.key(setup.seed))
  size = setup.batch_size // setup.accumulate
  batch = jax.tree.map(
    lambda leaf: jnp.asarray(leaf[:size]), setup.streams.batch(1, 0)
  )
  labels = transforms.by_module(depth)(params)
  names = order(setup.model, params, batch, labels)
  seconds = _backward_seconds(
    setup.model, params, batch, labels, names, repeats
  )
  share = 2 * (num_replicas - 1) / num_replicas
  return tuple(
    simulate.Unit(
      name,
      backward,
      latency + share * 8 * _nbytes(params, labels, name) / bandwidth,
    )
    for name, backward in zip(names, seconds)
  )


def check(bandwidth: float, latency: float, repeats: int) -> None:
  """Refuses links and numbers that cannot be."""
  if not 0 < bandwidth < math.inf:
    raise ValueError(
      f'`bandwidth` must be finite and above 0, got {bandwidth}.'
    )
  if not 0 <= latency < math.inf:
    raise ValueError(f'`latency` must be finite and at least 0, got {latency}.')
  if repeats < 1:
    raise ValueError(f'`repeats` must be at least 1, got {repeats}.')


def order(
  model: models.Model, params: Any, batch: Any, labels: Any
) -> tuple[str, ...]:
  """Returns the names of the units in the order of the backward pass.

  Which is the reverse of that in which the loss first uses their params: one
  that is used twice has its gradient when the pass reaches the first use.

  Args:
    model: The model.
    params: Its params.
    batch: A batch.
    labels: Names of the units, a tree like `params`.

  Returns:
    Each name once.
  """
  jaxpr = jax.make_jaxpr(model.loss)(params, batch).jaxpr
  first = {}
  for number, equation in enumerate(jaxpr.eqns):
    for variable in equation.invars:
      # Literals are no variables, and cannot be looked up.
      first.setdefault(id(variable), number)
  names = jax.tree.leaves(labels)
  uses: dict[str, float] = {}
  for name, variable in zip(names, jaxpr.invars):
    use = first.get(id(variable), math.inf)
    uses[name] = min(use, uses.get(name, math.inf))
  return tuple(sorted(uses, key=lambda name: uses[name], reverse=True))


def _backward_seconds(model, params, batch, labels, names, repeats):
  programs = []
  for count in range(len(names) + 1):
    wanted = set(names[:count])
    fn = _gradient_of(model, labels, wanted)
    programs.append(jax.jit(fn).lower(params, batch).compile())
  shortest = [math.inf] * len(programs)
  for _ in range(repeats + 1):
    for number, program in enumerate(programs):
      seconds = _seconds(lambda program=program: program(params, batch))
      shortest[number] = min(shortest[number], seconds)
  found = []
  longest = shortest[0]
  for seconds in shortest[1:]:
    found.append(max(0.0, seconds - longest))
    longest = max(longest, seconds)
  return found


def _gradient_of(model, labels, wanted):
  """Returns the function of the loss and of the gradients of some units."""
  is_wanted = jax.tree.map(lambda name: name in wanted, labels)

  def run(params, batch):
    mask = lambda keep: jax.tree.map(
      lambda flag, leaf: leaf if flag is keep else optax.MaskedNode(),
      is_wanted,
      params,
    )
    rest = mask(False)

    def loss(part):
      whole = jax.tree.map(
        lambda flag, own, other: own if flag else other,
        is_wanted,
        part,
        rest,
        is_leaf=lambda node: isinstance(node, optax.MaskedNode),
      )
      return model.loss(whole, batch)

    return jax.value_and_grad(loss)(mask(True))

  return run


def _seconds(run: Callable) -> float:
  begin = time.perf_counter()
  jax.block_until_ready(run())
  return time.perf_counter() - begin


def _nbytes(params, labels, name):
  leaves = zip(jax.tree.leaves(params), jax.tree.leaves(labels))
  return sum(leaf.nbytes for leaf, label in leaves if label == name)
