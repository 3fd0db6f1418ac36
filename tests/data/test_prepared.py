"""Prepared corpora equal those in memory; nothing is written over."""

import os
import pathlib
import sys

import numpy as np
import pytest

from dilojax import data
from dilojax.data import _arrays
from dilojax.data import _documents
from dilojax.data import _prepared
from dilojax.data import _tokenizers

BPE_SIZE = 280


def prepare(pattern, out, **arguments):
  arguments = {'heldout_fraction': 0.3, **arguments}
  documents = data.file_documents(pattern)
  return data.prepare(documents, out=str(out), **arguments)


def assert_equal_datasets(first, second):
  assert first.fingerprint == second.fingerprint
  assert first.vocab_size == second.vocab_size
  assert first.bytes_per_token == second.bytes_per_token
  assert first.facts == second.facts
  for side in ('train', 'heldout'):
    rows, others = getattr(first, side), getattr(second, side)
    ids = np.arange(len(rows))
    np.testing.assert_array_equal(rows[ids]['tokens'], others[ids]['tokens'])
    np.testing.assert_array_equal(rows[-1]['tokens'], others[-1]['tokens'])
    assert others[2]['tokens'].dtype == np.int32
    for index in (len(others), -len(others) - 1, np.array([0, len(others)])):
      with pytest.raises(IndexError):
        others[index]


@pytest.mark.parametrize('shard', [_arrays._SHARD, 1024])
@pytest.mark.parametrize('tokenizer', ['bytes', 'bpe'])
def test_round_trip_equals_memory(
  pattern, tmp_path, monkeypatch, shard, tokenizer
):
  monkeypatch.setattr(_arrays, '_SHARD', shard)
  monkeypatch.setattr(_arrays, '_CHUNK', 256)
  out = tmp_path / 'out'
  vocab_size = BPE_SIZE if tokenizer == 'bpe' else None
  prepare(
    pattern, out, tokenizer=tokenizer, vocab_size=vocab_size, num_clusters=2
  )
  stored = data.tokens(str(out), seq_len=16)
  name = 'bytes' if tokenizer == 'bytes' else str(out / 'tokenizer.json')
  memory = data.files(
    pattern, seq_len=16, heldout_fraction=0.3, tokenizer=name, num_clusters=2
  )
  assert_equal_datasets(memory, stored)
  np.testing.assert_array_equal(memory.clusters(), stored.clusters())
  assert stored.vocab_size == (vocab_size or 256)
  num_files = len([p for p in (out / 'train').rglob('*') if p.is_file()])
  assert (num_files > 4) == (shard == 1024)
  streams = [
    data.streams(dataset, num_replicas=3, batch_size=4, seed=0, non_iid=0.5)
    for dataset in (memory, stored)
  ]
  np.testing.assert_array_equal(
    streams[0].batch(5, 2)['tokens'], streams[1].batch(5, 2)['tokens']
  )


def test_an_existing_tokenizer_is_used_and_kept(pattern, tmp_path):
  trained = tmp_path / 'trained'
  prepare(pattern, trained, tokenizer='bpe', vocab_size=BPE_SIZE)
  path = str(trained / 'tokenizer.json')
  prepare(pattern, tmp_path / 'used', tokenizer=path)
  assert_equal_datasets(
    data.tokens(str(trained), seq_len=8),
    data.tokens((tmp_path / 'used').as_uri(), seq_len=8),
  )


def test_bpe_round_trip(pattern, tmp_path):
  prepare(pattern, tmp_path / 'out', tokenizer='bpe', vocab_size=BPE_SIZE)
  path = str(tmp_path / 'out' / 'tokenizer.json')
  tokenizer = _tokenizers.open_tokenizer(path)
  texts = [
    'abc  fgh\n\n\tÄÖÜ',
    ' leading and trailing ',
    '日本語 🙂 e\u0301',
    'a <|endoftext|> in the text',
    '\0\x01\x7f',
  ]
  tokens, lengths = tokenizer.encode([text.encode() for text in texts])
  ends = np.cumsum(lengths)
  assert ends[-1] == len(tokens)
  for text, start, end in zip(texts, ends - lengths, ends):
    document = tokens[start : end - 1]
    assert tokenizer.decode(document).decode() == text
    # The separator ends a document, and text cannot forge it.
    assert tokens[end - 1] == tokenizer.separator
    assert tokenizer.separator not in document
  # Merges were learned: the corpus' own words take fewer tokens than bytes.
  first = 'ÄÖÜ äöü'.encode() * 5
  assert tokenizer.encode([first])[1][0] < len(first)


def test_bytes_round_trip():
  tokenizer = _tokenizers.open_tokenizer('bytes')
  texts = [b'one', 'zwölf'.encode()]
  tokens, lengths = tokenizer.encode(texts)
  assert tokenizer.decode(tokens) == b'one\0' + texts[1] + b'\0'
  assert lengths.tolist() == [4, 7]


def test_bpe_is_trained_on_the_training_side(tmp_path):
  for letter in 'abcdefghij':
    (tmp_path / f'{letter}.txt').write_text(' '.join([letter * 8] * 50))
  # Each letter makes four merges: of 2, 4, and 8, and with a space in front.
  # One of the ten documents is held out, and makes none.
  with pytest.raises(ValueError, match=f'BPE ends at {257 + 9 * 4} tokens'):
    prepare(
      str(tmp_path / '*.txt'),
      tmp_path / 'out',
      tokenizer='bpe',
      vocab_size=500,
      heldout_fraction=0.1,
    )


def test_a_sample_of_the_text_trains_bpe(pattern, monkeypatch):
  texts = list(data.file_documents(pattern).read())
  split = _documents.split(texts, 0.3)
  side = [t for t, h in zip(texts, split.heldout) if not h]
  assert list(_prepared._bpe_texts(side, split)) == side
  total = sum(map(len, side))
  monkeypatch.setattr(_prepared, '_BPE_BYTES', total // 2)
  chosen = list(_prepared._bpe_texts(side, split))
  assert abs(len(chosen) - len(side) / 2) <= 1


def test_same_call_finds_its_result(pattern, tmp_path):
  out = tmp_path / 'out'
  first = prepare(pattern, out)
  before = os.stat(out / 'dataset.json').st_mtime_ns
  assert prepare(pattern, out) == first
  assert os.stat(out / 'dataset.json').st_mtime_ns == before


def test_nothing_is_written_over(folder, pattern, tmp_path):
  out = tmp_path / 'out'
  prepare(pattern, out)
  for arguments, name in (
    ({'heldout_fraction': 0.5}, 'documents'),
    ({'num_clusters': 2}, 'num_clusters'),
    ({'tokenizer': 'bpe', 'vocab_size': BPE_SIZE}, 'tokenizer, vocab_size'),
  ):
    with pytest.raises(ValueError, match=f'prepared from other {name}: remove'):
      prepare(pattern, out, **arguments)
  foreign = tmp_path / 'foreign'
  foreign.mkdir()
  (foreign / 'thesis.txt').write_text('precious')
  for path in (foreign, folder / '00.txt'):
    with pytest.raises(ValueError, match='exists and is no prepared corpus'):
      prepare(pattern, path)
  assert [p.name for p in foreign.iterdir()] == ['thesis.txt']


def test_failure_leaves_nothing(folder, tmp_path):
  (folder / 'a.jsonl').write_text('{"text": "a"}\n{"text": "b"}\n')
  documents = data.file_documents(str(folder / '*'))
  passes = iter([False, False, True])

  def read():
    yield from documents.read()
    if next(passes):
      raise OSError('the disk is gone')

  where = tmp_path / 'deep' / 'out'
  with pytest.raises(OSError, match='the disk is gone'):
    data.prepare(
      documents._replace(read=read), out=str(where), heldout_fraction=0.3
    )
  assert list((tmp_path / 'deep').iterdir()) == []


@pytest.mark.parametrize(
  ('arguments', 'message'),
  [
    ({'heldout_fraction': 2}, '`heldout_fraction` must be above 0'),
    ({'num_clusters': 1}, '`num_clusters` must be at least 2'),
    ({'vocab_size': 300}, r"`vocab_size` \(300\) has no effect .* 'bytes'"),
    ({'tokenizer': 'bpe'}, '`vocab_size` must be at least 257 .* got None'),
    (
      {'tokenizer': 'bpe', 'vocab_size': 256},
      '`vocab_size` must be at least 257 .* got 256',
    ),
    (
      {'tokenizer': 'bpe', 'vocab_size': 10**6},
      r'`vocab_size` \(1000000\) is more than .* BPE ends at \d+ tokens',
    ),
    ({'tokenizer': 'no.json'}, "`tokenizer` must be .* got 'no.json'"),
    ({'out': 'gs://bucket/x'}, '`out` must be a local folder'),
  ],
)
def test_prepare_refuses(pattern, tmp_path, arguments, message):
  arguments = {'out': tmp_path / 'deep' / 'out', **arguments}
  with pytest.raises(ValueError, match=message):
    prepare(pattern, **arguments)
  assert not list(tmp_path.glob('deep/*'))


def test_prepare_refuses_a_place_that_cannot_be_made(folder, pattern):
  with pytest.raises(ValueError, match='`out` .* cannot be made'):
    prepare(pattern, folder / '00.txt' / 'out')


def test_tokens_refuses(pattern, tmp_path):
  out = tmp_path / 'out'
  prepare(pattern, out)
  load = lambda path=out, seq_len=8: data.tokens(str(path), seq_len=seq_len)
  with pytest.raises(ValueError, match='`seq_len` must be at least 1'):
    load(seq_len=0)
  with pytest.raises(ValueError, match=r'`seq_len` \(9999\) leaves no'):
    load(seq_len=9999)
  with pytest.raises(ValueError, match='holds no prepared corpus'):
    load(tmp_path / 'absent')
  with pytest.raises(ValueError, match='a URL that tensorstore knows'):
    load('carrier-pigeon://out')
  assert load().clusters is None


@pytest.mark.parametrize(
  ('damage', 'message'),
  [
    (lambda out: (out / 'dataset.json').write_text('{'), 'is damaged: data'),
    (lambda out: (out / 'dataset.json').write_text('{}'), 'is damaged: data'),
    (
      lambda out: (out / 'dataset.json').write_text('{"format": "x 2"}'),
      "must have the format 'dilojax tokens 1', got 'x 2'",
    ),
    (
      lambda out: (out / 'train' / 'zarr.json').unlink(),
      "is damaged: no array 'train'",
    ),
    (
      lambda out: (out / 'train').rename(out / 'heldout_') and swap(out),
      "is damaged: 'train' must be uint8",
    ),
  ],
)
def test_tokens_refuses_damage(pattern, tmp_path, damage, message):
  out = tmp_path / 'out'
  prepare(pattern, out)
  damage(out)
  with pytest.raises(ValueError, match=message):
    data.tokens(str(out), seq_len=8)


def swap(out: pathlib.Path):
  (out / 'heldout').rename(out / 'train')
  (out / 'heldout_').rename(out / 'heldout')


def test_tokenizer_files_are_checked(tmp_path):
  path = tmp_path / 'tokenizer.json'
  path.write_text('{"model": 3}')
  with pytest.raises(ValueError, match='must be a Hugging Face `tokenizers`'):
    _tokenizers.open_tokenizer(str(path))
  import tokenizers

  model = tokenizers.models.WordLevel({'a': 0, '?': 1}, unk_token='?')
  tokenizers.Tokenizer(model).save(str(path))
  with pytest.raises(ValueError, match='has none of the separators <|endof'):
    _tokenizers.open_tokenizer(str(path))


def test_a_missing_library_is_named(monkeypatch):
  monkeypatch.setitem(sys.modules, 'tokenizers', None)
  with pytest.raises(ImportError, match=r"pip install 'dilojax\[tokenizers\]'"):
    _tokenizers.check_bpe_vocab(300)
