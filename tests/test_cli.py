"""Tests for `dilojax.cli`: what a person types, sees, and finds on disk."""

import json
import pathlib
import shutil
import subprocess
import sys

import jax
import pytest

from dilojax import cli
from dilojax import workdir
from tests import tiny

# Before a command asks for fewer devices than other tests need.
jax.devices()

ROOT = pathlib.Path(__file__).parents[1]
COMMANDS = ('train', 'plot', 'table', 'prepare')


def arguments(folder, name='diloco', **changes):
  """Returns the command that trains a tiny model of a config."""
  changes = {'model': tiny.MODEL, 'data': tiny.DATA, **tiny.SMALL, **changes}
  return [
    'train',
    f'--config={ROOT}/configs/{name}.py',
    f'--workdir={folder}',
    *(f'--config.{field}={value}' for field, value in changes.items()),
  ]


def content(folder):
  """Returns every file below a folder by name, with its bytes."""
  return {
    str(path): path.read_bytes()
    for path in sorted(folder.rglob('*'))
    if path.is_file()
  }


@pytest.fixture
def refuse(capsys, tmp_path):
  """Function that runs a command that must be refused; returns the message."""

  def refuse(argv):
    before = content(tmp_path), sorted(tmp_path.rglob('*'))
    capsys.readouterr()
    assert cli.main(argv) == 2
    shown = capsys.readouterr()
    assert shown.out == ''
    assert 'Traceback' not in shown.err
    assert (content(tmp_path), sorted(tmp_path.rglob('*'))) == before
    return shown.err.partition('dilojax: error: ')[2].rstrip('\n')

  return refuse


@pytest.fixture(scope='module')
def finished(tmp_path_factory):
  """The folder of a finished run. Do not change it."""
  folder = tmp_path_factory.mktemp('runs') / 'finished'
  assert cli.main(arguments(folder)) == 0
  return folder


@pytest.fixture
def run(finished, tmp_path):
  """A copy of the folder of a finished run."""
  return pathlib.Path(shutil.copytree(finished, tmp_path / 'run'))


# Help, and what the parser refuses.


@pytest.mark.parametrize('command', COMMANDS)
def test_help(capsys, command):
  with pytest.raises(SystemExit) as stop:
    cli.main([command, '--help'])
  assert stop.value.code == 0
  assert f'usage: dilojax {command}' in capsys.readouterr().out


def test_help_of_the_module():
  command = [sys.executable, '-m', 'dilojax.cli', '--help']
  shown = subprocess.run(
    command, cwd=ROOT, capture_output=True, text=True, check=True
  )
  assert all(name in shown.stdout for name in COMMANDS)
  assert shown.stderr == ''


@pytest.mark.parametrize(
  ('argv', 'message'),
  [
    ([], 'command'),
    (['trian'], 'trian'),
    (['train', '--workdir=x'], '--config'),
    (['train', '--config=x'], '--workdir'),
    (['table'], 'RUN'),
    (['prepare'], '--out'),
    (['prepare', '--out=x', '--vocab_size=many'], 'many'),
  ],
)
def test_the_parser_refuses(capsys, argv, message):
  with pytest.raises(SystemExit) as stop:
    cli.main(argv)
  assert stop.value.code == 2
  assert message in capsys.readouterr().err


@pytest.mark.parametrize(
  'extra',
  [
    ['--config.outer.lr', '0.7'],
    ['--config.outer.lr'],
    ['--lr=0.7'],
    ['--work=x'],
    ['--dry-run'],
    ['seed=3'],
  ],
)
def test_unknown_flags(refuse, tmp_path, extra):
  message = refuse([*arguments(tmp_path / 'new'), *extra])
  assert message.startswith(f'unknown argument {extra[0]!r}')
  assert '--config.NAME=VALUE' in message


def test_unknown_flags_of_other_commands(refuse, run):
  assert refuse(['table', str(run), '--seed']) == 'unknown arguments: --seed.'


# Fields. `test_fields` and `test_build` have them all; here, the way there.


@pytest.mark.parametrize(
  ('changes', 'message'),
  [
    ({'every': 0}, '`every` must be an int of at least 1, got 0.'),
    ({'every': 'often'}, '`config.every` must be of type int, as 50 is'),
    ({'outr.lr': 1}, 'Did you mean `outer.lr`?'),
    ({'outer.lrr': 1}, 'Did you mean `outer.lr`?'),
    ({'outer.name': 'sgd'}, '`outer.momentum` has no effect'),
    ({'seed': 'null', 'every': -1}, '`seed` is missing'),
    ({'inner.accumulate': 3}, 'must be a multiple of `inner.accumulate`'),
    ({'model.vocab_size': 9}, "the tokenizer's (8), got 9"),
    ({'num_replicas': 3}, '`num_replicas` (3) must divide'),
    ({'data.num_sequences': 9, 'eval_sequences': 1}, 'disjoint streams'),
    ({'eval_sequences': 999}, 'held-out sequences'),
  ],
)
def test_refused_fields(refuse, tmp_path, changes, message):
  assert message in refuse(arguments(tmp_path / 'new', **changes))


FILES = {
  'tokenizer': 'bytes',
  'heldout_fraction': 0.5,
  'non_iid': 0.0,
  'seq_len': 8,
  'batch_size': 1,
}


@pytest.mark.parametrize(
  ('text', 'message'),
  [
    (None, 'matches no file'),
    (b'', 'is empty'),
    (b'caf\xe9', 'line 1: not UTF-8'),
    (b'short', '`seq_len` (8) leaves no'),
  ],
)
def test_refused_files(refuse, tmp_path, text, message):
  if text is not None:
    (tmp_path / 'a.txt').write_bytes(text)
    (tmp_path / 'b.txt').write_bytes(b'something else')
  data = {**FILES, 'corpus': 'files', 'pattern': str(tmp_path / '*.txt')}
  assert message in refuse(arguments(tmp_path / 'new', data=data))


def test_refused_tokens(refuse, tmp_path):
  data = {'corpus': 'tokens', 'path': str(tmp_path), 'non_iid': 0.0}
  data |= {'seq_len': 8, 'batch_size': 1}
  message = refuse(arguments(tmp_path / 'new', data=data))
  assert 'Write one with `dilojax prepare`' in message


def test_refused_config_file(refuse, tmp_path):
  for name in ('missing.py', '.'):
    argv = ['train', f'--config={tmp_path / name}', f'--workdir={tmp_path}/new']
    assert 'must be a Python file' in refuse(argv)


# Folders.


def test_refused_folders(refuse, tmp_path):
  (tmp_path / 'thesis.tex').write_text('...')
  assert 'holds no run: thesis.tex' in refuse(arguments(tmp_path))
  message = refuse(arguments(tmp_path / 'thesis.tex'))
  assert 'must be a folder to write to' in message
  assert 'must be a folder' in refuse(arguments('/proc/no_such_folder'))


def test_another_config(refuse, run):
  message = refuse(arguments(run, **{'outer.lr': 0.5, 'seed': 1}))
  assert '`outer.lr`: 0.7 there, 0.5 here; `seed`: 0 there, 1 here' in message
  assert '--change=outer.lr,seed' in message
  argv = [*arguments(run, **{'outer.lr': 0.5}), '--change=outer.lrr']
  assert 'Did you mean `outer.lr`?' in refuse(argv)


def test_in_use(refuse, run):
  config = workdir.read_json(run / workdir.CONFIG)
  with workdir.opened(run, config):
    assert 'is in use' in refuse(arguments(run))


def test_corrupt_config(refuse, run):
  (run / workdir.CONFIG).write_text('{"seed"')
  assert 'config.json' in refuse(arguments(run))


def newest(run):
  return max((run / workdir.CHECKPOINTS).iterdir(), key=lambda p: int(p.name))


def test_corrupt_checkpoint(refuse, run):
  largest = max(
    (path for path in newest(run).rglob('*') if path.is_file()),
    key=lambda path: path.stat().st_size,
  )
  data = bytearray(largest.read_bytes())
  data[len(data) // 2] ^= 1
  largest.write_bytes(data)
  assert largest.name in refuse(arguments(run))


def test_a_change_that_the_checkpoint_does_not_fit(refuse, run):
  changes = {'model.mlp_dim': 8, 'num_steps': 14}
  argv = [*arguments(run, **changes), '--change=model.mlp_dim,num_steps']
  assert 'mlp' in refuse(argv)
  assert cli.main(arguments(run)) == 0


# Commands that work.


def test_train(capsys, run):
  """A finished run is finished, however often the command is given."""
  summary = workdir.read_json(run / workdir.SUMMARY)
  assert cli.main(arguments(run)) == 0
  shown = capsys.readouterr()
  assert shown.out.startswith('| run ')
  assert 'has finished' in shown.err
  assert workdir.read_json(run / workdir.SUMMARY)['final'] == summary['final']
  config = json.loads((run / workdir.CONFIG).read_text())
  assert config['every'] == 5
  found = json.loads((run / workdir.ENVIRONMENT).read_text())
  assert found['platform'] == 'cpu'


def test_dry_run(capsys, refuse, run, tmp_path):
  before = content(tmp_path)
  assert cli.main([*arguments(tmp_path / 'new'), '--dry_run']) == 0
  assert cli.main([*arguments(run), '--dry_run']) == 0
  assert content(tmp_path) == before
  assert not (tmp_path / 'new').exists()
  shown = capsys.readouterr().err
  assert '4 sequences per replica and step, 16 over all' in shown
  assert 'every 5 steps from step 5; 3 synchronizations' in shown
  assert 'bytes sent per replica' in shown
  message = refuse([*arguments(run, seed=1), '--dry_run'])
  assert '`seed`: 0 there, 1 here' in message


def test_table_and_plot(capsys, refuse, run, tmp_path):
  assert cli.main(['table', str(run)]) == 0
  assert '| run ' in capsys.readouterr().out
  out = tmp_path / 'picture.png'
  assert cli.main(['plot', str(run), f'--out={out}']) == 0
  assert str(out) in capsys.readouterr().out
  assert out.stat().st_size > 1000
  (run / workdir.SUMMARY).unlink()
  assert 'holds no finished run' in refuse(['table', str(run)])
  assert refuse(['plot', str(tmp_path / 'missing'), f'--out={out}'])


def test_an_extra_that_is_not_installed(capsys, monkeypatch, run):
  monkeypatch.setitem(sys.modules, 'wandb', None)
  assert cli.main([*arguments(run), '--wandb=project']) == 2
  assert 'pip install "dilojax[wandb]"' in capsys.readouterr().err
  assert cli.main(arguments(run)) == 0


# From text to a model.


@pytest.mark.slow
def test_prepare_then_train(capsys, refuse, tmp_path):
  for number in range(30):
    text = f'Document {number}. ' + 'abc ' * (20 + number)
    (tmp_path / f'{number:02}.txt').write_text(text)
  out = tmp_path / 'tokens'
  pattern = f'--pattern={tmp_path}/*.txt'
  argv = ['prepare', pattern, f'--out={out}', '--heldout_fraction=0.2']
  assert cli.main([*argv, '--num_clusters=2']) == 0
  facts = capsys.readouterr().out
  assert 'vocab_size: 256' in facts
  assert 'holds a corpus prepared from other num_clusters' in refuse(argv)
  data = {'corpus': 'tokens', 'path': str(out), 'non_iid': 0.5}
  data |= {'seq_len': 8, 'batch_size': 4}
  changes = {'data': data, 'model.vocab_size': 256, 'num_steps': 3}
  folder = tmp_path / 'run'
  assert cli.main(arguments(folder, **changes)) == 0
  summary = workdir.read_json(folder / workdir.SUMMARY)
  assert summary['corpus']['fingerprint'] in facts
  assert summary['steps'] == 3


@pytest.mark.parametrize(
  ('extra', 'message'),
  [
    (['--vocab_size=300'], '`vocab_size` (300) has no effect'),
    (['--heldout_fraction=1.0'], '`heldout_fraction` must be above 0'),
    (['--num_clusters=0'], '`num_clusters`'),
    (['--pattern=no/such/*.txt'], 'matches no file'),
    (['--tokenizer=byte'], 'Did you mean'),
    (['--tokenizer=bpe'], '`vocab_size` must be at least 257'),
  ],
)
def test_prepare_refuses(refuse, tmp_path, extra, message):
  assert message in refuse(['prepare', f'--out={tmp_path}/out', *extra])
