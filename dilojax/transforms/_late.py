"""Reductions that have a whole round to arrive: delayed and eager."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from dilojax.transforms import _checks
from dilojax.transforms import _messages
from dilojax.transforms import _sharing


class LateState(NamedTuple):
  """State of :func:`one_round_late`.

  Attributes:
    previous: What the last round has reduced, in float32. Shared.
    reduce: State of the reduction. Shared.
  """

  previous: optax.Updates
  reduce: optax.OptState

  # The attributes above once more, for `replica_axes`.
  SHARING = {'previous': _sharing.REDUCED, 'reduce': _sharing.REDUCED}
  IS_LATE = True


class EagerState(NamedTuple):
  """State of :func:`eager`.

  Attributes:
    previous: What the last round has reduced, in float32. Shared.
    own: The replica's own message in it, decoded. Private to a replica.
    reduce: State of the reduction. Shared.
    varies: Says that the result differs between replicas; no arrays.
  """

  previous: optax.Updates
  own: optax.Updates
  reduce: optax.OptState
  varies: Any

  # The attributes above once more, for `replica_axes`.
  SHARING = {
    'previous': _sharing.REDUCED,
    'own': _sharing.PRIVATE,
    'reduce': _sharing.REDUCED,
    'varies': _sharing.EVERYWHERE,
  }
  IS_LATE = True


def one_round_late(
  reduce: optax.GradientTransformation,
) -> optax.GradientTransformationExtraArgs:
  r"""Returns what was reduced in the round before: a round to arrive in.

  .. math::

    \bar\Delta_r \text{ is used in round } r + 1,
    \qquad \bar\Delta_0 = 0.

  The first outer step moves nothing. What the last round sends is lost unless
  the training ends with a synchronization (`final=True`).

  Args:
    reduce: The reduction, such as :func:`mean_over`.

  Returns:
    A reduction for :func:`synchronize` with a delay of 0.

  Raises:
    ValueError: From `init`, if `reduce` is :func:`dropping`, which belongs
      around this one.

  Examples:
    >>> import jax.numpy as jnp, optax, dilojax as dx
    >>> tx = dx.one_round_late(optax.identity())
    >>> state = tx.init(jnp.zeros(()))
    >>> for grads in (1.0, 2.0):
    ...   arrived, state = tx.update(jnp.array(grads), state)
    ...   print(arrived)
    0.0
    1.0

  References:
    Kale et al., `Eager Updates for Overlapped Communication and Computation
    in DiLoCo <https://arxiv.org/abs/2502.12996>`_, 2025
  """
  _checks.check_transformation('reduce', reduce)
  reduce = optax.with_extra_args_support(reduce)

  def init_fn(params):
    _check_complete(reduce.init(params), 'put it around `one_round_late`')
    return LateState(_zeros(params), reduce.init(params))

  def update_fn(updates, state, params=None, **extra_args):
    reduced, reduce_state = reduce.update(
      updates, state.reduce, params, **extra_args
    )
    _checks.check_decoded(reduced)
    reduced = optax.tree.cast_like(reduced, state.previous)
    return state.previous, LateState(reduced, reduce_state)

  return optax.GradientTransformationExtraArgs(init_fn, update_fn)


def eager(
  reduce: optax.GradientTransformation,
) -> optax.GradientTransformationExtraArgs:
  r"""Returns the others' share of the round before, and the own one fresh.

  With :math:`\bar\Delta_r` the mean over the :math:`K` replicas in round
  :math:`r`, and all of round 0 being 0,

  .. math::

    D^k_r = \bar\Delta_{r-1} + \frac{1}{K} (\Delta^k_r - \Delta^k_{r-1}).

  The results differ between replicas, and with them their anchors: evaluate
  the mean of them. A training that ends with a synchronization (`final=True`)
  takes in what is still on its way; without momentum all anchors then agree.

  Args:
    reduce: A mean in which all replicas weigh alike, such as
      :func:`mean_over`.

  Returns:
    A reduction for :func:`synchronize` with a delay of 0.

  Raises:
    ValueError: From `init`, if `reduce` is :func:`dropping`; from `update`, if
      there is a `weight`: a replica's own share would not be 1/K.

  References:
    Kale et al., `Eager Updates for Overlapped Communication and Computation
    in DiLoCo <https://arxiv.org/abs/2502.12996>`_, 2025. The first round is
    ours to choose: the rule as it stands gives a replica its own share alone.
  """
  _checks.check_transformation('reduce', reduce)
  reduce = optax.with_extra_args_support(reduce)

  def init_fn(params):
    advice = 'one without losses knows what the own share was'
    _check_complete(reduce.init(params), advice)
    zeros = lambda: _zeros(params)
    return EagerState(zeros(), zeros(), reduce.init(params), _sharing.Varies())

  def update_fn(updates, state, params=None, *, weight=None, **extra_args):
    if weight is not None:
      raise ValueError(
        '`weight` must be None under `eager`: the own share of a mean is 1/K.'
      )
    names = _sharing.names_of(state.reduce)
    count = _messages.num_members(names)
    own = optax.tree.cast_like(_messages.decoded(updates), state.own)
    reduced, reduce_state = reduce.update(
      updates, state.reduce, params, **extra_args
    )
    mixed = jax.tree.map(
      lambda previous, new, old: previous + (new - old) / count,
      state.previous,
      own,
      state.own,
    )
    _checks.check_decoded(reduced)
    reduced = optax.tree.cast_like(reduced, state.previous)
    state = state._replace(previous=reduced, own=own, reduce=reduce_state)
    return mixed, state

  return optax.GradientTransformationExtraArgs(init_fn, update_fn)


def _check_complete(reduce_state, advice):
  if _sharing.presence(reduce_state) is not None:
    raise ValueError(
      f'`reduce` must not be `dropping`, whose losses would be lost: {advice}.'
    )


def _zeros(tree):
  zeros = lambda leaf: jnp.zeros(jnp.shape(leaf), _wide_type(leaf))
  return jax.tree.map(zeros, tree)


def _wide_type(leaf):
  return jnp.promote_types(jnp.result_type(leaf), jnp.float32)
