"""Tokenizers: text to token ids, with a separator after each document."""

from collections.abc import Callable, Iterable, Iterator, Sequence
import difflib
import hashlib
import os
import pathlib
from typing import Any, NamedTuple

import numpy as np

_SEPARATORS = ('<|endoftext|>', '</s>', '<eos>', '[SEP]')


class Tokenizer(NamedTuple):
  """Text to token ids and back.

  Attributes:
    name: `'bytes'`, or the name of a file.
    fingerprint: Hexadecimal digest of all that it does.
    vocab_size: Token ids are below it.
    separator: Token id that ends a document.
    encode: From a list of documents in UTF-8 to all their token ids in one
      array, each document followed by the separator, and the number of token
      ids of each document, its separator included.
    decode: From token ids, separators included, to text in UTF-8.
  """

  name: str
  fingerprint: str
  vocab_size: int
  separator: int
  encode: Callable[[Sequence[bytes]], tuple[np.ndarray, np.ndarray]]
  decode: Callable[[np.ndarray], bytes]


def open_tokenizer(name: str) -> Tokenizer:
  """Opens a tokenizer by its name.

  Args:
    name: `'bytes'` for the 256 values of a byte, of which 0 is the separator
      (a NUL in the text looks the same). Or the path of a Hugging Face
      `tokenizers` JSON file, which has one of the tokens `<|endoftext|>`,
      `</s>`, `<eos>`, `[SEP]` as its separator, the first in this order. These
      and other special tokens are never made from text.

  Returns:
    The tokenizer.

  Raises:
    ValueError: If there is no such tokenizer, or if it has no separator.
  """
  if name == 'bytes':
    return Tokenizer('bytes', 'bytes', 256, 0, _encode_bytes, bytes)
  if not os.path.isfile(name):
    near = difflib.get_close_matches(name, ['bytes'])
    hint = f' Did you mean {near[0]!r}?' if near else ''
    raise ValueError(
      "`tokenizer` must be 'bytes' or the path of a Hugging Face `tokenizers`"
      f' JSON file, got {name!r}, which is no file.{hint}'
    )
  content = pathlib.Path(name).read_bytes()
  try:
    model = _library().Tokenizer.from_buffer(content)
  except ValueError as error:
    raise ValueError(
      f'`tokenizer` must be a Hugging Face `tokenizers` JSON file, got'
      f' {name!r}: {error}'
    ) from error
  return _from_model(model, os.path.basename(name), content)


def train_bpe(
  texts: Iterable[bytes], vocab_size: int | None, path: str | os.PathLike
) -> Tokenizer:
  """Trains byte-level BPE and writes its `tokenizers` JSON file.

  Any text survives: the alphabet is the 256 values of a byte, and `decode`
  after `encode` is the identity.

  Args:
    texts: Documents to train on.
    vocab_size: Number of tokens, at least 257: 256 bytes and the separator.
    path: Where to write the file.

  Returns:
    The tokenizer.

  Raises:
    ValueError: If `vocab_size` is too small, or larger than the text allows.
  """
  vocab_size = check_bpe_vocab(vocab_size)
  library = _library()
  model = library.Tokenizer(library.models.BPE())
  byte_level = library.pre_tokenizers.ByteLevel
  model.pre_tokenizer = byte_level(add_prefix_space=False)
  model.decoder = library.decoders.ByteLevel()
  trainer = library.trainers.BpeTrainer(
    vocab_size=vocab_size,
    special_tokens=[_SEPARATORS[0]],
    initial_alphabet=byte_level.alphabet(),
    show_progress=False,
  )
  model.train_from_iterator((text.decode() for text in texts), trainer)
  if model.get_vocab_size() != vocab_size:
    raise ValueError(
      f'`vocab_size` ({vocab_size}) is more than the training text supports:'
      f' BPE ends at {model.get_vocab_size()} tokens. Choose at most that.'
    )
  model.save(str(path))
  content = pathlib.Path(path).read_bytes()
  return _from_model(model, os.path.basename(path), content)


def check_bpe_vocab(vocab_size: int | None) -> int:
  """Returns the vocabulary size asked of BPE if that is possible."""
  if vocab_size is None or vocab_size < 257:
    raise ValueError(
      '`vocab_size` must be at least 257 for BPE (256 bytes and a separator),'
      f' got {vocab_size}.'
    )
  _library()
  return vocab_size


def _encode_bytes(texts):
  flat = np.frombuffer(b''.join(text + b'\0' for text in texts), np.uint8)
  return flat, np.array([len(text) + 1 for text in texts], np.int64)


def _from_model(model: Any, name: str, content: bytes) -> Tokenizer:
  model.no_truncation()
  model.no_padding()
  # Else text that spells a special token would become that token.
  model.encode_special_tokens = True
  vocab = model.get_vocab(with_added_tokens=True)
  separators = [vocab[token] for token in _SEPARATORS if token in vocab]
  if not separators:
    raise ValueError(
      f'`tokenizer` ({name!r}) has none of the separators'
      f' {", ".join(_SEPARATORS)}: add one of them as a special token.'
    )
  vocab_size = 1 + max(vocab.values())
  dtype = token_dtype(vocab_size)
  ending = np.array(separators[:1], dtype)

  def encode(texts):
    pieces = []
    for group in groups(texts):
      for encoding in model.encode_batch_fast(
        [text.decode() for text in group], add_special_tokens=False
      ):
        pieces += [np.array(encoding.ids, dtype), ending]
    lengths = [len(piece) + 1 for piece in pieces[::2]]
    flat = np.concatenate(pieces) if pieces else np.zeros([0], dtype)
    return flat, np.array(lengths, np.int64)

  def decode(tokens):
    return model.decode(list(tokens), skip_special_tokens=False).encode()

  fingerprint = hashlib.sha256(content).hexdigest()
  return Tokenizer(name, fingerprint, vocab_size, separators[0], encode, decode)


def token_dtype(vocab_size: int) -> np.dtype:
  """Returns the narrowest unsigned type that holds every token id."""
  return np.min_scalar_type(vocab_size - 1)


def groups(
  texts: Iterable[bytes], num_bytes: int = 1 << 22
) -> Iterator[list[bytes]]:
  """Groups documents to encode at once: an encoding takes memory."""
  group, size = [], 0
  for text in texts:
    group.append(text)
    size += len(text)
    if size >= num_bytes:
      yield group
      group, size = [], 0
  if group:
    yield group


def _library():
  try:
    import tokenizers
    import tokenizers.decoders
    import tokenizers.models
    import tokenizers.pre_tokenizers
    import tokenizers.trainers
  except ImportError as error:
    raise ImportError(
      '`tokenizer` needs the package `tokenizers`:'
      " pip install 'dilojax[tokenizers]', or use the tokenizer 'bytes'."
    ) from error
  return tokenizers
