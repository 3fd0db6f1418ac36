"""Items made ahead of their use, by a thread."""

import collections
from collections.abc import Callable, Iterator
import concurrent.futures
from typing import Any


class prefetch(Iterator):
  """Iterates over `make(start), make(start + 1), ...`, made by a thread.

  Up to `depth` items are made ahead, in order, from the moment of the call. An
  exception in `make` is raised where its item is asked for. The thread ends
  with the last item, with an exception, and with :meth:`close`, which a `with`
  block calls.

  Args:
    make: Function of an int. It runs in the thread, one call at a time.
    start: First int.
    stop: Int to end before. None to go on for ever.
    depth: Number of items made ahead, at least 1.

  Raises:
    ValueError: If `depth` is below 1.

  Examples:
    >>> from dilojax import data
    >>> with data.prefetch(lambda step: step**2, 1, 4) as squares:
    ...   print(list(squares))
    [1, 4, 9]
  """

  def __init__(
    self,
    make: Callable[[int], Any],
    start: int,
    stop: int | None = None,
    *,
    depth: int = 2,
  ):
    if depth < 1:
      raise ValueError(f'`depth` must be at least 1, got {depth}.')
    self._make = make
    self._next = start
    self._stop = stop
    self._pending = collections.deque()
    self._thread = concurrent.futures.ThreadPoolExecutor(1, 'prefetch')
    for _ in range(depth):
      self._submit()

  def __next__(self) -> Any:
    """Returns the next item, and lets the thread go on."""
    if not self._pending:
      self.close()
      raise StopIteration
    item = self._pending.popleft()
    # Before the wait, so that the thread is never without work.
    self._submit()
    try:
      return item.result()
    except BaseException:
      self.close()
      raise

  def close(self) -> None:
    """Waits for the item in the making, drops the others, ends the thread."""
    self._pending.clear()
    self._thread.shutdown(wait=True, cancel_futures=True)

  def __enter__(self) -> 'prefetch':
    """Returns itself."""
    return self

  def __exit__(self, *_) -> None:
    """Closes."""
    self.close()

  def _submit(self):
    if self._stop is None or self._next < self._stop:
      self._pending.append(self._thread.submit(self._make, self._next))
      self._next += 1
