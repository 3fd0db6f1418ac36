"""A search of Optuna whose trials are runs: stored, and gone on with."""

from collections.abc import Generator, Mapping
import contextlib
import fcntl
import json
import pathlib
from typing import Any, NamedTuple
import warnings

from dilojax import _experiment
from dilojax import _fields
from dilojax import _overrides
from dilojax import _points
from dilojax import _pool
from dilojax import build
from dilojax import metrics

STUDY = 'study.db'
_CONFIG, _OVERRIDES = 'config', 'overrides'


class Best(NamedTuple):
  """The best trial of a search.

  Attributes:
    number: Its number, which is the name of its folder.
    value: The metric there.
    overrides: What it overrides.
  """

  number: int
  value: float
  overrides: dict[str, Any]


class Search(NamedTuple):
  """A search that is open.

  Attributes:
    experiment: The experiment.
    out: Where its runs go.
    study: The study of Optuna.
  """

  experiment: _experiment.Experiment
  out: pathlib.Path
  study: Any


def check(
  experiment: _experiment.Experiment, out: pathlib.Path, num_devices: int
) -> None:
  """Checks a first trial in all that a point is checked in; writes nothing.

  Raises:
    ValueError: If it is refused.
    ImportError: If Optuna is missing.
  """
  trial = _optuna().create_study().ask()
  name = f'{_experiment.SEARCH}/any'
  overrides = _suggested(experiment, trial)
  points = _points.configured(experiment, out, {name: overrides})
  _points.built(points, num_devices)


@contextlib.contextmanager
def opened(
  experiment: _experiment.Experiment, out: pathlib.Path, jobs: int
) -> Generator[Search]:
  """Opens the search in a folder, for this process alone.

  Raises:
    ValueError: If another process has it, or it is one of another config.
  """
  optuna = _optuna()
  folder = out / _experiment.SEARCH
  folder.mkdir(parents=True, exist_ok=True)
  with open(folder / '.lock', 'a') as lock:
    try:
      fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
      raise ValueError(
        f'`out` {str(out)!r}: another process searches there; wait for it, or'
        ' choose another folder.'
      ) from None
    storage = optuna.storages.RDBStorage(f'sqlite:///{folder / STUDY}')
    study = optuna.create_study(
      storage=storage, study_name=experiment.name, load_if_exists=True
    )
    try:
      _check_config(experiment, study)
      with warnings.catch_warnings():
        warnings.simplefilter('ignore', optuna.exceptions.ExperimentalWarning)
        # A sampler starts anew with each call, and must not repeat itself.
        study.sampler = optuna.samplers.TPESampler(
          seed=len(study.trials), constant_liar=jobs > 1
        )
      yield Search(experiment, out, study)
    finally:
      storage.remove_session()
      storage.engine.dispose()


def trials(
  search: Search, count: int, refused: dict[str, str]
) -> Generator[_points.Point]:
  """Yields the trials that are missing to a number of finished ones.

  First those that were begun and have not ended; then new ones, each asked for
  when it can start, so that it knows the results of those before.

  Args:
    search: The search.
    count: Number of finished trials in the end.
    refused: Takes why trials have been refused, by name.
  """
  study = search.study
  begun = study.get_trials(states=(_states().RUNNING,))
  missing = count - num_finished(search)
  for frozen in begun[: max(0, missing)]:
    overrides = frozen.user_attrs.get(_OVERRIDES)
    if overrides is None:  # Killed while it was asked for.
      study.tell(frozen.number, state=_states().FAIL)
      continue
    missing -= 1
    yield _point(search, frozen.number, json.loads(overrides))
  for _ in range(missing):
    trial = study.ask()
    try:
      overrides = _suggested(search.experiment, trial)
      point = _point(search, trial.number, overrides)
    except ValueError as error:
      study.tell(trial, state=_states().FAIL)
      refused[_name(trial.number)] = str(error)
      continue
    trial.set_user_attr(_OVERRIDES, json.dumps(overrides))
    yield point


def tell(search: Search, ended: _pool.Ended) -> None:
  """Tells the study how a trial has ended; one that was stopped has not."""
  if ended.reason == _pool.STOPPED:
    return
  number = int(ended.point.name.partition('/')[2])
  summary = _points.result(ended.point)
  value = summary and summary['final'].get(search.experiment.metric)
  if ended.reason is None and value is not None:
    search.study.tell(number, value)
  else:
    search.study.tell(number, state=_states().FAIL)


def num_finished(search: Search) -> int:
  """Returns the number of trials with a result."""
  return len(_finished(search.study))


def finished(search: Search) -> list[str]:
  """Returns the names of the trials with a result."""
  return [_name(trial.number) for trial in _finished(search.study)]


def best(search: Search) -> Best | None:
  """Returns the best trial, None if none has finished."""
  found = _finished(search.study)
  if not found:
    return None
  first = min(found, key=lambda trial: trial.value)
  overrides = json.loads(first.user_attrs[_OVERRIDES])
  return Best(first.number, first.value, overrides)


def _optuna():
  optuna = metrics.import_extra('optuna', 'search')
  optuna.logging.set_verbosity(optuna.logging.WARNING)
  return optuna


def _states():
  return _optuna().trial.TrialState


def _finished(study):
  return study.get_trials(states=(_states().COMPLETE,))


def _name(number):
  return f'{_experiment.SEARCH}/{number}'


def _point(search, number, overrides):
  points = {_name(number): overrides}
  [point] = _points.configured(search.experiment, search.out, points)
  return point


def _suggested(experiment, trial):
  try:
    overrides = experiment.search(trial)
  except Exception as error:
    raise ValueError(
      f'`experiment` {str(experiment.path)!r}: `search(trial)` fails:'
      f' {type(error).__name__}: {error}.'
    ) from error
  if not isinstance(overrides, Mapping):
    raise ValueError(
      f'`experiment` {str(experiment.path)!r}: `search(trial)` must return a'
      f' dict of overrides, got {overrides!r}.'
    )
  return dict(overrides)


def _check_config(experiment, study):
  """Checks that all trials override the same config, or notes which."""
  base = _overrides.config_of(
    experiment.get_config, experiment.path, 'experiment'
  )
  new = _fields.flatten(build.resolve(base))
  text = study.user_attrs.get(_CONFIG)
  if text is None:
    study.set_user_attr(_CONFIG, json.dumps(new))
    return
  old, missing = json.loads(text), object()
  new = json.loads(json.dumps(new))
  fields = [
    name
    for name in sorted(old.keys() | new.keys())
    if old.get(name, missing) != new.get(name, missing)
  ]
  if fields:
    raise ValueError(
      '`out` has a search of another config, which differs in'
      f' {", ".join(fields)}: choose another folder.'
    )
