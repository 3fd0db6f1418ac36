"""Tests for `dilojax simulate`: what a person types, sees, and finds."""

import json
import math
import pathlib
import re
import shlex
import shutil

import numpy as np
import pytest

from dilojax import _cli_simulate
from dilojax import cli
from dilojax import simulate

MODEL = ('--num_layers=24', '--step_seconds=0.1', '--params=1e9')
LAYERS = simulate.even_layers(24, seconds=0.1, num_params=1e9)
UTILIZATION = ('simulate', 'utilization')
PAGE = pathlib.Path(__file__).parents[1] / 'docs' / 'simulate.md'


@pytest.fixture
def report(capsys):
  """Function that runs the command and returns its JSON."""

  def report(*arguments):
    assert cli.main([*UTILIZATION, *arguments, '--json']) == 0
    return json.loads(capsys.readouterr().out)

  return report


@pytest.fixture
def refuse(capsys):
  """Function that runs a command that must be refused; returns the message."""

  def refuse(*arguments):
    assert cli.main([*UTILIZATION, *arguments]) == 2
    shown = capsys.readouterr()
    assert shown.out == ''
    return shown.err

  return refuse


@pytest.fixture
def run(tmp_path):
  """Folder of a finished run of 2 layers and 600 params, 0.3 s per step."""
  folder = tmp_path / 'run'
  folder.mkdir()
  # The first with compilation, the last with an evaluation.
  seconds = {10: 90.0, 20: 93.0, 30: 96.0, 40: 99.0, 45: 200.0}
  records = [
    {'step': step, 'seconds': at, 'train/loss': 1.0}
    for step, at in seconds.items()
  ]
  records.insert(2, {'step': 20, 'seconds': 93.5, 'eval/anchor/loss': 1.0})
  (folder / 'metrics.jsonl').write_text(
    ''.join(json.dumps(record) + '\n' for record in records)
  )
  (folder / 'config.json').write_text('{"model": {"num_layers": 2}}')
  (folder / 'summary.json').write_text('{"num_params": 600}')
  return folder


def test_values_reach_the_simulator(report):
  # Every option differs from its default, so that none can be lost.
  found = report(
    *('--num_layers=12', '--step_seconds=0.5', '--params=3e8', '--every=11'),
    *('--num_fragments=4', '--order=sequential', '--rule=rounded', '--delay=2'),
    *('--bits=3', '--bandwidth=0.2', '--latency=0.01', '--steps=70'),
    *('--inside_bandwidth=20', '--inside_latency=0.001', '--inside_bits=8'),
    *('--target=0.6', '--range', '0.05', '5'),
  )
  layers = simulate.even_layers(12, seconds=0.5, num_params=3e8)
  exchanges = [
    *simulate.together(12, bits=8),
    *simulate.in_turns(
      12,
      every=11,
      num_fragments=4,
      order='sequential',
      rule='rounded',
      delay=2,
      bits=3,
      level=1,
    ),
  ]
  inside, between = simulate.Link(20e9, 0.001), simulate.Link(0.2e9, 0.01)
  expected = simulate.utilization(
    layers, exchanges, [inside, between], num_steps=70
  )
  [needed] = simulate.required_bandwidth(
    layers,
    exchanges,
    [0.6],
    links=[inside, between],
    grid=np.geomspace(0.05e9, 5e9, 50),
    num_steps=70,
  )
  [method] = found['methods']
  [link] = method['links']
  assert 0.1 < link['utilization'] < 0.99
  np.testing.assert_allclose(link['utilization'], expected.utilization)
  exposed = expected.exposed_seconds / 70
  np.testing.assert_allclose(link['exposed_s_per_step'], exposed)
  sent = [link['inside_bytes_per_step'], link['bytes_per_step']]
  np.testing.assert_allclose(sent, np.divide(expected.bytes_sent, 70))
  [required] = method['required_gbit_per_s']
  np.testing.assert_allclose(required['gbit_per_s'], needed / 1e9)
  assert 0.05 < required['gbit_per_s'] < 5
  assert method['name'] == (
    'every 11, 4 fragments, sequential, rounded, delay 2, 3 bits'
  )


def test_several_values_make_several_methods(report):
  options = ('--every', '1', '100', '--bits', '16', '4', '--delay=1')
  both = report(*MODEL, *options, '--bandwidth', '1', '50')['methods']
  for every, bits, method in zip((1, 100), (16, 4), both):
    alone = (f'--every={every}', f'--bits={bits}', '--delay=1')
    assert report(*MODEL, *alone, '--bandwidth', '1', '50')['methods'] == [
      method
    ]
    assert [link['gbit_per_s'] for link in method['links']] == [1, 50]


def test_the_table_of_the_paper(capsys):
  # The row of 1B with overlap and FP4.
  options = ('--every=100', '--num_fragments=8', '--delay=1', '--bits=3.325')
  assert cli.main([*UTILIZATION, *MODEL, *options, '--rule=rounded']) == 0
  last = capsys.readouterr().out.splitlines()[-1]
  values = [cell.strip() for cell in last.split('|')[2:-1]]
  assert values == ['0.373', '0.954', '1.68', '2.02', '2.95']


def test_the_page_shows_what_is_printed(capsys):
  [command, shown] = [
    re.search(rf'^```{language}\n(.*?)^```$', PAGE.read_text(), re.M | re.S)[1]
    for language in ('sh', 'console')
  ]
  assert cli.main(shlex.split(command.replace('\\\n', ' '))[1:]) == 0
  assert capsys.readouterr().out == shown


def test_tables_say_what_is_beyond_the_grid(capsys):
  options = ('--target', '0.01', '0.9', '--range', '1', '20')
  assert cli.main([*UTILIZATION, *MODEL, '--every=100', *options]) == 0
  assert '| at most 1 |' in capsys.readouterr().out
  assert cli.main([*UTILIZATION, *MODEL, *options]) == 0
  assert 'over 20' in capsys.readouterr().out


def test_what_is_not_enough_is_null(report):
  [method] = report(*MODEL, '--target', '0.999999')['methods']
  assert method['required_gbit_per_s'] == [
    {'utilization': 0.999999, 'gbit_per_s': None}
  ]


def test_a_measured_run_gives_the_model(report, run):
  assert _cli_simulate.measured(run) == {
    'num_layers': 2,
    'params': 600,
    'step_seconds': pytest.approx(0.3 * 6 / 5),
  }
  found = report(f'--measured={run}')
  assert (found['num_layers'], found['num_params']) == (2, 600)
  # A step computes for as long as one of the run took.
  assert math.isclose(found['compute_s_per_step'], 0.3)
  changed = report(f'--measured={run}', '--params=1e9')
  assert changed['num_params'] == 1e9
  assert changed['compute_s_per_step'] == found['compute_s_per_step']


def test_a_run_that_measures_nothing(refuse, run):
  assert 'folder of a finished run' in refuse(f'--measured={run.parent}')
  config = run / 'config.json'
  config.write_text('{"model": {}}')
  assert "KeyError 'num_layers'" in refuse(f'--measured={run}')
  records = run / 'metrics.jsonl'
  records.write_text(records.read_text().splitlines(keepends=True)[0])
  message = refuse(f'--measured={run}')
  assert 'at least two records' in message
  assert '`log_every`' in message
  shutil.rmtree(run)
  assert 'folder of a finished run' in refuse(f'--measured={run}')


def test_a_picture(capsys, tmp_path):
  out = tmp_path / 'picture.svg'
  options = ('--every', '1', '100', '--steps=50', f'--plot={out}')
  assert cli.main([*UTILIZATION, *MODEL, *options]) == 0
  assert str(out) in capsys.readouterr().out
  assert out.read_text().count('<path') > 10
  first = out.read_bytes()
  assert cli.main([*UTILIZATION, *MODEL, *options]) == 0
  assert out.read_bytes() == first


def test_names_lead_to_their_lines():
  from dilojax import _utilization_plot

  methods = [simulate.Method(100), simulate.Method(100, 8), simulate.Method()]
  report = simulate.utilization_report(
    LAYERS, methods, curves=True, num_steps=200
  )
  [panel] = _utilization_plot.draw(report).axes
  texts = {text.get_text(): text for text in panel.texts}
  assert list(texts) == [  # From above: what needs least comes first.
    'every 100, 8 fragments, 16 bits',
    'every 100, 16 bits',
    'every step, 16 bits',
  ]
  heights = [text.xyann[1] for text in texts.values()]
  assert heights == sorted(heights, reverse=True)
  lines = panel.lines[: len(methods)]
  for line, method in zip(lines, report['methods']):
    x, y = texts[method['name']].xy
    assert texts[method['name']].get_color() == line.get_color()
    line_y = np.interp(np.log(x), np.log(line.get_xdata()), line.get_ydata())
    np.testing.assert_allclose(y, line_y, atol=1e-6)


@pytest.mark.parametrize(
  ('arguments', 'message'),
  [
    ((), 'give --num_layers, --params, --step_seconds'),
    (MODEL[:2], 'give --params, or with --measured=RUN'),
    ((*MODEL, '--params=0'), '`params`'),
    ((*MODEL, '--step_seconds=-1'), '`step_seconds`'),
    ((*MODEL, '--num_layers=0'), '`num_layers`'),
    ((*MODEL, '--every', '1', '2', '--bits', '1', '2', '3'), '`every`'),
    ((*MODEL, '--every=0'), '`every`'),
    ((*MODEL, '--every=9', '--num_fragments=25'), '`num_fragments`'),
    ((*MODEL, '--order=stripes'), 'strided, sequential'),
    ((*MODEL, '--rule=floor'), 'exact, rounded'),
    ((*MODEL, '--delay=-1'), '`delay`'),
    ((*MODEL, '--bits=0'), '`bits`'),
    ((*MODEL, '--bandwidth=0'), '`bandwidth`'),
    ((*MODEL, '--latency=-1'), '`latency`'),
    ((*MODEL, '--target=90'), '0.9 for 90%'),
    ((*MODEL, '--range', '5', '1'), '`range`'),
    ((*MODEL, '--steps=0'), '`num_steps`'),
    ((*MODEL, '--inside_bits=0'), 'no effect without `inside_bandwidth`'),
    ((*MODEL, '--inside_bandwidth=1', '--inside_bits=0'), '`bits`'),
    ((*MODEL, '--plot=picture.jpeg'), 'must end in one of .png'),
    ((*MODEL, '--plot=missing/picture.png'), 'must be in an existing folder'),
    ((*MODEL, '--bandwith=1'), 'unknown arguments: --bandwith=1'),
  ],
)
def test_refuses(refuse, arguments, message):
  assert message in refuse(*arguments)


def test_words_that_are_no_numbers(capsys):
  with pytest.raises(SystemExit) as stopped:
    cli.main([*UTILIZATION, *MODEL, '--every=often'])
  assert stopped.value.code == 2
  assert '--every' in capsys.readouterr().err


@pytest.mark.parametrize('words', [('simulate',), UTILIZATION])
def test_help(capsys, words):
  with pytest.raises(SystemExit) as stopped:
    cli.main([*words, '--help'])
  assert stopped.value.code == 0
  assert 'utilization' in capsys.readouterr().out
