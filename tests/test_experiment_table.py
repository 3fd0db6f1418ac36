"""Tests for tables of experiments: `dilojax.table`, `_runs`, `_tables`."""

import csv
import io
import json
import math
import shutil
import statistics

import pytest
from scipy import stats

from dilojax import _runs
from dilojax import cli
from dilojax import table
from dilojax import workdir
from tests import experiment_runs

LOSSES = experiment_runs.LOSSES


@pytest.fixture
def experiment(tmp_path):
  return experiment_runs.write_experiment(tmp_path)


@pytest.fixture
def out(tmp_path):
  return experiment_runs.write_sweep(tmp_path / 'out')


def rows_of(text):
  """Returns the rows of a Markdown table as dicts."""
  lines = [line for line in text.splitlines() if line.startswith('|')]
  assert len({len(line) for line in lines}) == 1, 'The columns are not aligned.'
  split = lambda line: [cell.strip() for cell in line.strip('|').split('|')]
  header = split(lines[0])
  return [dict(zip(header, split(line), strict=True)) for line in lines[2:]]


def edit(path, **changes):
  workdir.write_json(path, {**workdir.read_json(path), **changes})


def test_rows(experiment, out):
  a, b = rows_of(table.text(experiment, out=out))
  differences = [y - x for x, y in zip(LOSSES['a'], LOSSES['b'])]
  error = lambda values: statistics.stdev(values) / math.sqrt(3)
  p = stats.ttest_rel(LOSSES['b'], LOSSES['a']).pvalue
  mean, bits = sum(LOSSES['b']) / 3, [x / math.log(2) for x in LOSSES['b']]
  assert b == {
    'row': 'b',
    'n': '3',
    'eval/anchor/loss (nats)': f'{mean:.4f} ± {error(LOSSES["b"]):.4f}',
    'bits per byte': f'{mean / math.log(2):.4f} ± {error(bits):.4f}',
    'paper: ppl': '-',
    'against its parent': (
      f'{statistics.fmean(differences):+.4f} ± {error(differences):.4f} (a)'
    ),
    'p': f'{p:.2g}',
    'bytes sent per replica': '250 B',
    'of most': '25%',
    'tokens': '3,200',
    'wall time': '11 s',
  }
  assert (a['paper: ppl'], a['against its parent'], a['p']) == (
    '15.30',
    '-',
    '-',
  )


def test_verdicts_and_sources(experiment, out):
  text = table.text(experiment, out=out)
  t = stats.ttest_rel(LOSSES['a'], LOSSES['b'], alternative='greater')
  assert (
    f'- b < a: holds (difference -0.1167 ± 0.0167, p = {t.pvalue:.2g}' in text
  )
  ratios = [100 * (b / a - 1) for a, b in zip(LOSSES['a'], LOSSES['b'])]
  error = statistics.stdev(ratios) / math.sqrt(3)
  words = f'{statistics.fmean(ratios):.2f} ± {error:.2f} %'
  assert f'- b within 5% of a: holds (difference {words}' in text
  assert 'at 95% confidence' in text
  assert '`outer` given (b)' in text
  assert 'commit 0123456789; corpus text f00.' in text
  assert 'Rows of the paper without a row here: c 14.2.' in text
  strict = table.text(experiment, out=out, confidence=1 - t.pvalue / 2)
  assert '- b < a: undecided' in strict


def test_missing_seeds_are_said(experiment, out):
  (out / 'b/1' / workdir.SUMMARY).unlink()
  edit(out / 'a/2' / workdir.CONFIG, num_steps=200)  # It goes on.
  experiment_runs.write_run(out / 'b/9', 2.0, 9, {})
  text = table.text(experiment, out=out)
  a, b = rows_of(text)
  assert (a['n'], b['n']) == ('2 of 3', '2 of 3')
  assert b['against its parent'] == '-0.1000 (a, n = 1)'
  assert b['p'] == 'n = 1'
  assert '- b < a: undecided (difference -0.1000; no test' in text
  assert 'Seeds without a finished run: a 2; b 1.' in text
  assert 'no points of the experiment, left out: b/9.' in text


def test_a_kept_run_stands_in_for_one_that_is_not_there(experiment, out):
  whole = table.text(experiment, out=out, format='csv')
  path = table.keep(experiment, out)
  _runs.write(path, sorted(_runs.read(path), key=lambda run: -run['seed']))
  edit(out / 'a/2' / workdir.CONFIG, num_steps=200)  # It goes on.
  shutil.rmtree(out / 'b')
  text = table.text(experiment, out=out)
  assert 'kept beside the experiment: b/0, b/1, a/2, b/2.' in text
  assert table.text(experiment, out=out, format='csv') == whole
  # A run of the folder is preferred, and what is kept holds all of them.
  experiment_runs.write_run(out / 'b/1', 5.0, 1, {'outer': {'lr': 0.7}})
  held = json.loads(table.text(experiment, out=out, format='json'))
  assert held['kept_before'] == ['b/0', 'a/2', 'b/2']
  assert held['rows'][1]['mean'] == (LOSSES['b'][0] + 5 + LOSSES['b'][2]) / 3
  table.keep(experiment, out)
  kept = json.loads(table.text(experiment, format='json'))
  assert kept['rows'] == held['rows']


@pytest.mark.parametrize(
  'change',
  [
    ("'num_steps': 100", "'num_steps': 90"),
    ("'mesh': {'fsdp': 4}", "'mesh': {'fsdp': 4}, 'every': 3"),
    ("'outer': None", "'outer': None, 'every': 3"),
  ],
)
def test_a_kept_run_of_another_config_does_not_stand_in(
  change, experiment, out
):
  table.keep(experiment, out)
  experiment.write_text(experiment.read_text().replace(*change))
  shutil.rmtree(out / 'a')
  text = table.text(experiment, out=out)
  assert 'Seeds without a finished run: a 0, 1, 2.' in text
  assert 'kept beside' not in text


def test_a_row_without_runs(experiment, out):
  shutil.rmtree(out / 'b')
  _, b = rows_of(table.text(experiment, out=out))
  assert b['n'] == '0 of 3'
  assert set([*b.values()][2:]) == {'-'}
  for format in ('csv', 'json', 'html'):
    assert table.text(experiment, out=out, format=format)


def test_csv_and_json_have_all_digits(experiment, out):
  text = table.text(experiment, out=out, format='csv')
  a, b = csv.DictReader(io.StringIO(text))
  assert float(b['mean']) == pytest.approx(sum(LOSSES['b']) / 3, rel=1e-15)
  assert (a['seeds'], a['paper'], a['difference']) == ('0 1 2', '15.30', '')
  held = json.loads(table.text(experiment, out=out, format='json'))
  p = stats.ttest_rel(LOSSES['b'], LOSSES['a']).pvalue
  assert held['rows'][1]['p_two_sided'] == pytest.approx(p)
  assert [each['verdict'] for each in held['verdicts']] == ['holds'] * 2
  assert held['only_paper'] == {'c': '14.2'}
  assert held['runs'][0]['config']['seed'] == 0


def test_what_is_not_finite_is_shown(experiment, out):
  path = out / 'b/1' / workdir.SUMMARY
  final = {**workdir.read_json(path)['final'], 'eval/anchor/loss': math.nan}
  edit(path, final=final)
  text = table.text(experiment, out=out)
  assert rows_of(text)[1]['eval/anchor/loss (nats)'] == 'nan'
  assert '- b < a: undecided (no test: a run has no finite value' in text
  json.loads(table.text(experiment, out=out, format='json'))


# What is kept.


def test_kept_runs_give_the_same_table(experiment, out):
  formats = ('markdown', 'csv', 'json', 'html')
  want = [table.text(experiment, out=out, format=each) for each in formats]
  path = table.keep(experiment, out)
  assert path == experiment.with_suffix('.json')
  shutil.rmtree(out)
  assert [table.text(experiment, format=each) for each in formats] == want
  assert 'somewhere' not in path.read_text()


def test_what_runs_have_in_common_is_kept_once(tmp_path):
  runs = [
    {'row': 'a', 'x': {'y': 1, 'z': {}}, 'n': 1, 'l': [1], 'only': None},
    {'row': 'b', 'x': {'y': 2, 'z': {'q': 0}}, 'n': 1, 'l': [1]},
    {'row': 'c', 'x': {'y': 2, 'z': {}}, 'n': 1.0, 'l': [1]},
  ]
  path = tmp_path / 'kept.json'
  _runs.write(path, runs)
  assert _runs.read(path) == runs
  assert json.loads(path.read_text())['common'] == {'x': {'z': {}}, 'l': [1]}
  assert len(path.read_text().split('"runs"')[1].splitlines()) == len(runs) + 3


def test_keep_needs_runs(experiment, capsys):
  assert cli.main(['table', str(experiment), '--keep']) == 2
  assert '--keep needs --out' in capsys.readouterr().err


# Misuse.


def test_runs_of_another_version(experiment, out):
  edit(out / 'b/0' / workdir.CONFIG, outer={'lr': 0.8})
  message = "'b/0' is of another version.*`outer.lr`: .*0.7.*, and.*has.*0.8"
  with pytest.raises(ValueError, match=message):
    table.text(experiment, out=out)


def test_a_field_that_came_later(experiment, out):
  path = out / 'b/0' / workdir.CONFIG
  config = workdir.read_json(path)
  del config['outer']
  workdir.write_json(path, config)
  with pytest.raises(ValueError, match='0.7.*, and the run has none'):
    table.text(experiment, out=out)


def test_a_field_that_was_removed(experiment, out):
  edit(out / 'a/0' / workdir.CONFIG, outer={'lr': 0.7})
  with pytest.raises(ValueError, match='`outer`: none, and the run has'):
    table.text(experiment, out=out)


def test_seeds_differ_in_the_seed_alone(experiment, out):
  edit(out / 'a/1' / workdir.CONFIG, every=50)
  with pytest.raises(
    ValueError, match="row 'a' differ in `every`: None and 50"
  ):
    table.text(experiment, out=out)


def test_the_placement_is_no_difference(experiment, out):
  edit(out / 'a/1' / workdir.CONFIG, mesh={'fsdp': 4})
  table.text(experiment, out=out)


@pytest.mark.parametrize(
  ('change', 'message'),
  [
    (("'b < a'", "'b < aa'"), "names 'aa', which is no row"),
    (("'b < a'", "'b beats a'"), '`EXPECTED` must hold statements'),
    (("'ppl'", "'loss'"), "no column 'loss', which `PAPER_COLUMN` names"),
    (
      ('PAPER_COLUMN', "METRIC = 'eval/loss'\nPAPER_COLUMN"),
      "`METRIC` must be a final metric.*'eval/loss', which a/0 lacks",
    ),
  ],
)
def test_refuses_experiments(tmp_path, out, change, message):
  text = experiment_runs.EXPERIMENT.replace(*change)
  path = experiment_runs.write_experiment(tmp_path, text)
  with pytest.raises(ValueError, match=message):
    table.text(path, out=out)


@pytest.mark.parametrize(
  ('paper', 'message'),
  [
    ('# nothing\n', 'must have a header'),
    ('name,ppl\na,1\n', 'must have a header of `row`'),
    ('row,ppl\na,1,2\n', 'as many cells in each line'),
    ('row,ppl\na,1\na,2\n', 'names a row twice'),
  ],
)
def test_refuses_papers(tmp_path, out, paper, message):
  path = experiment_runs.write_experiment(tmp_path, paper=paper)
  with pytest.raises(ValueError, match=message):
    table.text(path, out=out)


@pytest.mark.parametrize(
  ('kwargs', 'message'),
  [
    ({}, 'no runs are kept in'),
    ({'out': 'missing'}, "got 'missing', which is not there"),
    ({'out': '.'}, 'holds no finished run'),
    ({'format': 'tex'}, '`format` must be one of markdown, csv, json, html'),
    ({'confidence': 95}, '`confidence` must be above 0.5'),
  ],
)
def test_refuses_arguments(experiment, tmp_path, monkeypatch, kwargs, message):
  monkeypatch.chdir(tmp_path)
  with pytest.raises(ValueError, match=message):
    table.text(experiment, **kwargs)


# The command.


def test_command_into_a_file(experiment, out, tmp_path, capsys):
  file = tmp_path / 'report.html'
  arguments = ['table', str(experiment), f'--out={out}', '--format=html']
  assert cli.main([*arguments, f'--file={file}']) == 0
  assert capsys.readouterr().out == f'{file}\n'
  want = table.text(experiment, out=out, format='html')
  assert file.read_text() == want + '\n'
  assert cli.main([*arguments, f'--file={tmp_path}/no/x']) == 2


@pytest.mark.parametrize('ending', ['.py', ''])
def test_command(experiment, out, capsys, ending):
  name = str(experiment.with_suffix(ending))
  assert cli.main(['table', name, f'--out={out}', '--keep']) == 0
  want = capsys.readouterr().out
  assert want == table.text(experiment, out=out) + '\n'
  assert cli.main(['table', name]) == 0
  assert capsys.readouterr().out == want


def test_command_for_folders_as_before(out, capsys):
  folders = [str(out / 'a' / str(seed)) for seed in range(3)]
  assert cli.main(['table', *folders]) == 0
  assert rows_of(capsys.readouterr().out)[0]['n'] == '3'
  assert cli.main(['table', *folders, '--format=csv']) == 2
  assert 'are for an experiment' in capsys.readouterr().err


def test_command_for_one_experiment_only(experiment, out, capsys):
  assert cli.main(['table', str(experiment), str(out / 'a/0')]) == 2
  assert 'name it alone' in capsys.readouterr().err


def test_computed(tmp_path, capsys):
  path = tmp_path / 'cells.py'
  path.write_text(
    '"""Is it so?"""\n\nfrom dilojax import exact\n\n\ndef compute():\n'
    "  return [exact.Cell('a', 'x', 1.0, '1.0'),"
    " exact.Cell('b', 'x', float('inf'), '3')]\n"
  )
  assert cli.main(['table', str(path)]) == 0
  text = capsys.readouterr().out
  assert text.endswith('1 of 2 cells agree with the paper.\n')
  assert rows_of(text)[1]['x'] == 'inf (3)'
  held = json.loads(table.text(path, format='json'))
  assert (held['agree'], held['of']) == (1, 2)
  assert held['cells'][1]['ours'] is None
  assert table.text(path, format='csv').count('\n') == 2
  with pytest.raises(ValueError, match='`out` has no effect'):
    table.text(path, out=tmp_path)


def test_a_view_is_a_row_of_the_same_runs(tmp_path, out):
  """Its metric and its bits are its own; bytes, tokens, time are the runs'."""
  text = experiment_runs.EXPERIMENT.replace(
    "PARENTS = {'b': 'a'}",
    "VIEWS = {'b.mean': ('b', 'eval/mean/loss')}\nPARENTS = {'b.mean': 'b'}",
  ).replace("'b < a'", "'b.mean < b'")
  experiment = experiment_runs.write_experiment(tmp_path, text)
  for seed, loss in enumerate(LOSSES['b']):
    path = out / 'b' / str(seed) / workdir.SUMMARY
    final = workdir.read_json(path)['final']
    own = {
      'eval/mean/loss': loss - 0.1 - seed / 100,
      'eval/mean/bits_per_byte': 2,
    }
    edit(path, final={**final, **own})
  printed = table.text(experiment, out=out)
  _, b, mean = rows_of(printed)
  assert mean['row'] == 'b.mean'
  assert mean['eval/anchor/loss (nats)'].startswith('1.8733 ±')
  assert mean['bits per byte'].startswith('2.0000 ±')
  assert mean['against its parent'].startswith('-0.1100 ±')
  shared = ('n', 'bytes sent per replica', 'tokens', 'wall time')
  assert [mean[name] for name in shared] == [b[name] for name in shared]
  assert 'b.mean < b: holds (difference -0.1100' in printed
  assert 'b.mean, eval/mean/loss of b.' in printed
  html = table.text(experiment, out=out, format='html')
  assert html.count('b.mean') >= 2
