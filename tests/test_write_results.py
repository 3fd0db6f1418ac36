"""Tests for `scripts/write_results`."""

from importlib import machinery
from importlib import util
import pathlib
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).parents[1]
SCRIPT = ROOT / 'scripts/write_results'


@pytest.fixture(scope='module')
def script():
  loader = machinery.SourceFileLoader('write_results', str(SCRIPT))
  module = util.module_from_spec(util.spec_from_loader(loader.name, loader))
  loader.exec_module(module)
  return module


@pytest.mark.slow
def test_texts_are_up_to_date():
  """They regenerate identically from what is kept and computed."""
  done = subprocess.run(
    [sys.executable, SCRIPT, '--check'], capture_output=True, text=True
  )
  assert done.returncode == 0, done.stderr


def test_fills_between_marks_alone(script, tmp_path):
  path = tmp_path / 'page.md'
  path.write_text('a\n<!-- x:begin -->\nold\n<!-- x:end -->\nb\n')
  filled = script.filled(path, {'x': r'new \1'})
  assert filled == ('a\n<!-- x:begin -->\nnew \\1\n<!-- x:end -->\nb\n')
  with pytest.raises(ValueError, match='has no marks <!-- y:begin -->'):
    script.filled(path, {'y': 'new'})


def test_bytes_of_an_audit(script):
  """A sum goes to its owners and back; what is gathered was listed whole."""
  row = lambda op, nbytes: {'op': op, 'nbytes': nbytes, 'axes': ['replica']}
  program = lambda name, runs, *rows: {'name': name, 'runs': runs, 'rows': rows}
  found = {
    'mesh': {'replica': 4},
    'num_steps': 100,
    'every': 50,
    'agrees': True,
    'programs': [
      program('launch', 3, row('all-gather', 400)),
      program('final', 1, row('all-reduce', 400)),
      program('evaluate', 9, row('all-reduce', 8000)),
    ],
  }
  # 3/4 of 400 three times, and twice that once; two rounds.
  assert script.wire_bytes(found) == {
    'sent_per_round': (3 * 300 + 600) / 2,
    'peak_sent': 300,
    'peak_share': 0.5,
    'agrees': True,
  }
