"""Where a run's records go: a file, the terminal, and hosted trackers.

A record is a flat dict with the key 'step', the number of inner steps taken,
and numbers under names that say what is measured and of whom, such as
'train/loss' or 'eval/anchor/loss'. A record with a name under 'eval/' is an
evaluation.
"""

from collections.abc import Callable, Iterable
import contextlib
import importlib
import json
import math
import os
import pathlib
import time
from typing import Any, NamedTuple, TextIO

from dilojax import _terminal

Record = dict[str, Any]

# What JSON has no number for, under the names that Protocol Buffers use.
_WORDS = {'NaN': math.nan, 'Infinity': math.inf, '-Infinity': -math.inf}


class Sink(NamedTuple):
  """A place for records.

  Attributes:
    write: Takes a record.
    close: Finishes; may be called twice.
  """

  write: Callable[[Record], None]
  close: Callable[[], None]


def jsonl(path: str | os.PathLike[str], *, resume_step: int | None) -> Sink:
  """Appends records to a file, one JSON object a line.

  A record is in the hands of the operating system when `write` returns, so a
  killed process loses none. NaN and the infinities, for which JSON has no
  number, become the strings 'NaN', 'Infinity' and '-Infinity', which
  :func:`read` turns back.

  Args:
    path: The file, in an existing folder.
    resume_step: None for a new run, whose file must not exist or be empty.
      Else the inner step of the checkpoint that the run continues from:
      records of later steps, and a last line that a kill has cut short, are
      removed in one atomic replacement of the file. Write the records up to a
      step before its checkpoint, and the file of a resumed run has the same
      records as that of an undisturbed one.

  Returns:
    A :class:`Sink`.

  Raises:
    ValueError: If the file cannot be written, holds records although the run
      is new, or holds something else. `write` raises it for a record without
      'step', or with a value that is no scalar.

  Examples:
    >>> import pathlib, tempfile
    >>> from dilojax import metrics
    >>> folder = tempfile.TemporaryDirectory()
    >>> path = pathlib.Path(folder.name, 'metrics.jsonl')
    >>> sink = metrics.jsonl(path, resume_step=None)
    >>> for step in (1, 2, 3):
    ...   sink.write({'step': step, 'train/loss': 1 / step})
    >>> sink.close()
    >>> sink = metrics.jsonl(path, resume_step=1)
    >>> sink.write({'step': 2, 'train/loss': float('nan')})
    >>> sink.close()
    >>> print(path.read_text().rstrip())
    {"step": 1, "train/loss": 1.0}
    {"step": 2, "train/loss": "NaN"}
    >>> folder.cleanup()
  """
  path = pathlib.Path(path)
  try:
    if path.exists():
      _cut(path, resume_step)
    file = path.open('a', encoding='utf-8')
  except OSError as error:
    raise ValueError(
      f'`path` must be a file that can be written, got {str(path)!r}:'
      f' {error.strerror}.'
    ) from error

  def write(record):
    words = {key: _to_json(value) for key, value in _plain(record).items()}
    file.write(json.dumps(words) + '\n')
    file.flush()

  return Sink(write, file.close)


def read(path: str | os.PathLike[str]) -> list[Record]:
  """Reads what :func:`jsonl` wrote.

  Args:
    path: The file. Its run may be going on: a last line that is not complete
      is left out.

  Returns:
    The records, in order.

  Raises:
    ValueError: If the file cannot be read, or a line is no record.
  """
  path = pathlib.Path(path)
  try:
    data = path.read_bytes()
  except OSError as error:
    raise ValueError(
      f'`path` must be a file of metrics, got {str(path)!r}: {error.strerror}.'
    ) from error
  return [record for _, record in _parse(path, data)]


def progress(
  *,
  total_steps: int,
  start_step: int,
  stream: TextIO,
  is_terminal: bool | None = None,
  every_seconds: float = 5.0,
  clock: Callable[[], float] = time.monotonic,
) -> Sink:
  """Shows how far a run is: step, loss, bits per byte, tokens/s, ETA.

  A terminal gets one live line, and a permanent line for every evaluation.
  Other streams get plain lines: every evaluation, the first and the last
  record, and between them at most one record each `every_seconds`.

  Bits per byte are those of training where the record has them, else those of
  the latest evaluation of the anchor. The ETA is the rest of the run at the
  mean speed since the first record, evaluations and checkpoints included.

  Args:
    total_steps: Inner steps of the whole run.
    start_step: Inner steps already taken, by an earlier process.
    stream: Where to write: `sys.stderr`, since stdout is for results.
    is_terminal: Whether `stream` takes cursor movements. None to ask it.
    every_seconds: Least time between two plain lines of training.
    clock: Returns the time in seconds.

  Returns:
    A :class:`Sink`. Close it also when the run fails, or the terminal's cursor
    stays hidden.

  Raises:
    ValueError: If the steps are out of range.
  """
  if total_steps < 1:
    raise ValueError(f'`total_steps` must be at least 1, got {total_steps}.')
  if not 0 <= start_step <= total_steps:
    raise ValueError(
      f'`start_step` must be from 0 to `total_steps` ({total_steps}), got'
      f' {start_step}.'
    )
  if is_terminal is None:
    is_terminal = stream.isatty() and os.environ.get('TERM') != 'dumb'
  if is_terminal:
    show, close = _terminal.live_line(total_steps, start_step, stream, clock)
  else:
    show, close = _terminal.plain_lines(
      total_steps, stream, every_seconds, clock
    )
  return Sink(lambda record: show(_plain(record)), close)


def tensorboard(
  folder: str | os.PathLike[str], *, resume_step: int | None = None
) -> Sink:
  """Writes scalars for TensorBoard. Needs the extra `tensorboard`.

  Args:
    folder: Where the event files go.
    resume_step: The inner step that the run continues from, as in
      :func:`jsonl`: TensorBoard then hides what came later.

  Returns:
    A :class:`Sink`.

  Raises:
    ImportError: If the extra is not installed.
  """
  module = import_extra('tensorboardX', 'tensorboard')
  purge_step = None if resume_step is None else resume_step + 1
  writer = module.SummaryWriter(os.fspath(folder), purge_step=purge_step)

  def write(record):
    record = _plain(record)
    step = record.pop('step')
    for name, value in record.items():
      if isinstance(value, int | float):
        writer.add_scalar(name, value, global_step=step)
    writer.flush()

  return Sink(write, writer.close)


def wandb(project: str, name: str, config: dict[str, Any]) -> Sink:
  """Logs to Weights & Biases. Needs the extra `wandb`.

  Mode, entity and folder are those of the environment: `WANDB_MODE=offline`
  keeps everything on this machine.

  Args:
    project: Project at Weights & Biases.
    name: Name of the run there. A resumed run becomes a second run.
    config: Settings shown with the run.

  Returns:
    A :class:`Sink`.

  Raises:
    ImportError: If the extra is not installed.
  """
  module = import_extra('wandb', 'wandb')
  run = module.init(project=project, name=name, config=config)

  def write(record):
    record = _plain(record)
    step = record.pop('step')
    run.log(record, step=step)

  return Sink(write, run.finish)


def tee(*sinks: Sink) -> Sink:
  """Gives every record to every sink.

  Args:
    *sinks: The sinks, in the order in which they get a record.

  Returns:
    A :class:`Sink` that closes all, even if closing one of them fails.
  """

  def write(record):
    for sink in sinks:
      sink.write(record)

  def close():
    with contextlib.ExitStack() as stack:
      for sink in reversed(sinks):
        stack.callback(sink.close)

  return Sink(write, close)


def _plain(record):
  """Checks a record, and turns its scalars into Python's."""
  plain = {}
  for key, value in record.items():
    # NumPy's and JAX's scalars, and their arrays without axes.
    if getattr(value, 'shape', None) == ():
      value = value.item()
    if not (value is None or isinstance(value, bool | int | float | str)):
      raise ValueError(
        f'`record` must hold scalars, got a {type(value).__name__} under'
        f' {key!r}.'
      )
    plain[key] = value
  step = plain.get('step')
  if not isinstance(step, int) or isinstance(step, bool):
    raise ValueError(
      f"`record` must hold its inner step, an int, under 'step', got {step!r}."
    )
  return plain


def _to_json(value):
  if not isinstance(value, float) or math.isfinite(value):
    return value
  return (
    'NaN' if math.isnan(value) else 'Infinity' if value > 0 else '-Infinity'
  )


def _from_json(value):
  return _WORDS.get(value, value) if isinstance(value, str) else value


def _parse(path, data) -> Iterable[tuple[bytes, Record]]:
  """Yields lines, without their ends, and the records in them."""
  *lines, rest = data.split(b'\n')
  for number, line in enumerate([*lines, rest] if rest else lines, start=1):
    try:
      record = json.loads(line)
      record = {key: _from_json(value) for key, value in record.items()}
      _plain(record)
    except (ValueError, AttributeError) as error:
      # A part of an object lacks its closing brace, so it never parses.
      if line is rest and line.startswith(b'{'):
        return
      raise ValueError(
        f'Line {number} of {str(path)!r} must be a JSON object with the inner'
        f" step under 'step', got {line[:80]!r}."
      ) from error
    yield line, record


def _cut(path, resume_step):
  """Removes what a resumed run is about to write again."""
  data = path.read_bytes()
  if resume_step is None:
    if data:
      raise ValueError(
        f'`path` must be new or empty for a new run, got {str(path)!r} with'
        ' records in it: pass `resume_step` to go on, or choose another path.'
      )
    return
  lines = [
    line for line, record in _parse(path, data) if record['step'] <= resume_step
  ]
  kept = b''.join(line + b'\n' for line in lines)
  if kept == data:
    return
  temporary = path.with_name(path.name + '.tmp')
  with temporary.open('wb') as file:
    file.write(kept)
    file.flush()
    os.fsync(file.fileno())
  temporary.replace(path)


def import_extra(module: str, extra: str) -> Any:
  """Imports a module of an extra.

  Raises:
    ImportError: If it is missing; the message names the extra.
  """
  try:
    return importlib.import_module(module)
  except ImportError as error:
    raise ImportError(
      f'`{module}` is missing: pip install "dilojax[{extra}]".'
    ) from error
