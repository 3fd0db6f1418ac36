"""Tests for reports and plots of experiments."""

import html.parser
import re

from matplotlib import text as mpl_text
import numpy as np
import pytest

from dilojax import _curves
from dilojax import _html
from dilojax import cli
from dilojax import metrics
from dilojax import plot
from dilojax import table
from tests import experiment_runs

METRIC = 'eval/anchor/loss'


@pytest.fixture
def experiment(tmp_path):
  return experiment_runs.write_experiment(tmp_path)


@pytest.fixture
def out(tmp_path):
  return experiment_runs.write_sweep(tmp_path / 'out')


def elements(page):
  """Returns the tags and attributes of a page; checks that tags are closed."""
  found, inside = [], []

  class Parser(html.parser.HTMLParser):
    def handle_starttag(self, tag, attrs):
      found.append((tag, dict(attrs)))
      if tag != 'meta':
        inside.append(tag)

    def handle_startendtag(self, tag, attrs):
      found.append((tag, dict(attrs)))

    def handle_endtag(self, tag):
      assert inside.pop() == tag

  parser = Parser()
  parser.feed(page)
  parser.close()
  assert not inside
  return found


def test_needs_no_other_file(experiment, out):
  page = table.text(experiment, out=out, format='html')
  found = elements(page)
  tags = [tag for tag, _ in found]
  assert tags.count('svg') == 2
  assert not set(tags) & {'script', 'link', 'img', 'iframe', 'object', 'image'}
  for _, attributes in found:
    for name in ('src', 'href', 'xlink:href', 'data', 'action'):
      assert attributes.get(name, '#').startswith('#')
  assert re.findall(r'url\((?!#)|@import|<!DOCTYPE svg|<metadata', page) == []
  # Of the names of places, those of namespaces alone, which nobody fetches.
  places = set(re.findall(r'https?://[^\s"<]+', page))
  assert places <= {
    'http://www.w3.org/2000/svg',
    'http://www.w3.org/1999/xlink',
  }


def test_says_what_the_table_says(experiment, out):
  page = table.text(experiment, out=out, format='html')
  assert page == table.text(experiment, out=out, format='html')
  assert '<h1>Is b better than a?</h1>' in page
  assert 'By &lt;one&gt; &amp; another.' in page
  for text in (
    '2.1000 ± 0.0577',
    '-0.1167 ± 0.0167 (a)',
    '15.30',
    '0123456789',
  ):
    assert text in page
  assert page.count('<span class="verdict holds">holds</span>') == 2


def test_computed_cells_are_marked(tmp_path):
  path = tmp_path / 'cells.py'
  path.write_text(
    '"""Is it so?"""\n\nfrom dilojax import exact\n\n\ndef compute():\n'
    "  return [exact.Cell('a', 'x', 1.0, '1.0'),"
    " exact.Cell('b', 'y', 2.0, '3')]\n"
  )
  page = table.text(path, format='html')
  elements(page)
  assert re.findall('<td class="differs">(.*?)</td>', page) == ['2 (3)']
  assert '1 of 2 cells agree' in page


# Curves of rows.


def records(losses, speed=1.0):
  """Returns evaluations at the steps 0, 10, ..., with costs."""
  return [
    {
      'step': 10 * number,
      'tokens': 100 * number,
      'bytes_sent': 0,
      'seconds': speed * number,
      METRIC: loss,
    }
    for number, loss in enumerate(losses)
  ]


def test_a_row_is_the_mean_of_its_seeds():
  seeds = [records([9, 4, 1, 0.5]), records([9, 6, 2], speed=3.0), []]
  [curve] = _curves.of_rows({'row': seeds, 'none': [[], []]}, METRIC)
  # At the steps of both, of those that a logarithmic axis has.
  np.testing.assert_array_equal(curve.x['step'], [10, 20])
  np.testing.assert_array_equal(curve.x['seconds'], [2, 4])
  np.testing.assert_array_equal(curve.x['bytes_sent'], [0, 0])
  np.testing.assert_array_equal(curve.y, [5, 1.5])
  np.testing.assert_allclose(curve.error, [1, 0.5])


def test_one_seed_has_no_band():
  [curve] = _curves.of_rows({'row': [records([9, 4, 1])]}, METRIC)
  assert curve.error is None
  figure = plot.draw_curves([curve], METRIC)
  assert not figure.axes[0].collections


def test_bands_are_drawn():
  seeds = [records([9, 4, 1]), records([9, 6, 2])]
  figure = plot.draw_curves(_curves.of_rows({'row': seeds}, METRIC), METRIC)
  for panel in figure.axes:
    [band] = panel.collections
    heights = band.get_paths()[0].vertices[:, 1]
    assert (heights.min(), heights.max()) == (1, 6)


def test_names_that_shorten_to_the_same_stay_long():
  names = [f'{"x" * 20}{middle}{"y" * 20}' for middle in 'ab']
  rows = {name: [records([9, 4, 1])] for name in names}
  assert [curve.label for curve in _curves.of_rows(rows, METRIC)] == names


def test_nothing_overlaps():
  rows = {
    f'merge=compensated,delay={delay}': [
      [
        {**each, 'bytes_sent': 3_000_000 * each['step']}
        for each in records(
          [9, *(4 - 0.01 * delay - 0.1 * n for n in range(20))]
        )
      ]
    ]
    for delay in range(12)
  }
  figure = plot.draw_curves(_curves.of_rows(rows, METRIC), METRIC)
  figure.canvas.draw()
  for panel in figure.axes:
    ticks = [t for t in panel.get_xticklabels() if t.get_text()]
    labels = [t for t in panel.texts if isinstance(t, mpl_text.Annotation)]
    low, high = panel.get_xlim()
    shown = [t for t in ticks if low <= t.get_position()[0] <= high]
    assert len(labels) == len(rows)
    assert len(shown) > 1
    for texts in (shown, labels):
      # Without the leader of a label.
      boxes = [mpl_text.Text.get_window_extent(text) for text in texts]
      for first, box in enumerate(boxes):
        assert not any(box.overlaps(other) for other in boxes[first + 1 :])
        assert figure.bbox.x0 <= box.x0
        assert box.x1 <= figure.bbox.x1


def test_values_beside_the_dots_are_inside(experiment, out):
  from dilojax import _comparison
  from dilojax import _experiment
  from dilojax import _runs

  loaded = _experiment.load(experiment)
  compared = _comparison.compare(loaded, _runs.swept(loaded, out), 0.95)
  figure = _html._dots(compared)
  figure.canvas.draw()
  [panel] = figure.axes
  for text in [*panel.texts, *panel.get_yticklabels()]:
    box = text.get_window_extent()
    assert figure.bbox.x0 <= box.x0
    assert box.x1 <= figure.bbox.x1
  for place, losses in enumerate(experiment_runs.LOSSES.values()):
    dots = panel.lines[place * 2]
    np.testing.assert_array_equal(np.sort(dots.get_xdata()), np.sort(losses))


def test_command(experiment, out, tmp_path, capsys):
  file = tmp_path / 'report.png'
  arguments = ['plot', str(experiment), f'--file={file}']
  assert cli.main([*arguments, f'--out={out}']) == 0
  assert capsys.readouterr().out == f'{file}\n'
  swept = file.read_bytes()
  table.keep(experiment, out)
  assert cli.main(arguments) == 0
  assert file.read_bytes() == swept


def test_a_sweep_that_goes_on(experiment, tmp_path):
  folder = tmp_path / 'going' / 'a' / '0'
  folder.mkdir(parents=True)
  file = tmp_path / 'report.png'
  with pytest.raises(ValueError, match="no run of .*rows' in .*going"):
    plot.plot_experiment(experiment, tmp_path / 'going', file)
  sink = metrics.jsonl(folder / 'metrics.jsonl', resume_step=None)
  for record in records([9, 4]):
    sink.write(record)
  sink.close()
  assert plot.plot_experiment(experiment, tmp_path / 'going', file).is_file()
