"""Functions that a config names, such as an optimizer of the reader's own."""

from collections.abc import Callable, Generator, Mapping
import contextlib
import hashlib
import importlib
import inspect
import pathlib
import sys
from typing import Any, NamedTuple

from dilojax import _near

FORM = 'MODULE:FUNCTION'


class Argument(NamedTuple):
  """An argument of a function.

  Attributes:
    kind: Its annotation, None if there is none.
    is_required: Whether it has no default.
  """

  kind: Any
  is_required: bool


@contextlib.contextmanager
def importable(folder: pathlib.Path) -> Generator[None]:
  """Lets imports start in a folder."""
  sys.path.insert(0, str(folder))
  try:
    yield
  finally:
    sys.path.remove(str(folder))


def is_reference(name: Any) -> bool:
  """Tells whether a name is meant as `MODULE:FUNCTION`."""
  return isinstance(name, str) and ':' in name


def load(reference: str) -> Callable[..., Any]:
  """Imports a function.

  Args:
    reference: `MODULE:FUNCTION`. Imports start in the current folder.

  Returns:
    The function.

  Raises:
    ValueError: If there is no such module or function, or importing fails.
  """
  name, _, member = reference.partition(':')
  folder = pathlib.Path.cwd()
  try:
    with importable(folder):
      module = importlib.import_module(name)
  except Exception as error:
    raise ValueError(
      f'{reference!r} must be {FORM}, of a module that can be imported:'
      f' {type(error).__name__}: {error}. Imports start in the current folder,'
      f' {str(folder)!r}.'
    ) from error
  function = getattr(module, member, None)
  if not callable(function):
    names = [each for each in vars(module) if not each.startswith('_')]
    raise ValueError(
      f'{reference!r} must be {FORM}: {name!r} has no function'
      f' {member!r}.{_near.hint(member, names)}'
    )
  return function


def arguments(reference: str) -> dict[str, Argument]:
  """Returns the arguments of a function by name, without `name`.

  Raises:
    ValueError: If there is no such function, or a config cannot say what it
      must get.
  """
  function = load(reference)
  try:
    signature = inspect.signature(function, eval_str=True)
  except (NameError, TypeError, ValueError):
    signature = inspect.signature(function)
  found = {}
  for name, each in signature.parameters.items():
    is_required = each.default is each.empty
    by_name = each.kind in (each.POSITIONAL_OR_KEYWORD, each.KEYWORD_ONLY)
    if name != 'name' and by_name:
      kind = None if each.annotation is each.empty else each.annotation
      found[name] = Argument(kind, is_required)
    elif is_required and each.kind not in (
      each.VAR_POSITIONAL,
      each.VAR_KEYWORD,
    ):
      raise ValueError(
        f'{reference!r} has an argument `{name}` that a config cannot give:'
        ' let it have another name and be given by it, or have a default.'
      )
  return found


def call(
  reference: str, given: Mapping[str, Any], kind: type, what: str
) -> Any:
  """Calls a function, and checks what it returns.

  Args:
    reference: `MODULE:FUNCTION`.
    given: Its arguments.
    kind: Type of what it must return.
    what: The same in words.

  Raises:
    ValueError: If it fails, or returns something else.
  """
  try:
    made = load(reference)(**given)
  except Exception as error:
    shown = ', '.join(f'{name}={value!r}' for name, value in given.items())
    raise ValueError(
      f'{reference!r} fails with {shown or "no arguments"}:'
      f' {type(error).__name__}: {error}'
    ) from error
  if not isinstance(made, kind):
    raise ValueError(
      f'{reference!r} must return {what}, got {type(made).__name__}.'
    )
  return made


def fingerprint(reference: str) -> str:
  """Returns a digest of the file with a function, '' if it has no source."""
  try:
    file = inspect.getsourcefile(inspect.unwrap(load(reference)))
  except TypeError:
    return ''
  source = pathlib.Path(file or '')
  if not source.is_file():
    return ''
  return hashlib.sha256(source.read_bytes()).hexdigest()[:16]
