"""Tests for `dilojax.metrics`."""

import io
import json
import math
import os
import sys
import threading
import types

import jax.numpy as jnp
import numpy as np
import pytest

from dilojax import metrics


def record(step, **kwargs):
  return {'step': step, 'train/loss': 1 / (step + 1), **kwargs}


def write_all(path, records, *, resume_step=None):
  sink = metrics.jsonl(path, resume_step=resume_step)
  for each in records:
    sink.write(each)
  sink.close()
  return path


@pytest.fixture
def path(tmp_path):
  return tmp_path / 'metrics.jsonl'


# The file.


def test_reads_back_what_was_written(path):
  records = [
    {'step': 0, 'eval/anchor/loss': 5.5, 'tokens': 2**40, 'name': 'a'},
    {'step': 3, 'low': -math.inf, 'high': math.inf, 'flag': True, 'none': None},
    {'step': 3, 'loss': 0.1, 'exact': 1 / 3},
  ]
  assert metrics.read(write_all(path, records)) == records


def test_every_line_is_strict_json(path):
  refuse = lambda word: pytest.fail(f'{word} is not JSON')
  write_all(path, [{'step': 1, 'a': math.nan, 'b': np.float32('-inf')}])
  [line] = path.read_text().splitlines()
  assert json.loads(line, parse_constant=refuse) == {
    'step': 1,
    'a': 'NaN',
    'b': '-Infinity',
  }
  assert math.isnan(metrics.read(path)[0]['a'])


def test_takes_scalars_of_numpy_and_jax(path):
  given = {'step': np.int64(3), 'a': jnp.float32(0.5), 'b': np.array(7)}
  assert metrics.read(write_all(path, [given])) == [
    {'step': 3, 'a': 0.5, 'b': 7}
  ]


def test_a_record_is_in_the_file_when_write_returns(path):
  sink = metrics.jsonl(path, resume_step=None)
  sink.write(record(1))
  assert metrics.read(path) == [record(1)]
  sink.close()
  sink.close()


@pytest.mark.parametrize('killed_after', range(0, 160, 7))
@pytest.mark.parametrize('checkpoint', [0, 2, 4])
def test_resumed_file_equals_the_undisturbed_one(
  path, tmp_path, killed_after, checkpoint
):
  records = [record(step) for step in range(6)]
  whole = write_all(tmp_path / 'whole', records).read_bytes()
  before = whole.split(b'\n')[: checkpoint + 1]
  # The kill comes after the checkpoint, at any byte.
  size = max(killed_after, sum(len(line) + 1 for line in before))
  path.write_bytes(whole[:size])
  write_all(path, records[checkpoint + 1 :], resume_step=checkpoint)
  assert path.read_bytes() == whole
  assert sorted(os.listdir(tmp_path)) == ['metrics.jsonl', 'whole']


def test_last_record_survives_the_loss_of_its_line_end(path):
  path.write_text('{"step": 1}\n{"step": 2}')
  assert metrics.read(path) == [{'step': 1}, {'step': 2}]
  write_all(path, [record(3)], resume_step=2)
  assert metrics.read(path) == [{'step': 1}, {'step': 2}, record(3)]


def test_cut_is_one_replacement(path, monkeypatch):
  write_all(path, [record(1), record(2)])
  whole = path.read_bytes()

  def fail(*_):
    raise OSError(28, 'No space left on device')

  monkeypatch.setattr(os, 'fsync', fail)
  with pytest.raises(ValueError, match='No space left'):
    metrics.jsonl(path, resume_step=1)
  assert path.read_bytes() == whole


def test_resumes_without_a_file(path):
  write_all(path, [record(1)], resume_step=0)
  assert metrics.read(path) == [record(1)]


def test_new_run_writes_over_nothing(path):
  write_all(path, [record(1)])
  with pytest.raises(ValueError, match='`path` must be new or empty'):
    metrics.jsonl(path, resume_step=None)
  assert metrics.read(path) == [record(1)]


@pytest.mark.parametrize(
  'text',
  [
    '{"step": 1}\n{"st\n{"step": 3}\n',
    '{"step": 1}\n[2]\n',
    '{"loss": 1}\n',
    '{"step": 1}\n\n{"step": 2}\n',
    '{"step": 1, "a": [2]}\n',
    'a letter to a friend',
  ],
)
def test_leaves_files_of_others_alone(path, text):
  path.write_text(text)
  with pytest.raises(ValueError, match=r'Line \d of .* must be a JSON object'):
    metrics.jsonl(path, resume_step=0)
  with pytest.raises(ValueError, match=r'Line \d of .* must be a JSON object'):
    metrics.read(path)
  assert path.read_text() == text


@pytest.mark.parametrize(
  ('bad', 'message'),
  [
    ({'loss': 1.0}, "under 'step', got None"),
    ({'step': 1.5}, "under 'step', got 1.5"),
    ({'step': True}, "under 'step', got True"),
    ({'step': 1, 'a': np.ones(2)}, "got a ndarray under 'a'"),
    ({'step': 1, 'a': {'b': 1}}, "got a dict under 'a'"),
  ],
)
def test_rejects_what_is_no_record(path, bad, message):
  sink = metrics.jsonl(path, resume_step=None)
  with pytest.raises(ValueError, match=message):
    sink.write(bad)
  sink.close()
  assert not path.read_bytes()


def test_rejects_paths_that_cannot_be(tmp_path):
  for path in (tmp_path, tmp_path / 'no' / 'metrics.jsonl'):
    with pytest.raises(ValueError, match='`path` must be a file that can be'):
      metrics.jsonl(path, resume_step=0)
    with pytest.raises(ValueError, match='`path` must be a file of metrics'):
      metrics.read(path)


# The terminal.

ANCHOR = {'eval/anchor/loss': 2.0, 'eval/anchor/bits_per_byte': 2.885}
REPLICAS = {'eval/replica_0/loss': 2.25, 'eval/replica_1/loss': 2.5}


class Terminal(io.StringIO):
  """A stream that says it is a terminal."""

  isatty = lambda self: True


def show(
  records,
  *,
  seconds_per_record=1.0,
  is_terminal=False,
  make_stream=io.StringIO,
  **kwargs,
):
  """Returns what a stream gets, with a clock that ticks at every record."""
  now = [0.0]
  stream = make_stream()
  sink = metrics.progress(
    **{'total_steps': 1_000, 'start_step': 0, **kwargs},
    stream=stream,
    is_terminal=is_terminal,
    clock=lambda: now[0],
  )
  for each in records:
    now[0] += seconds_per_record
    sink.write(each)
  sink.close()
  sink.close()
  return stream.getvalue()


def test_plain_line_says_it_all():
  speed = {'train/tokens_per_second': 12_345.0}
  records = [
    {'step': 200, **ANCHOR},
    {'step': 250, 'train/loss': 2.5, **speed},
    {'step': 500, 'train/loss': 1.5, **speed},
  ]
  # From step 250 to 500 in 60 s, so the 500 steps left take 120 s.
  assert show(records, seconds_per_record=60).splitlines() == [
    'step 200/1,000  held-out loss  anchor 2.000 (2.885 bits/byte)',
    'step 250/1,000  loss 2.500  held-out 2.885 bits/byte  12.3k tokens/s',
    'step 500/1,000  loss 1.500  held-out 2.885 bits/byte  12.3k tokens/s'
    '  ETA 0:02:00',
  ]


def test_evaluation_names_who_was_evaluated():
  line = show([{'step': 1, 'eval/mean/loss': 1.5, **REPLICAS}])
  assert line.endswith('mean 1.500  replicas 2.250 to 2.500\n')


def test_plain_lines_are_rationed():
  records = [record(step) for step in range(1, 1_001)]
  records.insert(500, {'step': 500, **ANCHOR})
  lines = show(records, seconds_per_record=0.1, every_seconds=10).splitlines()
  steps = [line.split()[1] for line in lines]
  # The first, one in a hundred, the evaluation, and the last.
  assert len(lines) == 1 + 10 + 1
  assert steps[0] == '1/1,000'
  assert steps[-1] == '1,000/1,000'
  assert sum('held-out loss' in line for line in lines) == 1


def test_early_end_shows_where():
  lines = show([record(1), record(2), record(3)]).splitlines()
  assert [line.split()[1] for line in lines] == ['1/1,000', '3/1,000']


def test_last_step_waits_for_nothing():
  stream = io.StringIO()
  sink = metrics.progress(total_steps=9, start_step=0, stream=stream)
  for step in (7, 8, 9):
    sink.write(record(step))
  assert [line.split()[1] for line in stream.getvalue().splitlines()] == [
    '7/9',
    '9/9',
  ]


def test_live_line_starts_where_the_run_does(monkeypatch):
  monkeypatch.setenv('TERM', 'xterm')
  early = show([], is_terminal=True, start_step=100)
  late = show([], is_terminal=True, start_step=900)
  assert early.replace('step 100', 'step 900') != late  # The bar differs.


def test_live_line_has_no_thread():
  before = threading.enumerate()
  sink = metrics.progress(
    total_steps=9, start_step=0, stream=io.StringIO(), is_terminal=True
  )
  during = threading.enumerate()
  sink.close()
  assert during == before


def test_live_line_is_drawn_in_place(monkeypatch):
  monkeypatch.setenv('COLUMNS', '100')
  monkeypatch.setenv('TERM', 'xterm')
  text = show(
    [record(600), {'step': 600, **ANCHOR}, record(1_000)],
    is_terminal=True,
    start_step=500,
  )
  assert 'step 500/1,000' in text  # Before the first record.
  assert 'step 1,000/1,000  loss 0.001  held-out 2.885 bits/byte' in text
  assert '\x1b[2K' in text  # Erases a line.
  assert '\x1b[?25h' in text  # Shows the cursor again.
  # Whole lines: the evaluation, and the last state of the live one.
  whole = [line for line in text.split('\n') if 'held-out loss' in line]
  assert len(whole) == 1


@pytest.mark.parametrize(
  ('make_stream', 'term', 'live'),
  [
    (Terminal, 'xterm', True),
    (Terminal, 'dumb', False),
    (io.StringIO, 'xterm', False),
  ],
)
def test_asks_the_stream(monkeypatch, make_stream, term, live):
  monkeypatch.setenv('TERM', term)
  text = show([record(1)], is_terminal=None, make_stream=make_stream)
  assert ('\x1b' in text) == live
  assert live or text == 'step 1/1,000  loss 0.500\n'


@pytest.mark.parametrize('is_terminal', [False, True])
def test_not_finite_loss_is_shown(is_terminal):
  text = show([{'step': 1, 'train/loss': math.nan}], is_terminal=is_terminal)
  assert 'loss nan' in text


def test_progress_rejects_what_is_no_record():
  with pytest.raises(ValueError, match="under 'step', got None"):
    show([{'train/loss': 1.0}])


@pytest.mark.parametrize(
  ('kwargs', 'message'),
  [
    ({'total_steps': 0}, '`total_steps` must be at least 1, got 0'),
    ({'start_step': 1_001}, r'`total_steps` \(1000\), got 1001'),
    ({'start_step': -1}, 'from 0 to .* got -1'),
  ],
)
def test_rejects_steps_that_cannot_be(kwargs, message):
  with pytest.raises(ValueError, match=message):
    show([], **kwargs)


# Trackers, replaced by modules that remember what they are told.


def test_tensorboard_gets_scalars(monkeypatch, tmp_path):
  told = []
  writer = types.SimpleNamespace(
    add_scalar=lambda name, value, global_step: told.append(
      (name, value, global_step)
    ),
    flush=lambda: None,
    close=lambda: told.append('closed'),
  )
  make = lambda folder, purge_step: told.append((folder, purge_step)) or writer
  fake = types.SimpleNamespace(SummaryWriter=make)
  monkeypatch.setitem(sys.modules, 'tensorboardX', fake)
  sink = metrics.tensorboard(tmp_path, resume_step=4)
  sink.write({'step': 5, 'train/loss': np.float32(0.5), 'note': 'text'})
  sink.close()
  assert told == [(str(tmp_path), 5), ('train/loss', 0.5, 5), 'closed']


def test_tensorboard_writes_event_files(tmp_path):
  pytest.importorskip('tensorboardX')
  sink = metrics.tensorboard(tmp_path)
  sink.write({'step': 1, 'eval/anchor/loss': 0.5})
  sink.close()
  [file] = tmp_path.iterdir()
  assert b'eval/anchor/loss' in file.read_bytes()


def test_wandb_gets_the_step_apart(monkeypatch):
  told = []
  run = types.SimpleNamespace(
    log=lambda values, step: told.append((values, step)),
    finish=lambda: told.append('finished'),
  )
  init = lambda **kwargs: told.append(kwargs) or run
  monkeypatch.setitem(sys.modules, 'wandb', types.SimpleNamespace(init=init))
  sink = metrics.wandb('project', 'name', {'every': 50})
  given = {'step': 5, 'train/loss': 0.5}
  sink.write(given)
  sink.close()
  # No mode: the environment says whether anything leaves the machine.
  start = {'project': 'project', 'name': 'name', 'config': {'every': 50}}
  assert told == [start, ({'train/loss': 0.5}, 5), 'finished']
  assert given == {'step': 5, 'train/loss': 0.5}


@pytest.mark.parametrize(
  ('module', 'extra', 'make'),
  [
    ('tensorboardX', 'tensorboard', lambda: metrics.tensorboard('folder')),
    ('wandb', 'wandb', lambda: metrics.wandb('project', 'name', {})),
  ],
)
def test_missing_extra_is_named(monkeypatch, module, extra, make):
  monkeypatch.setitem(sys.modules, module, None)
  with pytest.raises(ImportError, match=rf'"dilojax\[{extra}\]"'):
    make()


# Several at once.


def test_tee_writes_in_order_and_closes_all():
  told = []

  def sink(name, fails=False):
    def close():
      told.append(f'{name} closed')
      if fails:
        raise OSError(name)

    return metrics.Sink(lambda each: told.append((name, each['step'])), close)

  both = metrics.tee(sink('a', fails=True), sink('b'))
  both.write(record(1))
  with pytest.raises(OSError, match='a'):
    both.close()
  assert told == [('a', 1), ('b', 1), 'a closed', 'b closed']
