"""Segments of inner steps: their batches, and their compiled programs."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

from dilojax import build
from dilojax import models
from dilojax import processes
from dilojax import replicas
from dilojax import schedule as schedule_lib
from dilojax import transforms

MAX_STEPS = 100
MAX_BATCH_BYTES = 2**26  # Of all replicas.


class Segment(NamedTuple):
  """Inner steps that one program takes.

  Attributes:
    first: First step.
    runs: Runs of equal steps.
    final: Whether its last step ends the training.
  """

  first: int
  runs: tuple[schedule_lib.Run, ...]
  final: bool

  @property
  def num_steps(self) -> int:
    """Number of steps."""
    return sum(run.num_steps for run in self.runs)

  @property
  def last(self) -> int:
    """Last step."""
    return self.first + self.num_steps - 1

  @property
  def pattern(self) -> tuple:
    """What its program depends on."""
    loops = tuple((run.kind, _is_loop(run)) for run in self.runs)
    return (loops, self.final)


def max_steps(setup: build.Setup) -> int:
  """Returns the greatest number of steps whose batches fit in a segment."""
  batch = setup.streams.batch(1, 0)
  nbytes = sum(leaf.nbytes for leaf in batch.values()) * setup.placement.total
  return max(1, min(MAX_STEPS, MAX_BATCH_BYTES // nbytes, setup.num_steps))


def plan(
  setup: build.Setup,
  links: Sequence[transforms.Link],
  first: int,
  last: int,
  is_stop: Callable[[int], bool],
) -> Iterator[Segment]:
  """Yields the segments of the steps from `first` to `last`.

  Cuts depend on the steps alone, so that a resumed training has the segments,
  and with them the programs, of the one that went through.
  """
  cuts = schedule_lib.segments(
    [link.schedule for link in links],
    first,
    last,
    is_stop=is_stop,
    max_steps=max_steps(setup),
  )
  for runs in cuts:
    segment = Segment(first, runs, False)
    if segment.last == setup.num_steps and _needs_final(setup, links):
      segment = Segment(first, _set_apart(runs, setup.num_steps), True)
    yield segment
    first = segment.last + 1


def batches(setup: build.Setup, segment: Segment) -> Any:
  """Returns the batches of a segment on the devices of their replicas.

  Their axes are replicas, steps, sequences, and what a sequence has. There
  are always `max_steps` steps, so that a program serves segments of any
  length; what a segment does not use is zero. A process makes those of the
  replicas that its devices hold.
  """
  placement = setup.placement
  sizes = tuple(placement.num_replicas.values())
  shape = (placement.total, max_steps(setup))
  example = setup.streams.batch(segment.first, 0)
  stacked = {
    name: np.zeros((*shape, *leaf.shape), leaf.dtype)
    for name, leaf in example.items()
  }
  sharding = jax.NamedSharding(placement.mesh, _batch_spec(setup))
  for k in _own_replicas(placement, sharding):
    for number in range(segment.num_steps):
      batch = setup.streams.batch(segment.first + number, k)
      for name, leaf in batch.items():
        stacked[name][k, number] = leaf
  shaped = {
    name: leaf.reshape(*sizes, *leaf.shape[1:])
    for name, leaf in stacked.items()
  }
  return processes.put(shaped, sharding)


def abstract_batches(setup: build.Setup) -> Any:
  """Returns the shapes, types and places of what :func:`batches` returns."""
  placement = setup.placement
  shape = (*placement.num_replicas.values(), max_steps(setup))
  sharding = jax.NamedSharding(placement.mesh, _batch_spec(setup))
  return {
    name: jax.ShapeDtypeStruct(
      (*shape, *leaf.shape), leaf.dtype, sharding=sharding
    )
    for name, leaf in setup.streams.batch(1, 0).items()
  }


def make_grad(model: models.Model, accumulate: int) -> Callable:
  """Returns the loss and gradient of a batch, computed in so many parts."""
  grad_fn = jax.value_and_grad(model.loss)
  if accumulate == 1:
    return grad_fn

  def compute(params, batch):
    cut = lambda leaf: leaf.reshape(accumulate, -1, *leaf.shape[1:])
    parts = jax.tree.map(cut, batch)
    total = grad_fn(params, jax.tree.map(lambda leaf: leaf[0], parts))

    def add(total, part):
      return optax.tree.add(total, grad_fn(params, part)), None

    rest = jax.tree.map(lambda leaf: leaf[1:], parts)
    total, _ = jax.lax.scan(add, total, rest)
    return optax.tree.scale(1 / accumulate, total)

  return compute


def make_step(
  model: models.Model,
  tx: optax.GradientTransformationExtraArgs,
  accumulate: int,
) -> Callable:
  """Returns one inner step of one replica, with its loss and gradient norm."""
  tx = optax.with_extra_args_support(tx)
  compute = make_grad(model, accumulate)

  def inner_step(params, opt_state, batch, step, final=False):
    loss, grads = compute(params, batch)
    updates, opt_state = tx.update(
      grads, opt_state, params, step=step, final=final
    )
    params = transforms.apply_updates(
      params, updates, opt_state, step=step, final=final
    )
    return params, opt_state, (loss, optax.tree.norm(grads))

  return inner_step


def make_program(
  setup: build.Setup, axes: Any, inner_step: Callable, segment: Segment
) -> Callable:
  """Returns the program of a segment, for all replicas.

  Equal steps in a row are a loop whose length is an argument, so that a
  program serves all segments of a pattern. A single event is traced in place.

  Args:
    setup: The run.
    axes: Axes of params and optimizer state.
    inner_step: What :func:`make_step` returned.
    segment: A segment of the pattern.

  Returns:
    Jitted function of params, optimizer state (both donated), batches, and the
    lengths of the runs. It returns params, state, and losses and gradient
    norms, with axes of replicas and steps.
  """

  def train(params, opt_state, batches, lengths):
    num_steps = jax.tree.leaves(batches)[0].shape[0]
    own = jax.tree.leaves(params)[0].reshape(-1)[0].astype(jnp.float32)
    empty = transforms.agreeing(jnp.zeros(num_steps, jnp.float32), own)
    carry = (params, opt_state, (empty, empty), jnp.int32(0))

    def one(carry, step, final=False):
      params, opt_state, written, index = carry
      batch = jax.tree.map(lambda leaf: leaf[index], batches)
      params, opt_state, values = inner_step(
        params, opt_state, batch, step, final
      )
      write = lambda old, new: old.at[index].set(new.astype(old.dtype))
      written = jax.tree.map(write, written, values)
      return params, opt_state, written, index + 1

    for number, run in enumerate(segment.runs):
      is_last = number == len(segment.runs) - 1
      if _is_loop(run):
        body = lambda _, carry, step=run.step: one(carry, step)
        carry = jax.lax.fori_loop(0, lengths[number], body, carry)
      else:
        carry = one(carry, run.step, segment.final and is_last)
    return carry[:3]

  placement = setup.placement
  program = replicas.over_replicas(
    train, placement, (*axes, 0, None), (*axes, 0)
  )

  def placed(params, opt_state, batches, lengths):
    params, opt_state, written = program(params, opt_state, batches, lengths)
    # The state stays where it was, whatever the compiler would choose.
    state = (params, opt_state)
    wanted = replicas.shardings(state, placement, axes)
    params, opt_state = jax.lax.with_sharding_constraint(state, wanted)
    return params, opt_state, written

  return jax.jit(placed, donate_argnums=(0, 1))


def tokens_per_step(setup: build.Setup) -> int:
  """Returns the tokens (or images) of one replica in a step."""
  batch = setup.streams.batch(1, 0)
  tokens = batch.get('tokens')
  # The last token of a sequence is a target only.
  length = 1 if tokens is None else tokens.shape[1] - 1
  return setup.batch_size * length


def lengths(segment: Segment) -> np.ndarray:
  """Returns the lengths of a segment's runs."""
  return np.array([run.num_steps for run in segment.runs], np.int32)


FINAL = ('final',)


def _batch_spec(setup):
  """Inside a replica, sequences are spread over the devices of fsdp."""
  mesh, micro_batch = setup.placement.mesh, setup.batch_size // setup.accumulate
  inside = None if micro_batch % mesh.shape[replicas.FSDP] else replicas.FSDP
  return jax.P(*setup.placement.num_replicas, None, inside)


def _own_replicas(placement, sharding):
  """Returns the replicas, or parts of them, on the devices of this process."""
  sizes = tuple(placement.num_replicas.values())
  numbers = np.arange(placement.total).reshape(*sizes, 1, 1)
  # Two more axes, of steps and sequences, that need not be there in full.
  inside = placement.mesh.shape[replicas.FSDP]
  numbers = np.broadcast_to(numbers, (*sizes, 1, inside))
  places = sharding.addressable_devices_indices_map(numbers.shape)
  return sorted({k for place in places.values() for k in numbers[place].flat})


def _needs_final(setup, links):
  """Tells whether the last step is other than the schedules make it."""
  last = setup.num_steps
  ends = lambda schedule: (
    schedule.delay == 0 and not schedule.late and schedule.launches(last)
  )
  return setup.final and not all(
    link.overwrites is None or ends(link.schedule) for link in links
  )


def _set_apart(runs, last):
  """Makes the last step a run of its own."""
  *before, run = runs
  if run.num_steps > 1:
    before.append(run._replace(num_steps=run.num_steps - 1))
  return (*before, schedule_lib.Run((FINAL,), last, 1))


def _is_loop(run: schedule_lib.Run) -> bool:
  return run.num_steps != 1 or not any(run.kind)
