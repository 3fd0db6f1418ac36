"""The parts of a picture: four panels, lines, and names beside them."""

from collections.abc import Sequence
import itertools
import math

from matplotlib import ticker
import numpy as np

# Okabe and Ito's colours, told apart by the colour-blind; without the yellow,
# which is too light for lines and text on white.
COLORS = (
  '#0072B2', '#D55E00', '#009E73', '#CC79A7', '#56B4E9', '#E69F00', '#000000',
)  # fmt: skip
MARKERS = 'osD^vPX'
# Metrics that fall by factors.
LOG_METRICS = ('loss', 'perplexity', 'bits_per_byte')
UNITS = {'loss': ', nats'}
GREY = '#555555'

# In inches and points. README shows 9 inches as 900 pixels.
WIDTH, HEIGHT, DOTS_PER_INCH = 9.0, 6.6, 200
FONT_SIZE, LABEL_SIZE = 10.0, 9.5
LINE = 14.0  # From one label to the next.

STYLE = {
  'font.family': 'DejaVu Sans',
  'font.size': FONT_SIZE,
  'axes.edgecolor': '#888888',
  'axes.labelcolor': '#222222',
  'axes.grid': True,
  'axes.axisbelow': True,
  'axes.spines.top': False,
  'axes.spines.right': False,
  'grid.color': '#e6e6e6',
  'grid.linewidth': 0.7,
  'xtick.color': GREY,
  'ytick.color': GREY,
  # The same runs give the same bytes.
  'svg.hashsalt': 'dilojax',
}


def spread(
  positions: Sequence[float], gap: float, low: float, high: float
) -> list[float]:
  r"""Moves positions apart, as little as possible.

  Finds :math:`\min_q \sum_i (q_i - p_i)^2` so that neighbours, in the order of
  `positions`, are at least `gap` apart and all are from `low` to `high`. With
  :math:`r_i = q_i - i \, \mathrm{gap}` this is monotone regression, which
  pooling neighbours in the wrong order solves.

  Args:
    positions: Where things would be, in any order.
    gap: Least distance between two.
    low: Lower bound.
    high: Upper bound. Where there is no room, the gaps become equal and
      smaller.

  Returns:
    The new positions, in the order of `positions`.

  Examples:
    >>> from dilojax import _panels
    >>> _panels.spread([5.0, 1.0, 5.0], gap=2.0, low=0.0, high=10.0)
    [4.0, 1.0, 6.0]
  """
  if len(positions) > 1:
    gap = min(gap, (high - low) / (len(positions) - 1))
  order = sorted(range(len(positions)), key=lambda index: positions[index])
  pools = []  # Pairs of a sum and a count, with increasing means.
  for rank, index in enumerate(order):
    total, count = positions[index] - rank * gap, 1
    while pools and pools[-1][0] / pools[-1][1] > total / count:
      before = pools.pop()
      total, count = total + before[0], count + before[1]
    pools.append((total, count))
  moved = [0.0] * len(positions)
  means = itertools.chain.from_iterable(
    [total / count] * count for total, count in pools
  )
  highest = high - (len(positions) - 1) * gap
  for rank, (index, mean) in enumerate(zip(order, means)):
    moved[index] = min(max(mean, low), highest) + rank * gap
  return moved


def look(number):
  """Returns colour and marker: all pairs differ until both have come round."""
  turn = number // len(COLORS)
  return (
    COLORS[number % len(COLORS)],
    MARKERS[(number + turn) % len(MARKERS)],
  )


def draw_panel(panel, axis, curves):
  """Draws curves against one of the costs, on a logarithmic axis."""
  for number, curve in enumerate(curves):
    color, marker = look(number)
    panel.plot(
      curve.train_x[axis], curve.train_y, color=color, alpha=0.4, lw=0.8
    )
    if curve.error is not None:
      panel.fill_between(
        curve.x[axis],
        curve.y - curve.error,
        curve.y + curve.error,
        color=color,
        alpha=0.2,
        lw=0,
      )
    panel.plot(
      curve.x[axis],
      curve.y,
      color=color,
      lw=1.8,
      marker=marker,
      ms=5,
      mec='white',
      mew=0.7,
    )
  positive = np.concatenate([curve.x[axis] for curve in curves])
  positive = positive[positive > 0]
  if not positive.size:
    panel.set_xlim(-0.05, 1)
    panel.set_xticks([0])
    return
  low, high = positive.min(), positive.max()
  if any((curve.x[axis] == 0).any() for curve in curves):
    # Logarithmic, with a place for zero half a decade wide.
    early = np.concatenate([positive, *(c.train_x[axis] for c in curves)])
    low = early[early > 0].min()
    panel.set_xscale('symlog', linthresh=low, linscale=0.5)
    panel.set_xlim(-0.1 * low, high * 1.15)
    powers = range(math.ceil(math.log10(low)), math.floor(math.log10(high)) + 1)
    stride = math.ceil(len(powers) / 4) or 1
    panel.set_xticks([0, *(10.0**power for power in powers[::stride])])
  else:
    panel.set_xscale('log')
    low = low if low < high else low / 10
    panel.set_xlim(low / 1.25, high * 1.1)
    subs = (1, 2, 5) if high < 100 * low else (1,)
    panel.xaxis.set_major_locator(ticker.LogLocator(subs=subs, numticks=8))
  unit, separator = ('B', ' ') if axis == 'bytes_sent' else ('', '')
  if axis == 'seconds':  # Half a minute is not 500 milliminutes.
    plain = ticker.FuncFormatter(lambda value, _: f'{value:g}')
    panel.xaxis.set_major_formatter(plain)
  else:
    panel.xaxis.set_major_formatter(ticker.EngFormatter(unit, sep=separator))
  panel.xaxis.set_minor_locator(ticker.NullLocator())


def limit_y(panel, curves, metric):
  """Shows all evaluations but that of the start, which would flatten them."""
  trained = [curve.y[curve.x['step'] > 0] for curve in curves]
  if not any(np.isfinite(y).any() for y in trained):
    trained = [curve.y for curve in curves]
  values = np.concatenate(trained)
  low, high = np.nanmin(values), np.nanmax(values)
  trains = np.concatenate([curve.train_y for curve in curves])
  low = min([low, *trains[np.isfinite(trains)]])
  if metric.split('/')[-1] in LOG_METRICS and low > 0:
    panel.set_yscale('log')
    pad = (high / low) ** 0.05 if high > low else 1.1
    panel.set_ylim(low / pad, high * pad)
  else:
    pad = 0.05 * (high - low) or 0.1
    panel.set_ylim(low - pad, high + pad)
  if high < 10 * low or panel.get_yscale() == 'linear':
    panel.yaxis.set_major_locator(ticker.MaxNLocator(6, steps=[1, 2, 2.5, 5]))
  else:
    panel.yaxis.set_major_locator(ticker.LogLocator(subs=(1, 2, 5)))
  panel.yaxis.set_major_formatter(ticker.ScalarFormatter(useOffset=False))
  panel.yaxis.set_minor_locator(ticker.NullLocator())


def explain(figure, curves, metric):
  """Says what markers, lines and bands are."""
  words = f'Markers: {metric}.'
  if any(curve.error is not None for curve in curves):
    words += '  Bands: standard error over seeds.'
  if any(curve.train_y.size for curve in curves):
    words += f'  Thin lines: train/{metric.split("/")[-1]}.'
  figure.text(0.012, 0.975, words, color=GREY, size=LABEL_SIZE, va='center')


def fit(figure, canvas, curves):
  """Makes room for the longest label, and for all labels below each other."""
  renderer = canvas.get_renderer()
  texts = [
    figure.text(0, 0, c.label, size=LABEL_SIZE, parse_math=False)
    for c in curves
  ]
  widest = max(text.get_window_extent(renderer).width for text in texts)
  for text in texts:
    text.remove()
  dots = figure.dpi
  label = widest / dots + 0.3  # Inches, with the leader and a margin.
  left, bottom, top, between = 0.7, 0.6, 0.42, 0.62
  width = max((WIDTH - left - 2 * label) / 2, 1.8)
  height = (HEIGHT - bottom - top - between) / 2
  height = max(height, len(curves) * LINE / 72)
  whole = left + 2 * width + 2 * label, bottom + top + between + 2 * height
  figure.set_size_inches(*whole)
  figure.subplots_adjust(
    left=left / whole[0],
    right=1 - label / whole[0],
    bottom=bottom / whole[1],
    top=1 - top / whole[1],
    wspace=label / width,
    hspace=between / height,
  )


def thin(panel, canvas):
  """Leaves out ticks whose names would touch the one before."""
  low, high = panel.get_xlim()
  kept, end, is_full = [], -math.inf, True
  for tick, text in zip(panel.get_xticks(), panel.get_xticklabels()):
    if not low <= tick <= high:
      continue
    box = text.get_window_extent(canvas.get_renderer())
    if box.x0 > end + 4:
      kept.append(tick)
      end = box.x1
    else:
      is_full = False
  if not is_full:
    panel.set_xticks(kept)


def label(panel, axis, curves, canvas):
  """Writes names beside the panel, level with the ends of the lines."""
  box = panel.get_window_extent(canvas.get_renderer())
  ends = []
  for curve in curves:
    last = np.flatnonzero(np.isfinite(curve.y))[-1]
    # A run that has only been evaluated before its first step.
    x = np.clip(np.nan_to_num(curve.x[axis][last]), *panel.get_xlim())
    ends.append((x, np.clip(curve.y[last], *panel.get_ylim())))
  heights = [panel.transData.transform(end)[1] for end in ends]
  gap = LINE / 72 * panel.figure.dpi
  levels = spread(heights, gap, box.y0 + gap / 2, box.y1 - gap / 2)
  for number, (curve, end, level) in enumerate(zip(curves, ends, levels)):
    color, _ = look(number)
    place = (1 + 12 / box.width, (level - box.y0) / box.height)
    write_beside(panel, curve.label, end, place, color)


def write_beside(panel, text, point, place, color):
  """Writes a text at a place beside a panel, with a dotted line to a point."""
  panel.annotate(
    text,
    point,
    place,
    textcoords='axes fraction',
    annotation_clip=False,
    color=color,
    size=LABEL_SIZE,
    parse_math=False,
    va='center',
    arrowprops={
      'arrowstyle': '-',
      'linestyle': (0, (1, 2)),
      'linewidth': 0.9,
      'color': color,
      'shrinkA': 1,
      'shrinkB': 4,
      'relpos': (0, 0.5),
    },
  )
