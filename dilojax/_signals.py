"""Signals that end a training when it is convenient."""

from collections.abc import Callable, Generator
import contextlib
import os
import signal
import threading

_HEARD = b'Stops after the steps under way; once more to stop at once.\n'


@contextlib.contextmanager
def caught() -> Generator[Callable[[], bool]]:
  """Turns the first SIGINT or SIGTERM into an answer; a second one acts."""
  received = []
  numbers = (signal.SIGINT, signal.SIGTERM)
  if threading.current_thread() is not threading.main_thread():
    yield lambda: False
    return
  previous = {number: signal.getsignal(number) for number in numbers}

  def receive(number, frame):
    del frame
    received.append(number)
    # Not by print, which cannot be interrupted by itself.
    os.write(2, _HEARD)
    for each, handler in previous.items():
      signal.signal(each, handler)

  for number in numbers:
    signal.signal(number, receive)
  try:
    yield lambda: bool(received)
  finally:
    for number, handler in previous.items():
      signal.signal(number, handler)
