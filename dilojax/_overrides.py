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
        f' {type(error).__name__}: {error}. Imports start in the current'
        f' folder, {str(pathlib.Path.cwd())!r}.'
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
    if not _is_group(group.get(part)):
      hint = _fields.near(name, _fields.flatten(config.to_dict()))
      raise ValueError(f'`config.{name}` is in no group of the config.{hint}')
    group = group[part]
  old, value = group.get(last), _parse(text)
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


def _is_group(value):
  return isinstance(value, ml_collections.ConfigDict)
