"""Tests for `dilojax.table`."""

import json
import math

import pytest

from dilojax import table
from dilojax import workdir

CONFIG = {'method': 'diloco', 'num_steps': 2000, 'outer': {'lr': 0.7}}


@pytest.fixture
def write(tmp_path):
  """Function that writes the folder of a finished run, and returns it."""

  def write(name, loss=2.0, seed=0, config=CONFIG, **final):
    folder = tmp_path / name
    folder.mkdir(parents=True)
    placed = {**config, 'seed': seed, 'mesh': {'num_devices': len(name)}}
    (folder / workdir.CONFIG).write_text(json.dumps(placed))
    summary = {
      'steps': 2000,
      'seconds': 10.0 * (seed + 1),
      'final': {
        'eval/anchor/loss': loss,
        'eval/anchor/bits_per_byte': 2 * loss,
        'tokens': 4_000_000,
        **final,
      },
      'replicas': [{'bytes_sent': 1_000_000}, {'bytes_sent': 2_500_000}],
    }
    (folder / workdir.SUMMARY).write_text(json.dumps(summary))
    return folder

  return write


def cells(folders):
  """Returns the cells of a table of runs, its header first."""
  lines = table.markdown(table.rows(folders)).splitlines()
  assert len({len(line) for line in lines}) == 1, 'The columns are not aligned.'
  assert set(lines[1]) == set('| -')
  rows = [line.strip('|').split('|') for line in [lines[0], *lines[2:]]]
  return [[cell.strip() for cell in row] for row in rows]


def test_one_run(write):
  header, row = cells([write('one')])
  assert dict(zip(header, row, strict=True)) == {
    'run': 'one',
    'n': '1',
    'loss (nats)': '2.0000',
    'bits per byte': '4.0000',
    'steps': '2,000',
    'tokens': '4,000,000',
    # Of the replica that sends most.
    'bytes sent per replica': '2.5 MB',
    'wall time': '10 s',
  }


def test_seeds_are_one_row(write):
  folders = [
    write(f'K=4/{seed}', loss, seed)
    for seed, loss in enumerate((1.0, 2.0, 4.5))
  ]
  _, row = cells(folders)
  mean = (1.0 + 2.0 + 4.5) / 3
  deviations = sum((loss - mean) ** 2 for loss in (1.0, 2.0, 4.5))
  error = math.sqrt(deviations / (3 - 1) / 3)
  assert row[:3] == ['K=4', '3', f'{mean:.4f} ± {error:.4f}']
  assert row[3] == f'{2 * mean:.4f} ± {2 * error:.4f}'
  assert row[-1] == '20 s'


def test_seeds_side_by_side_have_the_name_of_the_first(write):
  [row] = table.rows([write('a/0'), write('b/1', seed=1)])
  assert row['name'] == 'a/0'


def test_runs_that_differ_have_rows_of_their_own(write):
  other = {**CONFIG, 'outer': {'lr': 0.8}}
  folders = [
    write('low', 1.0),
    write('high', 3.0, config=other),
    write('low2', 2.0, seed=1),
  ]
  low, high = table.rows(map(str, folders))
  assert low['seeds'] == [0, 1]
  assert high['seeds'] == [0]
  assert [len(row['summaries']) for row in (low, high)] == [2, 1]


def test_the_order_of_fields_is_no_difference(write):
  reordered = dict(reversed(CONFIG.items()))
  folders = [write('a'), write('b', seed=1, config=reordered)]
  assert len(table.rows(folders)) == 1


def test_images_have_no_bits(write):
  final = {'eval/anchor/bits_per_byte': None}
  [_, row] = cells([write('digits', **final)])
  assert row[3] == '-'


def test_unfinished(write, tmp_path):
  folder = write('killed')
  (folder / workdir.SUMMARY).unlink()
  for path in (folder, tmp_path / 'missing'):
    with pytest.raises(ValueError, match='holds no finished run') as error:
      table.rows([path])
    assert repr(str(path)) in str(error.value)


def test_twice_the_same(write):
  folders = [write('first'), write('other', seed=1), write('second')]
  with pytest.raises(ValueError, match="second' is a second run of .*first'"):
    table.rows(folders)
  with pytest.raises(ValueError, match="first' is a second run of .*first'"):
    table.rows(folders[:1] * 2)


@pytest.mark.parametrize('name', [workdir.SUMMARY, workdir.CONFIG])
def test_damaged(write, name):
  folder = write('run')
  (folder / name).write_text('{')
  with pytest.raises(ValueError, match=f'{name}.* cannot be read'):
    table.rows([folder])


@pytest.mark.parametrize('value', [{}, [], None])
@pytest.mark.parametrize('name', [workdir.SUMMARY, workdir.CONFIG])
def test_what_is_no_run(write, name, value):
  folder = write('run')
  (folder / name).write_text(json.dumps(value))
  with pytest.raises(ValueError, match='must hold the config and summary'):
    table.rows([folder])


def test_a_run_that_goes_on_has_no_row(write):
  longer = {**CONFIG, 'num_steps': 3000}
  with pytest.raises(ValueError, match='2000 steps, and a config of 3000'):
    table.rows([write('run', config=longer)])
