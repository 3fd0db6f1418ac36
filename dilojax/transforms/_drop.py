"""A reduction that loses messages."""

from collections.abc import Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import optax

from dilojax.transforms import _checks
from dilojax.transforms import _messages
from dilojax.transforms import _reduce
from dilojax.transforms import _sharing


class DroppingState(NamedTuple):
  """State of :func:`dropping`.

  Attributes:
    count: Number of rounds so far, an int32 scalar. Shared.
    present: Whether this replica's message arrived in the last round. Private
      to a replica.
    reduce: State of the reduction. Shared.
  """

  count: jax.Array
  present: jax.Array
  reduce: optax.OptState

  # The attributes above once more, for `replica_axes`.
  SHARING = {
    'count': _sharing.EVERYWHERE,
    'present': _sharing.PRIVATE,
    'reduce': _sharing.REDUCED,
  }


def dropping(
  reduce: optax.GradientTransformation,
  probability: float,
  *,
  axis_name: str | Sequence[str] | None = None,
  seed: int = 0,
) -> _reduce.Reduction:
  r"""Loses each replica's message with a probability, round by round.

  With :math:`a_k = 1` where the message arrives, else 0,

  .. math::

    \bar\Delta = \frac{\sum_k a_k w_k \Delta_k}{\sum_k a_k w_k},
    \qquad w_k = 1 \text{ by default.}

  Within :func:`synchronize` a replica whose message is lost keeps its own
  params and goes on from there; its next pseudo-gradient starts at the anchor,
  and has all that it did since. If all are lost nobody moves, and `outer` steps
  on a mean of 0: without momentum the anchor rests as well.

  All replicas draw the same numbers, from `seed` and the number of the round:
  a resumed training loses what it would have lost. Links with one seed, such
  as those of fragments, lose the same replicas in the same rounds.

  Args:
    reduce: A mean that accepts `weight`, such as :func:`mean_over`.
    probability: How likely a message is lost, from 0 to 1. The paper has up to
      0.5.
    axis_name: Mapped axes along which messages are lost one by one: with
      `'host'`, all replicas of a host at once. Those of `reduce` by default.
    seed: Seed of the draws.

  Returns:
    A :class:`Reduction`. Put it around others, not into them.

  Raises:
    ValueError: If `probability` is out of range; from `init` if `reduce` gives
      each replica a result of its own, or says no axis and there is no
      `axis_name`.

  Examples:
    >>> import jax, jax.numpy as jnp, dilojax as dx
    >>> tx = dx.dropping(dx.mean_over('replica'), 0.5, seed=1)
    >>> def mean(grads):
    ...   arrived, state = tx.update(grads, tx.init(grads))
    ...   return arrived, state.present
    >>> grads = jnp.array([1.0, 2.0, 3.0, 4.0])
    >>> arrived, present = jax.vmap(mean, axis_name='replica')(grads)
    >>> print(present, arrived[0])
    [False  True False  True] 3.0

  References:
    Douillard et al., `DiLoCo: Distributed Low-Communication Training of
    Language Models <https://arxiv.org/abs/2311.08105>`_, 2023 (asynchronous
    communication)
  """
  _checks.check_transformation('reduce', reduce)
  _checks.check_number('probability', probability)
  _checks.check_seed(seed)
  if not 0 <= probability <= 1:
    raise ValueError(f'`probability` must be from 0 to 1, got {probability}.')
  chosen = None if axis_name is None else _reduce.axis_names(axis_name)
  phases = _reduce.phases(reduce)
  reduce = optax.with_extra_args_support(reduce)

  def init_fn(params):
    state = reduce.init(params)
    if _sharing.mark_of(state, _sharing.Varies) is not None:
      raise ValueError(
        '`reduce` must give all replicas one result, got one that differs:'
        ' what a lost message means for it is not known.'
      )
    if not (chosen or _sharing.names_of(state)):
      raise ValueError(
        '`axis_name` must be given, as `reduce` does not say over which axes'
        ' it averages.'
      )
    return DroppingState(jnp.zeros([], jnp.int32), jnp.array(True), state)

  def with_losses(update, updates, state, params, weight, extra_args):
    names = chosen or _sharing.names_of(state.reduce)
    key = jax.random.fold_in(jax.random.key(seed), state.count)
    arrive = jax.random.bernoulli(
      key, 1 - probability, (_messages.num_members(names),)
    )
    present = arrive[_messages.index_of(names)]
    weight = jnp.where(present, 1 if weight is None else weight, 0)
    arrived, reduce_state = update(
      updates, state.reduce, params, weight=weight, **extra_args
    )
    return arrived, DroppingState(state.count + 1, present, reduce_state)

  def update_fn(updates, state, params=None, *, weight=None, **extra_args):
    return with_losses(
      reduce.update, updates, state, params, weight, extra_args
    )

  if phases is None:
    return _reduce.Reduction(init_fn, update_fn)
  meet, share, place = phases

  def meet_fn(updates, state, params=None, *, weight=None, **extra_args):
    return with_losses(meet, updates, state, params, weight, extra_args)

  return _reduce.Reduction(init_fn, update_fn, meet_fn, share, place)
