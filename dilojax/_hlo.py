"""Compiled programs, read from their text: instructions, loops, groups."""

from collections.abc import Iterator
import functools
import math
import re
from typing import NamedTuple

import numpy as np

# A type may hold parentheses, as in {0:T(8,128)}, but none after a small name.
_INSTRUCTION = re.compile(
  r'\s+(?:ROOT )?%?(?P<name>[\w.-]+) = '
  r'(?P<type>.*?) (?P<opcode>[a-z][\w-]*)\((?P<rest>.*)'
)
_HEADER = re.compile(r'(ENTRY )?%?([\w.-]+) (?:\(.*)?{$')
_CALLED = re.compile(
  r'(branch_computations|called_computations|calls|true_computation'
  r'|false_computation|body|condition|to_apply)=(?:{(.*?)}|%?([\w.-]+))'
)
_TRIPS = re.compile(r'known_trip_count"?:\{"?n"?:"?(\d+)')
# Between slices a device's id is the slice's number times this, plus its own.
_IDS_PER_SLICE = 100_000


class Instruction(NamedTuple):
  """An instruction of a computation.

  Attributes:
    name: Its name.
    type: Type of its result, as written.
    opcode: What it does, such as `all-reduce-start`.
    operands: Names of the operands.
    attributes: What follows the operands, as written.
    literal: Value of a constant, as written; else empty.
  """

  name: str
  type: str
  opcode: str
  operands: tuple[str, ...]
  attributes: str
  literal: str = ''

  @property
  def called(self) -> tuple[tuple[str, str], ...]:
    """Computations that it calls, each with its role."""
    return tuple(
      (role, name)
      for role, several, single in _CALLED.findall(self.attributes)
      for name in re.findall(r'[\w.-]+', several or single)
    )


class Program(NamedTuple):
  """A compiled program.

  Attributes:
    computations: Instructions of each computation. In a scheduled program
      their order is the order in which they run.
    entry: Name of the computation that is the program, or None.
    num_partitions: Number of devices that share the work of a replica, in
      XLA's sense of the word.
    num_replicas: Number of replicas in XLA's sense of the word.
  """

  computations: dict[str, list[Instruction]]
  entry: str | None
  num_partitions: int
  num_replicas: int


@functools.lru_cache(maxsize=2)
def parse(text: str) -> Program:
  """Reads the text of a compiled program."""
  computations: dict[str, list[Instruction]] = {}
  home: list[Instruction] = []
  entry, head = None, ''
  for line in text.splitlines():
    if line.startswith('HloModule'):
      head = line
    elif line.startswith('}'):
      continue
    elif match := _HEADER.match(line):
      home = computations.setdefault(match[2], [])
      entry = match[2] if match[1] else entry
    elif match := _INSTRUCTION.match(line):
      inside, attributes = _split_call(match['rest'])
      operands = tuple(re.findall(r'%([\w.-]+)', inside))
      literal = inside if match['opcode'] == 'constant' else ''
      home.append(
        Instruction(
          match['name'],
          match['type'],
          match['opcode'],
          operands,
          attributes,
          literal,
        )
      )
  count = lambda name: int((re.search(rf'{name}=(\d+)', head) or ('', 1))[1])
  return Program(
    computations, entry, count('num_partitions'), count('replica_count')
  )


def callers(program: Program) -> dict[str, list[tuple[str, str]]]:
  """Returns who calls each computation, and as what."""
  found: dict[str, list[tuple[str, str]]] = {}
  for home, instructions in program.computations.items():
    for one in instructions:
      for role, name in one.called:
        found.setdefault(name, []).append((home, role))
  return found


def num_trips(loop: Instruction, program: Program) -> int | None:
  """Returns how often a loop runs, or None if that is an argument."""
  if match := _TRIPS.search(loop.attributes):
    return int(match[1])
  # TPUs' programs say so in the condition alone: counter < constant.
  for role, name in loop.called:
    condition = program.computations.get(name, ())
    literals = {one.name: one.literal for one in condition if one.literal}
    for one in condition:
      if role == 'condition' and 'direction=LT' in one.attributes:
        bounds = [literals[name] for name in one.operands if name in literals]
        if len(bounds) == 1 and bounds[0].isdigit():
          return int(bounds[0])
  return None


def arrays(type_text: str) -> Iterator[tuple[str, int]]:
  """Yields type and bytes of the arrays in a type."""
  for dtype, shape in re.findall(r'\b([a-z]\w*)\[([\d,<=]*)\]', type_text):
    lengths = [int(length) for length in re.findall(r'\d+', shape)]
    digits = re.search(r'\d+', dtype)
    bits = 8 if dtype == 'pred' else int(digits[0]) if digits else 0
    if bits:
      yield dtype, math.ceil(math.prod(lengths) * bits / 8)


def groups(
  one: Instruction, op: str, program: Program
) -> tuple[tuple[int, ...], ...]:
  """Returns the devices that a collective joins, by group.

  Args:
    one: The instruction.
    op: The operation, without `-start`.
    program: The program that it is part of.

  Returns:
    Numbers of devices, counted through the mesh; of a `send`, ids of devices.
    The pairs of a permutation are groups of two. Empty where the text does
    not say.
  """
  attributes, partitions = one.attributes, program.num_partitions
  if op == 'send':
    return _targets(attributes)
  if match := re.search(r'(?:replica_groups|pairs)={({.*?})}', attributes):
    found = _listed(match[1])
  elif match := re.search(
    r'replica_groups=\[([\d,]+)\]<=\[([\d,]+)\](?:T\(([\d,]+)\))?', attributes
  ):
    shape, dims, order = (_ints(part or '') for part in match.groups())
    numbers = np.arange(math.prod(dims)).reshape(dims)
    found = _rows(numbers.transpose(order or None).reshape(shape))
  elif match := re.search(
    r'replica_groups=mesh\[(.*?)\](, device_ids=.*?)? {(.*?)}', attributes
  ):
    found = _along(*match.groups())
  else:
    return (tuple(range(partitions * program.num_replicas)),)
  if (
    'channel_id' in attributes
    and 'use_global_device_ids=true' not in attributes
    and op in ('all-reduce', 'all-gather', 'reduce-scatter')
  ):
    # The numbers are those of XLA's replicas; all their partitions take part.
    found = tuple(
      tuple(
        one * partitions + part for one in group for part in range(partitions)
      )
      for group in found
    )
  return found


def _split_call(rest: str) -> tuple[str, str]:
  """Splits what follows an opening parenthesis where that is closed."""
  depth = 1
  for match in re.finditer(r'[()]', rest):
    depth += 1 if match[0] == '(' else -1
    if not depth:
      return rest[: match.start()], rest[match.end() :]
  return rest, ''


def _targets(attributes: str) -> tuple[tuple[int, ...], ...]:
  """Returns the devices that a message between slices joins."""
  match = re.search(
    r'_xla_megascale_target="?(?:{([\d,:]+)}x{([\d,:]+)}|({{.*?}}))',
    attributes,
  )
  if not match:
    return ()
  slices, within, listed = match.groups()
  if listed:
    return _listed(listed)
  return tuple(
    tuple(number * _IDS_PER_SLICE + device for number in _ranges(slices))
    for device in _ranges(within)
  )


def _ranges(text: str) -> list[int]:
  """Reads numbers and ranges of them, both ends included: 0,2:4."""
  ends = (_ints(part) for part in text.split(','))
  return [
    n for first, *last in ends for n in range(first, [first, *last][-1] + 1)
  ]


def _listed(text: str) -> tuple[tuple[int, ...], ...]:
  return tuple(_ints(group) for group in re.findall(r'{([^{}]*)}', text))


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
