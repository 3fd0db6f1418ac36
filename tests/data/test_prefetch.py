"""Prefetching: the order of a loop, and no thread when it is over."""

import itertools
import threading
import time

import pytest

from dilojax import data


def num_threads():
  return sum(t.name.startswith('prefetch') for t in threading.enumerate())


def test_items_come_in_order_and_the_thread_ends():
  def make(step):
    time.sleep(0.002 * (step % 3))
    return step

  assert list(data.prefetch(make, 3, 20, depth=4)) == list(range(3, 20))
  assert num_threads() == 0


def test_nothing_to_make():
  assert list(data.prefetch(lambda step: step, 5, 5)) == []
  assert num_threads() == 0


def test_depth_items_are_made_ahead_and_no_more():
  made = []
  with data.prefetch(made.append, 1, depth=3) as items:
    for taken in range(5):
      deadline = time.monotonic() + 5
      while len(made) < taken + 3 and time.monotonic() < deadline:
        time.sleep(0.001)
      time.sleep(0.01)
      assert made == list(range(1, taken + 4))
      next(items)
  assert num_threads() == 0


def test_items_are_made_by_another_thread():
  with data.prefetch(lambda _: threading.get_ident(), 0) as items:
    assert next(items) != threading.get_ident()


def test_exception_comes_in_its_place():
  def make(step):
    if step == 3:
      raise OSError('the disk is gone')
    return step

  items = data.prefetch(make, 1)
  assert list(itertools.islice(items, 2)) == [1, 2]
  with pytest.raises(OSError, match='the disk is gone'):
    next(items)
  assert num_threads() == 0
  assert list(items) == []


@pytest.mark.parametrize('how', ['close', 'with', 'raise'])
def test_early_end_leaves_no_thread(how):
  items = data.prefetch(lambda step: step, 1)
  assert next(items) == 1
  if how == 'close':
    items.close()
  elif how == 'with':
    with items:
      pass
  else:
    with pytest.raises(KeyError), items:
      raise KeyError
  assert num_threads() == 0
  assert list(items) == []


def test_refuses_depth():
  with pytest.raises(ValueError, match='`depth` must be at least 1, got 0'):
    data.prefetch(lambda step: step, 1, depth=0)
