"""A config from its file, with the fields that the command line overrides."""

import ast
from collections.abc import Sequence
import contextlib
import importlib.util
import os
import pathlib
import sys
from typing import Any

import ml_collections

from dilojax import _fields

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


def _get_config(path):
  if not path.is_file() or path.suffix != '.py':
    raise ValueError(f'`config` must be a Python file, got {str(path)!r}.')
  spec = importlib.util.spec_from_file_location('_config', path)
  if spec is None or spec.loader is None:
    raise ValueError(f'`config` {str(path)!r} cannot be loaded.')
  module = importlib.util.module_from_spec(spec)
  with _importable(pathlib.Path.cwd()):
    try:
      spec.loader.exec_module(module)
      config = module.get_config()
    except Exception as error:
      raise ValueError(
        f'`config` {str(path)!r} must be a Python file with `get_config()`:'
        f' {type(error).__name__}: {error}'
      ) from error
  if not isinstance(config, ml_collections.ConfigDict):
    raise ValueError(
      f'`config` {str(path)!r}: `get_config()` must return a ConfigDict, got'
      f' {type(config).__name__}.'
    )
  return config.unlock()


@contextlib.contextmanager
def _importable(folder):
  sys.path.insert(0, str(folder))
  try:
    yield
  finally:
    sys.path.remove(str(folder))


def _override(config, name, text):
  *groups, last = name.split('.')
  group = config
  for part in groups:
    is_group = isinstance(group, ml_collections.ConfigDict)
    group = group.get(part) if is_group else None
  if not isinstance(group, ml_collections.ConfigDict):
    hint = _fields.near(name, _fields.flatten(config))
    raise ValueError(f'`config.{name}` is in no group of the config.{hint}')
  old = group.get(last)
  value = _parse(text) if old is None else _parse_as(old, name, text)
  if last in group:
    del group[last]  # A dict in place of a group, and null, are no updates.
  if value is not None:
    group[last] = value


def _parse(text: str) -> Any:
  if text.lower() in _WORDS:
    return _WORDS[text.lower()]
  try:
    value = ast.literal_eval(text)
  except (ValueError, SyntaxError):
    return text
  return ml_collections.ConfigDict(value) if isinstance(value, dict) else value


def _parse_as(old, name, text):
  """Reads a text as a value of the type of an old one."""
  value = _parse(text)
  if value is None:
    return None
  if isinstance(old, str):
    # A number or a word is a text here, with or without quotes.
    return value if isinstance(value, str) else text
  if isinstance(old, bool) and isinstance(value, bool):
    return value
  is_number = isinstance(value, int | float) and not isinstance(value, bool)
  if isinstance(old, float) and is_number:
    return float(value)
  if isinstance(old, int) and is_number and not isinstance(old, bool):
    if value == int(value) if abs(value) < float('inf') else False:
      return int(value)
  elif isinstance(value, type(old)) and not is_number:
    return value
  elif isinstance(old, tuple | list) and isinstance(value, tuple | list):
    return type(old)(value)
  is_group = isinstance(old, ml_collections.ConfigDict)
  kind = 'group' if is_group else type(old).__name__
  raise ValueError(
    f'`config.{name}` must be of type {kind}, as {old!r} is, got {text!r}.'
  )
