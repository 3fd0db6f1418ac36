"""Reductions: what the replicas' messages become when they meet."""

from collections.abc import Sequence

import jax
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
    ValueError: If there is no name, or one comes twice.

  Examples:
    >>> import jax, jax.numpy as jnp, optax, dilojax as dx
    >>> tx = dx.mean_over('replica')
    >>> mean = lambda grads: tx.update(grads, tx.init(grads))[0]
    >>> print(jax.vmap(mean, axis_name='replica')(jnp.array([1.0, 3.0])))
    [2. 2.]
  """
  names = (axis_name,) if isinstance(axis_name, str) else tuple(axis_name)
  if not names or len(set(names)) < len(names):
    raise ValueError(
      f'`axis_name` must be one name, or several different ones, got {names}.'
    )

  def init_fn(params):
    del params
    return _sharing.SharedOver(names)

  def update_fn(updates, state, params=None):
    del params
    # One by one: a value that varies along some of the names only is refused.
    for name in reversed(names):
      updates = jax.lax.pmean(updates, name)
    return updates, state

  return optax.GradientTransformation(init_fn, update_fn)
