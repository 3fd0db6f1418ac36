"""One replica's function, run for all replicas: the only room with devices.

Trees come with their axes, a prefix of the tree that says what of it the
replicas share: None where all share one value, 0 where each has its own, and,
with several replica axes, a frozenset of the axes along which it differs. A
value that differs along n axes has n leading axes, in the order of the axes.
"""

import collections
from collections.abc import Callable, Mapping, Sequence
import math
from typing import Any, NamedTuple

import jax
from jax.experimental import mesh_utils
import jax.numpy as jnp

AXIS = 'replica'
FSDP = 'fsdp'
TENSOR = 'tensor'
INSIDE = (FSDP, TENSOR)  # Axes inside a replica.


class Placement(NamedTuple):
  """Where the replicas are.

  Attributes:
    mesh: Devices, along the replica axes and the axes inside a replica.
    num_replicas: Number of replicas along each replica axis, outermost first.
  """

  mesh: jax.sharding.Mesh
  num_replicas: dict[str, int]

  @property
  def total(self) -> int:
    """Number of replicas."""
    return math.prod(self.num_replicas.values())

  def per_device(self, axis: str) -> int:
    """Returns the number of replicas that a device holds along an axis."""
    return self.num_replicas[axis] // self.mesh.shape[axis]

  def count(self, axis_names: Sequence[str]) -> int:
    """Returns the number of replicas along some mapped axes."""
    return math.prod(
      count
      for axis, count in self.num_replicas.items()
      if set(self.mapped(axis)) & set(axis_names)
    )

  def mapped(self, axis: str) -> tuple[str, ...]:
    """Returns the names under which a replica axis is mapped.

    One name: the axis of the mesh, or of a `vmap` where the mesh has one index
    along it. Two where there are several devices with several replicas each.
    """
    several = self.mesh.shape[axis] > 1 and self.per_device(axis) > 1
    return (axis, f'local_{axis}') if several else (axis,)

  def axis_names(self, *axes: str) -> tuple[str, ...]:
    """Returns the mapped axes to reduce over, by default over all replicas."""
    axes = axes or tuple(self.num_replicas)
    return tuple(name for axis in axes for name in self.mapped(axis))


def place(
  num_replicas: int | Mapping[str, int],
  num_devices: int | None = None,
  *,
  fsdp: int | None = None,
  tensor: int = 1,
  devices: Sequence[jax.Device] | None = None,
) -> Placement:
  """Lays replicas out on devices.

  With more replicas than devices, each device holds several. With more
  devices than replicas, a replica is sharded over several. Slices of TPUs, that
  a data-centre network joins, lie along the outermost axes, and a replica
  within one of them.

  Args:
    num_replicas: Number of replicas K, or numbers by axis, outermost first.
    num_devices: Number of devices D, the first ones; by default all.
    fsdp: Devices over which a replica's params are sharded; by default all
      that `tensor` and the replicas leave.
    tensor: Devices over which the second axis of its params is sharded.
    devices: Devices to choose from; by default all that there are.

  Returns:
    The placement.

  Raises:
    ValueError: If the devices do not exist, or the numbers do not divide.

  Examples:
    >>> place(4, 1).axis_names()
    ('replica',)
  """
  if isinstance(num_replicas, int):
    num_replicas = {AXIS: num_replicas}
  devices = list(jax.devices() if devices is None else devices)
  num_devices = len(devices) if num_devices is None else num_devices
  if not 1 <= num_devices <= len(devices):
    raise ValueError(
      f'`num_devices` must be from 1 to the number of devices'
      f' ({len(devices)}), got {num_devices}.'
    )
  given = {**num_replicas, 'tensor': tensor, 'fsdp': fsdp or 1}
  for name, count in given.items():
    if count < 1:
      raise ValueError(f'`{name}` must be at least 1, got {count}.')
  total = math.prod(num_replicas.values())
  inside = (fsdp or 1) * tensor
  slots = num_devices // inside
  if fsdp is None and slots > total:
    fsdp = slots // total
    inside, slots = fsdp * tensor, total
  shape = _divide(num_replicas, slots)
  if inside * slots != num_devices or shape is None:
    raise ValueError(
      f'`num_replicas` ({total}) must divide, or be divided by, the number of'
      f' devices ({num_devices}), of which each replica takes {inside}'
      ' (`fsdp` times `tensor`).'
    )
  names = (*num_replicas, *INSIDE)
  # Auto, so that the compiler lays out what happens inside a replica.
  auto = (jax.sharding.AxisType.Auto,) * len(names)
  sizes = (*shape, fsdp or 1, tensor)
  chosen = devices[:num_devices]
  counts = collections.Counter(slice_of(device) for device in chosen)
  if len(counts) == 1:
    mesh = jax.make_mesh(sizes, names, auto, devices=chosen)
    return Placement(mesh, dict(num_replicas))
  among = _divide(dict(zip(num_replicas, shape)), len(counts))
  if among is None or len(set(counts.values())) > 1:
    raise ValueError(
      f'`num_replicas` ({total}) must be a multiple of the number of slices'
      f' ({len(counts)}), of {sorted(counts.values())} devices, and slices must'
      ' be alike: a replica lies within one.'
    )
  within = [size // part for size, part in zip(shape, among)]
  stacked = mesh_utils.create_hybrid_device_mesh(
    (*within, fsdp or 1, tensor), (*among, 1, 1), chosen
  )
  return Placement(jax.sharding.Mesh(stacked, names, auto), dict(num_replicas))


def slice_of(device: jax.Device) -> int:
  """Returns the number of the slice of TPUs that a device is in, or 0."""
  return getattr(device, 'slice_index', None) or 0


def over_replicas(
  fn: Callable, placement: Placement, in_axes: Any, out_axes: Any
) -> Callable:
  """Runs `fn`, written for one replica, for all replicas.

  Args:
    fn: Function of one replica. It may reduce over `placement.axis_names()`.
    placement: Where the replicas are.
    in_axes: Axes of the arguments, a tuple.
    out_axes: Axes of the result.

  Returns:
    Function of trees whose private parts have leading axes. Call it under
    :func:`jax.jit`. One value where the axes say that all share it: if
    replicas could disagree on it, tracing raises.
  """
  manual = set()
  for axis in reversed(placement.num_replicas):
    along = lambda axes, axis=axis: _map_axes(
      lambda names: 0 if axis in names else None, axes, placement.num_replicas
    )
    if placement.mesh.shape[axis] > 1:
      manual.add(axis)
    if placement.mesh.shape[axis] > 1 and placement.per_device(axis) == 1:
      fn = _map_alone(fn, along(in_axes), along(out_axes))
    else:
      name = placement.mapped(axis)[-1]
      fn = jax.vmap(fn, along(in_axes), along(out_axes), axis_name=name)
  if not manual:
    return fn
  specs = lambda axes: _map_axes(
    lambda names: jax.P(*(name if name in manual else None for name in names)),
    axes,
    placement.num_replicas,
  )
  return jax.shard_map(
    fn,
    mesh=placement.mesh,
    in_specs=specs(in_axes),
    out_specs=specs(out_axes),
    axis_names=manual,
    # Proves that shared values agree. Not available around a named `vmap`,
    # where `out_axes` of None proves it for the replicas of a device.
    check_vma=all(
      axis in manual and placement.per_device(axis) == 1
      for axis in placement.num_replicas
    ),
  )


def with_replicas(tree: Any, axes: Any, num_replicas: Mapping[str, int]) -> Any:
  """Returns the abstract form that a replica's tree has for all replicas.

  Args:
    tree: Arrays of one replica, or their abstract form.
    axes: Axes of the tree.
    num_replicas: Number of replicas along each replica axis.
  """

  def of_part(names, part):
    lead = tuple(num_replicas[name] for name in names)
    shape = lambda leaf: jax.ShapeDtypeStruct(lead + leaf.shape, leaf.dtype)
    return jax.tree.map(shape, part)

  return _map_axes(of_part, axes, num_replicas, tree)


def like(tree: Any, placement: Placement, axes: Any) -> Any:
  """Returns the abstract form of what `spread` returns, with shardings."""
  shapes = with_replicas(tree, axes, placement.num_replicas)
  return jax.tree.map(
    lambda leaf, sharding: jax.ShapeDtypeStruct(
      leaf.shape, leaf.dtype, sharding=sharding
    ),
    shapes,
    shardings(shapes, placement, axes),
  )


def spread(tree: Any, placement: Placement, axes: Any) -> Any:
  """Copies a replica's `tree` for all replicas and puts it on the devices."""

  def of_part(names, part):
    lead = [placement.num_replicas[axis] for axis in names]
    copy = lambda leaf: jnp.broadcast_to(leaf, (*lead, *jnp.shape(leaf)))
    return jax.tree.map(copy, part)

  copies = lambda tree: _map_axes(of_part, axes, placement.num_replicas, tree)
  wanted = shardings(jax.eval_shape(copies, tree), placement, axes)
  return jax.jit(copies, out_shardings=wanted)(tree)


def put(tree: Any, placement: Placement, axes: Any) -> Any:
  """Puts a tree that has its leading axes on the devices."""
  return jax.device_put(tree, shardings(tree, placement, axes))


def shardings(tree: Any, placement: Placement, axes: Any) -> Any:
  """Returns the sharding of every leaf of a tree with its leading axes.

  Inside a replica the longest axis that divides is sharded over `fsdp`, the
  next over `tensor`: anchors, momenta and params of a leaf lie alike.
  """
  mesh = placement.mesh

  def of_part(names, part):
    def of_leaf(leaf):
      inner = inner_spec(jnp.shape(leaf)[len(names) :], mesh)
      return jax.NamedSharding(mesh, jax.P(*names, *inner))

    return jax.tree.map(of_leaf, part)

  return _map_axes(of_part, axes, placement.num_replicas, tree)


def varying(placement: Placement, axes_along: Callable[[str], Any]) -> Any:
  """Joins the answers for every replica axis to one prefix of axes.

  Args:
    placement: Where the replicas are.
    axes_along: Returns the axes of a tree, None or 0, along a mapped axis.

  Returns:
    The frozensets that this room takes.
  """
  # Of two mapped names of an axis, the innermost tells as much as both.
  names = list(placement.num_replicas)
  answers = [axes_along(placement.mapped(name)[-1]) for name in names]
  join = lambda *each: frozenset(
    name for name, axis in zip(names, each) if axis is not None
  )
  return jax.tree.map(join, *answers, is_leaf=lambda axis: axis is None)


def _divide(num_replicas, slots):
  """Splits device slots among the replica axes, outermost first."""
  shape = []
  for count in num_replicas.values():
    here = math.gcd(count, slots)
    shape.append(here)
    slots //= here
  return tuple(shape) if slots == 1 else None


def _map_alone(fn, in_axes, out_axes):
  """Maps over an axis of which each device has one index."""

  def alone(*args):
    args = _map_private(lambda leaf: leaf[0], args, in_axes)
    return _map_private(lambda leaf: leaf[None], fn(*args), out_axes)

  return alone


def inner_spec(
  shape: Sequence[int], mesh: jax.sharding.Mesh
) -> list[str | None]:
  """Shards the longest axis over fsdp and the next over tensor."""
  spec: list[str | None] = [None] * len(shape)
  for name in INSIDE:
    size = mesh.shape[name]
    free = [
      number
      for number, length in enumerate(shape)
      if spec[number] is None and length and length % size == 0
    ]
    if size > 1 and free:
      spec[max(free, key=lambda number: shape[number])] = name
  return spec


def _map_axes(fn, axes, replica_axes, *trees):
  """Maps over the axes, each given as the names along which values differ."""

  def names(axis):
    if isinstance(axis, frozenset):
      return tuple(name for name in replica_axes if name in axis)
    return () if axis is None else tuple(replica_axes)

  return jax.tree.map(
    lambda axis, *parts: fn(names(axis), *parts),
    axes,
    *trees,
    is_leaf=lambda axis: axis is None or isinstance(axis, frozenset),
  )


def _map_private(fn, tree, axes):
  return jax.tree.map(
    lambda axis, part: part if axis is None else jax.tree.map(fn, part),
    axes,
    tree,
    is_leaf=lambda axis: axis is None,
  )
