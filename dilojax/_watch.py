"""A thread that ends this process when another of its run is lost.

Every process says, every second or so, how many points all have to reach it has
reached, and that it is alive. One that is silent, or behind the others, for
longer than the time-out, is lost: it was killed or stopped, or is stuck.
"""

from collections.abc import Callable
import concurrent.futures
import json
import os
import sys
import threading
import time
from typing import Any, NamedTuple

import jax

_FOLDER = 'dilojax/watch/'


class Watch(NamedTuple):
  """A running watch.

  Attributes:
    fail: Tells the others why this process fails, and exits with a status.
    stop: Ends the watch.
  """

  fail: Callable[[str, int], None]
  stop: Callable[[], None]


def reach(doing: str) -> None:
  """Notes that this process has reached the next point."""
  _reached[:] = [_reached[0] + 1, doing]


def start(
  client: Any, index: int, count: int, timeout: float, launcher: int | None
) -> Watch:
  """Starts the thread.

  Args:
    client: Client of the coordination service, which process 0 runs.
    index: Number of this process.
    count: Number of processes.
    timeout: Seconds after which a process is lost.
    launcher: Number in the system of a process to end with.
  """
  interval = min(1.0, timeout / 10)
  stopped = threading.Event()
  key = lambda index: f'{_FOLDER}{index}'
  say = lambda **said: client.key_value_set(
    key(index), json.dumps(said), allow_overwrite=True
  )

  def talk(beat):
    say(beat=beat, reached=_reached[0], doing=_reached[1])
    found = client.key_value_dir_get(_FOLDER)
    return {
      int(name.rpartition('/')[2]): json.loads(text) for name, text in found
    }

  def watch():
    judge = make_judge(index, count, timeout, timeout / interval)
    # Elsewhere, since a service that is stopped does not answer for long.
    with concurrent.futures.ThreadPoolExecutor(1, 'talk') as pool:
      beat = 0
      talking = pool.submit(talk, beat)
      while not stopped.wait(interval):
        found = {}
        if talking.done():
          if talking.exception() is None:
            found = talking.result()
          beat += 1
          talking = pool.submit(talk, beat)
        reason = judge(found, *_reached)
        if launcher and not _is_there(launcher):
          reason = 'the launcher has gone.'
        if reason and not stopped.is_set():
          # The service ends with process 0, and would take the others along.
          fail(reason, 1) if index == 0 else end(reason)

  def fail(text, status):
    stopped.set()
    try:
      say(failed=text)
      if index == 0:
        time.sleep(3 * interval)  # For the others to hear it.
    except jax.errors.JaxRuntimeError:
      pass  # The service is gone, and with it the others.
    end(text, status)

  thread = threading.Thread(target=watch, name='watch', daemon=True)
  thread.start()

  def stop():
    stopped.set()
    thread.join()

  return Watch(fail, stop)


def make_judge(
  index: int, count: int, timeout: float, patience: float
) -> Callable[[dict[int, dict], int, str], str | None]:
  """Returns a function that tells what is wrong with the other processes.

  Args:
    index: Number of this process.
    count: Number of processes.
    timeout: The time-out in seconds, for the messages.
    patience: The time-out in calls of the function. Not in seconds: a process
      that was stopped itself would think, when it goes on, that others were.

  Returns:
    Function of what the processes say, empty if the service does not answer,
    of the number of points that this one has reached, and of what the last of
    them was. It returns a message, or None.
  """
  others = [k for k in range(count) if k != index]
  last = dict.fromkeys(others)
  silent, behind = dict.fromkeys(others, 0), dict.fromkeys(others, 0)

  def judge(found, reached, doing):
    for k in others:
      said, before = found.get(k), last[k]
      if not found:
        silent[k] += k == 0  # The service is process 0's.
      elif said is None:
        silent[k] += 1
      elif 'failed' in said:
        return f'process {k} failed: {said["failed"]}'
      else:
        last[k] = said
        stays = before is not None and before['reached'] == said['reached']
        is_late = stays and said['reached'] < reached
        if said == before:
          silent[k] += 1  # Perhaps stopped: whether it is late is not known.
        else:
          behind[k] = behind[k] + silent[k] + 1 if is_late else 0
          silent[k] = 0
      if silent[k] > patience:
        return (
          f'process {k} has been silent for {timeout:g} s: it has ended, or was'
          ' stopped, or its machine or the network is down.'
        )
      if behind[k] > patience:
        return (
          f'process {k} has not reached {doing} for {timeout:g} s: it is stuck'
          f' after {said["doing"]}, or far too slow.'
        )
    return None

  return judge


def end(text: str, status: int = 1) -> None:
  """Ends this process at once, whatever its other threads wait for."""
  cursor = '\x1b[?25h\n' if sys.stderr.isatty() else ''
  print(f'{cursor}dilojax: error: {text}', file=sys.stderr, flush=True)
  sys.stdout.flush()
  os._exit(status)


def _is_there(number):
  try:
    os.kill(number, 0)
  except ProcessLookupError:
    return False
  except PermissionError:
    pass
  return True


_reached: list[Any] = [0, 'the start']
