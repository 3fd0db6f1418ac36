"""What programs can be compiled for."""

import dataclasses
import importlib.util
import os
import sys
import types

import jax
import pytest

from dilojax import _targets
from dilojax import cli
from dilojax import replicas

DILOCO = '--config=configs/diloco.py'


@pytest.fixture(autouse=True)
def eight_devices():
  """Has devices in use, so that a target does not change their number."""
  assert len(jax.devices()) == 8


def test_slices_follow_their_axes():
  assert _targets.parse('tpu:v5e:4x4')[:] == ('tpu', 16, 'v5e', (4, 4), 1)
  assert _targets.parse('tpu:v5e:2x2x4')[:] == ('tpu', 16, 'v5e', (2, 2), 4)
  assert _targets.parse('tpu:v5p:2x2x2')[:] == ('tpu', 8, 'v5p', (2, 2, 2), 1)
  assert _targets.parse('tpu:v5p:2x2x1x3')[:] == (
    'tpu',
    12,
    'v5p',
    (2, 2, 1),
    3,
  )
  assert _targets.parse('tpu:v5e:2x2x4').topology == 'v5e:2x2'
  assert _targets.parse('cpu:8') == _targets.Target('cpu', 8)
  assert _targets.parse('gpu') == _targets.Target('gpu', None)


@pytest.mark.parametrize(
  ('target', 'message'),
  [
    ('tpu', "must be 'cpu' or"),
    ('cpu:0', "must be 'cpu' or"),
    ('tpu:v5e:0x2', "must be 'cpu' or"),
    ('cuda:1', "must be 'cpu' or"),
    ('tpu:v9:2x2', 'must be one of v5e, v5p, v6e'),
    ('tpu:v5e:2x2x2x2', 'a slice of v5e has 2 axes'),
    ('tpu:v5p:2x2', 'a slice of v5p has 3 axes'),
    ('cpu:9', 'has 8 devices on this machine, and 9'),
    ('gpu', 'has 0 devices on this machine, and at least 1'),
  ],
)
def test_a_target_that_is_not_there_is_refused(target, message, capsys):
  assert cli.main(['audit', DILOCO, f'--target={target}']) == 2
  assert message in capsys.readouterr().err


def test_a_missing_compiler_names_its_extra(monkeypatch, capsys):
  monkeypatch.setattr(importlib.util, 'find_spec', lambda name: None)
  assert cli.main(['audit', DILOCO, '--target=tpu:v5e:2x2']) == 2
  assert "pip install 'dilojax[tpu-aot]'" in capsys.readouterr().err


def test_tpus_are_compiled_for_in_a_process_of_their_own(monkeypatch):
  """Its environment is set before jax is imported, and ours stays as it is."""
  monkeypatch.setattr(importlib.util, 'find_spec', lambda name: object())
  for name in ('TPU_SKIP_MDS_QUERY', 'TPU_WORKER_HOSTNAMES'):
    monkeypatch.delenv(name, raising=False)
  seen = {}

  def run(command, env, check):
    seen.update(command=command, env=env)
    return types.SimpleNamespace(returncode=1)

  monkeypatch.setattr('subprocess.run', run)
  before = dict(os.environ)
  arguments = ['audit', DILOCO, '--target=tpu:v6e:2x2x4', '--json']
  assert cli.main([*arguments, '--config.overlap={"a": 1}']) == 1
  assert dict(os.environ) == before
  assert seen['command'][:3] == [sys.executable, '-m', 'dilojax.cli']
  assert seen['command'][3:] == [
    'audit',
    DILOCO,
    '--target=tpu:v6e:2x2x4',
    '--json',
    '--config.overlap={"a": 1}',
  ]
  assert seen['env']['TPU_ACCELERATOR_TYPE'] == 'v6e-4'
  assert seen['env']['TPU_SKIP_MDS_QUERY'] == '1'
  assert seen['env']['TPU_WORKER_HOSTNAMES'] == 'localhost'
  assert seen['env']['JAX_PLATFORMS'] == 'cpu'


def test_a_locked_compiler_says_so(monkeypatch):
  from jax.experimental import topologies

  def locked(**_):
    raise RuntimeError('Internal error when accessing libtpu lockfile.')

  monkeypatch.setattr(topologies, 'get_topology_desc', locked)
  with pytest.raises(OSError, match='another process has loaded libtpu'):
    _targets.devices(_targets.parse('tpu:v5e:2x2'), 1)


def test_replicas_are_placed_on_the_devices_given():
  devices = jax.devices()[4:]
  placement = replicas.place(2, devices=devices)
  assert list(placement.mesh.devices.flat) == devices
  with pytest.raises(ValueError, match=r'number of devices \(4\), got 5'):
    replicas.place(2, 5, devices=devices)


@dataclasses.dataclass(frozen=True)
class Chip:
  """A device of a slice, as far as a mesh looks at it."""

  id: int
  slice_index: int
  platform: str = 'cpu'
  device_kind: str = 'cpu'

  @property
  def process_index(self):
    """One process for each slice."""
    return self.slice_index


def chips(num_slices, per_slice):
  return [
    Chip(100_000 * (number + 1) + chip, number)
    for chip in range(per_slice)
    for number in range(num_slices)
  ]


@pytest.mark.parametrize(
  ('num_replicas', 'expected'),
  [
    # Slice of each replica, whatever the order of the devices.
    ({'replica': 4}, [0, 1, 2, 3]),
    ({'replica': 8}, [0, 0, 1, 1, 2, 2, 3, 3]),
    ({'region': 2, 'host': 2}, [0, 1, 2, 3]),
    ({'region': 4, 'host': 2}, [0, 0, 1, 1, 2, 2, 3, 3]),
  ],
)
def test_slices_lie_along_the_outermost_axes(num_replicas, expected):
  placement = replicas.place(num_replicas, devices=chips(4, 4))
  rows = placement.mesh.devices.reshape(len(expected), -1)
  slices = [{replicas.slice_of(chip) for chip in row} for row in rows]
  assert slices == [{number} for number in expected]


def test_a_replica_lies_within_a_slice():
  with pytest.raises(ValueError, match=r'multiple of the number of slices'):
    replicas.place(2, devices=chips(4, 4))
  uneven = sorted(chips(2, 3), key=replicas.slice_of)
  with pytest.raises(ValueError, match='slices must be alike'):
    replicas.place(4, 4, devices=uneven)
