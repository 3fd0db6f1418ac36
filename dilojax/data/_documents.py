"""Documents: where text comes from, and which of it is held out."""

from collections.abc import Callable, Iterable, Iterator
import glob
import gzip
import hashlib
import json
import os
import pathlib
import sysconfig
from typing import NamedTuple
import zlib

import numpy as np


class Documents(NamedTuple):
  """Text, document by document, in an order that does not change.

  Attributes:
    name: Name of the corpus.
    read: Starts a new pass over the documents: UTF-8 bytes, none empty.
    facts: What else is worth recording, ready for JSON.
  """

  name: str
  read: Callable[[], Iterator[bytes]]
  facts: dict


class Split(NamedTuple):
  """Which documents are held out.

  Attributes:
    heldout: True for the documents held out, bool `[num_documents]`.
    num_bytes: Length of each document in UTF-8, int64 `[num_documents]`.
    digest: Digest of all documents, their order, and their sides.
  """

  heldout: np.ndarray
  num_bytes: np.ndarray
  digest: str


# Installed packages are no part of the library. The others in this list are
# written when an interpreter is built or installed: they differ between
# machines with the same version of Python.
_NOT_LIBRARY = ('site-packages', 'dist-packages', '__pycache__')
_NOT_SOURCE = ('_sysconfigdata', 'sitecustomize', 'usercustomize')


def stdlib_documents() -> Documents:
  """Reads the source text of Python's standard library.

  A document is a `.py` file below `sysconfig.get_path('stdlib')`, tests
  included, in the order of relative paths: about 31 MB. Left out are installed
  packages, and what the build of an interpreter writes (`_sysconfigdata*`,
  `config-*/`, `sitecustomize.py`, `usercustomize.py`). Empty files, and the
  few that are not UTF-8 on purpose, are skipped and counted. Another version of
  Python has another text, hence another fingerprint.

  Returns:
    The documents, in memory.

  Raises:
    ValueError: If this Python comes without source files.
  """
  root = pathlib.Path(sysconfig.get_path('stdlib'))
  paths = []
  for folder, folders, names in os.walk(root):
    folders[:] = [
      name
      for name in folders
      if name not in _NOT_LIBRARY and not name.startswith('config-')
    ]
    paths += [
      pathlib.Path(folder, name)
      for name in names
      if name.endswith('.py') and not name.startswith(_NOT_SOURCE)
    ]
  paths.sort(key=lambda path: path.relative_to(root).parts)
  texts, num_empty, num_foreign = [], 0, 0
  for path in paths:
    text = path.read_bytes()
    num_empty += not text
    num_foreign += not _is_utf8(text)
    if text and _is_utf8(text):
      texts.append(text)
  if not texts:
    raise ValueError(
      f'`python_stdlib` finds no source text in {str(root)!r}: this Python'
      " comes without it. Use the corpus `files` with a pattern like '*.txt'."
    )
  facts = {'skipped_empty': num_empty, 'skipped_not_utf8': num_foreign}
  return Documents('python_stdlib', lambda: iter(texts), facts)


def file_documents(pattern: str) -> Documents:
  """Finds text files and files of JSON lines.

  Args:
    pattern: A path, or a glob pattern in which `**` crosses folders. A file
      whose name ends in `.jsonl` or `.jsonl.gz` has a document in the field
      `text` of each line (blank lines are passed over); any other file is one
      document. Files are taken in the order of their paths.

  Returns:
    The documents. Every pass reads the files anew, one at a time.

  Raises:
    ValueError: If no file matches; and, while reading, if a file or a document
      is empty, is not UTF-8, or is not the JSON expected. The message names the
      file, and the line.
  """
  paths = sorted(
    path for path in glob.glob(pattern, recursive=True) if os.path.isfile(path)
  )
  if not paths:
    raise ValueError(
      f'`pattern` matches no file: {pattern!r}, seen from {os.getcwd()!r}.'
      " '**' matches folders at any depth; quote the pattern in a shell."
    )

  def read():
    for path in paths:
      if path.endswith(('.jsonl', '.jsonl.gz')):
        yield from _json_lines(path)
      else:
        yield _text(path)

  return Documents('files', read, {'files': len(paths)})


def split(texts: Iterable[bytes], heldout_fraction: float) -> Split:
  """Chooses the documents to hold out, by a hash of their content.

  The distinct documents with the smallest SHA-256 are held out:
  `heldout_fraction` of them, rounded, at least one, and never all. So a
  document's side does not depend on its place or its name, copies of a document
  fall on the same side, and a growing corpus moves few documents.

  Args:
    texts: The documents.
    heldout_fraction: Fraction of the distinct documents to hold out.

  Returns:
    The side of each document.

  Raises:
    ValueError: If there are not two distinct documents.
  """
  digests, num_bytes = [], []
  for text in texts:
    digests.append(hashlib.sha256(text).digest())
    num_bytes.append(len(text))
  prefixes = b''.join(digest[:8] for digest in digests)
  keys = np.frombuffer(prefixes, '>u8').astype(np.uint64)
  distinct = np.unique(keys)
  if len(distinct) < 2:
    raise ValueError(
      f'The corpus must have at least 2 distinct documents, got'
      f' {len(distinct)}: one to train on, one to hold out. Split the text into'
      ' several files, or into the lines of a .jsonl file.'
    )
  count = min(
    max(1, round(heldout_fraction * len(distinct))), len(distinct) - 1
  )
  heldout = keys <= distinct[count - 1]
  digest = hashlib.sha256(b''.join(digests) + heldout.tobytes()).hexdigest()
  return Split(heldout, np.array(num_bytes, np.int64), digest)


def check_fraction(heldout_fraction: float) -> None:
  """Checks that a fraction lies strictly between 0 and 1."""
  if not 0 < heldout_fraction < 1:
    raise ValueError(
      f'`heldout_fraction` must be above 0 and below 1, got {heldout_fraction}.'
    )


def _is_utf8(text):
  try:
    text.decode()
  except UnicodeDecodeError:
    return False
  return True


def _text(path):
  text = pathlib.Path(path).read_bytes()
  if not text:
    raise ValueError(f'{path!r} is empty: remove it, or narrow `pattern`.')
  try:
    text.decode()
  except UnicodeDecodeError as error:
    line = text.count(b'\n', 0, error.start) + 1
    raise ValueError(
      f'{path!r}, line {line}: not UTF-8 ({error.reason} at byte'
      f' {error.start}). Convert the file, or narrow `pattern`.'
    ) from error
  return text


def _json_lines(path):
  opened = gzip.open(path) if path.endswith('.gz') else open(path, 'rb')
  number, count = 0, 0
  with opened as lines:
    try:
      for number, line in enumerate(lines, 1):
        if line.strip():
          count += 1
          yield _json_text(line, f'{path!r}, line {number}')
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
      raise ValueError(
        f'{path!r}, after line {number}: not a whole gzip file ({error}).'
      ) from error
  if not count:
    raise ValueError(f'{path!r} is empty: remove it, or narrow `pattern`.')


def _json_text(line, where):
  try:
    record = json.loads(line.decode())
  except UnicodeDecodeError as error:
    raise ValueError(f'{where}: not UTF-8 ({error.reason}).') from error
  except json.JSONDecodeError as error:
    raise ValueError(f'{where}: not JSON ({error}).') from error
  if not isinstance(record, dict) or 'text' not in record:
    raise ValueError(f"{where}: must be an object with a field 'text'.")
  text = record['text']
  if not isinstance(text, str) or not text:
    raise ValueError(
      f"{where}: the field 'text' must be a string that is not empty, got"
      f' {text!r}.'
    )
  try:
    return text.encode()
  except UnicodeEncodeError as error:
    raise ValueError(
      f"{where}: the field 'text' has no UTF-8 form ({error.reason})."
    ) from error
