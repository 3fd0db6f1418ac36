"""How a run shows itself on a terminal, or in a log file."""

import datetime
import math
import sys

from rich import console as rich_console
from rich import progress as rich_progress


def counted(number: int, noun: str) -> str:
  """Returns a number of things in words.

  Examples:
    >>> counted(1, 'step'), counted(2000, 'step')
    ('1 step', '2,000 steps')
  """
  return f'{number:,} {noun}{"s" * (number != 1)}'


def plain_lines(total_steps, stream, every_seconds, clock):
  """Prints a line for an evaluation, and now and then one for training.

  Args:
    total_steps: Inner steps of the whole run.
    stream: Where to print.
    every_seconds: Least time between two lines of training.
    clock: Returns the time in seconds.

  Returns:
    A function that takes a record, and a function that ends.
  """
  describe = _describe_with(total_steps, clock)
  bits, pending, due = None, None, -math.inf

  def write(record):
    nonlocal bits, pending, due
    bits = _latest_bits(record, bits)
    if _is_evaluation(record):
      print(_describe_evaluation(record, total_steps), file=stream, flush=True)
      return
    pending = describe(record, bits)
    if clock() >= due or record['step'] >= total_steps:
      due = clock() + every_seconds
      flush()

  def flush():
    nonlocal pending
    if pending is not None:
      print(pending, file=stream, flush=True)
      pending = None

  # A run that stops early shows where.
  return write, flush


def live_line(total_steps, start_step, stream, clock):
  """Draws one line of a terminal anew, and leaves evaluations above it.

  Args:
    total_steps: Inner steps of the whole run.
    start_step: Inner steps already taken.
    stream: The terminal.
    clock: Returns the time in seconds.

  Returns:
    A function that takes a record, and a function that ends.
  """
  describe = _describe_with(total_steps, clock)
  bits, due = None, -math.inf
  console = rich_console.Console(file=stream, force_terminal=True)
  # Drawn at records only: a thread that draws takes time from training. Stdout
  # is not for progress, so it is left alone.
  bar = rich_progress.Progress(
    rich_progress.BarColumn(bar_width=None),
    rich_progress.TextColumn('{task.description}', markup=False),
    console=console,
    auto_refresh=False,
    redirect_stdout=False,
    redirect_stderr=stream is sys.stderr,
    expand=True,
  )
  task = bar.add_task(
    f'step {start_step:,}/{total_steps:,}',
    total=total_steps,
    completed=start_step,
  )
  bar.start()

  def write(record):
    nonlocal bits, due
    bits = _latest_bits(record, bits)
    if _is_evaluation(record):
      line = _describe_evaluation(record, total_steps)
      console.print(line, markup=False, highlight=False, soft_wrap=True)
      return
    text = describe(record, bits)
    bar.update(task, completed=record['step'], description=text)
    if clock() >= due:
      due = clock() + 0.1
      bar.refresh()

  return write, bar.stop


def _describe_with(total_steps, clock):
  """Returns a function that puts a record of training into words."""
  first = None

  def eta(step):
    nonlocal first
    now = clock()
    if first is None:
      first = (step, now)
    if step <= first[0] or step >= total_steps:
      return None
    seconds = (now - first[1]) / (step - first[0]) * (total_steps - step)
    return f'ETA {datetime.timedelta(seconds=round(seconds))}'

  def describe(record, bits_per_byte):
    parts = [f'step {record["step"]:,}/{total_steps:,}']
    if 'train/loss' in record:
      parts.append(f'loss {record["train/loss"]:.3f}')
    if bits_per_byte is not None:
      parts.append(f'held-out {bits_per_byte:.3f} bits/byte')
    if 'train/tokens_per_second' in record:
      parts.append(f'{_short(record["train/tokens_per_second"])} tokens/s')
    return '  '.join(filter(None, (*parts, eta(record['step']))))

  return describe


def _describe_evaluation(record, total_steps):
  parts = [f'step {record["step"]:,}/{total_steps:,}  held-out loss']
  replicas = []
  for name, value in record.items():
    match name.split('/'):
      case ['eval', who, 'loss'] if who.startswith('replica_'):
        replicas.append(value)
      case ['eval', who, 'loss']:
        bits = record.get(f'eval/{who}/bits_per_byte')
        extra = '' if bits is None else f' ({bits:.3f} bits/byte)'
        parts.append(f'{who} {value:.3f}{extra}')
  if replicas:
    parts.append(f'replicas {min(replicas):.3f} to {max(replicas):.3f}')
  return '  '.join(parts)


def _short(number):
  for unit, size in (('G', 1e9), ('M', 1e6), ('k', 1e3)):
    if number >= size:
      return f'{number / size:.3g}{unit}'
  return f'{number:.3g}'


def _is_evaluation(record):
  return any(name.startswith('eval/') for name in record)


def _latest_bits(record, latest):
  """Returns the held-out bits per byte to show from this record on."""
  return record.get('eval/anchor/bits_per_byte', latest)
