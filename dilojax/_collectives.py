"""The collectives of a compiled program, and what runs while they do."""

from collections.abc import Iterator, Sequence
import re
from typing import NamedTuple

import jax
import numpy as np

from dilojax import _hlo
from dilojax import _overlap
from dilojax import replicas

OPERATIONS = (
  'all-gather',
  'all-reduce',
  'all-to-all',
  'collective-broadcast',
  'collective-permute',
  'ragged-all-to-all',
  'reduce-scatter',
  'send',
)

_BRANCHES = ('branch_computations', 'true_computation', 'false_computation')
# What changes the form of a message, and not the values in it.
_FORMS = re.compile(r'custom_call_target="ZeroCrop"')


class Collective(NamedTuple):
  """A collective operation of a compiled program.

  Attributes:
    op: Its name, such as `all-reduce`; one name for both halves of an
      asynchronous one. A `send` counts and its `recv` does not.
    computation: Name of the computation that it stands in.
    in_branch: Whether it runs in a branch of a condition only.
    in_loop: Whether it runs in the body of a loop.
    nbytes: Bytes of the operands on one device, each time it runs.
    dtypes: Their types in XLA's words, such as `f32`, in order.
    groups: Numbers of the devices that exchange values, by group, counted
      through the mesh; of a `send` between slices, their ids. The pairs of a
      permutation are groups of two. Empty where the text does not say.
    result_nbytes: Bytes of the result on one device.
    padding: Bytes that travel beside `nbytes`, to fill whole tiles.
    carries: The operation that a `send` is part of; else that of `op`.
    trips: How often loops of known length run it, for each time that they are
      come to.
    loop: Number of the loop around it whose length is an argument, or None.
    between: What is scheduled between its start and its end. Nothing of all
      where the device waits for it. None if the end is not to be found.
  """

  op: str
  computation: str
  in_branch: bool
  in_loop: bool
  nbytes: int
  dtypes: tuple[str, ...]
  groups: tuple[tuple[int, ...], ...]
  result_nbytes: int = 0
  padding: int = 0
  carries: str = ''
  trips: int = 1
  loop: int | None = None
  between: _overlap.Between | None = _overlap.Between()

  def times(self, lengths: Sequence[int]) -> int:
    """Returns how often the program runs it, given its loops' lengths."""
    return self.trips * (1 if self.loop is None else lengths[self.loop])


def collectives(
  program: str | jax.stages.Compiled, lengths: Sequence[int] | None = None
) -> list[Collective]:
  """Lists the collective operations of a compiled program.

  Args:
    program: The compiled program, or its text.
    lengths: Lengths of the loops for which the text has none, in order. By
      default each runs once.

  Returns:
    One entry for each operation in the text, however often it runs.

  Raises:
    ValueError: If the program has no text, or other loops.

  Examples:
    >>> import jax, jax.numpy as jnp
    >>> program = jax.jit(jnp.sum).lower(jnp.ones(3)).compile()
    >>> collectives(program)
    []
  """
  text = program if isinstance(program, str) else program.as_text()
  if text is None:
    raise ValueError('`program` has no text: compile it for this platform.')
  parsed = _hlo.parse(text)
  loops = _open_loops(parsed)
  if lengths is not None and len(loops) != len(lengths):
    raise ValueError(
      f'`lengths` must have as many entries as the program has loops whose'
      f' length is an argument ({len(loops)}), got {len(lengths)}.'
    )
  known = {
    name: (number, 1 if lengths is None else lengths[number])
    for number, name in enumerate(loops)
  }
  callers = _hlo.callers(parsed)
  work = _overlap.counter(parsed, known)
  found, fused = [], {}
  for home, instructions in parsed.computations.items():
    by_name = {one.name: one for one in instructions}
    for index, one in enumerate(instructions):
      op = one.opcode.removesuffix('-start')
      if op not in OPERATIONS:
        continue
      # A fused operation stands in the text once for each part of it.
      chain = re.search(r'chain_id="(\d+)"', one.attributes)
      place = _overlap.place(home, index, parsed, callers)
      if chain:
        key = (chain[1], op, one.type.split('{')[0])
        if key in fused:
          number, first = fused[key]
          whole = _overlap.joined(first, place)
          fused[key] = number, whole
          found[number] = found[number]._replace(between=work(whole))
          continue
        fused[key] = len(found), place
      found.append(
        _collective(one, op, home, by_name, parsed)._replace(
          in_branch=_within(home, callers, _BRANCHES, every=True),
          in_loop=_within(home, callers, ('body', 'condition'), every=False),
          trips=_trips(home, callers, parsed),
          loop=_loop_around(home, callers, known),
          between=work(place),
        )
      )
  return found


def axes(collective: Collective, mesh: jax.sharding.Mesh) -> tuple[str, ...]:
  """Tells which axes of a mesh a collective crosses.

  Args:
    collective: A collective of a program that was compiled for the mesh.
    mesh: The mesh. Slices, if there are several, take turns along its
      outermost axes.

  Returns:
    The names, in the mesh's order, of the axes along which devices of one
    group differ. None of them if each group is a single device.

  Raises:
    ValueError: If the collective's groups are not known, or do not fit.
  """
  if not collective.groups:
    raise ValueError(
      f'`collective`: the text does not say which devices this'
      f' {collective.op} joins.'
    )
  flat = list(mesh.devices.flat)
  if collective.op == 'send':
    numbers = {device.id: number for number, device in enumerate(flat)}
  else:
    # With several slices, the program is that of one of them.
    own = [
      number
      for number, device in enumerate(flat)
      if replicas.slice_of(device) == replicas.slice_of(flat[0])
    ]
    numbers = dict(enumerate(own))
  named = {device for group in collective.groups for device in group}
  if unknown := named - set(numbers):
    raise ValueError(
      f'`mesh` has {mesh.size} devices, and the collective joins device'
      f' {max(unknown)}: pass the mesh that the program was compiled for.'
    )
  crossed = set()
  for group in collective.groups:
    places = np.unravel_index(
      [numbers[device] for device in group], mesh.devices.shape
    )
    crossed |= {
      name for name, place in zip(mesh.axis_names, places) if np.ptp(place)
    }
  return tuple(name for name in mesh.axis_names if name in crossed)


def _collective(one, op, home, by_name, program):
  # A send's other operand is a token, which has no bytes.
  operands = [by_name[name] for name in one.operands]
  sent = [array for each in operands for array in _hlo.arrays(each.type)]
  total = sum(nbytes for _, nbytes in sent)
  carries = op
  if op == 'send' and operands:
    kind = re.search(r'_xla_megascale_transfer_type="(\w+)"', one.attributes)
    carries = kind[1].lower().replace('_', '-') if kind else op
  nbytes = total
  if op == 'send' and operands:
    plain = _plain(operands[0], by_name)
    nbytes = min(total, sum(nbytes for _, nbytes in _hlo.arrays(plain.type)))
  result = _result(one, op, by_name)
  return Collective(
    op=op,
    computation=home,
    in_branch=False,
    in_loop=False,
    nbytes=nbytes,
    dtypes=tuple(dtype for dtype, _ in sent),
    groups=_hlo.groups(one, op, program),
    result_nbytes=sum(nbytes for _, nbytes in _hlo.arrays(result.type)),
    padding=total - nbytes,
    carries=carries,
  )


def _plain(one, by_name):
  """Returns what a message was before its last rows were filled up."""
  while one.operands and one.operands[0] in by_name:
    if one.opcode != 'bitcast' and not _FORMS.search(one.attributes):
      return one
    one = by_name[one.operands[0]]
  return one


def _result(one, op, by_name):
  """Returns the instruction whose type is that of the result."""
  done = 'recv-done' if op == 'send' else f'{op}-done'
  source = _overlap.partner(one, by_name.values()) if op == 'send' else one
  if one.opcode == op != 'send' or source is None:
    return one
  for other in by_name.values():
    if other.opcode == done and source.name in other.operands:
      return other
  return one


def _open_loops(program) -> list[str]:
  """Names the bodies of the entry's loops for which the text has no length."""
  return [
    name
    for one in program.computations.get(program.entry, ())
    if one.opcode == 'while' and _hlo.num_trips(one, program) is None
    for role, name in one.called
    if role == 'body'
  ]


def _within(name, callers, roles, *, every: bool) -> bool:
  """Tells whether every, or any, way to a computation has such a role."""
  paths = [
    role in roles or _within(home, callers, roles, every=every)
    for home, role in callers.get(name, [])
  ]
  return (all if every else any)(paths) if paths else False


def _chain_of(name, callers) -> Iterator[tuple[str, str, str]]:
  """Yields the callers of a computation up to the entry, along one way."""
  while callers.get(name):
    home, role = callers[name][0]
    yield home, role, name
    name = home


def _trips(name, callers, program) -> int:
  trips = 1
  for home, role, callee in _chain_of(name, callers):
    if role == 'body':
      for one in program.computations[home]:
        if (role, callee) in one.called:
          trips *= _hlo.num_trips(one, program) or 1
  return trips


def _loop_around(name, callers, known) -> int | None:
  for _, role, callee in _chain_of(name, callers):
    if role == 'body' and callee in known:
      return known[callee][0]
  return None
