"""Pruning of pseudo-gradients before they are sent."""

import math
from typing import Any

import jax
import jax.numpy as jnp
import optax


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
    ValueError: If `share` is out of range.

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
  if not 0 <= share <= 1:
    raise ValueError(f'`share` must be from 0 to 1, got {share}.')

  def prune(leaf):
    rows = leaf.reshape(1) if leaf.ndim == 0 else jnp.moveaxis(leaf, axis, -1)
    # The floor of what is meant: 0.29 of 100 are 29, and not 28.99....
    num_dropped = math.floor(round(share * rows.shape[-1], 6))
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

  def update_fn(updates: Any, params: Any) -> Any:
    del params
    return jax.tree.map(prune, updates)

  return optax.stateless(update_fn)
