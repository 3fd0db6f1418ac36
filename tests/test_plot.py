"""Tests for `dilojax.plot`."""

import itertools
import math
import os

import hypothesis
from hypothesis import strategies as st
from matplotlib import text as mpl_text
import numpy as np
import pytest

from dilojax import _panels
from dilojax import metrics
from dilojax import plot

STEPS = (0, 50, 100, 150, 200)
PNG, SVG, PDF = b'\x89PNG', b'<?xml', b'%PDF'


def make_run(
  folder, *, losses=None, replicas=4, bytes_per_step=1e6, train=True, scale=1.0
):
  """Writes the metrics of a run with an evaluation every fifty steps."""
  folder.mkdir(parents=True)
  sink = metrics.jsonl(folder / 'metrics.jsonl', resume_step=None)
  losses = losses or [scale * (1 + 4 / (1 + step)) for step in STEPS]
  for step, loss in zip(STEPS, losses):
    costs = {
      'step': step,
      'tokens': 1024 * step * replicas,
      'bytes_sent': round(step * bytes_per_step),
      'seconds': 0.5 * step,
    }
    if train and step:
      sink.write({**costs, 'train/loss': loss - 0.1})
    sink.write({**costs, 'eval/anchor/loss': loss})
  sink.close()
  return folder


@pytest.fixture
def runs(tmp_path):
  return [
    make_run(tmp_path / 'data_parallel', scale=1.0),
    make_run(tmp_path / 'single', scale=1.3, replicas=1, bytes_per_step=0),
    make_run(tmp_path / 'diloco', scale=1.1, bytes_per_step=2e4),
  ]


def texts_of(panel):
  """Returns the labels of a panel."""
  return {text.get_text(): text for text in panel.texts}


def evaluations(panel):
  return [line for line in panel.lines if line.get_marker() != 'None']


# What is drawn.


def test_lines_are_the_records(runs):
  figure = plot.draw(runs)
  steps, tokens, sent, seconds = figure.axes
  want = [1 + 4 / (1 + step) for step in STEPS]
  for panel, factor in (
    (steps, 1),
    (tokens, 4096),
    (sent, 1e6),
    (seconds, 0.5),
  ):
    line = evaluations(panel)[0]
    np.testing.assert_allclose(line.get_ydata(), want)
    # Zero has no place on a logarithmic axis.
    np.testing.assert_allclose(
      line.get_xdata(), [math.nan, *(factor * step for step in STEPS[1:])]
    )
  assert steps.get_shared_y_axes().joined(steps, seconds)
  assert all(panel.get_xscale() == 'log' for panel in (steps, tokens, seconds))


def test_every_evaluation_of_a_trained_model_is_in_view(runs):
  for panel in plot.draw(runs).axes:
    low, high = panel.get_ylim()
    left, right = panel.get_xlim()
    for line in evaluations(panel):
      x, y = line.get_xdata()[1:], line.get_ydata()[1:]
      assert low < y.min() <= y.max() < high
      assert left < x.min() <= x.max() < right
    assert low < min(line.get_ydata().min() for line in panel.lines)
    assert high < 5  # The first, which would flatten all others.


def test_silent_run_stands_at_zero_bytes(runs):
  sent = plot.draw(runs).axes[2]
  line = evaluations(sent)[1]
  assert not line.get_xdata().any()
  assert line.get_xydata().shape == (len(STEPS), 2)
  assert sent.get_xlim()[0] < 0
  assert sent.xaxis.get_major_formatter()(0) == '0 B'
  # And where all runs send, nothing is kept for zero.
  assert plot.draw(runs[::2]).axes[2].get_xscale() == 'log'
  assert plot.draw(runs[1:2]).axes[2].get_xticks() == [0]


def test_time_is_in_a_unit_that_suits(tmp_path):
  label = lambda folder: plot.draw([folder]).axes[3].get_xlabel()
  assert label(make_run(tmp_path / 'short')) == 'seconds of training'
  long = make_run(tmp_path / 'long')
  path = long / 'metrics.jsonl'
  path.write_text(path.read_text().replace('"seconds": ', '"seconds": 1'))
  assert label(long) == 'minutes of training'
  line = evaluations(plot.draw([long]).axes[3])[0]
  np.testing.assert_allclose(line.get_xdata()[-1], 1100 / 60)


def test_divergence_breaks_the_line(tmp_path, runs):
  losses = [5.0, 2.0, 3.0, math.nan, math.inf]
  folder = make_run(tmp_path / 'diverged', losses=losses)
  panel = plot.draw([folder, *runs]).axes[0]
  got = evaluations(panel)[0].get_ydata()
  np.testing.assert_array_equal(got, [5.0, 2.0, 3.0, math.nan, math.nan])
  # The label's line starts at the last point that exists.
  assert texts_of(panel)['diverged'].xy == (100, 3.0)


def test_run_evaluated_before_its_first_step_only(tmp_path):
  folder = make_run(tmp_path / 'fresh', losses=[5.0])
  figure = plot.draw([folder, make_run(tmp_path / 'other')])
  for panel in figure.axes:
    x, _ = texts_of(panel)['fresh'].xy
    assert panel.get_xlim()[0] <= x < panel.get_xlim()[1]
  plot.draw([folder])


@pytest.mark.parametrize('train', [True, False])
def test_training_has_thin_lines(tmp_path, train):
  figure = plot.draw([make_run(tmp_path / 'run', train=train)])
  [thin] = [ln for ln in figure.axes[0].lines if ln.get_marker() == 'None']
  assert thin.get_xdata().tolist() == (list(STEPS[1:]) if train else [])
  assert ('train/loss' in figure.texts[0].get_text()) == train


# Labels.


@pytest.mark.parametrize('number', [1, 3, 9, 24])
def test_labels_neither_overlap_nor_leave_the_picture(tmp_path, number):
  # All end at the same loss: the worst case.
  name = 'a_name_too_long_for_any_margin_{}'
  folders = [make_run(tmp_path / name.format(i)) for i in range(number)]
  figure = plot.draw(folders)
  figure.canvas.draw()
  renderer = figure.canvas.get_renderer()
  whole = figure.bbox
  assert whole.width == pytest.approx(_panels.WIDTH * figure.dpi)
  boxes = []
  for panel in figure.axes:
    assert len(panel.texts) == number
    for text in panel.texts:
      # The text alone, without the line that leads to it.
      boxes.append(mpl_text.Text.get_window_extent(text, renderer))
  boxes += [text.get_window_extent(renderer) for text in figure.texts]
  for panel in figure.axes:
    boxes.append(panel.get_window_extent(renderer))
    tight = panel.get_tightbbox(renderer)
    assert whole.x0 <= tight.x0 < tight.x1 <= whole.x1
    assert whole.y0 <= tight.y0 < tight.y1 <= whole.y1
  for first, second in itertools.combinations(boxes, 2):
    assert not first.overlaps(second)


def test_labels_are_as_long_as_it_takes_to_differ(tmp_path):
  folders = [tmp_path / name for name in ('x/a/0', 'y/a/0', 'b/0', 'b/1')]
  for folder in folders:
    make_run(folder)
  got = list(texts_of(plot.draw(folders).axes[0]))
  assert got == ['x/a/0', 'y/a/0', 'b/0', '1']


def test_labels_differ_although_shortened(tmp_path):
  names = [f'same_beginning_{i}_and_the_same_end' for i in range(2)]
  figure = plot.draw([make_run(tmp_path / name) for name in names])
  assert list(texts_of(figure.axes[0])) == names


def test_looks_differ(tmp_path):
  folders = [make_run(tmp_path / str(i)) for i in range(20)]
  panel = plot.draw(folders).axes[0]
  looks = {(ln.get_color(), ln.get_marker()) for ln in evaluations(panel)}
  assert len(looks) == 20


@hypothesis.given(
  st.lists(st.floats(-100, 100), max_size=12), st.floats(0.1, 20)
)
def test_spread_is_the_nearest_that_keeps_apart(positions, gap):
  low, high = -100.0, 150.0
  moved = _panels.spread(positions, gap, low, high)
  assert len(moved) == len(positions)
  if len(moved) > 1:
    gap = min(gap, (high - low) / (len(moved) - 1))
  order = np.argsort(positions, kind='stable')
  moved, positions = np.array(moved)[order], np.array(positions)[order]
  assert (np.diff(moved) >= gap - 1e-9).all()
  assert ((moved >= low - 1e-9) & (moved <= high + 1e-9)).all()
  # A convex problem: no feasible point is nearer if every direction towards
  # one goes up. Candidates are other spreads, and the equidistant one.
  for shift in (-5.0, 0.0, 5.0):
    other = np.array(_panels.spread(positions + shift, gap, low, high))
    slope = 2 * (moved - positions) @ (other - moved)
    assert slope >= -1e-6 * (1 + np.abs(other - moved).sum())
  ranks = np.arange(len(moved))
  other = low + gap * ranks
  assert 2 * (moved - positions) @ (other - moved) >= -1e-5


# The file.


@pytest.mark.parametrize(
  ('name', 'magic'), [('a.png', PNG), ('a.SVG', SVG), ('a.pdf', PDF)]
)
def test_same_runs_give_the_same_bytes(tmp_path, runs, name, magic):
  out = tmp_path / name
  out.write_text('an older picture')
  assert plot.plot(runs, out) == out
  first = out.read_bytes()
  assert first.startswith(magic)
  plot.plot(runs, out)
  assert out.read_bytes() == first
  assert not [file for file in os.listdir(tmp_path) if 'partial' in file]


def test_other_metrics(runs):
  figure = plot.draw(runs, 'train/loss')
  assert figure.axes[0].get_ylabel() == 'train/loss, nats'
  assert all(len(ln.get_xdata()) in (0, 4) for ln in figure.axes[0].lines)
  assert sum(len(ln.get_xdata()) for ln in figure.axes[0].lines) == 3 * 4


# Misuse.


@pytest.mark.parametrize(
  ('out', 'message'),
  [
    ('a.jpg', r'must end in one of .png, .svg, .pdf, got .*a.jpg'),
    ('a', 'must end in one of'),
    ('folder.png', 'must be a file, got the folder'),
    ('no/a.png', "must be in an existing folder, got .*no/a.png': make"),
  ],
)
def test_rejects_places_for_the_picture(tmp_path, runs, out, message):
  (tmp_path / 'folder.png').mkdir()
  with pytest.raises(ValueError, match=message):
    plot.plot(runs, tmp_path / out)


def test_failed_write_leaves_the_old_picture(tmp_path, runs, monkeypatch):
  out = tmp_path / 'a.png'
  out.write_text('old')

  def fail(_, path, **kwargs):
    path.write_text('half')
    raise OSError(28, 'No space left on device')

  monkeypatch.setattr('matplotlib.figure.Figure.savefig', fail)
  with pytest.raises(ValueError, match='`out` .* No space left'):
    plot.plot(runs, out)
  assert out.read_text() == 'old'
  assert not [file for file in os.listdir(tmp_path) if 'partial' in file]


def test_rejects_what_is_no_run(tmp_path, runs):
  (tmp_path / 'empty').mkdir()
  (tmp_path / 'file').touch()
  for bad, message in (
    ([], 'name at least one run folder'),
    (str(runs[0]), 'name at least one run folder'),
    ([tmp_path / 'missing'], "be .*missing', which is not there"),
    ([tmp_path / 'file'], "be .*file', which is a file"),
    ([tmp_path / 'empty'], 'be .* without a metrics.jsonl'),
    ([runs[0], runs[0]], 'be different folders'),
  ):
    with pytest.raises(ValueError, match=f'`runs` must {message}'):
      plot.draw(bad)


def test_rejects_unknown_metrics(tmp_path, runs):
  with pytest.raises(
    ValueError, match=r"got 'eval/ancor/loss'.* \(did you mean"
  ):
    plot.draw(runs, 'eval/ancor/loss')
  with pytest.raises(ValueError, match='it has eval/anchor/loss, train/loss'):
    plot.draw(runs, 'zzz')
  (tmp_path / 'new').mkdir()
  (tmp_path / 'new' / 'metrics.jsonl').touch()
  with pytest.raises(ValueError, match='has no metrics yet'):
    plot.draw([tmp_path / 'new'])
  losses = [math.nan] * 5
  with pytest.raises(ValueError, match='has no finite value'):
    plot.draw([make_run(tmp_path / 'nan', losses=losses)])


def test_rejects_records_without_costs(tmp_path):
  folder = make_run(tmp_path / 'run')
  path = folder / 'metrics.jsonl'
  path.write_text(path.read_text().replace('bytes_sent', 'other'))
  with pytest.raises(ValueError, match="at step 0 .* lacks 'bytes_sent'"):
    plot.draw([folder])
