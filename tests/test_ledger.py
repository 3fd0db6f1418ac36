"""Tests for `dilojax._ledger`."""

import itertools

import pytest

from dilojax import _ledger
from dilojax import schedule
from dilojax import transforms

NBYTES, TOKENS = 40, 3


def link(every, offset=None, delay=0, start=0, stop=None, overwrites=True):
  """Returns a link over one axis."""
  times = schedule.Schedule(every, offset or every, delay, start, stop)
  return transforms.Link(times, ('replica',), NBYTES, overwrites)


def counted(link, num_steps, final):
  """Counts synchronizations and messages by playing all steps."""
  times, landings, messages, flying = link.schedule, 0, 0, []
  for step in range(1, num_steps + 1):
    if final and step == num_steps and link.overwrites is not None:
      if times.start and step <= times.start:
        messages += 1  # The anchor is taken, as the mean of the replicas.
      else:
        arrives = [due for due in flying if due >= step]
        landings += len(arrives)
        if not (arrives and link.overwrites):
          messages, landings = messages + 1, landings + 1
      break
    age = step - times.start - times.offset
    is_on = times.stop is None or step <= times.stop
    if age >= 0 and age % times.every == 0 and is_on:
      messages += 1
      flying.append(step + times.delay)
    landings += flying.count(step)
    messages += step == times.start > 0
  return landings, messages


CASES = [
  link(every, offset, delay, start, None, overwrites)
  for every in (1, 3, 5)
  for offset in range(1, every + 1)
  for delay in range(every)
  for start in (0, 4)
  for overwrites in (True, False)
]
OTHERS = [link(1, overwrites=None), link(1, stop=6, overwrites=None)]


@pytest.mark.parametrize('final', [False, True])
def test_counts_are_those_of_the_steps(final):
  for each, num_steps in itertools.product(CASES + OTHERS, range(1, 14)):
    [row] = _ledger.advance(
      _ledger.start(1),
      [each],
      1,
      num_steps,
      tokens_per_step=TOKENS,
      final=final,
    )
    landings, messages = counted(each, num_steps, final)
    assert row == {
      'steps': num_steps,
      'tokens': num_steps * TOKENS,
      'synchronizations': landings,
      'bytes_sent': messages * NBYTES,
    }, (each, num_steps)


@pytest.mark.parametrize('final', [False, True])
def test_cuts_do_not_matter(final):
  links = [link(5, 2, 3), link(3), *OTHERS]
  add = lambda ledger, first, last, final: _ledger.advance(
    ledger, links, first, last, tokens_per_step=TOKENS, final=final
  )
  whole = add(_ledger.start(2), 1, 13, final)
  for cut in range(1, 13):
    head = add(_ledger.start(2), 1, cut, False)
    assert add(head, cut + 1, 13, final) == whole


def test_links_add_up():
  both = [link(3), link(5)]
  [row] = _ledger.advance(
    _ledger.start(1), both, 1, 15, tokens_per_step=1, final=False
  )
  assert row['synchronizations'] == 5 + 3
  assert row['bytes_sent'] == (5 + 3) * NBYTES


def test_resize():
  ledger = _ledger.advance(
    _ledger.start(2), [link(2)], 1, 4, tokens_per_step=1, final=False
  )
  grown = _ledger.resize(ledger, 3)
  assert grown[:2] == ledger
  assert grown[2] == _ledger.EMPTY
  assert _ledger.resize(grown, 1) == ledger[:1]
  later = _ledger.advance(grown, [], 5, 6, tokens_per_step=1, final=False)
  # A replica has done what it was there for.
  assert [row['steps'] for row in later] == [6, 6, 2]
  assert [row['steps'] for row in ledger] == [4, 4]


@pytest.mark.parametrize('num_replicas', [1, 2, 4, 8])
def test_wire_bytes_are_those_of_rings(num_replicas):
  size, result = 1600, 400
  # A ring in pieces: what each of its phases passes on, step by step.
  passes = range(num_replicas - 1)
  pieces = lambda nbytes: sum(nbytes // num_replicas for _ in passes)
  want = {
    'all-reduce': pieces(size) + pieces(size),  # Sums up, then sends round.
    'all-to-all': pieces(size) + pieces(result),
    'all-gather': sum(size for _ in passes),
    'collective-permute': size * (num_replicas > 1),
  }
  each = link(3)._replace(nbytes=size, result_nbytes=0)
  for op, nbytes in want.items():
    returned = result if op == 'all-to-all' else 0
    one = each._replace(op=op, result_nbytes=returned)
    assert _ledger.wire_bytes(one, num_replicas) == nbytes, op


def test_wire_bytes_of_a_mean_do_not_depend_on_its_way():
  # An all-reduce is its two phases, for whatever number of replicas.
  for num_replicas in range(1, 9):
    whole = link(3)
    halves = whole._replace(op='all-to-all', result_nbytes=NBYTES)
    sent = [_ledger.wire_bytes(each, num_replicas) for each in (whole, halves)]
    assert sent[0] == pytest.approx(sent[1])


def test_wire_bytes_of_an_unknown_collective():
  with pytest.raises(ValueError, match=r"`link.op` .* got 'broadcast'"):
    _ledger.wire_bytes(link(3)._replace(op='broadcast'), 2)
