"""What a compiled program communicates, read from its text."""

from collections.abc import Iterator
import math
import re
from typing import NamedTuple

import jax
import numpy as np

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

# A type may hold parentheses, as in {0:T(8,128)}, but none after a small name.
_INSTRUCTION = re.compile(
  r'\s+(?:ROOT )?%?(?P<name>[\w.-]+) = '
  r'(?P<type>.*?) (?P<opcode>[a-z][\w-]*)\((?P<rest>.*)'
)
_HEADER = re.compile(r'(?:ENTRY )?%?([\w.-]+) (?:\(.*)?{$')
_CALLED = re.compile(
  r'(branch_computations|called_computations|calls|true_computation'
  r'|false_computation|body|condition|to_apply)=(?:{(.*?)}|%?([\w.-]+))'
)
_BRANCHES = ('branch_computations', 'true_computation', 'false_computation')


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
      through the mesh. The pairs of a permutation are groups of two; empty
      where the text does not say.
  """

  op: str
  computation: str
  in_branch: bool
  in_loop: bool
  nbytes: int
  dtypes: tuple[str, ...]
  groups: tuple[tuple[int, ...], ...]


class _Instruction(NamedTuple):
  name: str
  type: str
  opcode: str
  operands: tuple[str, ...]
  attributes: str


def collectives(program: str | jax.stages.Compiled) -> list[Collective]:
  """Lists the collective operations of a compiled program.

  Args:
    program: The compiled program, or its text.

  Returns:
    One entry for each operation in the text, however often it runs.

  Examples:
    >>> import jax, jax.numpy as jnp
    >>> program = jax.jit(jnp.sum).lower(jnp.ones(3)).compile()
    >>> collectives(program)
    []
  """
  text = program if isinstance(program, str) else program.as_text()
  if text is None:
    raise ValueError('`program` has no text: compile it for this platform.')
  computations = _computations(text)
  callers = _callers(computations)
  found = []
  for home, instructions in computations.items():
    types = {one.name: one.type for one in instructions}
    for one in instructions:
      op = one.opcode.removesuffix('-start')
      if op not in OPERATIONS:
        continue
      # A send's other operand is a token, which has no bytes.
      arrays = [
        array for name in one.operands for array in _arrays(types[name])
      ]
      found.append(
        Collective(
          op,
          home,
          _within(home, callers, _BRANCHES, every=True),
          _within(home, callers, ('body', 'condition'), every=False),
          sum(nbytes for _, nbytes in arrays),
          tuple(dtype for dtype, _ in arrays),
          _groups(op, one.attributes, text),
        )
      )
  return found


def axes(collective: Collective, mesh: jax.sharding.Mesh) -> tuple[str, ...]:
  """Tells which axes of a mesh a collective crosses.

  Args:
    collective: A collective of a program that was compiled for the mesh.
    mesh: The mesh.

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
  greatest = max(max(group) for group in collective.groups)
  if greatest >= mesh.size:
    raise ValueError(
      f'`mesh` has {mesh.size} devices, and the collective joins device'
      f' {greatest}: pass the mesh that the program was compiled for.'
    )
  crossed = set()
  for group in collective.groups:
    places = np.unravel_index(group, mesh.devices.shape)
    crossed |= {
      name for name, place in zip(mesh.axis_names, places) if np.ptp(place)
    }
  return tuple(name for name in mesh.axis_names if name in crossed)


def _computations(text: str) -> dict[str, list[_Instruction]]:
  computations: dict[str, list[_Instruction]] = {}
  home: list[_Instruction] = []
  for line in text.splitlines():
    if line.startswith(('HloModule', '}')):
      continue
    if match := _HEADER.match(line):
      home = computations.setdefault(match[1], [])
    elif match := _INSTRUCTION.match(line):
      inside, attributes = _split_call(match['rest'])
      operands = tuple(re.findall(r'%([\w.-]+)', inside))
      home.append(
        _Instruction(
          match['name'], match['type'], match['opcode'], operands, attributes
        )
      )
  return computations


def _split_call(rest: str) -> tuple[str, str]:
  """Splits what follows an opening parenthesis where that is closed."""
  depth = 1
  for number, character in enumerate(rest):
    depth += (character == '(') - (character == ')')
    if not depth:
      return rest[:number], rest[number + 1 :]
  return rest, ''


def _callers(computations: dict) -> dict[str, list[tuple[str, str]]]:
  """Returns who calls each computation, and as what."""
  callers: dict[str, list[tuple[str, str]]] = {}
  for home, instructions in computations.items():
    for one in instructions:
      for role, several, single in _CALLED.findall(one.attributes):
        for name in re.findall(r'[\w.-]+', several or single):
          callers.setdefault(name, []).append((home, role))
  return callers


def _within(name, callers, roles, *, every: bool) -> bool:
  """Tells whether every, or any, way to a computation has such a role."""
  paths = [
    role in roles or _within(home, callers, roles, every=every)
    for home, role in callers.get(name, [])
  ]
  return (all if every else any)(paths) if paths else False


def _arrays(type_text: str) -> Iterator[tuple[str, int]]:
  """Yields type and bytes of the arrays in a type."""
  for dtype, shape in re.findall(r'\b([a-z]\w*)\[([\d,<=]*)\]', type_text):
    lengths = [int(length) for length in re.findall(r'\d+', shape)]
    digits = re.search(r'\d+', dtype)
    bits = 8 if dtype == 'pred' else int(digits[0]) if digits else 0
    if bits:
      yield dtype, math.ceil(math.prod(lengths) * bits / 8)


def _groups(op: str, attributes: str, text: str) -> tuple[tuple[int, ...], ...]:
  count = lambda name: int((re.search(rf'{name}=(\d+)', text) or ('', 1))[1])
  partitions = count('num_partitions')
  if op == 'send':
    return ()
  if match := re.search(r'(?:replica_groups|pairs)={({.*?})}', attributes):
    groups = _listed(match[1])
  elif match := re.search(
    r'replica_groups=\[([\d,]+)\]<=\[([\d,]+)\](?:T\(([\d,]+)\))?', attributes
  ):
    shape, dims, order = (_ints(part or '') for part in match.groups())
    numbers = np.arange(math.prod(dims)).reshape(dims)
    groups = _rows(numbers.transpose(order or None).reshape(shape))
  elif match := re.search(
    r'replica_groups=mesh\[(.*?)\](, device_ids=.*?)? {(.*?)}', attributes
  ):
    groups = _along(*match.groups())
  else:
    return (tuple(range(partitions * count('replica_count'))),)
  if (
    'channel_id' in attributes
    and 'use_global_device_ids=true' not in attributes
    and op in ('all-reduce', 'all-gather', 'reduce-scatter')
  ):
    # The numbers are those of XLA's replicas; all their partitions take part.
    groups = tuple(
      tuple(
        one * partitions + part for one in group for part in range(partitions)
      )
      for group in groups
    )
  return groups


def _listed(text: str) -> tuple[tuple[int, ...], ...]:
  return tuple(_ints(group) for group in re.findall(r'{(.*?)}', text))


def _along(names: str, devices: str | None, crossed: str):
  """Returns the groups along axes of a mesh, given in XLA's words.

  An axis may be a part of one: 'x':(2)4 is the part of 4 if x is split into
  2, 4 and the rest, the slowest first.
  """
  sizes = dict(re.findall(r"'?([^',=]+)'?=(\d+)", names))
  parts: dict[str, list[tuple[int, int]]] = {}
  for name, before, size in re.findall(
    r"'?([^',:{}]+)'?(?::\((\d+)\)(\d+))?", crossed
  ):
    part = (int(before), int(size)) if size else (1, int(sizes[name]))
    parts.setdefault(name, []).append(part)
  # Every axis in small steps, so that each is either crossed or not.
  shape, is_crossed = [], []
  for name, size in sizes.items():
    done = 1
    for before, length in sorted(parts.get(name, [])):
      shape += [before // done, length]
      is_crossed += [False, True]
      done = before * length
    shape.append(int(size) // done)
    is_crossed.append(False)
  numbers = np.array(_ints(devices)) if devices else np.arange(math.prod(shape))
  order = sorted(range(len(shape)), key=lambda axis: is_crossed[axis])
  length = math.prod(size for size, does in zip(shape, is_crossed) if does)
  return _rows(numbers.reshape(shape).transpose(order).reshape(-1, length))


def _rows(numbers: np.ndarray) -> tuple[tuple[int, ...], ...]:
  return tuple(tuple(map(int, row)) for row in numbers)


def _ints(text: str) -> tuple[int, ...]:
  return tuple(map(int, re.findall(r'\d+', text)))
