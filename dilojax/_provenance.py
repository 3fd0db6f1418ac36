"""Where numbers come from: settings, machines, commits."""

from collections.abc import Sequence
import json
import re
from typing import Any

from dilojax import _fields
from dilojax import _runs
from dilojax import workdir

# Fields that say most about a run, and how they are said.
_SAID = {
  'model.name': 'a {}',
  'model.num_layers': '{} layers',
  'model.dim': 'width {}',
  'data.seq_len': 'sequences of {} tokens',
  'data.batch_size': '{} per replica and step',
  'num_steps': '{:,} steps',
  'num_replicas': '{} replicas',
  'every': 'rounds of {} steps',
  'inner.name': 'inner optimizer {}',
  'inner.peak_lr': 'learning rate {}',
  'inner.schedule': 'schedule {}',
  'inner.warmup_steps': '{} steps of warm-up',
  'inner.weight_decay': 'weight decay {}',
  'inner.clip_norm': 'clip {}',
  'outer.name': 'outer optimizer {}',
  'outer.lr': 'learning rate {}',
  'outer.momentum': 'momentum {}',
}


def settings(runs: Sequence[_runs.Run]) -> str:
  """Says in a sentence what is the same in all runs that have it."""
  params = {run.get('num_params') for run in runs} - {None}
  words = [f'{params.pop():,} params'] if len(params) == 1 else []
  values: dict[str, list[Any]] = {}
  for run in runs:
    for name, value in _plain(run).items():
      values.setdefault(name, []).append(value)
  one = lambda text: re.sub(r'\b1 (\w+)s$', r'1 \1', text)
  words += [
    one(form.format(values[name][0]))
    for name, form in _SAID.items()
    if name in values and all(each == values[name][0] for each in values[name])
  ]
  return f'Settings: {", ".join(words)}.' if words else ''


def differing(runs: Sequence[_runs.Run]) -> dict[str, dict[str, list[str]]]:
  """Returns in which fields of the config rows differ, seeds apart.

  Args:
    runs: Kept runs; those of a row differ in the seed alone.

  Returns:
    Per field the rows by value, as text; rows that lack the field are not
    named. A group that some rows lack is a field itself, with the value
    'given'; fields inside it come after where they differ among the rest.
  """
  rows = {run['row']: _plain(run) for run in runs}
  names = sorted({name for config in rows.values() for name in config})
  groups = {
    row: {name.rpartition('.')[0] for name in config}
    for row, config in rows.items()
  }
  found: dict[str, dict[str, list[str]]] = {}
  for name in names:
    group = name.rpartition('.')[0]
    having = [row for row in rows if group in groups[row]]
    if len(having) < len(rows):
      found.setdefault(group, {'given': having})
    by_value: dict[str, list[str]] = {}
    for row in having:
      if name in rows[row]:
        by_value.setdefault(_text(rows[row][name]), []).append(row)
    if [*by_value.values()] != [having]:
      found[name] = by_value
  return found


def differences(runs: Sequence[_runs.Run]) -> str:
  """Says in a sentence in which settings rows differ."""
  parts = [
    f'`{name}` '
    + ', '.join(
      f'{value} ({", ".join(rows)})' for value, rows in by_value.items()
    )
    for name, by_value in differing(runs).items()
  ]
  if not parts:
    return ''
  return (
    f'Rows differ in {"; ".join(parts)}. A row that is not named has no such'
    ' field.'
  )


def measured(environments: Sequence[dict[str, Any]]) -> str:
  """Says on what something ran, and with which code."""
  commits = sorted({str(each['commit'])[:10] for each in environments})
  clean = all(each['clean'] for each in environments)
  changed = '' if clean else ' with changes'
  machines = list(dict.fromkeys(map(_machine, environments)))
  return (
    f'Measured on {"; ".join(machines)}; commit {", ".join(commits)}{changed}'
  )


def corpora(runs: Sequence[_runs.Run]) -> str:
  """Names the corpora of runs."""
  found = {
    f'{run["corpus"]["name"]} {run["corpus"]["fingerprint"]}': None
    for run in runs
    if run.get('corpus')
  }
  return f'corpus {", ".join(found)}' if found else ''


def provenance(runs: Sequence[_runs.Run]) -> str:
  """Says where runs come from."""
  parts = [measured([run['environment'] for run in runs]), corpora(runs)]
  return f'{"; ".join(filter(None, parts))}.'


def _machine(environment):
  if environment['platform'] == 'cpu':
    cpus = environment['cpus']
    cores = environment.get('cores', cpus)
    of = f' of {cpus}' * (cores != cpus)
    what = f'{cores}{of} CPU core{"s" * (max(cores, cpus) != 1)}'
  else:
    what = f'{environment["num_devices"]} {environment["device_kind"]}'
  return (
    f'{what}, jax {environment["packages"]["jax"]}, Python'
    f' {environment["python"]}'
  )


def _plain(run):
  """Returns the fields of a config that make a run what it is."""
  return {
    name: value
    for name, value in _fields.flatten(run['config']).items()
    if name != 'seed' and name.partition('.')[0] != workdir.PLACEMENT
  }


def _text(value):
  return value if isinstance(value, str) else json.dumps(value)
