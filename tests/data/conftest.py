"""Small corpora on disk."""

import json

import numpy as np
import pytest


@pytest.fixture
def folder(tmp_path):
  """Twenty text files: words of one of two alphabets, and two copies."""
  rng = np.random.default_rng(0)
  for index in range(20):
    letters = ['abcde fgh\n', 'ÄÖÜ äöü ß.\n'][index % 2]
    text = ''.join(rng.choice(list(letters), 300 + 7 * index))
    (tmp_path / f'{index:02}.txt').write_text(text)
  for index in (3, 8):
    copy = (tmp_path / f'{index:02}.txt').read_bytes()
    (tmp_path / f'copy{index}.txt').write_bytes(copy)
  return tmp_path


@pytest.fixture
def pattern(folder):
  """Pattern of the files in `folder`."""
  return str(folder / '*.txt')


@pytest.fixture
def texts(folder):
  """The documents in `folder`, in order."""
  return [path.read_bytes() for path in sorted(folder.glob('*.txt'))]


@pytest.fixture
def write_lines(tmp_path):
  """Function that writes records as lines of JSON and returns the path."""

  def write(name, records, opener=open):
    path = str(tmp_path / name)
    with opener(path, 'wb') as file:
      for record in records:
        line = record if isinstance(record, bytes) else json.dumps(record)
        file.write(line if isinstance(line, bytes) else line.encode())
        file.write(b'\n')
    return path

  return write
