"""What each of several runs on this machine may use: cores and devices."""

from collections.abc import Mapping
import os
import pathlib
from typing import NamedTuple

from dilojax import launch

# Bounds of the chips of a process, by their number, as libtpu wants them.
_TPU_BOUNDS = {1: '1,1,1', 2: '1,2,1', 4: '2,2,1'}


class Share(NamedTuple):
  """What one run may use.

  Attributes:
    cores: The cores, None for whatever there is.
    environ: Environment variables that give it its devices.
    num_devices: Number of accelerators, 0 if it computes on the cores.
  """

  cores: tuple[int, ...] | None
  environ: dict[str, str]
  num_devices: int


def shares(jobs: int, environ: Mapping[str, str]) -> list[Share]:
  """Deals out the cores, and the GPUs or TPU chips if there are any.

  Args:
    jobs: Number of runs at a time.
    environ: Environment variables of this process.

  Returns:
    A share for each of the runs.

  Raises:
    ValueError: If there is not enough for so many, or it cannot be divided.
  """
  if jobs < 1:
    raise ValueError(f'`jobs` must be at least 1, got {jobs}.')
  cores = _cores()
  gpus, chips = _gpus(environ), _tpu_chips(environ)
  what, devices = ('GPUs', gpus) if gpus else ('TPU chips', chips)
  if jobs == 1:
    return [Share(None, {}, len(devices))]
  if devices and len(devices) % jobs:
    raise ValueError(
      f'`jobs` must divide the number of {what} ({len(devices)}), got {jobs}: a'
      ' device belongs to one run. JAX_PLATFORMS=cpu leaves them alone.'
    )
  if cores and jobs > len(cores):
    raise ValueError(
      f'`jobs` must be at most {len(cores)}, the number of cores, got {jobs}:'
      ' each run gets its own.'
    )
  each = len(devices) // jobs
  if chips and not gpus and each not in _TPU_BOUNDS:
    raise ValueError(
      f'`jobs` must leave 1, 2 or 4 TPU chips to a run, got {jobs} for'
      f' {len(chips)}.'
    )
  found = []
  for job in range(jobs):
    mine = devices[job * each : (job + 1) * each]
    own = _part(cores, job, jobs) if cores else None
    variables = _gpu_variables(mine) if gpus else _tpu_variables(mine)
    threads = {} if own is None else {'OMP_NUM_THREADS': str(len(own))}
    found.append(Share(own, {**threads, **variables}, each))
  return found


def _cores():
  if not hasattr(os, 'sched_getaffinity'):
    return ()  # Not on macOS: the runs then share the cores as they can.
  return tuple(sorted(os.sched_getaffinity(0)))


def _part(items, job, jobs):
  return items[job * len(items) // jobs : (job + 1) * len(items) // jobs]


def _gpus(environ):
  count = launch.num_gpus(environ)
  visible = environ.get('CUDA_VISIBLE_DEVICES', '')
  return visible.split(',')[:count] if visible else list(map(str, range(count)))


def _tpu_chips(environ):
  platforms = environ.get('JAX_PLATFORMS', '')
  if platforms and 'tpu' not in platforms.split(','):
    return []
  if environ.get('TPU_VISIBLE_CHIPS'):
    return environ['TPU_VISIBLE_CHIPS'].split(',')
  dev = pathlib.Path('/dev')
  found = list(dev.glob('accel[0-9]*')) or list(dev.glob('vfio/[0-9]*'))
  return list(map(str, range(len(found))))


def _gpu_variables(mine):
  return {'CUDA_VISIBLE_DEVICES': ','.join(mine)}


def _tpu_variables(mine):
  if not mine:
    return {}
  return {
    'TPU_VISIBLE_CHIPS': ','.join(mine),
    'TPU_CHIPS_PER_PROCESS_BOUNDS': _TPU_BOUNDS[len(mine)],
    'TPU_PROCESS_BOUNDS': '1,1,1',
  }
