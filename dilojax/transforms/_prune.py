"""Pruning of pseudo-gradients before they are sent."""

from collections.abc import Sequence
import math
from typing import Any

import jax
import jax.numpy as jnp
import optax

from dilojax.transforms import _checks


def sign_prune(share: float, *, axis: int = -1) -> optax.GradientTransformation:
  r"""Sets a share of each row's entries to 0, those against its sign first.

  The sign of a row is that of most of its entries. Of a row of :math:`n`
  entries, :math:`\lfloor n \cdot \mathrm{share} \rfloor` are dropped: the
  smallest magnitudes of those that have not the row's sign, and then the
  smallest of the others. Where as many are above 0 as below, only magnitudes
  count. A leaf with one axis is a row; a scalar is kept unless `share` is 1.

  Args:
    share: Share of the entries to drop, from 0 to 1.
    axis: Axis along which the entries of a row lie.

  Returns:
    An :class:`optax.GradientTransformation` for `send` of
    :func:`synchronize`, alone or before a format:
    `optax.chain(sign_prune(0.5), encode(codec))`. A float32 message has as
    many bytes as without it: it is sparse formats that make use of zeros.

  Raises:
    ValueError: If an argument is out of range, or, from `init`, if no row is
      long enough to lose an entry, or params are complex.

  Examples:
    >>> import jax.numpy as jnp, dilojax as dx
    >>> tx = dx.sign_prune(0.5)
    >>> grads = jnp.array([1.0, 2.0, -4.0, 3.0])
    >>> print(tx.update(grads, tx.init(grads))[0])
    [0. 2. 0. 3.]

  References:
    Douillard et al., `DiLoCo: Distributed Low-Communication Training of
    Language Models <https://arxiv.org/abs/2311.08105>`_, 2023. The paper
    names the rule without stating it; this is our reading.
  """
  _checks.check_number('share', share)
  if not 0 <= share <= 1:
    raise ValueError(f'`share` must be from 0 to 1, got {share}.')
  if not _checks.is_int(axis):
    raise ValueError(f'`axis` must be an int, got {axis!r}.')

  def init_fn(params):
    _checks.check_real('sign_prune', params)
    is_elsewhere = lambda node: isinstance(node, optax.MaskedNode)
    nodes = jax.tree.leaves(params, is_leaf=is_elsewhere)
    leaves = [node for node in nodes if not is_elsewhere(node)]
    lengths = [_row_length(leaf, axis) for leaf in leaves]
    # Other links may have the longer rows, as those of other fragments.
    if share and len(leaves) == len(nodes):
      check_share('share', share, lengths)
    return optax.EmptyState()

  def prune(leaf):
    rows = leaf.reshape(1) if leaf.ndim == 0 else jnp.moveaxis(leaf, axis, -1)
    num_dropped = _num_dropped(share, rows.shape[-1])
    if not num_dropped:
      return leaf
    signs = jnp.sign(rows)
    majority = jnp.sign(jnp.sum(signs, axis=-1, keepdims=True))
    agrees = signs * majority > 0
    order = jnp.lexsort((jnp.abs(rows), agrees), axis=-1)
    rank = jnp.argsort(order, axis=-1)
    kept = jnp.where(rank < num_dropped, 0, rows)
    if leaf.ndim == 0:
      return kept.reshape(())
    return jnp.moveaxis(kept, -1, axis)

  def update_fn(updates, state, params=None) -> Any:
    del params
    return jax.tree.map(prune, updates), state

  return optax.GradientTransformation(init_fn, update_fn)


def check_share(name: str, share: float, lengths: Sequence[int]) -> None:
  """Refuses a share that is less than an entry of each row.

  Args:
    name: What it is called.
    share: Share of the entries to drop.
    lengths: Number of entries of a row of each leaf.
  """
  longest = max(lengths, default=0)
  if longest and not _num_dropped(share, longest):
    raise ValueError(
      f'`{name}` must drop an entry of the longest row, which has {longest},'
      f' got {share}: choose at least {_ceiled(1 / longest)}, or leave it out.'
    )


def _num_dropped(share, length):
  # The floor of what is meant: 0.29 of 100 are 29, and not 28.99....
  return math.floor(round(share * length, 6))


def _ceiled(bound):
  """Writes a bound in three digits, rounded up."""
  unit = 10.0 ** (math.floor(math.log10(bound)) - 2)
  return f'{math.ceil(bound / unit) * unit:.3g}'


def _row_length(leaf, axis):
  shape = jnp.shape(leaf) or (1,) * (abs(axis) + 1)
  if not -len(shape) <= axis < len(shape):
    raise ValueError(
      f'`axis` must be one of every leaf, got {axis}, and a leaf of shape'
      f' {shape}: leave that out with optax.masked.'
    )
  return shape[axis]
