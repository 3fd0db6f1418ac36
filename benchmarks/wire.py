"""Gigabytes a second that one core encodes and decodes in each wire format.

    python -m benchmarks.wire

Encoding and decoding are a program each, as they are with a collective in
between. Bytes are those of the float32 values, however few travel. Formats take
turns, so that other work on the machine meets all. Rates are per second of this
process on its core, and beside them per second on the clock: the two differ as
far as other processes had the core meanwhile. A copy, which reads and writes
the values once, says what the memory gives. Both write where they wrote before,
as a compiled program does: new memory would cost more than the decoding.
"""

import argparse
import math
import os
import statistics
import time

import jax
import jax.numpy as jnp

from benchmarks import measuring
from dilojax import wire

FORMATS = {
  'float32': wire.float32(),
  'bfloat16': wire.bfloat16(),
  'float16': wire.float16(),
  'float8': wire.float8(),
  'int8': wire.int8(),
  'int8 stochastic': wire.int8(rounding='stochastic'),
  'int8 codebook': wire.int8(levels='codebook'),
  'int4': wire.int4(),
  'int4 stochastic': wire.int4(rounding='stochastic'),
  'e3m0': wire.e3m0(),
  'e3m0 stochastic': wire.e3m0(rounding='stochastic'),
  'statistical, 2 bits': wire.statistical(),
  'statistical, 4 bits': wire.statistical(4),
  'sign': wire.sign(),
  'top_k 1/64': wire.top_k(1 / 64),
  'top_k 1/64 of int8': wire.top_k(1 / 64, values='int8'),
  'random_subset 1/64': wire.random_subset(1 / 64),
}
COPY = 'copy'


def main() -> None:
  """Measures, and prints a table and a line of JSON."""
  args = parse_args()
  # Before the first computation, since threads inherit it.
  os.sched_setaffinity(0, {args.core})
  load = os.getloadavg()[0]
  x = jax.random.normal(jax.random.key(0), (args.values,))
  programs, facts = {}, {}
  for name in args.formats:
    encode, decode, facts[name] = prepare(FORMATS[name], x)
    programs |= {(name, 'encode'): encode, (name, 'decode'): decode}
  programs[COPY, 'copy'] = in_place(lambda x: x + 1, x)

  found = measure(programs, args.repeats)
  gigabytes = x.nbytes / 1e9
  rates = {}
  for name in (COPY, *args.formats):
    parts = [part for other, part in programs if other == name]
    columns = zip(*(found[name, part] for part in parts))
    spent = [tuple(map(math.fsum, zip(*one))) for one in columns]
    rate = lambda which, spent=spent: measuring.median_and_range(
      [gigabytes / one[which] for one in spent]
    )
    rates[name] = {'cpu': rate(0), 'wall': rate(1)}
    for part in parts:
      median = statistics.median(cpu for cpu, _ in found[name, part])
      rates[name][part] = gigabytes / median
  measuring.show(
    ('format', 'bytes/value', 'error', 'encode', 'decode', 'both GB/s')
    + ('least', 'greatest', 'by the clock'),
    [row(name, rates[name], facts.get(name)) for name in rates],
  )
  measuring.report(
    'wire',
    gigabytes_per_s=rates,
    formats=facts,
    load_average=[load, os.getloadavg()[0]],
    settings=vars(args),
  )


def prepare(codec, x):
  """Returns functions that encode and decode, and facts of the format."""
  key = jax.random.key(1)
  encode = jax.jit(lambda x: codec.encode(x, key))
  message = encode(x)
  decode = in_place(lambda _, sent: codec.decode(sent, x.shape), x, message)
  error = jnp.linalg.norm(decode() - x) / jnp.linalg.norm(x)
  facts = {
    'bytes_per_value': codec.nbytes(x.shape) / x.size,
    'relative_error': float(error),
  }
  return lambda: encode(x), decode, facts


def in_place(fn, x, *rest):
  """Returns a function that puts values where it put the last ones."""
  program = jax.jit(fn, donate_argnums=0, keep_unused=True)
  held = [x + 0]

  def run():
    held[0] = program(held[0], *rest)
    return held[0]

  return run


def measure(programs, repeats):
  """Returns the seconds of this process, and of the clock, of each repeat."""
  for program in programs.values():
    jax.block_until_ready(program())
  found = {name: [] for name in programs}
  for _ in range(repeats):
    for name, program in programs.items():
      begin = time.process_time()
      wall = measuring.seconds(program)
      found[name].append((time.process_time() - begin, wall))
  return found


def row(name, rates, facts):
  """Returns a row of the table."""
  known = facts or {'bytes_per_value': 4.0, 'relative_error': 0.0}
  part = lambda key: f'{rates[key]:.2f}' if key in rates else ''
  return (
    name,
    f'{known["bytes_per_value"]:.4f}',
    f'{known["relative_error"]:.4f}',
    part('encode'),
    part('decode'),
    *(f'{rates["cpu"][key]:.2f}' for key in ('median', 'min', 'max')),
    f'{rates["wall"]["median"]:.2f}',
  )


def parse_args() -> argparse.Namespace:
  """Reads the command line."""
  parser = argparse.ArgumentParser(
    description=__doc__.partition('\n')[0],
    formatter_class=argparse.ArgumentDefaultsHelpFormatter,
  )
  parser.add_argument(
    '--values', type=int, default=1 << 22, help='values to encode'
  )
  parser.add_argument(
    '--formats', nargs='+', choices=FORMATS, default=[*FORMATS], help='which'
  )
  parser.add_argument('--core', type=int, default=0, help='core to run on')
  parser.add_argument('--repeats', type=int, default=9, help='at least 5')
  return parser.parse_args()


if __name__ == '__main__':
  main()
