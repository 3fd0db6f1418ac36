"""An experiment read from its file: a question, its runs, what is expected."""

from collections.abc import Callable, Mapping
import functools
import inspect
import os
import pathlib
import re
from typing import Any, NamedTuple

from dilojax import _near
from dilojax import _overrides

# The rows become folders, beside that of the trials of a search.
SEARCH = 'search'

_ROW = re.compile(r'[A-Za-z0-9_][A-Za-z0-9_.,=+-]*')
_SEED = re.compile('0|[1-9][0-9]*')
_VARIANT = re.compile(r'[A-Za-z0-9_.-]+')
_FUNCTIONS = ('get_config', 'sweep', 'search', 'compute')


class Experiment(NamedTuple):
  """What a file of `experiments/` says.

  Attributes:
    path: The file.
    variant: What stands behind a colon after the file, '' for nothing.
    name: Its folder, its name, and the variant, such as 'diloco/gap_closed' or
      'diloco/rounds_paper'.
    docstring: Question, source, differences, expectation, commands, cost.
    points: Overrides by the name `row/seed` of a run, None to remove a field;
      in the order of `sweep()`, empty without it.
    metric: What is compared, lower is better.
    views: More rows of the table, which nothing is trained for: by their
      names, a row and another metric of its runs.
    parents: By row, the row that it is compared with.
    expected: Statements about rows in words, such as 'diloco < one_replica'.
    paper: The file of the published values, None if there is none.
    paper_column: The column of `paper` that stands for `metric`, None if the
      experiment does not say.
    get_config: Makes the config that all points override, None if nothing is
      trained.
    search: Takes a trial of Optuna and returns overrides, None if absent.
    compute: Makes the cells of a table that is not trained, None if absent.
  """

  path: pathlib.Path
  variant: str
  name: str
  docstring: str
  points: dict[str, dict[str, Any]]
  metric: str
  views: dict[str, tuple[str, str]]
  parents: dict[str, str]
  expected: tuple[str, ...]
  paper: pathlib.Path | None
  paper_column: str | None
  get_config: Callable[[], Any] | None
  search: Callable[[Any], Mapping[str, Any]] | None
  compute: Callable[[], Any] | None

  @property
  def kept(self) -> pathlib.Path:
    """The file beside it where its runs are kept."""
    return self.path.with_name(f'{self.name.rpartition("/")[2]}.json')


def load(path: str | os.PathLike[str]) -> Experiment:
  """Reads an experiment, and checks all that needs no config.

  Args:
    path: The file, with or without `.py`. It may import `configs.NAME` where
      that works for Python in the current folder. A variant may follow behind
      a colon, such as 'rounds.py:paper': `get_config` gets it as an argument,
      and `sweep` as well if it takes one.

  Returns:
    The experiment.

  Raises:
    ValueError: If the file is no experiment, or a part of it is malformed.
  """
  path, variant = split(path)
  if path.suffix != '.py' and not path.is_dir():
    path = path.with_name(f'{path.name}.py')
  module = _overrides.module(path, 'experiment')
  wrong = lambda what: ValueError(f'`experiment` {str(path)!r}: {what}')
  functions = {name: getattr(module, name, None) for name in _FUNCTIONS}
  for name, function in functions.items():
    if function is not None and not callable(function):
      raise wrong(f'`{name}` must be a function, got {function!r}.')
  get_config, sweep = functions['get_config'], functions['sweep']
  if not any((sweep, functions['search'], functions['compute'])):
    raise wrong('it must have `sweep()`, `search(trial)`, or `compute()`.')
  if (sweep or functions['search']) and not get_config:
    raise wrong('`get_config()` is missing: the points override its fields.')
  if variant:
    get_config, sweep = _varied(get_config, sweep, variant, wrong)
  points = _points(sweep, wrong) if sweep else {}
  rows = list(dict.fromkeys(map(row, points)))
  views = _views(module, rows, wrong)
  metric = getattr(module, 'METRIC', 'eval/anchor/loss')
  column = getattr(module, 'PAPER_COLUMN', None)
  for name, value in {'METRIC': metric, 'PAPER_COLUMN': column}.items():
    if value is not None and not isinstance(value, str):
      raise wrong(f'`{name}` must be a text, got {value!r}.')
  paper = path.with_suffix('.csv')
  suffix = f'_{variant}' * bool(variant)
  return Experiment(
    path=path,
    variant=variant,
    name=f'{path.absolute().parent.name}/{path.stem}{suffix}',
    docstring=module.__doc__ or '',
    points=points,
    metric=metric,
    views=views,
    parents=_parents(module, [*rows, *views], wrong),
    expected=_expected(module, wrong),
    paper=paper if paper.is_file() else None,
    paper_column=column,
    get_config=get_config,
    search=functions['search'],
    compute=functions['compute'],
  )


def split(path: str | os.PathLike[str]) -> tuple[pathlib.Path, str]:
  """Splits the variant from the path of an experiment.

  Examples:
    >>> split('rounds.py:paper')[1]
    'paper'
  """
  name, colon, variant = os.fspath(path).rpartition(':')
  is_whole = not colon or not _VARIANT.fullmatch(variant)
  if is_whole or pathlib.Path(path).exists():
    return pathlib.Path(path), ''
  return pathlib.Path(name), variant


def row(name: str) -> str:
  """Returns the row of the point `row/seed`."""
  return name.partition('/')[0]


def seed(name: str) -> int:
  """Returns the seed of the point `row/seed`."""
  return int(name.partition('/')[2])


def near(name: str, known: list[str]) -> str:
  """Returns a hint at the known name that is nearest, and at all of them."""
  return f'{_near.hint(name, known)} There are: {", ".join(known)}.'


def _varied(get_config, sweep, variant, wrong):
  """Gives functions the variant of the experiment as their argument."""
  if get_config is None or not _takes_one(get_config):
    raise wrong(
      f'`get_config()` takes no argument: leave out {f":{variant}"!r}, or'
      ' write `get_config(variant)`.'
    )
  varied = functools.partial(get_config, variant)
  try:
    varied()
  except Exception as error:
    raise wrong(
      f'`get_config({variant!r})` fails: {type(error).__name__}: {error}. Is'
      ' there such a variant?'
    ) from error
  if sweep and _takes_one(sweep):
    sweep = functools.partial(sweep, variant)
  return varied, sweep


def _takes_one(function):
  kinds = [
    each.kind for each in inspect.signature(function).parameters.values()
  ]
  return bool(kinds) and kinds[0] is not inspect.Parameter.KEYWORD_ONLY


def _views(module, rows, wrong):
  views = getattr(module, 'VIEWS', {})
  if not isinstance(views, Mapping):
    raise wrong(f'`VIEWS` must be a dict, got {views!r}.')
  for name, view in views.items():
    if not isinstance(name, str) or not _ROW.fullmatch(name) or name in rows:
      raise wrong(
        '`VIEWS` must have names in letters, digits and any of _.,=+- that are'
        f' no rows of `sweep()`, got {name!r}.'
      )
    is_pair = isinstance(view, tuple | list) and len(view) == 2
    if not is_pair or not all(isinstance(part, str) for part in view):
      raise wrong(
        f'`VIEWS`: {name!r} must be a row and a metric of its runs, such as'
        f" ('diloco', 'eval/mean/loss'), got {view!r}."
      )
    if view[0] not in rows:
      raise wrong(
        f'`VIEWS`: {name!r} is of {view[0]!r}, which is no row.'
        f'{near(view[0], rows)}'
      )
  return {name: tuple(view) for name, view in views.items()}


def _points(sweep, wrong):
  try:
    yielded = list(sweep())
  except Exception as error:
    raise wrong(f'`sweep()` fails: {type(error).__name__}: {error}.') from error
  points: dict[str, dict[str, Any]] = {}
  for point in yielded:
    if not isinstance(point, tuple | list) or len(point) != 2:
      raise wrong(
        f'`sweep()` must yield pairs of name and overrides, got {point!r}.'
      )
    name, overrides = point
    ends = name.partition('/') if isinstance(name, str) else ('', '', '')
    if not _ROW.fullmatch(ends[0]) or not _SEED.fullmatch(ends[2]):
      raise wrong(
        f"`sweep()` must yield names 'row/seed', of a row in letters, digits"
        f' and any of _.,=+- and a seed from 0, got {name!r}.'
      )
    if ends[0] == SEARCH:
      raise wrong(f'point {name!r}: a row cannot be called {SEARCH!r}.')
    if name in points:
      raise wrong(f'`sweep()` yields two points called {name!r}: rename one.')
    if not isinstance(overrides, Mapping) or not all(
      isinstance(field, str) for field in overrides
    ):
      raise wrong(
        f'point {name!r} must have a dict of fields, got {overrides!r}.'
      )
    points[name] = dict(overrides)
  if not points:
    raise wrong('`sweep()` yields no points.')
  return points


def _parents(module, rows, wrong):
  baseline = getattr(module, 'BASELINE', None)
  parents = getattr(module, 'PARENTS', None)
  if baseline is not None and parents is not None:
    raise wrong('`BASELINE` has no effect with `PARENTS`: remove it.')
  if baseline is not None:
    parents = {each: baseline for each in rows if each != baseline}
  parents = {} if parents is None else parents
  if not isinstance(parents, Mapping):
    raise wrong(f'`PARENTS` must be a dict from row to row, got {parents!r}.')
  for named in (*parents, *parents.values()):
    if rows and named not in rows:
      what = 'PARENTS' if baseline is None else 'BASELINE'
      raise wrong(f'`{what}`: {named!r} is no row.{near(str(named), rows)}')
  return dict(parents)


def _expected(module, wrong):
  expected = getattr(module, 'EXPECTED', ())
  # ('a', '<', 'b') is the same as 'a < b'.
  words = lambda each: (
    isinstance(each, tuple) and all(isinstance(word, str) for word in each)
  )
  if not isinstance(expected, tuple | list) or not all(
    isinstance(each, str) or words(each) for each in expected
  ):
    raise wrong(
      f"`EXPECTED` must be a tuple of statements such as ('a < b',), got"
      f' {expected!r}.'
    )
  return tuple(
    each if isinstance(each, str) else ' '.join(each) for each in expected
  )
