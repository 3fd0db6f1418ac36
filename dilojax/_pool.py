"""Runs of a sweep in processes of this machine, a few at a time."""

from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
import contextlib
import fcntl
import itertools
import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from typing import Any, NamedTuple

from dilojax import _points
from dilojax import _shares
from dilojax import workdir

LOG = 'log.txt'
STOPPED = 'stopped'  # The reason of what a signal has ended.
CLAIM = '.sweep'
# Between two looks at the processes, and at the points of another sweep.
POLL_SECONDS, LOOK_SECONDS = 0.05, 1.0


class Ended(NamedTuple):
  """A point that has come to an end in this sweep.

  Attributes:
    point: The point.
    reason: Why it has no result, None if it has.
    seconds: How long it ran here, 0 if another sweep ran it.
  """

  point: _points.Point
  reason: str | None
  seconds: float


class Running(NamedTuple):
  """A point that runs.

  Attributes:
    point: The point.
    process: Its process, None if it runs elsewhere.
    claim: The locked file that makes it this sweep's.
    log_begin: Where the log of this process begins.
    began: When it began, by `time.monotonic`.
    begun_at: Steps that it had taken by then.
  """

  point: _points.Point
  process: Any
  claim: Any
  log_begin: int
  began: float
  begun_at: int


class Events(NamedTuple):
  """What the caller is told.

  Attributes:
    start: Takes a point that begins.
    away: Takes a point that another sweep has, once.
    end: Takes what has ended.
    look: Takes, about once a second, what runs.
  """

  start: Callable[[_points.Point], None]
  away: Callable[[_points.Point], None]
  end: Callable[[Ended], None]
  look: Callable[[Sequence[Running]], None]


class Stopped(RuntimeError):
  """A signal ended the sweep; what ran is saved."""


def run(
  points: Iterable[_points.Point],
  shares: Sequence[_shares.Share],
  environ: Mapping[str, str],
  events: Events,
) -> None:
  """Runs points, each as `dilojax train` would, until none is left.

  A point belongs to the sweep that has the lock of its folder; one that
  another sweep has is waited for, and taken over if that one ends early. The
  process of a point holds the lock, too: if this one is killed, another sweep
  begins the point only once its process has ended.

  Args:
    points: The points. The next is taken when a share is free.
    shares: What each of those that run at a time may use.
    environ: Environment variables of them all.
    events: Who is told.

  Raises:
    Stopped: If SIGINT, SIGTERM or SIGHUP came. All have saved their states
      then; a second signal kills them instead.
  """
  waiting, again = iter(points), iter([])
  elsewhere: list[_points.Point] = []
  running: dict[int, Running] = {}
  told: set[str] = set()
  looked = 0.0
  with signals() as received, contextlib.ExitStack() as stack:
    stack.callback(lambda: _kill(running.values()))
    while not received:
      for slot in [n for n in range(len(shares)) if n not in running]:
        upcoming = itertools.chain(waiting, again)
        started = _next(upcoming, elsewhere, shares[slot], environ, events)
        if started is None:
          break
        running[slot] = started
      if not running and not elsewhere:
        return
      for point in elsewhere:
        if point.name not in told:
          told.add(point.name)
          events.away(point)
      if time.monotonic() >= looked + LOOK_SECONDS:
        looked = time.monotonic()
        events.look(list(running.values()))
        again = iter([*again, *elsewhere])
        elsewhere.clear()
      time.sleep(POLL_SECONDS)
      _collect(running, events)
    for each in running.values():
      each.process.terminate()
    while running and len(received) == 1:
      time.sleep(POLL_SECONDS)
      _collect(running, events, STOPPED)
  raise Stopped('Stopped. The same command goes on.')


def start(
  argv: Sequence[str],
  share: _shares.Share,
  environ: Mapping[str, str],
  **kwargs,
) -> Any:
  """Starts a command of :mod:`dilojax._child` on a share of the machine.

  In a session of its own: Ctrl-C reaches it once, through this process.
  """
  command = [sys.executable, '-m', 'dilojax._child', *argv]
  with _on(share.cores):
    return subprocess.Popen(
      command,
      env={**environ, **share.environ},
      stdin=subprocess.PIPE,
      start_new_session=True,
      **kwargs,
    )


@contextlib.contextmanager
def signals() -> Generator[list[int]]:
  """Collects the signals that ask to stop, in a list."""
  received: list[int] = []
  if threading.current_thread() is not threading.main_thread():
    yield received
    return
  numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
  receive = lambda number, frame: received.append(number)
  previous = {number: signal.signal(number, receive) for number in numbers}
  try:
    yield received
  finally:
    for number, handler in previous.items():
      signal.signal(number, handler)


def how(status: int) -> str:
  """Says how a process ended."""
  if status >= 0:
    return f'ended with status {status}'
  return f'was killed by {signal.Signals(-status).name}'


@contextlib.contextmanager
def _on(cores):
  """What is started in the body, with all its threads, has these cores."""
  if cores is None:
    yield
    return
  mine = os.sched_getaffinity(0)
  os.sched_setaffinity(0, cores)
  try:
    yield
  finally:
    os.sched_setaffinity(0, mine)


def _next(waiting, elsewhere, share, environ, events) -> Running | None:
  """Begins the next point that is to be begun here, if there is one."""
  for point in waiting:
    with contextlib.ExitStack() as stack:
      try:
        claim = claimed(point)
        if claim is None:
          elsewhere.append(point)
          continue
        stack.callback(claim.close)
        # Until the lock was ours, another sweep may have been here.
        _points.check_folder(point.folder, point.config)
        if _points.is_finished(point):
          events.end(Ended(point, None, 0.0))
          continue
        started = _begin(point, claim, share, environ)
      except (OSError, ValueError) as error:
        events.end(Ended(point, str(error), 0.0))
        continue
      stack.pop_all()
    events.start(point)
    return started
  return None


def claimed(point: _points.Point) -> Any:
  """Returns the locked file of a point's folder, None if another has it."""
  point.folder.mkdir(parents=True, exist_ok=True)
  claim = open(point.folder / CLAIM, 'a')
  try:
    fcntl.flock(claim, fcntl.LOCK_EX | fcntl.LOCK_NB)
  except OSError:
    claim.close()
    return None
  return claim


def prepare(point: _points.Point) -> list[str]:
  """Writes the config of a point; returns the command that trains it.

  It runs from its own config, whatever becomes of the experiment's file in the
  meantime.
  """
  path = point.folder / workdir.CONFIG
  if not path.exists() or workdir.read_json(path) != point.config:
    workdir.write_json(path, point.config)  # They differ in placement alone.
  return ['train', f'--config={path}', f'--workdir={point.folder}']


def _begin(point, claim, share, environ):
  argv = prepare(point)
  begun_at = _points.steps_done(point)
  with open(point.folder / LOG, 'ab') as log:
    log_begin = log.tell()
    process = start(
      argv,
      share,
      environ,
      stdout=log,
      stderr=log,
      pass_fds=(claim.fileno(),),
    )
  began = time.monotonic()
  return Running(point, process, claim, log_begin, began, begun_at)


def _collect(running, events, stopped=None):
  """Takes out what has ended."""
  for slot, each in list(running.items()):
    status = each.process.poll()
    if status is None:
      continue
    del running[slot]
    each.process.stdin.close()
    each.claim.close()
    reason = None
    if not _points.is_finished(each.point):
      reason = stopped or why(each.point, status, each.log_begin)
    events.end(Ended(each.point, reason, time.monotonic() - each.began))


def why(point: _points.Point, status: int, log_begin: int = 0) -> str:
  """Says why a process has left no result, with the last line of its log."""
  try:
    with open(point.folder / LOG, 'rb') as log:
      log.seek(log_begin)
      lines = log.read().decode(errors='replace').strip().splitlines()
  except OSError:
    lines = []
  said = [line for line in lines if line.startswith('dilojax: error: ')]
  last = (said or lines or [''])[-1].removeprefix('dilojax: error: ').strip()
  last = textwrap.shorten(last, 160, placeholder=' ...')
  return f'{how(status)}{last and f": {last}"}'


def _kill(running):
  for each in running:
    with contextlib.suppress(ProcessLookupError):
      os.killpg(each.process.pid, signal.SIGKILL)
    each.process.wait()
    each.process.stdin.close()
    each.claim.close()
