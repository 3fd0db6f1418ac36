"""The folder of a run: whose it is, and what ran there."""

from collections.abc import Generator, Mapping, Sequence
import contextlib
import fcntl
import importlib.metadata
import json
import os
import pathlib
import platform
import subprocess
import sys
from typing import Any

import jax

from dilojax import _fields
from dilojax import _functions
from dilojax import _near
from dilojax import checkpoint
from dilojax import processes

CONFIG = 'config.json'
ENVIRONMENT = 'environment.json'
METRICS = 'metrics.jsonl'
SUMMARY = 'summary.json'
CHECKPOINTS = 'checkpoints'
LOCK = '.lock'

# A run is its config, never the hardware that it happens to be on.
PLACEMENT = 'mesh'
PACKAGES = ('jax', 'jaxlib', 'flax', 'optax', 'orbax-checkpoint', 'numpy')


@contextlib.contextmanager
def opened(
  folder: str | os.PathLike[str],
  config: Mapping[str, Any],
  *,
  changes: Sequence[str] = (),
) -> Generator[pathlib.Path]:
  """Opens the folder of a run, for the processes of this run alone.

  A new or empty folder becomes the run's, and its config is written. A folder
  with the same config is gone on with. What is refused is left as it was.
  Several processes share the folder, and the first of them writes.

  Args:
    folder: The folder.
    config: The run's config, as plain JSON values.
    changes: Names of fields that may differ from the config in the folder.
      The new config is written then; and the old one again if the body raises
      ValueError, as it does when a checkpoint does not fit the new one.

  Yields:
    The folder.

  Raises:
    ValueError: If the folder is not writable, belongs to another config or to
      something else, or is in use, or if `changes` names no field.
  """
  path, old = pathlib.Path(folder), None
  with contextlib.ExitStack() as stack:
    with processes.together('the opening of the folder'):
      if processes.is_first():
        check(path, config, changes=changes)
        stack.enter_context(_locked(path))
        # Once more: until the lock was ours, another process may have written.
        old = check(path, config, changes=changes)
        if old != config:
          write_json(path / CONFIG, config)
    with processes.together('a look into the folder'):
      if not processes.is_first() and _config_in(path) != config:
        raise ValueError(
          f'`workdir` {str(path)!r} must be on a file system that all processes'
          ' share: what process 0 wrote there is not to be seen here.'
        )
    try:
      yield path
    except ValueError:
      if old is not None and old != config:
        write_json(path / CONFIG, old)
      raise


def check(
  folder: str | os.PathLike[str],
  config: Mapping[str, Any],
  *,
  changes: Sequence[str] = (),
) -> dict[str, Any] | None:
  """Checks that a folder can be this run's; writes nothing.

  Args:
    folder: The folder.
    config: As for :func:`opened`.
    changes: As for :func:`opened`.

  Returns:
    The config of the run in the folder, None if there is no run.

  Raises:
    ValueError: As for :func:`opened`.
  """
  path, new = pathlib.Path(folder), _fields.flatten(config)
  try:
    names = {entry.name for entry in path.iterdir()} if path.exists() else set()
  except OSError as error:
    raise _not_writable(path, error) from error
  foreign = sorted(name for name in names if not name.startswith('.'))
  if foreign and CONFIG not in foreign:
    raise ValueError(
      f'`workdir` {str(path)!r} is not empty and holds no run:'
      f' {", ".join(foreign[:5])}. Choose another folder.'
    )
  config_there = _config_in(path) if foreign else None
  old = new if config_there is None else _fields.flatten(config_there)
  for name in changes:
    if name not in old.keys() | new.keys():
      hint = _near.hint(name, new)
      raise ValueError(f'`change`: {name!r} is no field of the config.{hint}')
  refused = [name for name in _differing(old, new) if name not in changes]
  if refused:
    shown = '; '.join(
      f'`{name}`: {old.get(name, "absent")!r} there,'
      f' {new.get(name, "absent")!r} here'
      for name in refused
    )
    raise ValueError(
      f'`workdir` {str(path)!r} holds a run with another config: {shown}.'
      ' Choose another folder, or allow a change of this run with'
      f' --change={",".join(refused)}.'
    )
  if changes and _has_finished(path, config):
    raise ValueError(
      f'`change` has no effect: the run in {str(path)!r} has finished. Raise'
      ' `num_steps` to go on with it, or choose another folder.'
    )
  return config_there


def write_json(path: pathlib.Path, value: Any) -> None:
  """Writes JSON whole or not at all."""
  temporary = path.with_name(f'.{path.name}.new')
  temporary.write_text(json.dumps(value, indent=2) + '\n')
  temporary.replace(path)


def read_json(path: pathlib.Path) -> Any:
  """Reads JSON.

  Raises:
    ValueError: If it is missing or damaged.
  """
  try:
    return json.loads(path.read_text())
  except (OSError, ValueError) as error:
    raise ValueError(f'{str(path)!r} cannot be read: {error}.') from error


@contextlib.contextmanager
def _locked(path):
  try:
    path.mkdir(parents=True, exist_ok=True)
    lock = open(path / LOCK, 'a')
  except OSError as error:
    raise _not_writable(path, error) from error
  with lock:
    try:
      fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
      raise ValueError(
        f'`workdir` {str(path)!r} is in use by another process: wait for it,'
        ' or choose another folder.'
      ) from None
    yield


def _has_finished(path, config):
  """Tells whether a run has taken all the steps of a config."""
  steps = checkpoint.steps(path / CHECKPOINTS)
  is_there = (path / SUMMARY).exists()
  return bool(is_there and steps and steps[-1] == config.get('num_steps'))


def environment() -> dict[str, Any]:
  """Returns what a run runs with: versions, devices, commit."""
  devices = jax.devices()
  return {
    'command': sys.argv,
    'python': platform.python_version(),
    'packages': {name: importlib.metadata.version(name) for name in PACKAGES},
    'machine': platform.machine(),
    'system': platform.system(),
    'processor': _processor(),
    'cpus': os.cpu_count(),
    'cores': _num_cores(),
    'platform': devices[0].platform,
    'device_kind': devices[0].device_kind,
    'num_devices': len(devices),
    'num_processes': processes.count(),
    **_commit(),
  }


def functions(config: Mapping[str, Any]) -> dict[str, str]:
  """Returns digests of functions that a config names: no commit has them."""
  return {
    value: _functions.fingerprint(value)
    for name, value in _fields.flatten(config).items()
    if name.endswith('outer.name') and _functions.is_reference(value)
  }


def _processor() -> str:
  """Returns the name of the processor, as far as the system tells."""
  with contextlib.suppress(OSError):
    for line in pathlib.Path('/proc/cpuinfo').read_text().splitlines():
      if line.startswith('model name'):
        return line.partition(':')[2].strip()
  return platform.processor()


def _num_cores() -> int | None:
  """Returns how many of the CPUs this process may use."""
  if hasattr(os, 'sched_getaffinity'):
    return len(os.sched_getaffinity(0))
  return os.cpu_count()


def _commit() -> dict[str, Any]:
  """Returns the commit of the library's checkout, if it is one."""
  here = pathlib.Path(__file__).parent

  def git(*args):
    command = ('git', '-C', str(here), *args)
    return subprocess.run(
      command, capture_output=True, text=True, check=True
    ).stdout.strip()

  try:
    commit = git('rev-parse', 'HEAD')
    # Unknown files do not change what a run does, unless they are the code.
    clean = not git('status', '--porcelain', '--', str(here))
  except (OSError, subprocess.CalledProcessError):
    return {'commit': None, 'clean': None}
  return {'commit': commit, 'clean': clean}


def _config_in(path):
  path /= CONFIG
  config = read_json(path)
  if not isinstance(config, dict):
    raise ValueError(
      f'{str(path)!r} is damaged: it must hold a config, got {config!r}.'
    )
  return config


def _differing(old, new):
  """Names the fields in which a run differs; its placement is none of it."""
  missing = object()
  return [
    name
    for name in sorted(old.keys() | new.keys())
    if old.get(name, missing) != new.get(name, missing)
    and name.partition('.')[0] != PLACEMENT
  ]


def _not_writable(path, error):
  return ValueError(
    f'`workdir` must be a folder to write to, got {str(path)!r}: {error}.'
  )
