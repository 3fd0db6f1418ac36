"""What programs are compiled for: devices of this machine, or absent ones."""

import contextlib
import importlib.util
import math
import re
from typing import Any, NamedTuple

ALLOWED = (
  "'cpu' or 'cpu:8' (virtual devices of this machine), 'gpu' or 'gpu:2' (this"
  " machine's), or TPUs that need not be there, such as 'tpu:v5e:4x4', or"
  " 'tpu:v5e:2x2x4' for four slices of 2x2"
)

# Axes of a slice, name of the accelerator type, and cores that it counts.
_TPUS = {
  'v5e': (2, 'v5litepod', 1),
  'v5p': (3, 'v5p', 2),
  'v6e': (2, 'v6e', 1),
}


class Target(NamedTuple):
  """What programs are compiled for.

  Attributes:
    platform: `'cpu'`, `'gpu'` or `'tpu'`.
    num_devices: Number of devices, or None for as many as there are.
    kind: Of a TPU, such as `'v5e'`; else empty.
    slice_shape: Chips along the axes of a slice of TPUs; else empty.
    num_slices: Number of slices, joined by a data-centre network.
  """

  platform: str
  num_devices: int | None
  kind: str = ''
  slice_shape: tuple[int, ...] = ()
  num_slices: int = 1

  @property
  def topology(self) -> str:
    """Name of a slice's topology."""
    return f'{self.kind}:{"x".join(map(str, self.slice_shape))}'


def parse(text: str) -> Target:
  """Reads a target.

  Args:
    text: Such as `'cpu:8'`, `'gpu'`, `'tpu:v5e:2x2x4'`.

  Raises:
    ValueError: If there is no such target.

  Examples:
    >>> parse('tpu:v5e:2x2x4').num_slices
    4
  """
  unknown = ValueError(f'`target` must be {ALLOWED}; got {text!r}.')
  if match := re.fullmatch(r'(cpu|gpu)(?::([1-9]\d*))?', text):
    return Target(match[1], int(match[2]) if match[2] else None)
  match = re.fullmatch(r'tpu:(\w+):([1-9]\d*(?:x[1-9]\d*)+)', text)
  if not match:
    raise unknown
  if match[1] not in _TPUS:
    raise ValueError(
      f'`target` {text!r}: the kind of TPU must be one of {", ".join(_TPUS)}.'
    )
  num_axes = _TPUS[match[1]][0]
  sizes = tuple(map(int, match[2].split('x')))
  if not num_axes <= len(sizes) <= num_axes + 1:
    raise ValueError(
      f'`target` {text!r}: a slice of {match[1]} has {num_axes} axes, which'
      ' may be followed by the number of slices.'
    )
  num_slices = sizes[num_axes] if len(sizes) > num_axes else 1
  shape = sizes[:num_axes]
  total = math.prod(shape) * num_slices
  return Target('tpu', total, match[1], shape, num_slices)


def environment(target: Target) -> dict[str, str]:
  """Returns the variables that have to be set before jax is imported."""
  if target.platform != 'tpu':
    return {}
  _, name, num_cores = _TPUS[target.kind]
  num_cores *= math.prod(target.slice_shape)
  return {
    'JAX_PLATFORMS': 'cpu',  # The TPUs are compiled for, and not used.
    'ALLOW_MULTIPLE_LIBTPU_LOAD': '1',  # So that several may compile.
    'TPU_ACCELERATOR_TYPE': f'{name}-{num_cores}',
    'TPU_SKIP_MDS_QUERY': '1',
    'TPU_WORKER_HOSTNAMES': 'localhost',
  }


def check_extra(target: Target) -> None:
  """Checks that the compiler of a target is there.

  Raises:
    ImportError: If it is not.
  """
  if target.platform == 'tpu' and not importlib.util.find_spec('libtpu'):
    raise ImportError(
      "Compiling for TPUs needs libtpu: pip install 'dilojax[tpu-aot]'."
    )


def devices(target: Target, num_wanted: int) -> list[Any]:
  """Returns the devices of a target.

  For TPUs, in a process that has the :func:`environment`.

  Args:
    target: The target.
    num_wanted: How many virtual devices a CPU is to have if the target does
      not say.

  Raises:
    ValueError: If there are no such devices.
    OSError: If another process uses the compiler.
  """
  if target.platform == 'tpu':
    return _tpus(target)
  import jax

  if target.platform == 'cpu':
    # Once devices are in use, as in a notebook, their number stands.
    with contextlib.suppress(RuntimeError):
      jax.config.update('jax_platforms', 'cpu')
      jax.config.update('jax_num_cpu_devices', target.num_devices or num_wanted)
  try:
    found = jax.devices(target.platform)
  except RuntimeError:
    found = []
  wanted = target.num_devices
  if target.platform == 'cpu':
    wanted = wanted or min(num_wanted, len(found))
  if not found or (wanted or 0) > len(found):
    raise ValueError(
      f"`target` '{target.platform}' has {len(found)} devices on this machine,"
      f' and {wanted or "at least 1"} are asked for.'
    )
  return list(found)[:wanted]


def _tpus(target):
  from jax.experimental import topologies

  try:
    found = topologies.get_topology_desc(
      platform='tpu',
      topology_name=target.topology,
      num_slices=target.num_slices,
    )
  except Exception as error:
    if 'lockfile' in str(error) or 'already in use' in str(error):
      raise OSError(
        'another process has loaded libtpu, and one at a time may: wait until'
        f' it ends. ({error})'
      ) from error
    reason = str(error).strip().splitlines()[0]
    raise ValueError(
      f'`target`: libtpu has no topology {target.topology!r}: {reason}'
    ) from error
  return list(found.devices)
