"""Tests for `dilojax.workdir`."""

import fcntl
import json
import subprocess
import sys

import pytest

from dilojax import workdir

CONFIG = {'seed': 0, 'outer': {'lr': 0.7}, 'mesh': {'num_devices': 4}}
HOLD = """\
import fcntl, sys
lock = open(sys.argv[1], 'a')
fcntl.flock(lock, fcntl.LOCK_EX)
print('held', flush=True)
sys.stdin.read()
"""


def content(folder):
  """Returns every file below a folder by name, with its bytes and its time."""
  return {
    str(path): (path.read_bytes(), path.stat().st_mtime_ns)
    for path in sorted(folder.rglob('*'))
    if path.is_file()
  }


def open_once(folder, config=None, changes=()):
  config = CONFIG if config is None else config
  with workdir.opened(folder, config, changes=changes) as path:
    return path


def config_in(folder):
  return json.loads((folder / workdir.CONFIG).read_text())


@pytest.fixture
def run(tmp_path):
  """The folder of a run with `CONFIG`."""
  return open_once(tmp_path / 'a' / 'run')


def test_new_folder(run):
  assert config_in(run) == CONFIG
  assert {path.name for path in run.iterdir()} == {
    workdir.CONFIG,
    workdir.LOCK,
  }


def test_empty_folder(tmp_path):
  (tmp_path / '.DS_Store').touch()  # What a desktop leaves is no content.
  open_once(tmp_path)
  assert config_in(tmp_path) == CONFIG


def test_the_same_config_writes_nothing(run):
  before = content(run)
  open_once(run)
  assert content(run) == before


def test_placement_is_no_part_of_a_run(run):
  other = {**CONFIG, 'mesh': {'num_devices': 1, 'fsdp': 2}}
  open_once(run, other)
  assert config_in(run) == other


@pytest.mark.parametrize(
  ('other', 'message', 'change'),
  [
    ({**CONFIG, 'seed': 1}, '`seed`: 0 there, 1 here', 'seed'),
    (
      {**CONFIG, 'outer': {'lr': 0.7, 'momentum': 0.9}},
      "`outer.momentum`: 'absent' there, 0.9 here",
      'outer.momentum',
    ),
    (
      {'seed': 1, 'mesh': {}},
      "`outer.lr`: 0.7 there, 'absent' here; `seed`: 0 there, 1 here",
      'outer.lr,seed',
    ),
  ],
)
def test_another_config(run, other, message, change):
  before = content(run)
  with pytest.raises(ValueError, match='holds a run with another') as error:
    open_once(run, other)
  assert message in str(error.value)
  assert f'--change={change}.' in str(error.value)
  assert content(run) == before
  # The message's advice works.
  open_once(run, other, change.split(','))
  assert config_in(run) == other


def test_change_allows_what_it_names_only(run):
  other = {**CONFIG, 'seed': 1, 'outer': {'lr': 1.0}}
  with pytest.raises(ValueError, match='`outer.lr`') as error:
    open_once(run, other, ['seed'])
  assert '`seed`' not in str(error.value)


def test_change_may_be_repeated(tmp_path):
  """The same command goes on with a run, whenever it was killed."""
  other = {**CONFIG, 'seed': 1}
  for _ in range(2):
    open_once(tmp_path / 'new', CONFIG, ['seed'])
  for _ in range(2):
    open_once(tmp_path / 'new', other, ['seed'])
  open_once(tmp_path / 'new', other)


def test_change_of_no_field(run):
  before = content(run)
  with pytest.raises(ValueError, match="`change`: 'sed' is no field") as error:
    open_once(run, changes=['sed'])
  assert str(error.value).endswith('Did you mean `seed`?')
  assert content(run) == before


def test_a_refused_change_leaves_the_config(run):
  before, changed = config_in(run), {**CONFIG, 'seed': 1}

  def fail(error):
    with workdir.opened(run, changed, changes=['seed']):
      assert config_in(run) == changed
      raise error

  with pytest.raises(ValueError, match='does not fit'):
    fail(ValueError('The checkpoint does not fit.'))
  assert config_in(run) == before
  with pytest.raises(KeyboardInterrupt):
    fail(KeyboardInterrupt())
  assert config_in(run) == changed


def test_foreign_folder(tmp_path):
  (tmp_path / 'thesis.tex').write_text('...')
  before = content(tmp_path)
  with pytest.raises(ValueError, match='holds no run: thesis.tex. Choose'):
    open_once(tmp_path)
  assert content(tmp_path) == before


@pytest.mark.parametrize(
  ('text', 'message'),
  [
    ('{"seed": 0', 'cannot be read'),
    ('', 'cannot be read'),
    ('[1]', 'is damaged'),
    (b'\xff\xfe', 'cannot be read'),
  ],
)
def test_corrupt_config(run, text, message):
  data = text if isinstance(text, bytes) else text.encode()
  (run / workdir.CONFIG).write_bytes(data)
  before = content(run)
  with pytest.raises(ValueError, match=f'config.json.* {message}'):
    open_once(run)
  assert content(run) == before


def test_not_writable(tmp_path):
  (tmp_path / 'file').write_text('...')
  before = content(tmp_path)
  for folder in (
    tmp_path / 'file',
    tmp_path / 'file' / 'run',
    '/proc/no_such_folder',
  ):
    with pytest.raises(ValueError, match='must be a folder to write to, got'):
      open_once(folder)
  assert content(tmp_path) == before


def test_in_use_by_this_process(run):
  with (
    workdir.opened(run, CONFIG),
    pytest.raises(ValueError, match='is in use by another process'),
  ):
    open_once(run)
  open_once(run)


def test_in_use_by_another_process(run):
  command = [sys.executable, '-c', HOLD, str(run / workdir.LOCK)]
  with subprocess.Popen(
    command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
  ) as holder:
    assert holder.stdout is not None
    assert holder.stdout.readline() == 'held\n'
    before = content(run)
    with pytest.raises(ValueError, match='is in use by another process'):
      open_once(run)
    assert content(run) == before
    # A lock is gone with its process, however that ended.
    holder.kill()
    holder.wait()
    open_once(run)


def test_what_another_process_wrote_meanwhile(tmp_path, monkeypatch):
  """Between the first look and the lock, a folder may become another's."""
  flock = fcntl.flock

  def late(lock, operation):
    (tmp_path / workdir.CONFIG).write_text(json.dumps({**CONFIG, 'seed': 9}))
    flock(lock, operation)

  monkeypatch.setattr(fcntl, 'flock', late)
  with pytest.raises(ValueError, match='`seed`: 9 there, 0 here'):
    open_once(tmp_path)


def test_check_writes_nothing(tmp_path):
  assert workdir.check(tmp_path / 'new', CONFIG) is None
  assert not (tmp_path / 'new').exists()
  assert workdir.check(tmp_path, CONFIG) is None
  assert not list(tmp_path.iterdir())


def test_json_is_written_whole(tmp_path):
  path = tmp_path / 'value.json'
  workdir.write_json(path, {'a': 1})
  with pytest.raises(TypeError):
    workdir.write_json(path, {'a': object()})
  assert workdir.read_json(path) == {'a': 1}
  with pytest.raises(ValueError, match='missing.json.* cannot be read'):
    workdir.read_json(tmp_path / 'missing.json')


def test_environment():
  found = workdir.environment()
  assert json.loads(json.dumps(found)) == found
  assert set(workdir.PACKAGES) == found['packages'].keys()
  assert found['platform'] == 'cpu'
  assert found['num_devices'] == 8
