"""What a compiled program runs between an operation's start and its end."""

import functools
import re
from typing import NamedTuple

from dilojax import _hlo

# Libraries' names for products of matrices.
_PRODUCTS = re.compile(r'custom_call_target="[^"]*(?:gemm|matmul|dot)', re.I)


class Between(NamedTuple):
  """What is scheduled between the start of an operation and its end.

  Attributes:
    loops: Numbers of the loops among it whose lengths are arguments, counted
      through the program.
    steps: Number of times that these loops run.
    fusions: Number of fused computations, each time that they run.
    products: Number of products of matrices, each time that they run.
  """

  loops: tuple[int, ...] = ()
  steps: int = 0
  fusions: int = 0
  products: int = 0


class Place(NamedTuple):
  """Where a collective starts and ends in its computation's schedule."""

  home: str
  start: int
  end: int | None


def partner(send, instructions):
  """Returns the `recv` that belongs to a `send`."""
  name = _rendezvous(send)
  for other in instructions:
    if other.opcode == 'recv' and name and _rendezvous(other) == name:
      return other
  return None


def _rendezvous(one):
  match = re.search(r'_xla_host_transfer_rendezvous="([^"]*)"', one.attributes)
  return match and match[1]


def place(home, index, program, callers):
  """Finds where an operation starts, and where its result is waited for.

  In another computation if that is called by an asynchronous instruction.
  """
  instructions = program.computations[home]
  one = instructions[index]
  if one.opcode == 'send':
    return Place(home, index, _end_of_send(instructions, index))
  if one.opcode.endswith('-start'):
    return Place(home, index, _end(instructions, index))
  for above, role in callers.get(home, []):
    for number, caller in enumerate(program.computations[above]):
      if (role, home) in caller.called:
        if caller.opcode == 'async-start':
          end = _end(program.computations[above], number)
          return Place(above, number, end)
        if caller.opcode == 'fusion':
          return Place(above, number, number)
  return Place(home, index, index)


def _end(instructions, index):
  """Finds the end of what an asynchronous instruction starts."""
  names = {instructions[index].name}
  for number in range(index + 1, len(instructions)):
    one = instructions[number]
    if names & set(one.operands[:1]):
      if one.opcode.endswith('-done'):
        return number
      if one.opcode.endswith('-update'):
        names.add(one.name)
  return None


def _end_of_send(instructions, index):
  halves = [index]
  if recv := partner(instructions[index], instructions):
    halves.append(instructions.index(recv))
  ends = [_end(instructions, half) for half in halves]
  known = [end for end in ends if end is not None]
  return max(known) if len(known) == len(ends) else None


def joined(first, second):
  if first.home != second.home or None in (first.end, second.end):
    return first._replace(end=None)
  start, end = min(first.start, second.start), max(first.end, second.end)
  return first._replace(start=start, end=end)


def counter(program, known):
  """Returns the function that counts what runs between start and end."""

  @functools.cache
  def of_computation(name):
    return total(program.computations.get(name, ()))

  def of(one):
    if one.opcode == 'while':
      [body] = [name for role, name in one.called if role == 'body']
      number, length = known.get(
        body, (None, _hlo.num_trips(one, program) or 1)
      )
      inner = of_computation(body)
      times = Between(
        inner.loops,
        length * inner.steps,
        length * inner.fusions,
        length * inner.products,
      )
      if number is None:
        return times
      return times._replace(
        loops=(number, *times.loops), steps=length + times.steps
      )
    inner = total(())
    if one.opcode in ('fusion', 'call', 'conditional', 'async-start'):
      parts = [of_computation(name) for _, name in one.called]
      inner = _sum(parts)
    if one.opcode == 'fusion':
      return inner._replace(fusions=1)
    is_product = one.opcode in ('dot', 'convolution') or (
      one.opcode == 'custom-call' and _PRODUCTS.search(one.attributes)
    )
    return inner._replace(products=inner.products + bool(is_product))

  def total(instructions):
    return _sum([of(one) for one in instructions])

  def between(place):
    if place.end is None:
      return None
    return total(program.computations[place.home][place.start + 1 : place.end])

  return between


def _sum(parts):
  loops = tuple(loop for part in parts for loop in part.loops)
  rest = [sum(values) for values in zip(*(part[1:] for part in parts))]
  return Between(loops, *rest)
