"""Fragments of layers that are stacked: one leaf holds them all."""

import dataclasses
import itertools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from dilojax.transforms import _fragments


@jax.tree_util.register_static
@dataclasses.dataclass(frozen=True)
class Cut:
  """Says how a leaf is cut. Has no leaves.

  Attributes:
    axis: Axis along which the layers are stacked.
    ranges: Layers of every part; together all, each once.
  """

  axis: int
  ranges: tuple[range, ...]

  def split(self, leaf: jax.Array) -> tuple[jax.Array, ...]:
    """Cuts a leaf into parts."""
    return tuple(
      jax.lax.slice_in_dim(leaf, r[0], r[-1] + 1, r.step, self.axis)
      for r in self.ranges
    )

  def join(self, parts: tuple[jax.Array, ...]) -> jax.Array:
    """Puts parts together to a leaf."""
    owners = sorted(
      (layer, number, index)
      for number, layers in enumerate(self.ranges)
      for index, layer in enumerate(layers)
    )
    pieces = []
    for number, run in itertools.groupby(owners, lambda owner: owner[1]):
      indices = [index for _, _, index in run]
      start, stop = indices[0], indices[-1] + 1
      part = parts[number]
      pieces.append(jax.lax.slice_in_dim(part, start, stop, axis=self.axis))
    return jnp.concatenate(pieces, self.axis)


class Parts(NamedTuple):
  """A leaf in parts, each a leaf of its own.

  Attributes:
    parts: The parts; :class:`optax.MaskedNode` where another link has one.
    cut: How the leaf was cut; no arrays.
  """

  parts: tuple[Any, ...]
  cut: Cut


def by_stacked_layer(
  stacked: str,
  *,
  axis: int = 0,
  num_fragments: int | None = None,
  layers_per_fragment: int | None = None,
  order: str = 'strided',
  outside: str = 'own',
  embeddings: str = _fragments.EMBEDDINGS,
) -> _fragments.Fragments:
  """Makes fragments of layers that a model scans over.

  Such a model has one leaf for all its layers, which belongs to several
  fragments. :func:`in_turns` and the methods built on it cut it into parts,
  with static slices along the layers, and so does their state.

  Args:
    stacked: Regular expression that finds the leaves with all layers, in paths
      such as 'layers/mlp/up'.
    axis: Their axis that counts layers. Keep it whole on every device: a
      sharded one would be gathered.
    num_fragments: As in :func:`by_layer`.
    layers_per_fragment: As in :func:`by_layer`.
    order: As in :func:`by_layer`.
    outside: As in :func:`by_layer`, for all leaves that are not stacked.
    embeddings: As in :func:`by_layer`.

  Returns:
    A function from params to their fragments' names, with several names for a
    stacked leaf. For :func:`in_turns`; :func:`optax.partition` has no use for
    it.

  Raises:
    ValueError: If an argument is out of range, or, given params, if no leaf is
      stacked, or those that are disagree on the number of layers.

  Examples:
    >>> import jax.numpy as jnp, dilojax as dx
    >>> params = {'embed': jnp.zeros(2), 'layers': jnp.zeros((5, 2))}
    >>> fragments = dx.by_stacked_layer('layers', layers_per_fragment=3)
    >>> fragments(params)['layers'].parts
    ('fragment_0', 'fragment_1')
  """
  _fragments.check_layers(num_fragments, layers_per_fragment, order, outside)
  finder = _fragments.compiled('stacked', stacked)
  if not isinstance(axis, int) or isinstance(axis, bool) or axis < 0:
    raise ValueError(f'`axis` must be an int of at least 0, got {axis!r}.')

  def labels(params):
    paths, structure = _fragments.paths_of(params)
    shapes = {
      path: jnp.shape(leaf)
      for path, leaf in zip(paths, jax.tree.leaves(params))
      if finder.search(path)
    }
    num_layers = _num_layers(shapes, axis, stacked, paths)
    without = [path for path in paths if path not in shapes]
    names, fragment_of = _fragments.spread_layers(
      num_layers,
      num_fragments,
      layers_per_fragment,
      order,
      own=bool(without) and outside == 'own',
    )
    place = _fragments.place_outside(without, names, outside, embeddings)
    layers = [
      [layer for layer in range(num_layers) if fragment_of[layer] == number]
      for number in range(len(names))
    ]
    step = len(names) if order == 'strided' else 1
    ranges = tuple(range(part[0], part[-1] + 1, step) for part in layers)
    parts = Parts(tuple(names), Cut(axis, ranges))
    return jax.tree.unflatten(
      structure, [parts if path in shapes else place(path) for path in paths]
    )

  return labels


def split(tree: Any, labels: Any) -> Any:
  """Cuts the leaves of `tree` that have several labels into parts."""

  def cut(label, leaf):
    if not isinstance(label, Parts):
      return leaf
    return Parts(label.cut.split(leaf), label.cut)

  return jax.tree.map(cut, labels, tree, is_leaf=_is_parts)


def join(tree: Any) -> Any:
  """Puts all parts in `tree` together."""
  whole = lambda leaf: leaf.cut.join(leaf.parts) if _is_parts(leaf) else leaf
  return jax.tree.map(whole, tree, is_leaf=_is_parts)


def _is_parts(node):
  return isinstance(node, Parts)


def _num_layers(shapes, axis, stacked, paths):
  """Returns the number of layers that all stacked leaves agree on."""
  if not shapes:
    raise ValueError(
      f'`stacked` must find the leaves with all layers, got {stacked!r}, which'
      f' finds none among {_fragments.listed(paths)}.'
    )
  found = {shape[axis] for shape in shapes.values() if len(shape) > axis}
  short = any(len(shape) <= axis for shape in shapes.values())
  if short or len(found) > 1 or 0 in found:
    listed = [f'{path}: {shape}' for path, shape in shapes.items()]
    raise ValueError(
      f'`stacked` ({stacked!r}) must find leaves with as many layers along'
      f' `axis` {axis}, got {_fragments.listed(listed, ", ")}. Find fewer, or'
      ' choose another `axis`.'
    )
  return found.pop()
