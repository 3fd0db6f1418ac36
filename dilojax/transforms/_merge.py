"""Merges: how a new anchor enters the replica that lands on it."""

from collections.abc import Callable
import math

import jax
import optax

from dilojax.transforms import _checks

Merge = Callable[..., optax.Params]


def overwrite() -> Merge:
  """Returns the rule of DiLoCo: the replica becomes the anchor.

  What it did while the message was on its way is lost.

  Returns:
    A function of the local params now, the local params at launch, and the
    new anchor.

  References:
    Douillard et al., `DiLoCo: Distributed Low-Communication Training of
    Language Models <https://arxiv.org/abs/2311.08105>`_, 2023
  """

  def merge(now, launched, anchor):
    del now, launched
    return anchor

  return _declare(merge, overwrites=True, needs_launched=False)


def mix(alpha: float) -> Merge:
  r"""Returns the rule of Streaming DiLoCo, a weighted mean.

  .. math::

    \theta_k \leftarrow \alpha \theta_k + (1 - \alpha) \theta

  Args:
    alpha: Weight of the *local* value, from 0 to 1. With 0 the replica becomes
      the anchor; with 1 nothing ever reaches it.

  Returns:
    A function of the local params now, the local params at launch, and the
    new anchor.

  Raises:
    ValueError: If `alpha` is out of range.

  Examples:
    >>> import dilojax as dx
    >>> print(dx.mix(0.25)(8.0, 0.0, 4.0))
    5.0

  References:
    Douillard et al., `Streaming DiLoCo with overlapping communication
    <https://arxiv.org/abs/2501.18512>`_, 2025
  """
  _checks.check_number('alpha', alpha)
  if not 0 <= alpha <= 1:
    raise ValueError(f'`alpha` must be from 0 to 1, got {alpha}.')

  def merge(now, launched, anchor):
    del launched
    local = optax.tree.scale(alpha, now)
    return optax.tree.add_scale(local, 1 - alpha, anchor)

  if alpha == 0:
    return overwrite()
  return _declare(merge, overwrites=False, needs_launched=False)


def delta() -> Merge:
  r"""Returns the rule that keeps what the replica did since the launch.

  With :math:`y` the local value at launch,

  .. math::

    \theta_k \leftarrow \theta + (\theta_k - y_k).

  With the replicas' mean for an anchor it leaves their mean unchanged.

  Returns:
    A function of the local params now, the local params at launch, and the
    new anchor.

  Examples:
    >>> import dilojax as dx
    >>> print(dx.delta()(8.0, 7.0, 4.0))
    5.0
  """

  def merge(now, launched, anchor):
    return optax.tree.add(anchor, optax.tree.sub(now, launched))

  return _declare(merge, overwrites=False, needs_launched=True)


def delay_compensated(strength: float) -> Merge:
  r"""Returns the rule of CoCoDC, which corrects for the delay.

  With :math:`y` the local value at launch, :math:`\tau` the delay and
  :math:`H` the steps per round, a term of second order, as of Taylor, corrects
  the drift :math:`d` of a step:

  .. math::

    d &= (\theta_k - y_k) / \tau, \
    d' &= d + \lambda\, d \odot d \odot (\theta - y_k) / H, \
    \theta_k &\leftarrow \theta + \tau d'.

  The equations are a reconstruction from the paper's abstract and from notes.
  With the drift for a gradient, a Taylor expansion has the opposite sign: try
  both.

  Args:
    strength: The :math:`\lambda` above; with 0 it is :func:`delta`.

  Returns:
    A function of the local params now, the local params at launch, and the
    new anchor, which :func:`synchronize` tells the schedule as well.

  Raises:
    ValueError: If `strength` is not finite.

  References:
    `CoCoDC: Communication-computation overlap with delay compensation
    <https://arxiv.org/abs/2504.17672>`_, 2025
  """
  _checks.check_number('strength', strength)
  if strength == 0:
    return delta()
  if not math.isfinite(strength):
    raise ValueError(
      f'`strength` must be finite, got {strength}: choose 0 for no correction.'
    )

  def merge(now, launched, anchor, *, schedule):
    scale = strength / (max(schedule.delay, 1) * schedule.every)

    def corrected(now, launched, anchor):
      moved = now - launched
      return anchor + moved + scale * moved * moved * (anchor - launched)

    return jax.tree.map(corrected, now, launched, anchor)

  return _declare(
    merge, overwrites=False, needs_launched=True, needs_schedule=True
  )


def _declare(merge, *, overwrites, needs_launched, needs_schedule=False):
  """Says what `synchronize` may leave out; other rules get everything."""
  merge.overwrites = overwrites
  merge.needs_launched = needs_launched
  merge.needs_schedule = needs_schedule
  return merge
