"""How the processes of a run join, and end together."""

from collections.abc import Generator, Mapping
import contextlib
import math
import os
import sys
import threading
import traceback
from typing import Any, NamedTuple

import jax

from dilojax import _watch
from dilojax import launch
from dilojax import processes

_LOOPBACK = ('127.0.0.1', 'localhost')


class Address(NamedTuple):
  """How a process finds the others.

  Attributes:
    coordinator: Host and port where process 0 listens; None to detect all.
    num_processes: Number of processes.
    process_id: Number of this one, from 0.
    timeout: Longest time in seconds that a process waits for another.
    launcher: Number in the system of the process that started it, if they are
      to end together.
  """

  coordinator: str | None
  num_processes: int | None
  process_id: int | None
  timeout: float
  launcher: int | None = None


def address(
  environ: Mapping[str, str], *, detect: bool = False
) -> Address | None:
  """Reads how this process finds the others.

  Args:
    environ: Environment variables; `DILOJAX_COORDINATOR`,
      `DILOJAX_NUM_PROCESSES` and `DILOJAX_PROCESS_ID` count, all or none, and
      `DILOJAX_TIMEOUT` beside them.
    detect: Whether to ask the cluster where they are absent.

  Returns:
    The address, None for a process that is alone.

  Raises:
    ValueError: If some variables are missing, or no such numbers.

  Examples:
    >>> address({}) is None
    True
    >>> address({}, detect=True).timeout
    120.0
  """
  names = (launch.COORDINATOR, launch.NUM_PROCESSES, launch.PROCESS_ID)
  missing = [name for name in names if not environ.get(name)]
  timeout = _timeout(environ.get(launch.TIMEOUT) or launch.DEFAULT_TIMEOUT)
  if len(missing) == 3:
    return Address(None, None, None, timeout) if detect else None
  if missing:
    raise ValueError(
      f'`{missing[0]}` must be set, since others of {", ".join(names)} are.'
    )
  where, count, index = (environ[name] for name in names)
  if not count.isdecimal() or int(count) < 1:
    raise ValueError(f'`{names[1]}` must be at least 1, got {count!r}.')
  if not index.isdecimal() or int(index) >= int(count):
    raise ValueError(
      f'`{names[2]}` must be from 0 to {int(count) - 1}, got {index!r}.'
    )
  _, _, port = where.rpartition(':')
  if where.count(':') < 1 or not port.isdecimal():
    raise ValueError(f'`{names[0]}` must be HOST:PORT, got {where!r}.')
  launcher = environ.get(launch.LAUNCHER)
  if launcher and not launcher.isdecimal():
    raise ValueError(
      f'`{launch.LAUNCHER}` must be the number of a process, got {launcher!r}.'
    )
  parent = int(launcher) if launcher else None
  return Address(where, int(count), int(index), timeout, parent)


@contextlib.contextmanager
def joined(found: Address | None) -> Generator[int]:
  """Joins the processes of a run, which then end together.

  A process that fails alone, is killed, is stopped, or lags behind the others
  by more than the time-out ends all: each says why on stderr, and exits at
  once with a status that is not 0. What all raise together, an error of the
  class :class:`dilojax.processes.Agreed`, passes.

  Args:
    found: What :func:`address` returned.

  Yields:
    The number of this process, 0 if it is alone.

  Raises:
    ValueError: If no cluster is there to be detected.
  """
  if found is None or found.num_processes == 1:
    yield 0
    return
  client = _connect(found)
  index = processes.index()
  watching = _watch.start(
    client, index, processes.count(), found.timeout, found.launcher
  )
  with _stdout_for_results():
    try:
      yield index
    except processes.Agreed:
      _leave(watching)
      raise
    except BaseException as error:
      # The others may wait in a collective for ever: no farewell.
      status = _status(error)
      if status == 1:
        traceback.print_exc()
      watching.fail(processes.text_of(error), status)
    else:
      _leave(watching)


def _connect(found):
  jax.config.update('jax_cpu_collectives_implementation', 'gloo')
  # Its handler would swallow the signals that stop a training.
  jax.config.update('jax_enable_preemption_service', False)
  timeout = math.ceil(found.timeout)
  where: dict[str, Any] = {}
  if found.coordinator is not None:
    where = {
      'coordinator_address': found.coordinator,
      'num_processes': found.num_processes,
      'process_id': found.process_id,
      'cluster_detection_method': 'deactivate',
    }
    if found.coordinator.rpartition(':')[0] in _LOOPBACK:
      where['coordinator_bind_address'] = found.coordinator
  # JAX ends a process without a word that a person can use, so it must come
  # last: it may miss a heartbeat half of its time-out after the one before.
  late = lambda: _watch.end(
    f'not all processes came within {found.timeout:g} s. See what the others'
    ' say, or allow more time.'
  )
  timer = threading.Timer(found.timeout, late)
  timer.daemon = True
  timer.start()
  try:
    jax.distributed.initialize(
      **where,
      initialization_timeout=2 * timeout,
      heartbeat_timeout_seconds=3 * timeout,
      shutdown_timeout_seconds=timeout,
    )
  except (ValueError, RuntimeError) as error:
    raise ValueError(
      f'the processes cannot be joined: {error} Start them with'
      ' scripts/launch_local or scripts/slurm.sbatch, or leave --distributed'
      ' out.'
    ) from error
  finally:
    timer.cancel()
  return processes.client()


def _leave(watching):
  processes.exchange('', 'the end')
  watching.stop()
  jax.distributed.shutdown()


@contextlib.contextmanager
def _stdout_for_results():
  """Sends to stderr what libraries print, such as gloo, below Python."""
  try:
    is_plain = sys.stdout.fileno() == 1
  except (OSError, ValueError):
    is_plain = False  # In a notebook.
  if not is_plain:
    yield
    return
  sys.stdout.flush()
  results = os.dup(1)
  os.dup2(2, 1)
  try:
    with (
      open(results, 'w', closefd=False) as stream,
      contextlib.redirect_stdout(stream),
    ):
      yield
  finally:
    os.dup2(results, 1)
    os.close(results)


def _status(error):
  if isinstance(error, SystemExit):
    return error.code if isinstance(error.code, int) else 1
  if isinstance(error, KeyboardInterrupt):
    return 130
  return 2 if isinstance(error, ValueError | ImportError | OSError) else 1


def _timeout(value):
  try:
    timeout = float(value)
  except ValueError:
    timeout = math.nan
  if not 1 <= timeout < math.inf:
    raise ValueError(
      f'`{launch.TIMEOUT}` must be a number of seconds, at least 1, got'
      f' {value!r}.'
    )
  return timeout
