"""A config from its file, with the fields that the command line overrides."""

import ast
from collections.abc import Callable, Mapping, Sequence
import importlib.util
import json
import os
import pathlib
import types
from typing import Any

import ml_collections

from dilojax import _functions
from dilojax import _groups

_WORDS = {
  'true': True,
  'false': False,
  'null': None,
  'inf': float('inf'),
}


def load(
  path: str | os.PathLike[str], overrides: Sequence[tuple[str, str]] = ()
) -> ml_collections.ConfigDict:
  """Loads `get_config()` of a Python file, and overrides fields.

  A JSON file serves as well: the `config.json` of a run.

  A field keeps its type: 1 serves where there is 0.5, and 1e3 where there is
  10. A text that reads as a dict replaces a group, and `null` removes a field;
  so a config can take another choice, with the fields that go with it.

  Args:
    path: The file. It may import its neighbours as `configs.NAME` where that
      works for Python in the current folder.
    overrides: Dotted names of fields, and their new values as text.

  Returns:
    The config, locked.

  Raises:
    ValueError: If the file or a field is not there, or a text does not fit.
  """
  config = _get_config(pathlib.Path(path))
  for name, text in overrides:
    _override(config, name, text)
  return config.lock()


def override(
  config: ml_collections.ConfigDict, overrides: Mapping[str, Any]
) -> ml_collections.ConfigDict:
  """Returns a copy of a config with other values; see :func:`load`.

  Args:
    config: The config.
    overrides: New values, None to remove a field, by dotted names.

  Raises:
    ValueError: If a name or a value does not fit.
  """
  config = config.copy_and_resolve_references().unlock()
  for name, value in overrides.items():
    plain = ml_collections.ConfigDict(value) if _is_dict(value) else value
    _set(config, name, plain, repr(value))
  return config.lock()


def module(path: pathlib.Path, name: str) -> types.ModuleType:
  """Runs a Python file that may import its neighbours.

  Args:
    path: The file.
    name: What it is, for the messages.

  Raises:
    ValueError: If the file is not there, or fails.
  """
  if not path.is_file() or path.suffix != '.py':
    raise ValueError(f'`{name}` must be a Python file, got {str(path)!r}.')
  spec = importlib.util.spec_from_file_location(f'_{name}', path)
  if spec is None or spec.loader is None:
    raise ValueError(f'`{name}` {str(path)!r} cannot be loaded.')
  made = importlib.util.module_from_spec(spec)
  try:
    with _functions.importable(pathlib.Path.cwd()):
      spec.loader.exec_module(made)
  except Exception as error:
    raise _failure(path, name, 'that can be run', error) from error
  return made


def config_of(
  get_config: Callable[[], Any], path: pathlib.Path, name: str
) -> ml_collections.ConfigDict:
  """Calls `get_config` of a file; returns the config, to be overridden.

  Raises:
    ValueError: If it fails, or returns something else.
  """
  try:
    with _functions.importable(pathlib.Path.cwd()):
      config = get_config()
  except Exception as error:
    raise _failure(path, name, 'with `get_config()`', error) from error
  if not isinstance(config, ml_collections.ConfigDict):
    raise ValueError(
      f'`{name}` {str(path)!r}: `get_config()` must return a ConfigDict, got'
      f' {type(config).__name__}.'
    )
  return config.unlock()


def _get_config(path):
  if path.suffix == '.json' and path.is_file():
    return _of_json(path)
  made = module(path, 'config')
  return config_of(lambda: made.get_config(), path, 'config')


def _of_json(path):
  """Returns the config of a run, from its folder."""
  try:
    return ml_collections.ConfigDict(json.loads(path.read_text()))
  except (OSError, ValueError, TypeError, AttributeError) as error:
    raise ValueError(
      f'`config` {str(path)!r} must hold the config of a run:'
      f' {type(error).__name__}: {error}.'
    ) from error


def _failure(path, name, what, error):
  return ValueError(
    f'`{name}` {str(path)!r} must be a Python file {what}:'
    f' {type(error).__name__}: {error}. Imports start in the current folder,'
    f' {str(pathlib.Path.cwd())!r}.'
  )


def _override(config, name, text):
  value = _parse(text)
  is_open = isinstance(value, str) and text.lstrip().startswith('{')
  # Where there is a text, this may be one.
  if is_open and not isinstance(_value_at(config, name), str):
    raise ValueError(
      f"`config.{name}` must be a Python literal, as it starts with '{{', got"
      f' {text!r}: {_why_no_literal(text)}.'
    )
  _set(config, name, value, text)


def _value_at(group: Any, name: str) -> Any:
  head, _, rest = name.partition('.')
  value = group.get(head) if _is_group(group) else None
  return _value_at(value, rest) if rest else value


def _set(config, name, value, text):
  *groups, last = name.split('.')
  group = config
  for part in groups:
    if not _is_group(group.get(part)):
      plain = value.to_dict() if _is_group(value) else value
      advice = _groups.missing(config.to_dict(), name, plain)
      raise ValueError(f'`config.{name}` is in no group of the config{advice}')
    group = group[part]
  old = group.get(last)
  if old is not None and value is not None:
    fitted = _fitted(value, old, text)
    if fitted is None:
      kind = 'group' if _is_group(old) else type(old).__name__
      shown = '' if _is_group(old) else f', as {old!r} is'
      raise ValueError(
        f'`config.{name}` must be of type {kind}{shown}, got {text!r}.'
      )
    value = fitted
  if last in group:
    del group[last]  # A dict in place of a group, and null, are no updates.
  if value is not None:
    group[last] = value


def _parse(text: str) -> Any:
  """Reads a text as a Python value; what is none stays a text."""
  if text.lower() in _WORDS:
    return _WORDS[text.lower()]
  try:
    value = ast.literal_eval(text)
  except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError):
    return text
  return ml_collections.ConfigDict(value) if isinstance(value, dict) else value


def _why_no_literal(text: str) -> str:
  """Says where a text stops to be a Python literal."""
  text = text.strip()
  try:
    node: Any = ast.parse(text, mode='eval').body
  except SyntaxError as error:
    return f'{error.msg}, at character {error.offset}'
  except (ValueError, MemoryError, RecursionError) as error:
    return f'{type(error).__name__} {error}'.strip()
  while inner := next(filter(_is_no_literal, _parts_of(node)), None):
    node = inner
  part = ast.get_source_segment(text, node)
  return (
    f'{part} at character {node.col_offset + 1} is none. Write out what it'
    ' stands for; texts have quotes'
  )


def _parts_of(node):
  """Returns the nodes that a node consists of, if it is a container."""
  if isinstance(node, ast.Dict):
    return [part for part in (*node.keys, *node.values) if part is not None]
  return getattr(node, 'elts', [])


def _is_no_literal(node):
  try:
    ast.literal_eval(node)
  except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError):
    return True
  return False


def _fitted(value, old, text):
  """Returns a value in the type of an old one, None if it does not fit."""
  if isinstance(old, str):
    # A number or a word is a text here, with or without quotes.
    return value if isinstance(value, str) else text
  if isinstance(old, bool) or isinstance(value, bool):
    return value if type(value) is type(old) else None
  if isinstance(old, float) and isinstance(value, int):
    return float(value) if value.bit_length() < 1024 else None
  if isinstance(old, int) and isinstance(value, float):
    return int(value) if value.is_integer() else None
  if isinstance(old, tuple | list) and isinstance(value, tuple | list):
    return type(old)(value)
  return value if isinstance(value, type(old)) else None


def _is_dict(value):
  return isinstance(value, Mapping) and not _is_group(value)


def _is_group(value):
  return isinstance(value, ml_collections.ConfigDict)
