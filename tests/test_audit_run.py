"""What a whole run communicates, and whether its ledger says so."""

import importlib.util
import json
import os
import pathlib
import re
import subprocess
import sys

import jax
import pytest

from dilojax import _overrides
from dilojax import audit
from dilojax import build
from dilojax import cli
from tests import tiny

ROOT = pathlib.Path(__file__).parents[1]
# A model that compiles fast.
SMALL = {
  'data': {
    'corpus': 'digits',
    'heldout_fraction': 0.2,
    'non_iid': 0.0,
    'batch_size': 4,
  },
  'model': {'name': 'mlp', 'width': 8, 'num_layers': 1},
  'mesh.num_devices': 0,
}
FEW = {name: 12 for name in ('num_steps', 'log_every', 'eval_every')}
FEW |= {'checkpoint_every': 12, **SMALL}


@pytest.fixture(autouse=True)
def eight_devices():
  """Has devices in use, so that a target does not change their number."""
  assert len(jax.devices()) == 8


def report(name='diloco', num_devices=4, **overrides):
  config = tiny.config(name, **{**FEW, **overrides})
  return audit.audit(config, jax.devices()[:num_devices])


def across(program, axis='replica'):
  return [row for row in program.rows if axis in row.axes]


def message():
  """Returns the bytes of a replica's message: its whole params."""
  [link] = build.links(build.make(tiny.config(**FEW)))
  return link.nbytes


def test_quiet_programs_send_nothing_and_means_what_the_ledger_says():
  found = report()
  *programs, evaluation = found.programs
  assert evaluation.name == 'evaluation'
  assert {program.name: program.runs for program in programs} == {
    '4 steps, launch and land': 2,
    '1 step, final': 1,
  }
  for program in programs:
    [row] = program.rows
    assert (row.axes, row.op, row.dtype) == (('replica',), 'all-reduce', 'f32')
    assert (row.times, row.nbytes) == (1, message())
    assert row.between == audit.Between()
  [total] = found.totals
  assert total.compiled == total.ledger == 3 * message()
  assert found.agrees


def test_a_program_of_quiet_steps_alone_is_seen_to_be_quiet():
  found = report(log_every=2, final_synchronization=False)
  quiet = [each for each in found.programs if each.name == '2 steps']
  assert [program.rows for program in quiet] == [()]
  assert found.agrees


@pytest.mark.parametrize(
  ('late', 'every'),
  [('eager', 4), ('eager', 5), ('delayed', 4), ('delayed', 5)],
)
@pytest.mark.slow
def test_what_is_a_round_late_is_sent_at_the_end(late, every):
  found = report('eager', late=late, every=every)
  assert 'final' in found.programs[-2].name
  [total] = found.totals
  assert total.compiled == total.ledger == (11 // every + 2) * message()


def test_data_parallelism_sends_in_every_step():
  found = report('data_parallel')
  [program] = found.programs[:-1]
  assert sum(row.nbytes for row in across(program)) == 12 * message()
  assert {row.times for row in across(program)} == {12}
  assert found.agrees


def test_a_replica_sends_its_shards():
  """On a mesh with axes inside a replica nothing whole crosses replicas."""
  found = report(
    num_devices=8, num_replicas=2, **{'mesh.fsdp': 2, 'mesh.tensor': 2}
  )
  assert found.mesh == {'replica': 2, 'fsdp': 2, 'tensor': 2}
  [total] = found.totals
  for program in found.programs[:-1]:
    assert {row.axes for row in across(program)} == {('replica',)}
  # Vectors are not sharded over `tensor`, and sent by each of its devices.
  assert total.ledger == 3 * message()
  assert total.ledger < total.compiled == total.most < 1.2 * total.ledger
  assert found.agrees


@pytest.mark.slow
def test_what_is_gathered_before_it_is_sent_is_seen(monkeypatch):
  """Each device of a replica then sends the whole message."""
  monkeypatch.setattr(
    'dilojax.replicas.inner_spec', lambda shape, mesh: [None] * len(shape)
  )
  found = report(num_devices=4, num_replicas=2)
  assert found.mesh['fsdp'] == 2
  [total] = found.totals
  assert total.compiled == 2 * total.ledger


@pytest.mark.slow
def test_replicas_of_a_device_send_their_sum():
  found = report(num_devices=2)
  assert found.mesh['replica'] == 2
  [total] = found.totals
  assert total.compiled == total.ledger == 3 * message()


@pytest.mark.slow
def test_a_hierarchy_is_counted_by_axis():
  found = report('hierarchical', **{'levels.level_1.every': 3})
  totals = {total.axis: total for total in found.totals}
  assert set(totals) == {'host', 'region'}
  assert all(total.ledger and total.agrees for total in found.totals)


def test_a_claim_that_is_not_met_is_told(monkeypatch, capsys):
  half = lambda links: [
    link._replace(nbytes=link.nbytes // 2) for link in links
  ]
  links = build.transforms.links
  monkeypatch.setattr(
    'dilojax.transforms.links', lambda *args: half(links(*args))
  )
  found = report()
  assert not found.agrees
  size = f'{found.totals[0].ledger:,}'
  text = audit.table(found)
  assert f'{size} bytes more along replica in 12 steps' in text
  assert '(2 times)' in text


WIRE = {
  'format': 'int8',
  'block_size': 8,
  'rounding': 'nearest',
  'error_feedback': 0.0,
}
GATHER = {
  'mean': {'gather': 'mean', 'result': 'message'},
  'messages': {'gather': 'messages'},
}


@pytest.mark.slow
@pytest.mark.parametrize(
  ('gather', 'num_devices'), [('mean', 8), ('messages', 4), ('mean', 2)]
)
def test_encoded_messages_are_counted_as_they_travel(gather, num_devices):
  found = report(num_devices=num_devices, wire={**WIRE, **GATHER[gather]})
  ops = {row.op for row in across(found.programs[0])}
  assert ops == (
    {'all-gather', 'all-to-all'} if gather == 'mean' else {'all-gather'}
  )
  [total] = found.totals
  assert total.agrees
  # Bytes with their scales: a quarter of float32, and half as much again.
  times = 3 * (2 if gather == 'mean' else 1)
  assert 0.25 < total.ledger / (times * message()) < 0.5


def test_nothing_to_see_is_an_error():
  with pytest.raises(ValueError, match='all 4 replicas along .replica. share'):
    report(num_devices=1)


def test_a_replica_alone_sends_nothing():
  found = report(num_devices=1, num_replicas=1)
  [total] = found.totals
  assert (total.compiled, total.ledger, found.agrees) == (0, 0, True)


def test_json_says_what_the_table_says(monkeypatch, capsys):
  config = tiny.config(**FEW)
  monkeypatch.setattr(_overrides, 'load', lambda *_: config)
  arguments = ['audit', '--config=configs/diloco.py', '--target=cpu:4']
  assert cli.main(arguments) == 0
  text = capsys.readouterr().out
  assert cli.main([*arguments, '--json']) == 0
  found = json.loads(capsys.readouterr().out)
  assert found['target'] == 'cpu:4'
  assert found['agrees']
  for program in found['programs']:
    assert f'{program["name"]} (' in text
    for row in program['rows']:
      assert f'{row["nbytes"]:,}' in text
  [total] = found['totals']
  assert total['compiled'] == total['ledger'] == 3 * message()


def test_disagreement_is_an_exit_status(monkeypatch, capsys):
  config = tiny.config(**FEW)
  monkeypatch.setattr(_overrides, 'load', lambda *_: config)
  monkeypatch.setattr('dilojax._claims._claim', lambda setup, link: 1)
  arguments = ['audit', '--config=configs/diloco.py', '--target=cpu:4']
  assert cli.main(arguments) == 1
  assert 'They disagree' in capsys.readouterr().out


# The compiler for TPUs that are not there.


def on_tpus(target, config='configs/delayed.py', **overrides):
  """Runs the command, and returns what it printed."""
  if not importlib.util.find_spec('libtpu'):
    pytest.skip("libtpu is not installed: pip install 'dilojax[tpu-aot]'.")
  small = {'num_steps': 100, 'log_every': 100, 'eval_every': 100}
  command = [sys.executable, '-m', 'dilojax.cli', 'audit', '--json']
  command += [f'--config={config}', f'--target={target}']
  command += [
    f'--config.{name}={value}' for name, value in {**small, **overrides}.items()
  ]
  done = subprocess.run(
    command,
    cwd=ROOT,
    env={**os.environ, 'PYTHONPATH': str(ROOT)},
    capture_output=True,
    text=True,
  )
  assert done.returncode == 0, done.stdout + done.stderr
  return json.loads(done.stdout)


SMALL_DECODER = {
  'model.num_layers': 1,
  'data.batch_size': 4,
  'eval_sequences': 4,
}
SMALL_MLP = {
  'model': {'name': 'mlp', 'width': 512, 'num_layers': 3},
  'data': {
    'corpus': 'digits',
    'heldout_fraction': 0.1,
    'non_iid': 0.0,
    'batch_size': 64,
  },
  'inner.peak_lr': 1e-3,
  'eval_sequences': 64,
}


@pytest.mark.slow
def test_late_messages_between_slices_fly_over_the_delayed_steps():
  found = on_tpus('tpu:v5e:2x2x4', **SMALL_DECODER)
  assert found['mesh'] == {'replica': 4, 'fsdp': 4, 'tensor': 1}
  [streamed] = [
    each
    for each in found['programs']
    if each['name'] == '49 steps, launch, 4 steps, land'
  ]
  rows = [row for row in streamed['rows'] if 'replica' in row['axes']]
  assert rows
  for row in rows:
    assert row['axes'] == ['replica']
    assert (row['op'], row['is_sent']) == ('all-reduce', True)
    # Started before the loop of delayed steps, and awaited after it.
    assert row['between']['steps'] == 4
    assert row['between']['products'] > 4
  [total] = found['totals']
  assert total['agrees']
  assert total['compiled'] == total['ledger']
  quiet = [each for each in found['programs'] if each['name'].endswith('steps')]
  for program in quiet:
    assert not [row for row in program['rows'] if 'replica' in row['axes']]


@pytest.mark.slow
def test_both_collectives_of_a_mean_between_slices_are_in_flight():
  found = on_tpus(
    'tpu:v5e:2x2x4',
    'configs/streaming.py',
    **SMALL_MLP,
    **{
      'fragments': {'by': 'bytes', 'num_fragments': 3},
      'overlap.delay': 8,
    },
  )
  streamed = [each for each in found['programs'] if 'land' in each['name']]
  assert len(streamed) == 3
  per_step = set()
  for program in found['programs'][:-1]:  # The last is evaluation.
    num_steps = sum(map(int, re.findall(r'(\d+) step', program['name'])))
    num_steps += len(re.findall('launch|relay|land|final', program['name']))
    moved = [
      row['nbytes']
      for row in program['rows']
      if 'replica' not in row['axes'] and row['op'] != 'all-reduce'
    ]
    per_step.add(sum(moved) / num_steps)
  for program in streamed:
    rows = [row for row in program['rows'] if 'replica' in row['axes']]
    assert {'all-to-all', 'all-gather'} <= {row['op'] for row in rows}
    for row in rows:
      assert row['axes'] == ['replica']
      assert row['is_sent']
      # Each over its half of the delayed steps.
      assert row['between']['steps'] == 3
  # The layers' own gathers, those of every inner step, and no other.
  assert len(per_step) == 1
  assert per_step.pop() > 0
  assert found['totals'][0]['agrees']


@pytest.mark.slow
def test_a_slice_by_itself_is_a_target():
  found = on_tpus('tpu:v5e:2x2', **SMALL_DECODER)
  assert found['mesh'] == {'replica': 4, 'fsdp': 1, 'tensor': 1}
  [total] = found['totals']
  assert total['compiled'] == total['ledger'] > 0
