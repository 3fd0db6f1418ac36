"""The table of the benchmarks, from their results."""

from collections.abc import Sequence
from typing import Any

_OVERHEAD = {
  'loop': 'Training loop, DiLoCo, H = 100',
  'branch': 'Scan that decides with a branch',
  'call per step': 'One jitted call per step',
}


def markdown(found: Sequence[dict[str, Any]]) -> str:
  """Returns the table.

  Args:
    found: What each benchmark wrote.

  Returns:
    A Markdown table with a row for each measure.
  """
  by_name = {each['benchmark']: each for each in found}
  rows = []
  for name, rows_of in _ROWS.items():
    if name in by_name:
      rows += rows_of(by_name[name])
  lines = ['| measure | median (range) | n |', '| --- | --- | --- |']
  lines += [f'| {what} | {value} | {n} |' for what, value, n in rows]
  return '\n'.join(lines)


def _ratio(each):
  return f'{each["median"]:.3f} ({each["min"]:.3f} to {each["max"]:.3f})'


def _overhead(found):
  n = len(found['seconds']['loop'])
  return [
    (
      f'{what}: steps/s over the bare scan',
      _ratio(found['ratios'][name]),
      n,
    )
    for name, what in _OVERHEAD.items()
  ]


def _throughput(found):
  what = 'Model FLOP/s over those of a matrix product'
  return [(what, _ratio(found['ratio']), found['settings']['repeats'])]


def _memory(found):
  return [
    (
      "Persistent bytes beyond the inner optimizer's, over the params'",
      f'{found["persistent_extra_over_params"]:.6g}',
      'exact',
    ),
    (
      "Temporary bytes of quiet steps over the bare scan's",
      f'{found["quiet_temporary_over_bare"]:.6f}',
      'exact',
    ),
  ]


def _startup(found):
  n = found['settings']['repeats']
  text = lambda each: (
    f'{each["median"]:.1f} s ({each["min"]:.1f} to {each["max"]:.1f})'
  )
  return [
    (f'Start-up: {name.strip()}', text(each), n)
    for name, each in found['seconds'].items()
  ]


def _synchronization(found):
  what = 'Synchronization of 4 replicas, 10M params, over copying its state'
  n = found['settings']['repeats']
  return [
    (f'{what} ({placement})', _ratio(each['ratio']), n)
    for placement, each in found['placements'].items()
  ]


def _wire(found):
  speeds, n = found['gigabytes_per_s'], found['settings']['repeats']
  return [
    (
      f'{name}, to a message and back: GB/s per core',
      _ratio(speeds[name]['cpu']),
      n,
    )
    for name in ('e3m0', 'int8', 'bfloat16')
  ]


def _link(found):
  rows = []
  for name, each in found['rows'].items():
    n = len(each['counted_bytes'])
    counted = _ratio(each['counted_over_predicted'])
    slow = f'{each["shaped_over_unshaped"]:.2f}'
    rows += [
      (f'Link: {name}: bytes counted over predicted', counted, n),
      (f'Link: {name}: time of a step over that unshaped', slow, n),
    ]
  return rows


def _sweep(found):
  points = found['settings']['points']
  first, *others = found['seconds']
  whole = lambda name: found['seconds'][name]['seconds']
  return [
    (
      f'Sweep of {points} runs: {name}, over {first}',
      f'{whole(name) / whole(first):.3f}',
      1,
    )
    for name in others
  ]


_ROWS = {
  'overhead': _overhead,
  'throughput': _throughput,
  'memory': _memory,
  'startup': _startup,
  'synchronization': _synchronization,
  'wire': _wire,
  'link': _link,
  'sweep': _sweep,
}
