"""The page docs/adding_a_row.md, followed to the letter."""

import os
import re
import shutil
import subprocess
import sys

import pytest

from dilojax import _runs
from tests import test_docs

PAGE = test_docs.ROOT / 'docs/adding_a_row.md'
FILES = ('README.md', 'benchmarks', 'configs', 'dilojax', 'docs', 'experiments')
# What makes a run short, and nothing else.
SHORT = {
  'num_steps': 20,
  'every': 5,
  'eval_every': 10,
  'eval_sequences': 8,
  'data.seq_len': 16,
  'inner.warmup_steps': 2,
}


@pytest.fixture
def checkout(tmp_path):
  """Copies what the page needs, with the files that it has the reader write."""
  for name in (*FILES, 'scripts'):
    source = test_docs.ROOT / name
    if source.is_file():
      shutil.copy(source, tmp_path / name)
    else:
      ignore = shutil.ignore_patterns('__pycache__')
      shutil.copytree(source, tmp_path / name, ignore=ignore)
  folder = tmp_path / 'mine'
  folder.mkdir()
  first = next(
    code for language, code, _ in test_docs.blocks(PAGE) if language == 'python'
  )
  (folder / 'aggmo.py').write_text(first)
  return tmp_path


def apply(diff, folder):
  """Adds the lines of a diff, each after the line that stands before it."""
  path = folder / re.search(r'^\+\+\+ b/(.*)$', diff, re.M)[1]
  text = path.read_text()
  for hunk in diff.split('\n@@\n')[1:]:
    lines = hunk.splitlines()
    before = [line[1:] for line in lines if line.startswith(' ')]
    added = [line[1:] for line in lines if line.startswith('+')]
    assert [lines[0][1:]] == before, hunk
    assert text.count(f'\n{before[0]}\n') == 1, hunk
    text = text.replace(before[0], '\n'.join([*before, *added]))
  path.write_text(text)


def follow(command, folder):
  """Runs a command of the page as a reader does; returns what it printed."""
  words = command
  if words[0] == 'dilojax':
    words = [sys.executable, '-m', 'dilojax.cli', *words[1:]]
  else:
    words = [sys.executable, *words]
  done = subprocess.run(
    words,
    cwd=folder,
    env={**os.environ, 'PYTHONPATH': str(folder), 'JAX_PLATFORMS': 'cpu'},
    capture_output=True,
    text=True,
  )
  assert done.returncode == 0, done.stdout + done.stderr
  return done.stdout


def shorten(folder):
  """Makes the config short, and what is kept as if it had been so short."""
  path = folder / 'configs/diloco.py'
  lines = [f'  config.{name} = {value}\n' for name, value in SHORT.items()]
  text = path.read_text().replace(
    '  return config', f'{"".join(lines)}  return config'
  )
  path.write_text(text)
  path = folder / 'experiments/diloco/gap_closed.py'
  before, after = (f"'data_parallel_steps': {steps}" for steps in (500, 5))
  assert before in path.read_text()
  path.write_text(path.read_text().replace(before, after))
  path = path.with_suffix('.json')
  runs = _runs.read(path)
  for run in runs:
    for name, value in {**SHORT, 'data_parallel_steps': 5}.items():
      group, _, field = f'.{name}'.rpartition('.')
      held = run['config'][group[1:]] if group else run['config']
      if field in held:
        held[field] = value
  _runs.write(path, runs)


@pytest.mark.slow
def test_a_row_is_added_as_the_page_says(checkout):
  [diff] = (
    code for language, code, _ in test_docs.blocks(PAGE) if language == 'diff'
  )
  apply(diff, checkout)
  shorten(checkout)
  train, sweep, table, keep, write = test_docs.commands(PAGE)
  kept = checkout / 'experiments/diloco/gap_closed.json'
  assert len(_runs.read(kept)) == 12
  assert '(aggmo)' not in (checkout / 'experiments/README.md').read_text()
  follow(train, checkout)
  assert not (checkout / 'runs').exists()
  follow(sweep, checkout)
  text = follow(table, checkout)
  [row] = re.findall(r'^\| aggmo .*$', text, re.M)
  assert row.split('|')[2].strip() == '3'
  assert text.count('\n| ') == 5 + 1
  assert re.search(
    r'kept beside the experiment: one_replica/0, .*\.$', text, re.M
  )
  assert re.search(
    r'^- aggmo < diloco: (holds|does not hold|undecided)', text, re.M
  )
  assert follow(keep, checkout) == text
  assert len(_runs.read(kept)) == 15
  follow(write, checkout)
  assert '(aggmo)' in (checkout / 'experiments/README.md').read_text()
  assert row in (checkout / 'experiments/README.md').read_text()
  follow([*write, '--check'], checkout)


@pytest.fixture
def fresh_imports():
  """Forgets afterwards what the reader has written."""
  yield
  for name in [name for name in sys.modules if name.split('.')[0] == 'mine']:
    del sys.modules[name]


@pytest.mark.usefixtures('fresh_imports')
def test_commands_of_the_page_are_commands(checkout, monkeypatch):
  monkeypatch.chdir(checkout)
  test_docs.check_commands(PAGE, monkeypatch)
