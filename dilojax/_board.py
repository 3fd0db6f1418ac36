"""What a person sees of a sweep: which runs go on, end, fail, and how long."""

from collections.abc import Callable, Sequence
import time
from typing import Any, NamedTuple, TextIO

from rich import console as rich_console
from rich import live as rich_live
from rich import progress as rich_progress

from dilojax import _points
from dilojax import _pool

# Between two plain lines about what runs.
EVERY_SECONDS = 60.0

Left = Callable[[Sequence[_pool.Running]], float | None]


class Board(NamedTuple):
  """Shows a sweep.

  Attributes:
    events: What :func:`dilojax._pool.run` is to tell.
    close: Ends it.
  """

  events: _pool.Events
  close: Callable[[], None]


def board(
  *,
  total: int,
  done: int,
  metric: str,
  left: Left,
  stream: TextIO,
  is_terminal: bool | None = None,
) -> Board:
  """Shows a sweep on a terminal, or in plain lines.

  Args:
    total: Number of runs.
    done: Number of those that had finished before.
    metric: What to show of a run that ends.
    left: Tells how many seconds are left, None if nobody knows.
    stream: Where to.
    is_terminal: Whether `stream` takes cursor movements. None to ask it.
  """
  if is_terminal is None:
    is_terminal = stream.isatty()
  if is_terminal:
    say, show, close = _live(total, done, stream)
  else:
    say, show, close = _plain(total, stream)
  count, running = done, []

  def start(point):
    at = _points.steps_done(point)
    say(f'{point.name}: {f"goes on after step {at:,}" if at else "begins"}.')

  def away(point):
    say(f'{point.name}: another sweep runs it; waits.')

  def end(ended):
    nonlocal count
    name = ended.point.name
    if ended.reason is not None:
      log = ended.point.folder / _pool.LOG
      say(f'{name}: {ended.reason}' + f' (see {log})' * log.exists())
      return
    count += 1
    final = (_points.result(ended.point) or {}).get('final', {})
    value = final.get(metric)
    shown = '' if value is None else f' {metric} {_number(value)},'
    took = f' {duration(ended.seconds)}' if ended.seconds else ' run elsewhere'
    rest = [each for each in running if each.point.name != name]
    say(f'{name}: finished,{shown}{took}; {_state(count, total, left(rest))}')

  def look(now_running):
    running[:] = now_running
    show(count, now_running, left(now_running))

  return Board(_pool.Events(start, away, end, look), close)


def duration(seconds: float) -> str:
  """Returns a duration for people.

  Examples:
    >>> duration(42.4), duration(312), duration(7300)
    ('42 s', '5 min', '2 h 2 min')
  """
  if seconds < 90:
    return f'{seconds:.0f} s'
  minutes = round(seconds / 60)
  if minutes < 90:
    return f'{minutes} min'
  return f'{minutes // 60} h {minutes % 60} min'


def _plain(total, stream):
  due = time.monotonic() + EVERY_SECONDS

  def say(text):
    print(text, file=stream, flush=True)

  def show(count, running, seconds):
    nonlocal due
    if time.monotonic() < due:
      return
    due = time.monotonic() + EVERY_SECONDS
    where = ', '.join(f'{each.point.name} at {_at(each)}' for each in running)
    say(f'{_state(count, total, seconds)}: {where}')

  return say, show, lambda: None


def _live(total, done, stream):
  console = rich_console.Console(file=stream, force_terminal=True)
  columns = (
    rich_progress.TextColumn('{task.description}', markup=False),
    rich_progress.BarColumn(bar_width=None),
    rich_progress.TextColumn('{task.fields[text]}', markup=False),
  )
  bars = rich_progress.Progress(*columns, console=console, expand=True)
  whole = bars.add_task('sweep', total=total, completed=done, text='')
  tasks: dict[str, Any] = {}
  live = rich_live.Live(
    bars,
    console=console,
    auto_refresh=False,
    redirect_stdout=False,
    redirect_stderr=False,
  )
  live.start()

  def say(text):
    console.print(text, markup=False, highlight=False, soft_wrap=True)

  def show(count, running, seconds):
    shares = 0.0
    for name in set(tasks) - {each.point.name for each in running}:
      bars.remove_task(tasks.pop(name))
    for each in running:
      name, steps = each.point.name, each.point.config['num_steps']
      if name not in tasks:
        tasks[name] = bars.add_task(f'  {name}', total=steps, text='')
      at = _points.steps_done(each.point)
      bars.update(tasks[name], completed=at, text=_at(each))
      shares += at / steps
    text = _state(count, total, seconds)
    bars.update(whole, completed=count + shares, text=text)
    live.refresh()

  return say, show, live.stop


def _state(count, total, seconds):
  left = '' if seconds is None else f', about {duration(seconds)} left'
  return f'{count} of {total} finished{left * (count < total)}'


def _at(running):
  steps = running.point.config['num_steps']
  return f'step {_points.steps_done(running.point):,}/{steps:,}'


def _number(value):
  return f'{value:.4f}' if isinstance(value, float) else str(value)
