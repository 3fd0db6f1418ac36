"""Corpora: what is read, how it is cut, and what is held out."""

import gzip
import json

import numpy as np
import pytest

from dilojax import data
from dilojax.data import _clusters
from dilojax.data import _documents


def rejoin(rows):
  """Undoes the cut into windows."""
  windows = rows[np.arange(len(rows))]['tokens']
  return np.append(windows[:, :-1].ravel(), windows[-1, -1])


def as_text(rows):
  return bytes(rejoin(rows).astype(np.uint8))


@pytest.mark.parametrize('seq_len', [1, 7, 64])
def test_windows_reassemble_the_text(pattern, texts, seq_len):
  dataset = data.files(pattern, seq_len=seq_len, heldout_fraction=0.2)
  held = _documents.split(texts, 0.2).heldout
  for side, rows in ((False, dataset.train), (True, dataset.heldout)):
    joined = b''.join(t + b'\0' for t, h in zip(texts, held) if h == side)
    text = as_text(rows)
    assert joined.startswith(text)
    assert len(joined) - len(text) < seq_len
    assert len(rows) == (len(joined) - 1) // seq_len
    example = rows[0]['tokens']
    assert (example.shape, example.dtype) == ((seq_len + 1,), np.int32)
    np.testing.assert_array_equal(
      rows[-1]['tokens'], rows[len(rows) - 1]['tokens']
    )
    with pytest.raises(IndexError):
      rows[len(rows)]


def test_heldout_documents_never_occur_in_training(pattern, texts):
  for fraction in (0.05, 0.3, 0.9):
    dataset = data.files(pattern, seq_len=1, heldout_fraction=fraction)
    train = set(as_text(dataset.train).split(b'\0'))
    heldout = set(as_text(dataset.heldout).split(b'\0'))
    assert not (train & heldout) - {b''}
    assert (train | heldout) - {b''} == set(texts)
    assert len(heldout - {b''}) == round(fraction * len(set(texts)))


def test_side_depends_on_content_alone(texts):
  held = _documents.split(texts, 0.3).heldout
  backward = _documents.split(texts[::-1], 0.3).heldout
  np.testing.assert_array_equal(held, backward[::-1])
  chosen = {t for t, h in zip(texts, held) if h}
  # Nested: more held out means the same ones, and others.
  more = _documents.split(texts, 0.6).heldout
  assert chosen < {t for t, h in zip(texts, more) if h}


def test_fingerprint_tells_text_order_split_and_tokenizer(folder, pattern):
  load = lambda fraction=0.3, seq_len=8: (
    data.files(pattern, seq_len=seq_len, heldout_fraction=fraction).fingerprint
  )
  first = load()
  assert first == load() == load(seq_len=16)
  assert len(first) == 16
  prints = {first, load(0.6)}
  (folder / '00.txt').rename(folder / 'last.txt')
  prints.add(load())
  (folder / 'last.txt').write_text('another text')
  prints.add(load())
  assert len(prints) == 4


def test_bytes_per_token_turns_nats_into_bits_per_byte(pattern, texts):
  dataset = data.files(pattern, seq_len=8, heldout_fraction=0.3)
  facts = dataset.facts
  held = _documents.split(texts, 0.3).heldout
  num_bytes = sum(len(t) for t, h in zip(texts, held) if h)
  assert facts['heldout_bytes'] == num_bytes
  # A separator per document is a token without a byte.
  assert facts['heldout_tokens'] == num_bytes + held.sum()
  # A uniform guess over 256 values costs 8 bits a token, separators included.
  nats_per_token = np.log(256)
  bits_per_byte = nats_per_token / (np.log(2) * dataset.bytes_per_token)
  np.testing.assert_allclose(bits_per_byte, 8 * (1 + held.sum() / num_bytes))
  assert facts['train_bytes'] + num_bytes == sum(map(len, texts))
  assert facts['train_sequences'] == len(dataset.train)
  json.dumps(facts)


def test_json_lines_equal_files(pattern, texts, write_lines):
  records = [{'text': text.decode(), 'url': '?'} for text in texts]
  plain = write_lines('a.jsonl', [*records[:9], b'', *records[9:]])
  packed = write_lines('a.jsonl.gz', records, gzip.open)
  load = lambda path: data.files(path, seq_len=8, heldout_fraction=0.3)
  expected = load(pattern)
  for dataset in (load(plain), load(packed)):
    assert dataset.fingerprint == expected.fingerprint
    np.testing.assert_array_equal(rejoin(dataset.train), rejoin(expected.train))


def test_pattern_crosses_folders_in_order(tmp_path):
  for name in ('b/x.txt', 'a/b/y.txt', 'z.txt'):
    path = tmp_path / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(name)
  documents = data.file_documents(str(tmp_path / '**'))
  assert list(documents.read()) == [b'a/b/y.txt', b'b/x.txt', b'z.txt']
  assert list(documents.read()) == list(documents.read())


def test_stdlib_is_real_text_split_by_file():
  dataset = data.python_stdlib(seq_len=128, heldout_fraction=0.05)
  again = data.python_stdlib(seq_len=64, heldout_fraction=0.05)
  assert dataset.fingerprint == again.fingerprint
  assert dataset.vocab_size == 256
  assert dataset.facts['train_bytes'] > 5_000_000
  train, heldout = as_text(dataset.train), as_text(dataset.heldout)
  documents = set(data.stdlib_documents().read())
  train = set(train.split(b'\0'))
  heldout = set(heldout.split(b'\0'))
  # The last of each side may be cut short.
  assert len(train - documents) <= 1
  assert len(heldout - documents) <= 1
  assert not train & heldout
  json_decoder = data.stdlib_documents.__globals__['json'].decoder.__file__
  with open(json_decoder, 'rb') as file:
    assert file.read() in documents


def test_clusters_follow_the_documents(pattern, texts):
  dataset = data.files(pattern, seq_len=8, heldout_fraction=0.2, num_clusters=2)
  clusters = dataset.clusters()
  assert (clusters.shape, clusters.dtype) == ((len(dataset.train),), np.int32)
  # The two alphabets differ in their first bytes: ASCII, or a pair's lead.
  middles = [dataset.train[i]['tokens'][4] for i in range(len(clusters))]
  windows = dataset.train[np.arange(len(clusters))]['tokens']
  inside = (windows != 0).all(axis=1)
  is_umlaut = (windows >= 128).any(axis=1)
  is_ascii = np.isin(windows, list(b'abcdefgh')).any(axis=1)
  certain = inside & (is_umlaut != is_ascii)
  assert certain.mean() > 0.9
  assert len(set(zip(clusters[certain], is_umlaut[certain]))) == 2
  # At a border the token in the middle decides.
  border = ~inside & np.isin(middles, list(b'abcdefgh'))
  ascii_cluster = clusters[certain & is_ascii][0]
  assert (clusters[border] == ascii_cluster).all()
  assert border.any()
  np.testing.assert_array_equal(
    data.files(
      pattern, seq_len=8, heldout_fraction=0.2, num_clusters=2
    ).clusters(),
    clusters,
  )


def test_digits_split_by_image_and_cluster_by_label():
  dataset = data.digits(heldout_fraction=0.2)
  everything = dataset.train[np.arange(len(dataset.train))]
  image, label = everything['image'], everything['label']
  assert (image.shape[1:], image.dtype, label.dtype) == (
    (8, 8),
    np.float32,
    np.int32,
  )
  assert (image.min(), image.max()) == (0, 1)
  assert dataset.train[3]['label'].shape == ()
  np.testing.assert_array_equal(dataset.clusters(), label)
  heldout = dataset.heldout[np.arange(len(dataset.heldout))]
  train_images = {pixels.tobytes() for pixels in image}
  assert not train_images & {x.tobytes() for x in heldout['image']}
  assert len(image) + len(heldout['image']) == 1797
  # Each class is held out about as often as the others.
  assert np.bincount(heldout['label'], minlength=10).min() > 15
  assert (dataset.vocab_size, dataset.bytes_per_token) == (None, None)


@pytest.mark.parametrize('num_symbols', [2, 8])
def test_synthetic_text_has_the_entropy_it_states(num_symbols):
  dataset = data.synthetic(
    seq_len=50,
    num_sequences=4000,
    num_symbols=num_symbols,
    heldout_fraction=0.1,
    seed=3,
  )
  tokens = dataset.train[np.arange(len(dataset.train))]['tokens']
  pairs = np.zeros([num_symbols, num_symbols])
  np.add.at(pairs, (tokens[:, :-1], tokens[:, 1:]), 1)
  conditional = pairs / pairs.sum(axis=1, keepdims=True)
  logs = np.log(np.where(pairs > 0, conditional, 1))
  empirical = -(pairs * logs).sum() / pairs.sum()
  # 180,000 targets: the mean of a loss of spread below 2 is off by 0.005.
  assert abs(empirical - dataset.facts['entropy']) < 0.015
  # Stationary from the first symbol on.
  first = np.bincount(tokens[:, 0], minlength=num_symbols) / len(tokens)
  later = pairs.sum(axis=1) / pairs.sum()
  np.testing.assert_allclose(first, later, atol=0.04)
  assert dataset.vocab_size == num_symbols


def test_synthetic_is_a_function_of_its_seed():
  load = lambda seed: data.synthetic(
    seq_len=8, num_sequences=50, num_symbols=4, heldout_fraction=0.1, seed=seed
  )
  assert load(0).fingerprint == load(0).fingerprint != load(1).fingerprint
  train = {
    row['tokens'].tobytes() for row in map(load(0).train.__getitem__, range(45))
  }
  heldout = {row['tokens'].tobytes() for row in load(0).heldout}
  assert not train & heldout


@pytest.mark.parametrize(
  ('arguments', 'message'),
  [
    ({'seq_len': 0}, '`seq_len` must be at least 1, got 0'),
    ({'heldout_fraction': 0.0}, '`heldout_fraction` must be above 0 and below'),
    ({'heldout_fraction': 1}, '`heldout_fraction` must be above 0 and below'),
    ({'num_clusters': 1}, '`num_clusters` must be at least 2, or None'),
    ({'tokenizer': 'byte'}, "no file. Did you mean 'bytes'?"),
    ({'seq_len': 10**6}, r'`seq_len` \(1000000\) leaves no training sequence'),
    ({'seq_len': 2000}, 'leaves no held-out sequence: one takes 2001 tokens'),
    ({'pattern': 'no/such*'}, "`pattern` matches no file: 'no/such\\*'"),
  ],
)
def test_files_refuses_arguments(pattern, arguments, message):
  arguments = {
    'pattern': pattern,
    'seq_len': 8,
    'heldout_fraction': 0.1,
    **arguments,
  }
  with pytest.raises(ValueError, match=message):
    data.files(**arguments)


def test_arguments_are_checked_before_any_work(monkeypatch):
  def fail():
    raise AssertionError

  monkeypatch.setattr(_documents, 'stdlib_documents', fail)
  with pytest.raises(ValueError, match='`seq_len`'):
    data.python_stdlib(seq_len=0, heldout_fraction=0.1)
  with pytest.raises(ValueError, match='`tokenizer`'):
    data.python_stdlib(seq_len=8, heldout_fraction=0.1, tokenizer='gpt')


def test_more_clusters_than_documents_are_refused(pattern):
  dataset = data.files(
    pattern, seq_len=8, heldout_fraction=0.1, num_clusters=99
  )
  with pytest.raises(ValueError, match=r'\(99\) must be at most the'):
    dataset.clusters()


@pytest.mark.parametrize(
  ('content', 'message'),
  [
    (b'', r"'.*bad.txt' is empty"),
    (b'good\nb\xffd', r"'.*bad.txt', line 2: not UTF-8 .* at byte 6"),
  ],
)
def test_files_names_a_bad_file(folder, pattern, content, message):
  (folder / 'bad.txt').write_bytes(content)
  with pytest.raises(ValueError, match=message):
    data.files(pattern, seq_len=8, heldout_fraction=0.1)


@pytest.mark.parametrize(
  ('line', 'message'),
  [
    (b'{"text": ', r"'.*bad.jsonl', line 2: not JSON"),
    (b'{"text": "\xff"}', r"'.*bad.jsonl', line 2: not UTF-8"),
    ({'content': 'x'}, "line 2: must be an object with a field 'text'"),
    ([1], "line 2: must be an object with a field 'text'"),
    ({'text': ''}, "line 2: the field 'text' must be a string that is not"),
    ({'text': 5}, "line 2: the field 'text' must be a string .* got 5"),
    (b'{"text": "\\ud800"}', "line 2: the field 'text' has no UTF-8 form"),
  ],
)
def test_files_names_a_bad_line(write_lines, line, message):
  path = write_lines('bad.jsonl', [{'text': 'good'}, line])
  with pytest.raises(ValueError, match=message):
    data.files(path, seq_len=8, heldout_fraction=0.1)


def test_files_names_a_broken_archive(tmp_path, write_lines):
  path = write_lines('a.jsonl.gz', [{'text': 'x' * 99}] * 9, gzip.open)
  whole = (tmp_path / 'a.jsonl.gz').read_bytes()
  for content in (whole[:-9], b'no archive', whole[:-12] + b'??' + whole[-10:]):
    (tmp_path / 'a.jsonl.gz').write_bytes(content)
    with pytest.raises(ValueError, match=r"'.*a.jsonl.gz', after line \d"):
      data.files(path, seq_len=8, heldout_fraction=0.1)
  empty = write_lines('b.jsonl.gz', [], gzip.open)
  with pytest.raises(ValueError, match=r"'.*b.jsonl.gz' is empty"):
    data.files(empty, seq_len=8, heldout_fraction=0.1)


def test_one_document_is_too_few(tmp_path):
  for name in ('a.txt', 'b.txt'):
    (tmp_path / name).write_text('twice the same')
  with pytest.raises(ValueError, match='at least 2 distinct documents, got 1'):
    data.files(str(tmp_path / '*'), seq_len=2, heldout_fraction=0.5)


@pytest.mark.parametrize(
  ('arguments', 'message'),
  [
    ({'num_sequences': 1}, '`num_sequences` must be at least 2, got 1'),
    ({'num_symbols': 1}, '`num_symbols` must be from 2 to 256, got 1'),
    ({'num_symbols': 257}, '`num_symbols` must be from 2 to 256, got 257'),
    ({'seed': -1}, '`seed` must be at least 0, got -1'),
    ({'seq_len': 0}, '`seq_len` must be at least 1'),
  ],
)
def test_synthetic_refuses(arguments, message):
  arguments = {
    'seq_len': 8,
    'num_sequences': 50,
    'num_symbols': 4,
    'heldout_fraction': 0.1,
    'seed': 0,
    **arguments,
  }
  with pytest.raises(ValueError, match=message):
    data.synthetic(**arguments)


def test_digits_refuses():
  with pytest.raises(ValueError, match='`heldout_fraction` must be above 0'):
    data.digits(heldout_fraction=-0.1)


def test_a_window_has_the_cluster_of_the_document_at_its_middle():
  clusters = np.array([5, 6, 7], np.int32)
  lengths = np.array([3, 1, 6])
  # Middles 1, 3, 5, 7: tokens 0-2 are of the first document, 3 of the second.
  found = _clusters.of_windows(clusters, lengths, 2, 4)
  np.testing.assert_array_equal(found, [5, 6, 7, 7])
