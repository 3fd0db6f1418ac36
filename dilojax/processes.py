"""The processes of a run: what they tell each other, and agree on.

As in :mod:`jax.distributed`, whose coordination service carries all that is
said here, there is one set of processes at a time, and a process alone needs
nothing of this: every function is then as good as absent. No function touches
a device unless it says so, so that nothing waits for what the devices do.
"""

from collections.abc import Callable, Generator
import contextlib
import functools
import itertools
import json
from typing import Any

import jax
from jax._src import distributed  # The only way to the service's client.
import numpy as np

from dilojax import _watch


class Agreed(ValueError):
  """An error that all processes raise at the same point."""


def count() -> int:
  """Returns the number of processes."""
  return distributed.global_state.num_processes if client() else 1


def index() -> int:
  """Returns the number of this process, from 0."""
  return distributed.global_state.process_id if client() else 0


def is_first() -> bool:
  """Tells whether this process writes what is written once."""
  return index() == 0


def exchange(message: str, doing: str) -> list[str]:
  """Gives a text to all processes, and waits for theirs.

  Args:
    message: The text.
    doing: What the processes are about, for the messages of the time-out. All
      must exchange at the same points.

  Returns:
    The texts of all processes, in their order.
  """
  service = client()
  if service is None:
    return [message]
  number = next(_numbers)
  _watch.reach(doing)
  key = lambda number, k: f'dilojax/exchange/{number}/{k}'
  service.key_value_set(key(number, index()), message)
  # Whoever waits in vain is ended by the watch, long before a day is over.
  found = [
    service.blocking_key_value_get(key(number, k), 86_400_000)
    for k in range(count())
  ]
  # All have said this one, so all have read the one before.
  if number:
    service.key_value_delete(key(number - 1, index()))
  return found


@contextlib.contextmanager
def together(doing: str) -> Generator[None]:
  """Lets all processes pass, or none: a barrier that errors cross.

  Args:
    doing: As for :func:`exchange`.

  Raises:
    Agreed: On all processes, if ValueError, ImportError or OSError was raised
      in the body on any of them. Alone, a process raises what was raised.
  """
  if count() == 1:
    yield
    return
  error = None
  try:
    yield
  except (ValueError, ImportError, OSError) as raised:
    error = raised
  said = exchange(json.dumps(error and text_of(error)), doing)
  texts = [json.loads(text) for text in said]
  wrong = {k: text for k, text in enumerate(texts) if text is not None}
  if wrong:
    first = min(wrong)
    # What all say has nothing to do with one of them.
    of_one = len(wrong) < len(texts) and first > 0
    who = f'Process {first}: ' if of_one else ''
    raise Agreed(f'{who}{wrong[first]}') from error


def same(what: str, value: Any) -> None:
  """Checks that all processes have the same.

  Args:
    what: What it is, for the message.
    value: Plain JSON.

  Raises:
    Agreed: If they differ.
  """
  said = exchange(json.dumps(value, sort_keys=True), what)
  other = next((k for k, text in enumerate(said) if text != said[0]), None)
  if other is not None:
    raise Agreed(
      f'All processes must have the same {what}: process 0 has'
      f' {said[0][:300]}, process {other} has {said[other][:300]}. Start them'
      ' with the same command, on the same files.'
    )


def from_first(make: Callable[[], Any], doing: str) -> Any:
  """Returns what process 0 makes, plain JSON, on all processes."""
  value = None
  with together(doing):
    if is_first():
      value = make()
  if count() == 1:
    return value
  return json.loads(exchange(json.dumps(value), doing)[0])


def put(tree: Any, shardings: Any) -> Any:
  """Puts arrays that all hosts have on the devices of all processes.

  Of an array a process needs to have only the parts for its own devices.
  """
  if count() == 1:
    return jax.device_put(tree, shardings)

  def of_leaf(leaf, sharding):
    leaf = np.asarray(leaf)
    pick = lambda index: leaf[index]
    return jax.make_array_from_callback(leaf.shape, sharding, pick)

  if isinstance(shardings, jax.sharding.Sharding):
    return jax.tree.map(lambda leaf: of_leaf(leaf, shardings), tree)
  return jax.tree.map(of_leaf, tree, shardings)


def fetch(tree: Any, doing: str, note: Any = None) -> tuple[Any, list[Any]]:
  """Brings small arrays from the devices of all processes to every host.

  They travel through the service, not through the devices: these go on with
  what they were given since, and a program communicates no more for it.

  Args:
    tree: Arrays.
    doing: As for :func:`exchange`.
    note: Plain JSON that goes with them.

  Returns:
    The arrays, and the notes of all processes in their order.
  """
  if count() == 1:
    return jax.device_get(tree), [note]
  leaves, structure = jax.tree.flatten(tree)
  is_far = lambda leaf: (
    not (leaf.is_fully_addressable or leaf.is_fully_replicated)
  )
  far = [leaf for leaf in leaves if is_far(leaf)]
  said = exchange(json.dumps([note, [_parts(leaf) for leaf in far]]), doing)
  found = [json.loads(text) for text in said]
  whole = iter(
    [
      _whole(leaf, [parts[number] for _, parts in found])
      for number, leaf in enumerate(far)
    ]
  )
  read = [next(whole) if is_far(leaf) else _read(leaf) for leaf in leaves]
  return jax.tree.unflatten(structure, read), [note for note, _ in found]


def check_sums(mesh: jax.sharding.Mesh) -> None:
  """Checks sums over the devices whose result is known.

  Over every set of axes, which also makes the devices know each other: some
  backends wait for a first meeting less long than for any later one.

  Args:
    mesh: Devices of all processes.

  Raises:
    Agreed: If a sum is wrong anywhere.
  """
  if count() == 1:
    return
  names = mesh.axis_names
  numbers = 1.0 + np.arange(mesh.size, dtype=np.float32).reshape(
    tuple(mesh.shape.values())
  )
  # Whole numbers, so that every order of summation gives the same bits.
  values = numbers[..., None] * (np.arange(1024, dtype=np.float32) % 13)
  array = put(values, jax.NamedSharding(mesh, jax.P(*names)))
  large = [name for name in names if mesh.shape[name] > 1]
  for size in range(1, len(large) + 1):
    for axes in itertools.combinations(large, size):
      spec = jax.P(*(None if name in axes else name for name in names))
      add = jax.shard_map(
        functools.partial(jax.lax.psum, axis_name=axes),
        mesh=mesh,
        in_specs=jax.P(*names),
        out_specs=spec,
      )
      want = values.sum(tuple(map(names.index, axes)), keepdims=True)
      with together(f'a first sum over {", ".join(axes)}'):
        for shard in jax.jit(add)(array).addressable_shards:
          if not np.array_equal(shard.data, want[shard.index]):
            raise ValueError(
              f'A sum over {", ".join(axes)} of the devices is wrong on'
              f' {shard.device}: these devices, or the network between them,'
              ' cannot be trusted.'
            )


_numbers = itertools.count()


def client() -> Any:
  """Returns the client of the coordination service, None if alone."""
  return distributed.global_state.client


def _parts(leaf):
  return [
    [
      [part.indices(size)[:2] for part, size in zip(shard.index, leaf.shape)],
      np.asarray(shard.data).tolist(),
    ]
    for shard in leaf.addressable_shards
    if shard.replica_id == 0
  ]


def _whole(leaf, told):
  whole = np.zeros(leaf.shape, leaf.dtype)
  for parts in told:
    for ends, values in parts:
      whole[tuple(slice(*each) for each in ends)] = values
  return whole


def _read(leaf):
  if leaf.is_fully_addressable:
    return jax.device_get(leaf)
  return np.asarray(leaf.addressable_data(0))


def text_of(error):
  """Returns what there is to say about an error."""
  return str(error) or type(error).__name__
