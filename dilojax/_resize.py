"""Another number of replicas for a saved state."""

import jax
import numpy as np
import optax

from dilojax import transforms


def resize(
  params: optax.Params, opt_state: optax.OptState, num_replicas: int
) -> tuple[optax.Params, optax.OptState]:
  r"""Changes the number of replicas from :math:`K` to `num_replicas`.

  What the replicas share stays as it is. Fewer replicas keep the first ones,
  bitwise. More replicas keep all, and a new replica :math:`k \ge K` starts with

  - the anchor as its params, in their dtype (the mean of the replicas where a
    link has no anchor), and as what it launched, if a message is on its way:
    it has not moved since;
  - the private optimizer state of replica :math:`k \bmod K`. Schedule counters
    must agree between replicas, and fresh moments would turn the first inner
    steps into sign steps at the full learning rate. What replicas hold back
    (error feedback) keeps its mean if :math:`K` divides `num_replicas`.

  Where replicas have anchors of their own, as under gossip, a new one is a copy
  of replica :math:`k \bmod K` in everything.

  Args:
    params: Params, of jax or NumPy arrays with a leading axis of :math:`K`.
    opt_state: State of any optimizer. Its private parts, according to
      :func:`dilojax.replica_axes`, have a leading axis of :math:`K`.
    num_replicas: Number of replicas afterwards, at least 1.

  Returns:
    Params and state for `num_replicas`, as NumPy arrays of the same dtypes: on
    the host, since they belong on other devices than before.

  Raises:
    ValueError: If `num_replicas` is below 1, if private leaves have no common
      leading axis, if the replicas form a hierarchy, or if a mean is between
      its two collectives: its rows belong to as many owners as there were.

  Examples:
    >>> import jax, jax.numpy as jnp, optax, dilojax as dx
    >>> from dilojax import checkpoint
    >>> tx = dx.synchronize(
    ...   optax.sgd(0.7), every=2, reduce=dx.mean_over('replica')
    ... )
    >>> opt_state = tx.init(jnp.array(1.0))
    >>> params = jnp.array([5.0, 6.0])
    >>> print(checkpoint.resize(params, opt_state, num_replicas=3)[0])
    [5. 6. 1.]
    >>> print(checkpoint.resize(params, opt_state, num_replicas=1)[0])
    [5.]
  """
  if num_replicas < 1:
    raise ValueError(f'`num_replicas` must be at least 1, got {num_replicas}.')
  try:
    axes = (0, transforms.replica_axes(opt_state))
  except ValueError as error:
    raise ValueError(
      '`opt_state` must have replicas along one axis to be resized, got a'
      ' hierarchy. Restore it with the number of replicas it was saved with.'
    ) from error
  num_old = _num_replicas((params, opt_state), axes)
  if num_replicas != num_old and any(map(_relay_pends, _rooms(opt_state))):
    raise ValueError(
      f'`num_replicas` must stay {num_old} while a mean is between its two'
      f' collectives, got {num_replicas}: resize it some steps later.'
    )
  params, opt_state = jax.tree.map(np.asarray, (params, opt_state))
  inherit = lambda leaf: leaf[np.arange(num_replicas) % num_old]
  private = _spread(axes, (params, opt_state))
  leaves, structure = jax.tree.flatten((params, opt_state))
  new_params, new_state = jax.tree.unflatten(
    structure,
    [
      leaf if axis is None else inherit(leaf)
      for leaf, axis in zip(leaves, private)
    ],
  )
  if num_replicas <= num_old:
    return new_params, new_state
  if transforms.has_private_anchor(opt_state):
    params = jax.tree.map(inherit, params)
    return params, new_state
  start = lambda inherited, value: _from(num_old, inherited, value)
  anchor = transforms.anchor_of(opt_state, jax.tree.map(_mean, params))

  def rejoin(node):
    if not _launches(node):
      return node
    launched = jax.tree.map(start, node.launched, node.anchor)
    return node._replace(launched=launched)

  def stay(node):
    # Without an anchor, what comes back is what a new replica has sent.
    return (
      node._replace(sent=jax.tree.map(start, node.sent, node.arrived))
      if _sends(node)
      else node
    )

  new_state = jax.tree.map(rejoin, new_state, is_leaf=_launches)
  new_state = jax.tree.map(stay, new_state, is_leaf=_sends)
  return jax.tree.map(start, new_params, anchor), new_state


def _from(num_old, inherited, value):
  """Sets all replicas from `num_old` on to `value`."""
  new = inherited.copy()
  new[num_old:] = np.asarray(value).astype(new.dtype)
  return new


def _mean(leaf):
  mean = leaf.mean(axis=0, dtype=np.promote_types(leaf.dtype, np.float32))
  return mean.astype(leaf.dtype)


def _rooms(opt_state):
  has_room = lambda node: hasattr(node, 'relayed')
  nodes = jax.tree.leaves(opt_state, is_leaf=has_room)
  return [node for node in nodes if has_room(node)]


def _relay_pends(node):
  schedule = node.plan.schedule
  return bool(jax.tree.leaves(node.relayed)) and schedule.relay_pends(
    int(node.step)
  )


def _sends(node):
  return bool(jax.tree.leaves(getattr(node, 'sent', ())))


def _launches(node):
  # Empty unless the merge asks for the params at the launch.
  return bool(jax.tree.leaves(getattr(node, 'launched', ())))


def _spread(axes, tree):
  is_none = lambda node: node is None
  return jax.tree.leaves(
    jax.tree.broadcast(axes, tree, is_leaf=is_none), is_leaf=is_none
  )


def _num_replicas(tree, axes):
  leading = {
    jax.tree_util.keystr(path): leaf.shape[:1]
    for (path, leaf), axis in zip(
      jax.tree.leaves_with_path(tree), _spread(axes, tree), strict=True
    )
    if axis is not None
  }
  found = set(leading.values())
  if len(found) != 1 or found <= {(), (0,)}:
    shown = {
      size: next(path for path in leading if leading[path] == size)
      for size in found
    }
    raise ValueError(
      '`params` and the private parts of `opt_state` must have a leading axis'
      f' of one length, the number of replicas, got {shown}.'
    )
  ((num_replicas,),) = found
  return num_replicas
