"""The folder of a run: whose it is, and what ran there."""

from collections.abc import Iterator, Mapping, Sequence
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

CONFIG = 'config.json'
ENVIRONMENT = 'environment.json'
METRICS = 'metrics.jsonl'
SUMMARY = 'summary.json'
CHECKPOINTS = 'checkpoints'

# A run is its config, never the hardware that it happens to be on.
PLACEMENT = 'mesh'
PACKAGES = ('jax', 'jaxlib', 'flax', 'optax', 'orbax-checkpoint', 'numpy')


@contextlib.contextmanager
def opened(
  folder: str | os.PathLike[str],
  config: Mapping[str, Any],
  *,
  changes: Sequence[str] = (),
) -> Iterator[pathlib.Path]:
  """Opens the folder of a run, for this process alone.

  A new or empty folder becomes the run's, and its config is written. A folder
  with the same config is gone on with.

  Args:
    folder: The folder.
    config: The run's config, as plain JSON values.
    changes: Names of fields that may differ from the config in the folder.
      The new config is written then.

  Yields:
    The folder.

  Raises:
    ValueError: If the folder is not writable, belongs to another config or to
      something else, is in use, or if a field of `changes` does not differ.
  """
  path = pathlib.Path(folder)
  try:
    path.mkdir(parents=True, exist_ok=True)
    lock = open(path / '.lock', 'a')
  except OSError as error:
    raise ValueError(
      f'`workdir` must be a folder to write to, got {str(path)!r}: {error}.'
    ) from error
  with lock:
    try:
      fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
      raise ValueError(
        f'`workdir` {str(path)!r} is in use by another process: wait for it,'
        ' or choose another folder.'
      ) from None
    _claim(path, dict(config), changes)
    yield path


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


def environment() -> dict[str, Any]:
  """Returns what a run ran with: versions, devices, commit."""
  devices = jax.devices()
  return {
    'command': sys.argv,
    'python': platform.python_version(),
    'packages': {name: importlib.metadata.version(name) for name in PACKAGES},
    'machine': platform.machine(),
    'system': platform.system(),
    'cpus': os.cpu_count(),
    'platform': devices[0].platform,
    'device_kind': devices[0].device_kind,
    'num_devices': len(devices),
    **_commit(),
  }


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


def _claim(path, config, changes):
  found = path / CONFIG
  if not found.exists():
    foreign = [
      entry.name for entry in path.iterdir() if not entry.name.startswith('.')
    ]
    if foreign:
      raise ValueError(
        f'`workdir` {str(path)!r} is not empty and holds no run:'
        f' {", ".join(sorted(foreign)[:5])}. Choose another folder.'
      )
    if changes:
      raise ValueError(
        f'`change` ({", ".join(changes)}) has no effect: {str(path)!r} holds no'
        ' run yet. Leave it out.'
      )
    write_json(found, config)
    return
  old, new = _fields.flatten(read_json(found)), _fields.flatten(config)
  differ = {
    name: (old.get(name, 'absent'), new.get(name, 'absent'))
    for name in sorted(old.keys() | new.keys())
    if old.get(name, 'absent') != new.get(name, 'absent')
  }
  of_run = {
    name: pair
    for name, pair in differ.items()
    if not name.startswith(f'{PLACEMENT}.')
  }
  refused = {name: of_run[name] for name in of_run.keys() - set(changes)}
  if refused:
    shown = '; '.join(
      f'`{name}`: {there!r} there, {here!r} here'
      for name, (there, here) in sorted(refused.items())
    )
    raise ValueError(
      f'`workdir` {str(path)!r} holds a run with another config: {shown}.'
      ' Choose another folder, or allow a change of this run with'
      f' --change={",".join(sorted(refused))}.'
    )
  idle = [name for name in changes if name not in of_run]
  if idle:
    raise ValueError(
      f'`change` ({", ".join(idle)}) has no effect: the config in'
      f' {str(path)!r} has the same. Leave it out.'
    )
  if differ:
    write_json(found, config)
