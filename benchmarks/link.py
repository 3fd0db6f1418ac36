"""Bytes that really cross a link, and what a slow link costs in time.

    python -m benchmarks.link

Two or four processes, each on a host of its own (a network namespace), run the
same small training as one run. A row is a method.

Bytes are those that the hosts' network devices count, headers included, over
those that the ledger predicts for this number of replicas. What is no training
traffic (the start, the first sums, evaluation, the farewell) is the same in a
short run and in a long one, and is subtracted: both numbers are of the rounds
that the long one has more. What remains beside the messages are headers and
acknowledgements, under 1% with frames of 9,000 bytes; the losses, which every
process tells the others; a sign of life of each process per second; and what
is lost and sent again.

Time is that of an inner step, the median over rounds without the first two,
which compile; once on links that are shaped, and once in the same namespaces
on links as fast as the machine. The rate, by tc, limits what a host sends. The
delay is from one host to another, so that an answer takes twice as long: by
tc where the kernel has netem, else by a thread of this process, which needs
some of the processor. Shaped and plain runs take turns.

Skipped, with a reason, where there is no Linux, no root or no iproute2. The
exit status is 1 if a row is more than 5% off.
"""

import argparse
from collections.abc import Mapping, Sequence
import contextlib
import itertools
import math
import os
import pathlib
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from typing import Any, NamedTuple

import jax

from benchmarks import measuring
from benchmarks import network
from dilojax import _ledger
from dilojax import _overrides
from dilojax import build
from dilojax import launch
from dilojax import metrics
from dilojax import transforms
from dilojax import workdir

EVERY = 12  # Inner steps per round: three fragments take turns in it.
SHORT = 2  # Rounds of the short run.
TOLERANCE = 0.05
PORT = 1234  # On a host of its own, where all ports are free.


class Row(NamedTuple):
  """A method.

  Attributes:
    config: File of its config.
    fields: Fields that differ, as text.
    rounds: Rounds of the long run: enough for messages to be what is sent.
    is_default: Whether it is measured if no rows are named.
  """

  config: str
  fields: dict[str, str]
  rounds: int = 24
  is_default: bool = True


_SMALL = {
  'data': "{'corpus': 'digits', 'heldout_fraction': 0.1, 'non_iid': 0.0,"
  " 'batch_size': 64}",
  'model': "{'name': 'mlp', 'width': 640, 'num_layers': 4}",
  'inner.peak_lr': '1e-3',
  'inner.warmup_steps': '0',
  'log_every': str(EVERY),
  'eval_every': '1000000',
  'eval_sequences': '64',
  'checkpoint_every': '1000000',
}
_ROUNDS = {'every': str(EVERY), 'final_synchronization': 'false'}


def _streaming(wire: str, *, is_default: bool = True) -> Row:
  fields = {
    **_ROUNDS,
    'fragments': "{'by': 'bytes', 'num_fragments': 3}",
    'wire': f"{{{wire}, 'error_feedback': 0.0}}",
  }
  return Row('configs/streaming.py', fields, is_default=is_default)


_MEAN = "'gather': 'mean', 'result': 'message'"
_BLOCKS = "'block_size': 256, 'rounding': 'nearest'"
ROWS = {
  'data parallel': Row('configs/data_parallel.py', {}, rounds=6),
  'DiLoCo float32': Row('configs/diloco.py', _ROUNDS),
  'Streaming bfloat16': _streaming(f"'format': 'bfloat16', {_MEAN}"),
  'Streaming int8': _streaming(f"'format': 'int8', {_BLOCKS}, {_MEAN}"),
  'Streaming e3m0': _streaming(f"'format': 'e3m0', {_BLOCKS}, {_MEAN}"),
  'Streaming e3m0, all messages': _streaming(
    f"'format': 'e3m0', {_BLOCKS}, 'gather': 'messages'", is_default=False
  ),
  'NoLoCo': Row('configs/noloco.py', _ROUNDS, is_default=False),
}


class Ran(NamedTuple):
  """What a run has come to.

  Attributes:
    sent: Bytes that each host has sent.
    seconds: Seconds of an inner step, of each round but the first two.
    whole: Seconds of the whole command.
    delayed_by: What delayed frames, see :class:`benchmarks.network.Network`.
  """

  sent: list[int]
  seconds: list[float]
  whole: float
  delayed_by: str


def main() -> None:
  """Measures, and prints a table and a line of JSON."""
  args = parse_args()
  shape = network.Shape(args.rate, args.delay / 1e3)
  reason = network.missing(shape)
  if reason:
    print(f'Skipped: {reason}')
    return
  for number in (signal.SIGTERM, signal.SIGHUP):
    signal.signal(number, lambda number, frame: sys.exit(128 + number))
  jax.config.update('jax_num_cpu_devices', args.processes)
  load = os.getloadavg()[0]
  found: dict[str, Any] = {}
  delayed_by = ''
  for name in args.rows:
    short, long = EVERY * SHORT, EVERY * ROWS[name].rounds
    predicted = [
      predict(name, steps, args.processes) for steps in (short, long)
    ]
    before = run(name, short, args, shape)
    delayed_by = before.delayed_by
    slow, fast = [], []
    for _ in range(args.repeats):
      slow.append(run(name, long, args, shape))
      fast.append(run(name, long, args, None))
    found[name] = summary(predicted, before, slow, fast)
    print('  '.join(row(name, found[name])), file=sys.stderr, flush=True)
  measuring.show(
    ('row', 'MB predicted', 'counted', 'ratio', 'least', 'greatest', 'agrees')
    + ('ms a step', 'unshaped', 'ratio'),
    [row(name, one) for name, one in found.items()],
  )
  measuring.report(
    'link',
    rows=found,
    mtu=network.MTU,
    delayed_by=delayed_by,
    congestion_control=_congestion_control(),
    load_average=[load, os.getloadavg()[0]],
    settings=vars(args),
  )
  if not all(one['agrees'] for one in found.values()):
    sys.exit(1)


def fields(name: str, num_steps: int, num_processes: int) -> dict[str, str]:
  """Returns the fields of a row that are not those of its config's file."""
  return {
    **_SMALL,
    'num_steps': str(num_steps),
    'num_replicas': str(num_processes),
    **ROWS[name].fields,
  }


def predict(name: str, num_steps: int, num_processes: int) -> float:
  """Returns the bytes that a replica sends in a run, by the ledger."""
  given = fields(name, num_steps, num_processes)
  config = _overrides.load(ROWS[name].config, [*given.items()])
  setup = build.make(config)
  links = build.links(setup)
  return total(links, num_steps, num_processes, final=setup.final)


def total(
  links: Sequence[transforms.Link],
  num_steps: int,
  num_replicas: int,
  *,
  final: bool,
) -> float:
  """Returns the bytes that a replica puts on the network in some steps."""

  def messages(link):
    one = link._replace(nbytes=1)
    [ledger] = _ledger.advance(
      _ledger.start(1), [one], 1, num_steps, tokens_per_step=0, final=final
    )
    return ledger['bytes_sent']

  return math.fsum(
    messages(link) * _ledger.wire_bytes(link, num_replicas) for link in links
  )


def run(
  name: str,
  num_steps: int,
  args: argparse.Namespace,
  shape: network.Shape | None,
) -> Ran:
  """Trains on a network of its own, with a process on each host."""
  given = fields(name, num_steps, args.processes)
  hosts = range(args.processes)
  with contextlib.ExitStack() as stack:
    folder = pathlib.Path(stack.enter_context(tempfile.TemporaryDirectory()))
    opened = stack.enter_context(network.opened(args.processes, shape))
    command = (
      *(sys.executable, '-m', 'dilojax.cli', 'train'),
      *(f'--config={ROWS[name].config}', f'--workdir={folder}/run'),
      *(f'--config.{field}={value}' for field, value in given.items()),
    )
    begin = time.monotonic()
    running = [
      stack.enter_context(
        _started((*network.inside(opened, index), *command), args, index)
      )
      for index in hosts
    ]
    for index, process in enumerate(running):
      left = begin + args.limit - time.monotonic()
      try:
        _, said = process.communicate(timeout=max(0.0, left))
      except subprocess.TimeoutExpired:
        raise SystemExit(
          f'{name}: host {index} has not ended within `--limit`'
          f' ({args.limit:g} s).'
        ) from None
      if process.returncode:
        how = f'ended with status {process.returncode}'
        raise SystemExit(f'{name}: host {index} {how}.\n{said}')
    whole = time.monotonic() - begin
    records = metrics.read(folder / 'run' / workdir.METRICS)
    sent = [network.sent(opened, index) for index in hosts]
  return Ran(sent, step_seconds(records), whole, opened.delay)


def step_seconds(records: Sequence[metrics.Record]) -> list[float]:
  """Returns the seconds of a step, of each round but the first two."""
  rounds = [one for one in records if 'train/loss' in one][1:]
  return [
    (after['seconds'] - before['seconds']) / (after['step'] - before['step'])
    for before, after in itertools.pairwise(rounds)
  ]


def summary(
  predicted: Sequence[float],
  short: Ran,
  slow: Sequence[Ran],
  fast: Sequence[Ran],
) -> dict[str, Any]:
  """Compares what was counted with what was predicted, and the times.

  Args:
    predicted: Bytes of a replica in the short and in the long run.
    short: The short run, on shaped links.
    slow: Long runs on shaped links.
    fast: Long runs on links that are not.
  """
  want = predicted[1] - predicted[0]
  counted = [
    after - before
    for one in slow
    for before, after in zip(short.sent, one.sent)
  ]
  ratios = [nbytes / want for nbytes in counted]
  median = lambda runs: statistics.median(
    seconds for one in runs for seconds in one.seconds
  )
  return {
    'predicted_bytes': want,
    'counted_bytes': counted,
    'subtracted_bytes': [nbytes - predicted[0] for nbytes in short.sent],
    'counted_over_predicted': measuring.median_and_range(ratios),
    'agrees': all(abs(ratio - 1) <= TOLERANCE for ratio in ratios),
    'step_seconds': {'shaped': median(slow), 'unshaped': median(fast)},
    'shaped_over_unshaped': median(slow) / median(fast),
    'whole_seconds': {
      'shaped': [one.whole for one in slow],
      'unshaped': [one.whole for one in fast],
    },
  }


def row(name: str, found: Mapping[str, Any]) -> tuple[str, ...]:
  """Returns a row of the table."""
  ratios, seconds = found['counted_over_predicted'], found['step_seconds']
  counted = statistics.median(found['counted_bytes'])
  return (
    name,
    f'{found["predicted_bytes"] / 1e6:.2f}',
    f'{counted / 1e6:.2f}',
    *(f'{ratios[key]:.3f}' for key in ('median', 'min', 'max')),
    'yes' if found['agrees'] else 'NO',
    *(f'{1e3 * seconds[key]:.1f}' for key in ('shaped', 'unshaped')),
    f'{found["shaped_over_unshaped"]:.2f}',
  )


@contextlib.contextmanager
def _started(command, args, index):
  """Starts the process of a host, and leaves nothing of it."""
  environ = {
    **os.environ,
    'JAX_PLATFORMS': 'cpu',
    launch.COORDINATOR: f'{network.address(0)}:{PORT}',
    launch.NUM_PROCESSES: str(args.processes),
    launch.PROCESS_ID: str(index),
    launch.TIMEOUT: f'{args.timeout:g}',
  }
  with subprocess.Popen(
    command,
    env=environ,
    stdin=subprocess.DEVNULL,
    stdout=subprocess.DEVNULL,
    stderr=subprocess.PIPE,
    text=True,
    start_new_session=True,
  ) as process:
    try:
      yield process
    finally:
      with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)


def _congestion_control():
  path = pathlib.Path('/proc/sys/net/ipv4/tcp_congestion_control')
  return path.read_text().strip()


def parse_args() -> argparse.Namespace:
  """Reads the command line."""
  parser = argparse.ArgumentParser(
    description=__doc__.partition('\n')[0],
    formatter_class=argparse.ArgumentDefaultsHelpFormatter,
  )
  default = [name for name, one in ROWS.items() if one.is_default]
  parser.add_argument(
    '--processes', type=int, choices=(2, 4), default=2, help='hosts'
  )
  parser.add_argument('--rate', default='200mbit', help='in words of tc')
  parser.add_argument('--delay', type=float, default=20.0, help='milliseconds')
  parser.add_argument(
    '--rows', nargs='+', choices=ROWS, default=default, help='which'
  )
  parser.add_argument('--repeats', type=int, default=1, help='of long runs')
  parser.add_argument(
    '--timeout', type=float, default=120.0, help='seconds without a process'
  )
  parser.add_argument(
    '--limit', type=float, default=600.0, help='seconds of a whole run'
  )
  args = parser.parse_args()
  if args.repeats < 1 or args.delay < 0:
    parser.error('`--repeats` must be at least 1, `--delay` at least 0.')
  return args


if __name__ == '__main__':
  main()
