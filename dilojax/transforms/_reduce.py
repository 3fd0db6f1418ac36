"""Reductions: what the replicas' messages become when they meet."""

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import optax

from dilojax.transforms import _sharing


def mean_over(axis_name: str | Sequence[str]) -> optax.GradientTransformation:
  r"""Averages updates over the replicas along `axis_name`.

  .. math::

    \bar\Delta = \frac{1}{K} \sum_k \Delta_k

  Before an inner optimizer it is data parallelism; as the `reduce` of
  :func:`synchronize` it is DiLoCo's mean of pseudo-gradients.

  Args:
    axis_name: Name, or names, of the mapped axes that enumerate replicas.

  Returns:
    An :class:`optax.GradientTransformation` whose output no longer varies
    along these axes. Its state has no arrays; it says which axes they are.

  Raises:
    ValueError: If there is no name, or one comes twice. In `update`, under a
      checked :func:`jax.shard_map`, if nothing varies along a name: gradients
      of params that are typed as shared arrive summed over the replicas, and a
      mean of them would be K times too large.

  Examples:
    >>> import jax, jax.numpy as jnp, optax, dilojax as dx
    >>> tx = dx.mean_over('replica')
    >>> mean = lambda grads: tx.update(grads, tx.init(grads))[0]
    >>> print(jax.vmap(mean, axis_name='replica')(jnp.array([1.0, 3.0])))
    [2. 2.]
  """
  names = axis_names(axis_name)

  def init_fn(params) -> Any:
    del params
    return _sharing.SharedOver(names)

  def update_fn(updates, state, params=None):
    del params
    _check_varies(updates, names)
    # One by one: a value that varies along some of the names only is refused.
    for name in reversed(names):
      mean = lambda leaf, name=name: _mean(leaf, name)
      updates = jax.tree.map(mean, updates)
    return updates, state

  return optax.GradientTransformation(init_fn, update_fn)


def axis_names(axis_name: str | Sequence[str]) -> tuple[str, ...]:
  """Returns one name, or several, as a tuple.

  Raises:
    ValueError: If there is no name, or one comes twice.
  """
  names = (axis_name,) if isinstance(axis_name, str) else tuple(axis_name)
  if not names or len(set(names)) < len(names):
    raise ValueError(
      f'`axis_name` must be one name, or several different ones, got {names}.'
    )
  return names


def _check_varies(updates, names):
  varying = lambda leaf: jax.typeof(leaf).manual_axis_type.varying
  # Only a checked shard_map knows; elsewhere not even an index varies.
  if not all(name in varying(jax.lax.axis_index(name)) for name in names):
    return
  leaves = jax.tree.leaves(updates)
  if leaves and not any(set(names) & set(varying(leaf)) for leaf in leaves):
    raise ValueError(
      f'`updates` must vary along {names}, got the same for all replicas:'
      ' gradients of shared params arrive summed. Give every replica params of'
      f' its own, by `in_specs` of P({names[0]!r}) for instance.'
    )


def _mean(leaf, name):
  """Averages a leaf along an axis, in its own dtype on the wire."""
  plain = lambda leaf: jax.lax.pmean(leaf, name)
  wide = lambda leaf: plain(leaf.astype(jnp.float32)).astype(leaf.dtype)
  if jax.typeof(leaf).dtype not in (jnp.bfloat16, jnp.float16):
    return plain(leaf)
  # XLA on CPU widens narrow floats anyway, and aborts the process over it if
  # some axes of the mesh are left to the compiler.
  return jax.lax.platform_dependent(leaf, cpu=wide, default=plain)
