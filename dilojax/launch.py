"""Several processes of one run on this machine, started and ended together."""

import argparse
from collections.abc import Callable, Mapping, Sequence
import contextlib
import os
import queue
import signal
import socket
import subprocess
import sys
import threading
from typing import Any, NamedTuple, TextIO

# No imports from the package, and with them of jax: this file starts alone.
COORDINATOR = 'DILOJAX_COORDINATOR'
NUM_PROCESSES = 'DILOJAX_NUM_PROCESSES'
PROCESS_ID = 'DILOJAX_PROCESS_ID'
TIMEOUT = 'DILOJAX_TIMEOUT'
LAUNCHER = 'DILOJAX_LAUNCHER'

DEFAULT_TIMEOUT = 120.0
# What a process has left, once another has ended, to end by itself.
GRACE = 5.0

_HELP = """\
Starts N processes of a training on this machine, joined by jax.distributed.

On a CPU they share the cores, on GPUs each gets an equal part of them. What
process 0 prints is shown as it is, and what the others write to stderr with
their number in front. SIGINT and SIGTERM reach all.

When a process fails, is killed, or is stuck, all end: at once where the others
can know it, else after the time-out. The same command goes on from the newest
checkpoint. The exit status is that of the first process that ended otherwise
than well, 128 plus the number of the signal if one killed it.

  scripts/launch_local -n 2 -- dilojax train --config=configs/diloco.py \\
    --workdir=runs/diloco
"""


class Ended(NamedTuple):
  """A process that has ended.

  Attributes:
    index: Its number.
    status: As of :class:`subprocess.Popen`, below 0 for a signal.
  """

  index: int
  status: int


def main(argv: Sequence[str] | None = None) -> int:
  """Runs the command line, and returns the exit status."""
  parser = argparse.ArgumentParser(
    prog='launch_local',
    usage='%(prog)s -n N [--timeout S] -- COMMAND...',
    description=_HELP,
    formatter_class=argparse.RawDescriptionHelpFormatter,
    allow_abbrev=False,
  )
  parser.add_argument(
    '-n', type=int, required=True, metavar='N', help='number of processes'
  )
  parser.add_argument(
    '--timeout',
    type=float,
    default=DEFAULT_TIMEOUT,
    metavar='S',
    help='seconds for which a process may be silent, or behind the others,'
    f' before all end (default {DEFAULT_TIMEOUT:g})',
  )
  parser.add_argument('command', nargs='*', metavar='COMMAND')
  args = parser.parse_args(argv)
  try:
    return launch(args.command, args.n, timeout=args.timeout)
  except (ValueError, OSError) as error:
    print(f'launch_local: error: {error}', file=sys.stderr)
    return 2


def launch(
  command: Sequence[str],
  num_processes: int,
  *,
  timeout: float = DEFAULT_TIMEOUT,
  stderr: TextIO | None = None,
) -> int:
  """Runs a command in several processes.

  Args:
    command: The command and its arguments.
    num_processes: Number of processes.
    timeout: Seconds for which a process may be silent, or behind the others.
    stderr: Where messages go, and what other processes than 0 write.

  Returns:
    0 if all ended well, else the status of the first that did not, 128 plus
    the number of the signal if one ended it.

  Raises:
    ValueError: If an argument is out of range, or the GPUs cannot be shared.
    OSError: If the command cannot be started.
  """
  if num_processes < 1:
    raise ValueError(f'`-n` must be at least 1, got {num_processes}.')
  if not 1 <= timeout < float('inf'):
    raise ValueError(
      f'`--timeout` must be a number of seconds, at least 1, got {timeout:g}.'
    )
  if not command:
    raise ValueError('`COMMAND` is missing: it follows after --.')
  devices = share_gpus(num_processes, num_gpus(os.environ))
  stderr = sys.stderr if stderr is None else stderr
  events: queue.SimpleQueue = queue.SimpleQueue()
  # SIGHUP, too: a terminal that closes takes the processes with it.
  numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
  with _signals_to(events.put, numbers), contextlib.ExitStack() as stack:
    running: dict[int, subprocess.Popen] = {}
    showing: list[threading.Thread] = []
    stack.callback(lambda: _kill(running.values()))
    coordinator = f'127.0.0.1:{_free_port()}'
    for index in range(num_processes):
      environ = {
        **os.environ,
        COORDINATOR: coordinator,
        NUM_PROCESSES: str(num_processes),
        PROCESS_ID: str(index),
        TIMEOUT: str(timeout),
        LAUNCHER: str(os.getpid()),
        **devices[index],
      }
      running[index] = _start(command, index, environ)
      _in_thread(_wait, index, running[index], events.put)
      if index:
        lines = running[index].stderr
        showing.append(_in_thread(_show, lines, f'[{index}] ', stderr))
    status = _supervise(running, events, timeout, stderr)
    for thread in showing:
      thread.join(1.0)  # Not for ever: a child of a child may hold the pipe.
    return status


def num_gpus(environ: Mapping[str, str]) -> int:
  """Returns the number of NVIDIA GPUs that a process would use."""
  platforms = environ.get('JAX_PLATFORMS', '')
  if platforms and not {'cuda', 'gpu'} & set(platforms.split(',')):
    return 0
  if 'CUDA_VISIBLE_DEVICES' in environ:
    listed = environ['CUDA_VISIBLE_DEVICES'].split(',')
    return len([each for each in listed if each not in ('', '-1')])
  try:
    listed = subprocess.run(
      ['nvidia-smi', '--list-gpus'], capture_output=True, text=True, check=True
    )
  except (OSError, subprocess.CalledProcessError):
    return 0
  return len(listed.stdout.splitlines())


def share_gpus(num_processes: int, num_gpus: int) -> list[dict[str, str]]:
  """Returns the variables that give each process its GPUs.

  Raises:
    ValueError: If they cannot have equally many.

  Examples:
    >>> share_gpus(2, 4)
    [{'JAX_LOCAL_DEVICE_IDS': '0,1'}, {'JAX_LOCAL_DEVICE_IDS': '2,3'}]
  """
  if num_gpus % num_processes:
    raise ValueError(
      f'`-n` must divide the number of GPUs ({num_gpus}), got {num_processes}:'
      ' a GPU belongs to one process. JAX_PLATFORMS=cpu leaves GPUs alone.'
    )
  each = num_gpus // num_processes
  return [
    {'JAX_LOCAL_DEVICE_IDS': ','.join(map(str, range(first, first + each)))}
    if each and num_processes > 1
    else {}
    for first in range(0, num_processes * max(each, 1), max(each, 1))
  ]


def _supervise(running, events, timeout, stderr):
  """Waits for all processes, and ends those that others have left alone."""
  say = lambda text: print(f'launch_local: {text}', file=stderr, flush=True)
  first: Any = None
  patience, statuses = None, set()
  while running:
    try:
      event = events.get(timeout=patience)
    except queue.Empty:
      for index, process in running.items():
        say(_reason(index, process, first, patience))
      _kill(running.values())
      statuses.add(None)
      break
    if isinstance(event, Ended):
      del running[event.index]
      statuses.add(event.status)
      if event.status and (first is None or not first.status):
        first, patience = event, GRACE
      elif first is None:
        first, patience = event, timeout
    else:
      for process in running.values():
        _signal(process, event)
  if len(statuses) > 1:
    say(f'the first to end was process {first.index}: it {_how(first.status)}.')
  return _exit_status(first) or int(None in statuses)


def _reason(index, process, first, patience):
  state = ' had been stopped by a signal and' * _is_stopped(process)
  return (
    f'process {index}{state} had not ended {patience:g} s after process'
    f' {first.index} {_how(first.status)}: killed.'
  )


def _how(status):
  if status >= 0:
    return f'ended with status {status}'
  return f'was killed by {signal.Signals(-status).name}'


def _exit_status(ended):
  return ended.status if ended.status >= 0 else 128 - ended.status


def _start(command, index, environ):
  # In sessions of their own, so that Ctrl-C reaches them once, through here.
  is_shown: dict[str, Any] = {}
  if index:
    is_shown = {'stdout': subprocess.DEVNULL, 'stderr': subprocess.PIPE}
  return subprocess.Popen(
    command,
    env=environ,
    stdin=subprocess.DEVNULL,
    start_new_session=True,
    text=True,
    errors='replace',
    **is_shown,
  )


def _in_thread(target, *args):
  thread = threading.Thread(target=target, args=args, daemon=True)
  thread.start()
  return thread


def _show(lines, prefix, stderr):
  with lines:
    for line in lines:
      stderr.write(prefix + line.removesuffix('\n') + '\n')
      stderr.flush()


def _wait(index, process, tell: Callable[[Ended], None]):
  tell(Ended(index, process.wait()))


def _is_stopped(process):
  options = os.WSTOPPED | os.WNOHANG | os.WNOWAIT
  try:
    return os.waitid(os.P_PID, process.pid, options) is not None
  except ChildProcessError:
    return False


def _signal(process, number):
  with contextlib.suppress(ProcessLookupError):
    os.killpg(process.pid, number)


def _kill(processes):
  for process in processes:
    _signal(process, signal.SIGKILL)


@contextlib.contextmanager
def _signals_to(put, numbers):
  receive = lambda number, frame: put(number)
  previous = {number: signal.signal(number, receive) for number in numbers}
  try:
    yield
  finally:
    for number, handler in previous.items():
      signal.signal(number, handler)


def _free_port():
  with socket.socket() as found:
    found.bind(('127.0.0.1', 0))
    return found.getsockname()[1]


if __name__ == '__main__':
  sys.exit(main())
