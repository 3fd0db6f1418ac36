"""Reductions that look at whole tensors: at their norms, or their spectra."""

from collections.abc import Callable, Sequence
import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import optax

from dilojax import wire
from dilojax.transforms import _checks
from dilojax.transforms import _messages
from dilojax.transforms import _reduce
from dilojax.transforms import _sharing

Mask = Callable[[optax.Params], Any] | Any


@jax.tree_util.register_static
@dataclasses.dataclass(frozen=True)
class RadialDirectionalMean:
  """What :func:`radial_directional_mean` does. Has no leaves.

  Attributes:
    names: Names of the mapped axes.
  """

  names: tuple[str, ...]

  def traffic(
    self, leaves: Sequence[Any], codec: wire.Codec | None
  ) -> _sharing.Traffic:
    """Counts what a replica sends, given abstract leaves and their format."""
    if codec is not None:
      sent = sum(codec.nbytes(leaf.shape) for leaf in leaves)
      return _sharing.Traffic('all-gather', sent)
    norms = 4 * len(leaves)
    return _sharing.Traffic('all-reduce', _sharing.nbytes(leaves) + norms)


def radial_directional_mean(
  axis_name: str | Sequence[str], *, mask: Mask | None = None
) -> _reduce.Reduction:
  r"""Averages norms and directions apart, tensor by tensor.

  With :math:`u(v) = v / \|v\|` and :math:`u(0) = 0`,

  .. math::

    \bar\Delta = \frac{\sum_k w_k \|\Delta_k\|}{\sum_k w_k} \;
      u\left(\frac{\sum_k w_k\, u(\Delta_k)}{\sum_k w_k}\right),
    \qquad w_k = 1 \text{ by default.}

  A plain mean of K orthogonal pseudo-gradients is :math:`\sqrt K` times
  shorter than each; this one is as long. Where the directions cancel, the
  result is 0: a mean direction that is no longer than rounding counts as 0.

  Messages that `send` has encoded are sent to all replicas, as with
  `mean_over(..., gather='messages')`; other updates are averaged as they are,
  in one mean of the directions and one of all norms.

  Args:
    axis_name: Name, or names, of the mapped axes that enumerate replicas.
    mask: Which leaves are averaged this way; the rest have a plain mean, as
      embeddings in the paper. A tree of booleans, or a function of a tree of
      leaves with shapes. All of them by default.

  Returns:
    A :class:`Reduction`, whose `update` accepts `weight` as that of
    :func:`mean_over`. The paper's is :math:`n_k \cdot n_k / s_k`, with the
    tokens :math:`n_k` and the steps :math:`s_k` of the replica since the last
    synchronization.

  Raises:
    ValueError: If there is no name, or one comes twice.

  Examples:
    >>> import jax, jax.numpy as jnp, dilojax as dx
    >>> tx = dx.radial_directional_mean('replica')
    >>> mean = lambda grads: tx.update(grads, tx.init(grads))[0]
    >>> grads = jnp.array([[3.0, 0.0], [0.0, 3.0]])
    >>> print(jax.vmap(mean, axis_name='replica')(grads)[0])
    [2.1213202 2.1213202]

  References:
    Douillard et al., `Decoupled DiLoCo
    <https://arxiv.org/abs/2604.21428>`_, 2026 (the rule from notes that agree;
    what cancels is ours to choose)
  """
  names = _reduce.axis_names(axis_name)
  about = RadialDirectionalMean(names)

  def init_fn(params) -> Any:
    del params
    return about

  def update_fn(updates, state, params=None, *, weight=None, **extra_args):
    del params, extra_args
    leaves, structure = jax.tree.flatten(updates, is_leaf=_messages.is_encoded)
    flags = _flags(mask, updates)
    if any(map(_messages.is_encoded, leaves)):
      means = _of_messages(leaves, flags, names, weight)
    else:
      means = _of_leaves(leaves, flags, names, weight)
    return jax.tree.unflatten(structure, means), state

  return _reduce.Reduction(init_fn, update_fn)


def isotropic(
  reduce: optax.GradientTransformation, *, mask: Mask | None = None
) -> _reduce.Reduction:
  r"""Gives each matrix that a reduction returns equal singular values.

  .. math::

    \bar\Delta = U S V^\top \;\to\; \bar s\, U V^\top,
    \qquad \bar s = \tfrac{1}{r} \textstyle\sum_{i \le r} s_i,

  which keeps the nuclear norm. Only the :math:`r` singular values that are
  above rounding count, so that a matrix of lower rank keeps its null space,
  and one of zeros stays as it is. Computed in float32 at least.

  Args:
    reduce: The reduction, such as :func:`mean_over`.
    mask: Which leaves are changed, the rest pass: a tree of booleans, or a
      function of a tree of leaves. Those with two axes by default, embeddings
      and heads included. Of more axes the last two are those of matrices, such
      as of stacked layers.

  Returns:
    A :class:`Reduction` with the state of `reduce`.

  Raises:
    ValueError: In `update`, if `mask` chooses a leaf that has no matrices.

  Examples:
    >>> import jax.numpy as jnp, optax, dilojax as dx
    >>> tx = dx.isotropic(optax.identity())
    >>> grads = jnp.diag(jnp.array([3.0, -1.0]))
    >>> print(tx.update(grads, tx.init(grads))[0])
    [[ 2.  0.]
     [ 0. -2.]]

  References:
    `IsoLoCo <https://arxiv.org/abs/2607.03011>`_, 2026. One line of a note
    says what it does; ranks, and which leaves, are our reading.
  """
  _checks.check_transformation('reduce', reduce)
  phases = _reduce.phases(reduce)
  reduce = optax.with_extra_args_support(reduce)

  def evened(tree):
    leaves, structure = jax.tree.flatten(tree)
    two = [leaf.ndim == 2 for leaf in leaves]
    flags = two if mask is None else _flags(mask, tree)
    even = [
      _evened(leaf) if flag else leaf for leaf, flag in zip(leaves, flags)
    ]
    return jax.tree.unflatten(structure, even)

  def update_fn(updates, state, params=None, **extra_args):
    updates, state = reduce.update(updates, state, params, **extra_args)
    _checks.check_decoded(updates)
    return evened(updates), state

  if phases is None:
    return _reduce.Reduction(reduce.init, update_fn)
  meet, share, place = phases
  shared = lambda met, params=None: evened(share(met, params))
  return _reduce.Reduction(reduce.init, update_fn, meet, shared, place)


def _of_leaves(leaves, flags, names, weight):
  polar = [_polar(leaf) for leaf in leaves]
  if not leaves:
    return leaves
  sent = [
    direction.astype(leaf.dtype) if flag else leaf
    for leaf, flag, (_, direction) in zip(leaves, flags, polar)
  ]
  norms = jnp.stack([norm for norm, _ in polar])
  sent, norms = _reduce.plain_mean((sent, norms), names, weight)
  return [
    _joined(norm, mean) if flag else mean
    for norm, mean, flag in zip(norms, sent, flags)
  ]


def _of_messages(messages, flags, names, weight):
  weights = _messages.all_weights(names, weight)
  means = []
  for values, flag in zip(_messages.from_all(messages, names), flags):
    if not flag:
      means.append(_messages.average(values, weights))
      continue
    norms, directions = zip(*map(_polar, values))
    norm, direction = (
      _messages.average(list(each), weights) for each in (norms, directions)
    )
    means.append(_joined(norm, direction))
  return means


def _polar(leaf):
  """Returns the norm of a leaf and its direction, in float32 at least."""
  wide = leaf.astype(jnp.promote_types(leaf.dtype, jnp.float32))
  # Squares of small entries would vanish.
  peak = jnp.max(jnp.abs(wide), initial=0)
  scaled = wide / jnp.where(peak == 0, 1, peak)
  length = jnp.sqrt(jnp.sum(jnp.square(jnp.abs(scaled))))
  return peak * length, scaled / jnp.where(length == 0, 1, length)


def _joined(norm, mean):
  """Gives a mean of directions a norm, in the dtype of the mean."""
  length, direction = _polar(mean)
  is_rounding = length <= 4 * jnp.finfo(mean.dtype).eps
  return jnp.where(is_rounding, 0, norm * direction).astype(mean.dtype)


def _evened(leaf):
  """Gives matrices equal singular values."""
  if leaf.ndim < 2:
    raise ValueError(
      '`mask` must choose leaves with two axes or more, got one of shape'
      f' {leaf.shape}: leave it out.'
    )
  wide = leaf.astype(jnp.promote_types(leaf.dtype, jnp.float32))
  left, values, right = jnp.linalg.svd(wide, full_matrices=False)
  largest = jnp.max(values, axis=-1, keepdims=True, initial=0)
  least = max(leaf.shape[-2:]) * jnp.finfo(values.dtype).eps * largest
  # Compared so that NaN counts: it must not vanish.
  counts = ~(values <= least)
  rank = jnp.maximum(jnp.sum(counts, axis=-1, keepdims=True), 1)
  mean = jnp.sum(jnp.where(counts, values, 0), axis=-1, keepdims=True) / rank
  equal = jnp.where(counts, mean, 0)
  return ((left * equal[..., None, :]) @ right).astype(leaf.dtype)


def _flags(mask, tree):
  """Returns what a mask says of each leaf, encoded ones included."""
  shaped = jax.tree.map(
    lambda leaf: (
      jax.ShapeDtypeStruct(jnp.shape(leaf), jnp.float32)
      if not _messages.is_encoded(leaf)
      else jax.ShapeDtypeStruct(leaf.shape, jnp.float32)
    ),
    tree,
    is_leaf=_messages.is_encoded,
  )
  if mask is None:
    mask = jax.tree.map(lambda _: True, shaped)
  flags = mask(shaped) if callable(mask) else mask
  if jax.tree.structure(flags) != jax.tree.structure(shaped):
    raise ValueError(
      '`mask` must have a boolean for every leaf, got'
      f' {jax.tree.structure(flags)} for {jax.tree.structure(shaped)}.'
    )
  return jax.tree.leaves(flags)
