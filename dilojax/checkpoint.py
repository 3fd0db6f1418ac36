"""Checkpoints of everything a run needs: saved whole, checked when read.

A folder of checkpoints holds one folder per step:

.. code-block:: text

  120/
    manifest.json   path, shape and dtype of every leaf, and the metadata
    state/          the leaves, written by orbax under their paths
    SHA256SUMS      what `sha256sum -c` reads: every other file's digest

The leaves are a flat dict of paths, so that no container (NamedTuple, dict with
int keys, unknown class) can lose or reorder them. The structure always comes
from the caller's abstract tree.
"""

from collections.abc import Generator
import contextlib
import hashlib
import json
import logging
import math
import operator
import os
import pathlib
import re
import shutil
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from orbax.checkpoint import v1 as ocp

from dilojax import processes
from dilojax._resize import resize as resize

FORMAT = 1
MANIFEST = 'manifest.json'
DIGESTS = 'SHA256SUMS'
LEAVES = 'state'
# Names that `steps` never sees: what an interrupted call may leave behind.
SAVING = '.saving-'
REMOVING = '.removing-'

Path = str | os.PathLike[str]


def save(folder: Path, step: int, state: Any, meta: dict, *, keep: int) -> None:
  """Saves `state` and `meta` as the newest checkpoint of `folder`.

  Returns when the checkpoint is complete, so `state` may be donated afterwards.
  All processes of a run call it, and share the folder. One that dies leaves the
  whole checkpoint or nothing that :func:`steps` sees. The next save removes
  such leftovers.

  Args:
    folder: Where checkpoints are kept, one folder per step. Made if missing.
    step: Number of inner steps taken, above the newest checkpoint's.
    state: Pytree of jax arrays on any devices.
    meta: Dict of plain JSON values, such as the data position.
    keep: Number of newest checkpoints to keep, at least 1. Older ones are
      removed once the new one is complete.

  Raises:
    ValueError: If an argument is out of range, a leaf is no jax array, `meta`
      would not be read back as it is, or `folder` cannot be written.
  """
  if keep < 1:
    raise ValueError(f'`keep` must be at least 1, got {keep}.')
  folder, step = _absolute(folder), operator.index(step)
  existing = steps(folder)
  if step < 0 or existing and step <= existing[-1]:
    lowest = existing[-1] + 1 if existing else 0
    raise ValueError(
      f'`step` must be at least {lowest}, got {step}: {folder} holds steps'
      f' {existing}. Continue from the newest, or save to another folder.'
    )
  leaves = _by_path(state, 'state')
  _check_arrays(leaves)
  manifest = {
    'format': FORMAT,
    'step': step,
    'leaves': {path: _spec(leaf) for path, leaf in leaves.items()},
    'meta': _checked_meta(meta),
  }
  unfinished = folder / f'{SAVING}{step}'
  with _by_all(folder, step, 'beginning'):
    if processes.is_first():
      _remove_leftovers(folder)
      unfinished.mkdir(parents=True)
      _write_through(unfinished / MANIFEST, json.dumps(manifest, indent=1))
  with _by_all(folder, step, 'leaves'):
    _write_leaves(unfinished / LEAVES, leaves)
  with _by_all(folder, step, 'end'):
    if processes.is_first():
      _write_through(unfinished / DIGESTS, _digests(unfinished))
      unfinished.rename(folder / str(step))
      _sync(folder)
      for old in steps(folder)[:-keep]:
        _remove(folder, old)


def steps(folder: Path) -> list[int]:
  """Returns the steps of the complete checkpoints in `folder`, ascending.

  A damaged checkpoint counts: to pass over it would be to go back in silence.
  """
  folder = _absolute(folder)
  if not folder.is_dir():
    return []
  is_step = lambda path: re.fullmatch('0|[1-9][0-9]*', path.name)
  return sorted(
    int(path.name)
    for path in folder.iterdir()
    if is_step(path) and path.is_dir()
  )


def read_meta(folder: Path, step: int) -> dict:
  """Returns the metadata of a checkpoint without reading its leaves.

  Args:
    folder: Where checkpoints are kept.
    step: One of :func:`steps`.

  Raises:
    ValueError: If there is no such checkpoint, or its manifest is damaged.
  """
  return _read_manifest(_absolute(folder), step)['meta']


def restore(folder: Path, step: int, like: Any) -> tuple[Any, dict]:
  """Restores a checkpoint, bit by bit, onto the shardings of `like`.

  All files are compared with their digests, and all leaves with `like`, before
  the first is loaded. The devices need not be those it was saved on.

  Args:
    folder: Where checkpoints are kept.
    step: One of :func:`steps`.
    like: Pytree of :class:`jax.ShapeDtypeStruct`, or of arrays. A leaf without
      a sharding comes back as a NumPy array, on the host.

  Returns:
    The state, with the structure of `like`, and the metadata.

  Raises:
    ValueError: If there is no such checkpoint, it is damaged, or its leaves
      differ from those of `like` in path, shape or dtype.

  Examples:
    >>> import tempfile
    >>> import jax, jax.numpy as jnp
    >>> from dilojax import checkpoint
    >>> state = {'params': jnp.arange(3.0)}
    >>> with tempfile.TemporaryDirectory() as folder:
    ...   checkpoint.save(folder, 7, state, {'epoch': 1}, keep=2)
    ...   [newest] = checkpoint.steps(folder)
    ...   checkpoint.restore(folder, newest, jax.eval_shape(lambda: state))
    ({'params': array([0., 1., 2.], dtype=float32)}, {'epoch': 1})
  """
  folder = _absolute(folder)
  manifest = _read_manifest(folder, step)
  with processes.together(f'the files of step {step}'):
    if processes.is_first():
      _check_files(folder, step)
  wanted = _by_path(like, 'like')
  _compare(folder / str(step), manifest['leaves'], wanted)
  _check_shardings(wanted)
  try:
    leaves = _read_leaves(folder / str(step) / LEAVES, wanted)
  except Exception as error:
    # The devices may be to blame, so no advice to remove anything.
    raise ValueError(
      f'`folder` must hold checkpoints that can be loaded: {folder / str(step)}'
      f' cannot, though its files are as they were saved. {_brief(error)}'
    ) from error
  structure = jax.tree.structure(like)
  return jax.tree.unflatten(structure, leaves.values()), manifest['meta']


def _absolute(folder):
  return pathlib.Path(os.path.abspath(folder))


def _by_path(tree, name) -> dict[str, Any]:
  leaves = jax.tree.leaves_with_path(tree)
  by_path = {jax.tree_util.keystr(path): leaf for path, leaf in leaves}
  if len(by_path) < len(leaves):
    raise ValueError(
      f'`{name}` must have a path of its own for every leaf: some of its'
      f' {len(leaves)} leaves share one. Give the keys of its dicts, or of its'
      ' registered classes, different texts.'
    )
  return by_path


def _check_arrays(leaves):
  odd = {
    path: type(leaf).__name__
    for path, leaf in leaves.items()
    if not isinstance(leaf, jax.Array)
    or leaf.is_deleted()
    or jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key)
  }
  if odd:
    raise ValueError(
      '`state` must have jax arrays as its leaves, not donated yet, and'
      f' jax.random.key_data for typed keys; got {_listed(odd)}.'
    )


def _checked_meta(meta):
  try:
    # Texts are compared, since NaN differs from itself.
    same = repr(json.loads(json.dumps(meta))) == repr(meta)
  except (TypeError, ValueError) as error:
    raise ValueError(
      f'`meta` must be plain JSON, got {meta!r}: {error}.'
    ) from error
  if not isinstance(meta, dict) or not same:
    raise ValueError(
      '`meta` must be a dict that JSON gives back as it is (text as keys, lists'
      f' for tuples, Python numbers), got {meta!r}.'
    )
  return meta


def _spec(leaf) -> str:
  return f'{jnp.dtype(leaf.dtype).name}[{",".join(map(str, leaf.shape))}]'


def _listed(items, most=8):
  shown = [f'{path}: {text}' for path, text in list(items.items())[:most]]
  rest = [f'and {len(items) - most} more'] if len(items) > most else []
  return '; '.join(shown + rest)


def _brief(error):
  lines = str(error).strip().splitlines()
  return f'{type(error).__name__}: {lines[0][:300] if lines else ""}'


@contextlib.contextmanager
def _by_all(folder, step, part) -> Generator[None]:
  with processes.together(f'the {part} of the checkpoint of step {step}'):
    try:
      yield
    except Exception as error:
      raise ValueError(
        f'`folder` ({folder}) must be a place to write checkpoints: step {step}'
        f' could not be saved. {_brief(error)}'
      ) from error


@contextlib.contextmanager
def _orbax() -> Generator[None]:
  context = ocp.Context()
  saving = context.array.saving
  # Optimizer states hardly compress, and a shared array cut into one piece per
  # device costs more to manage than to write: together half of the time.
  saving.use_compression = False
  saving.use_replica_parallel = False
  # Shapes are in the manifest, and shardings come from the caller.
  saving.enable_write_sharding_file = False
  saving.array_metadata_store = None
  # Saving is synchronous, so nobody changes what is being written.
  context.memory.deepcopy_host_arrays = False
  # Orbax reports each step of its work; what goes wrong, it raises.
  logger = logging.getLogger('absl')
  level = logger.level
  logger.setLevel(logging.ERROR)
  try:
    with context:
      yield
  finally:
    logger.setLevel(level)


def _stored(leaves):
  # Orbax refuses arrays without elements; the manifest says all about them.
  return {p: leaf for p, leaf in leaves.items() if math.prod(leaf.shape)}


def _write_leaves(folder, leaves):
  stored: Any = _stored(leaves)
  if processes.count() == 1:
    # Per leaf, orbax takes half as long for a NumPy array.
    stored = jax.device_get(stored)
  if stored:
    with _orbax():
      ocp.save(folder, stored)


def _read_leaves(folder, wanted):
  stored: Any = {path: _target(leaf) for path, leaf in _stored(wanted).items()}
  loaded: Any = {}
  if stored:
    with _orbax():
      loaded = ocp.load(folder, stored)
  return {
    path: _placed(loaded.get(path), leaf) for path, leaf in wanted.items()
  }


def _sharding(leaf):
  return getattr(leaf, 'sharding', None)


def _target(leaf):
  sharding = _sharding(leaf)
  if sharding is None:
    # Tells orbax to load a NumPy array; takes no memory.
    return np.broadcast_to(np.zeros([], leaf.dtype), leaf.shape)
  return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=sharding)


def _placed(loaded, leaf):
  sharding = _sharding(leaf)
  if loaded is None:
    loaded = np.zeros(leaf.shape, leaf.dtype)
    loaded = loaded if sharding is None else processes.put(loaded, sharding)
  if sharding is None or not getattr(leaf, 'weak_type', False):
    return loaded
  # Whether a dtype is weak changes results, and orbax does not keep it. Public
  # functions make weak arrays of Python numbers only; writing into one works.
  number = leaf.dtype.type(0).item()
  into = lambda value: jnp.full(leaf.shape, number).at[...].set(value)
  weak = jax.jit(into, out_shardings=sharding)(loaded)
  return weak if weak.dtype == leaf.dtype else loaded


def _digests(folder) -> str:
  """Returns what DIGESTS must say about the files in `folder`."""
  files = sorted(path for path in folder.rglob('*') if path.is_file())
  return ''.join(
    f'{_digest(path)}  {path.relative_to(folder).as_posix()}\n'
    for path in files
    if path != folder / DIGESTS
  )


def _digest(path) -> str:
  with path.open('rb') as file:
    return hashlib.file_digest(file, 'sha256').hexdigest()


def _check_files(folder, step):
  path = folder / str(step)
  try:
    recorded = (path / DIGESTS).read_text()
    found = _digests(path)
  except OSError as error:
    raise ValueError(_damage(folder, step, _brief(error))) from error
  if recorded != found:
    lines = set(recorded.splitlines()) ^ set(found.splitlines())
    names = sorted({line.partition('  ')[2] for line in lines}) or [DIGESTS]
    differing = f'missing, added or changed: {", ".join(names)}'
    raise ValueError(_damage(folder, step, differing))


def _read_manifest(folder, step):
  path = folder / str(step)
  if step not in steps(folder):
    raise ValueError(
      f'`step` must be one of the checkpoints in {folder}, {steps(folder)},'
      f' got {step}.'
    )
  try:
    recorded = (path / DIGESTS).read_text()
    if f'{_digest(path / MANIFEST)}  {MANIFEST}\n' not in recorded:
      raise ValueError(f'{MANIFEST} differs from its digest')
    manifest = json.loads((path / MANIFEST).read_text())
  except (OSError, ValueError) as error:
    raise ValueError(_damage(folder, step, _brief(error))) from error
  if manifest['format'] != FORMAT:
    raise ValueError(
      f'`folder` ({folder}) must hold checkpoints of format {FORMAT}, got'
      f' {manifest["format"]} at step {step}: another version wrote it.'
    )
  return manifest


def _damage(folder, step, what):
  earlier = [other for other in steps(folder) if other < step]
  advice = (
    f'Remove this folder to continue from step {earlier[-1]}.'
    if earlier
    else 'There is no earlier checkpoint: restore this one from a copy, or'
    ' remove it and start anew.'
  )
  return (
    f'`folder` must hold checkpoints as they were saved: {folder / str(step)}'
    f' is damaged ({what}). {advice}'
  )


def _compare(folder, saved, wanted):
  specs = {path: _spec(leaf) for path, leaf in wanted.items()}
  differing = {
    path: f'saved {saved.get(path, "nothing")},'
    f' wanted {specs.get(path, "nothing")}'
    for path in sorted(saved.keys() | specs.keys())
    if saved.get(path) != specs.get(path)
  }
  if differing:
    raise ValueError(
      f'`like` must have the leaves that were saved in {folder}, got'
      f' {len(differing)} that differ. {_listed(differing)}.'
    )


def _check_shardings(wanted):
  for path, leaf in wanted.items():
    sharding = _sharding(leaf)
    try:
      if sharding is not None:
        sharding.shard_shape(leaf.shape)
    except ValueError as error:
      raise ValueError(
        f'`like` must have shardings that fit its shapes, got {sharding} for'
        f' {path}: {_spec(leaf)}.'
      ) from error


def _remove_leftovers(folder):
  if folder.is_dir():
    for path in folder.iterdir():
      if path.name.startswith((SAVING, REMOVING)):
        shutil.rmtree(path)


def _remove(folder, step):
  # First out of sight, since removing takes a while and can be interrupted.
  path = folder / f'{REMOVING}{step}'
  (folder / str(step)).rename(path)
  shutil.rmtree(path, ignore_errors=True)


def _write_through(path, text):
  with path.open('w') as file:
    file.write(text)
    file.flush()
    os.fsync(file.fileno())
  _sync(path.parent)


def _sync(folder):
  """Makes the names in `folder` survive a loss of power."""
  handle = os.open(folder, os.O_RDONLY)
  try:
    os.fsync(handle)
  finally:
    os.close(handle)
