"""What a group of fields looks like, for a config that has none."""

from collections.abc import Mapping
from typing import Any

from dilojax import _choices
from dilojax import _fields
from dilojax import _near


def missing(config: Mapping, name: str, value: Any) -> str:
  """Says what a config would need to have a field in a group it has not.

  Args:
    config: The config.
    name: Dotted name of a field, in a group that is not there.
    value: What the field would be.

  Returns:
    The end of a sentence.
  """
  path = _missing_path(config, name)
  if path is None:
    return f'.{_near.hint(name, _fields.flatten(config))}'
  group = '.'.join(path)
  inside = name.removeprefix(f'{group}.')
  want = _wanted(config, path, {inside: value})
  if not want:
    if path[0] not in _choices.GROUPS_OF_METHODS:
      return f'.{_near.hint(name, _fields.flatten(config))}'
    return (
      f': `method` {config.get("method")!r} has no group `{path[0]}`. Choose'
      ' another first, and give the group whole.'
    )
  shown = {key: '...' for key in want}
  if inside in want or inside in _brought(path[-1]):
    shown[inside] = repr(value)
  has_choices = path[-1] in _choices.CHOICES or 'outer.name' in want
  told = ', '.join(f'`{key}` {field.allowed}' for key, field in want.items())
  return (
    f': give the whole group, --config.{group}="{_written(shown)}", with'
    f' {told}.' + ' A choice may bring more.' * has_choices
  )


def _missing_path(config, name):
  """Returns the path of the first group that is missing, if one is."""
  path = []
  for part in name.split('.')[:-1]:
    path.append(part)
    if config.get(part) is None:
      return path
    if not isinstance(config[part], Mapping):
      return None
    config = config[part]
  return None


def _wanted(config, path, fields):
  """Returns the fields that a config would need in a group, if it had one."""
  for name in reversed(path):
    fields = {name: fields}
  prefix = '.'.join([*path, ''])
  return {
    name.removeprefix(prefix): field
    for name, field in _fields.expected(_merged(config, fields)).items()
    if name.startswith(prefix)
  }


def _brought(group):
  """Returns the names of all fields that choices in a group bring."""
  choices = _choices.CHOICES.get(group, {}).values()
  return {name for named in choices for each in named.values() for name in each}


def _merged(config, more):
  """Returns nested groups with those of others added."""
  merged = dict(config)
  for name, value in more.items():
    old, is_group = merged.get(name), isinstance(value, Mapping)
    inside = old if isinstance(old, Mapping) else {}
    merged[name] = _merged(inside, value) if is_group else value
  return merged


def _written(fields):
  """Writes texts by dotted name as nested dicts."""
  groups: dict[str, Any] = {}
  for name, text in fields.items():
    head, _, rest = name.partition('.')
    groups.setdefault(head, {})[rest] = text
  parts = [
    f"'{head}': {inside[''] if '' in inside else _written(inside)}"
    for head, inside in groups.items()
  ]
  return '{' + ', '.join(parts) + '}'
