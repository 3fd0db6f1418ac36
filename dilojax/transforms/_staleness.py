"""Rules of a server that ask how old an arrival is."""

from collections.abc import Callable
import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from dilojax.transforms import _checks
from dilojax.transforms import _server

Weight = Callable[[jax.typing.ArrayLike], jax.typing.ArrayLike]


def polynomial(power: float) -> Weight:
  r"""Returns the weight :math:`(1 + s)^{-p}` of an arrival of staleness s.

  Args:
    power: The :math:`p`, at least 0. With 0 all arrivals weigh alike.

  Returns:
    A function of staleness for :func:`scale_by_staleness`.

  Raises:
    ValueError: If `power` is out of range.

  Examples:
    >>> import dilojax as dx
    >>> print(dx.polynomial(0.5)(3))
    0.5

  References:
    Xie et al., `Asynchronous Federated Optimization
    <https://arxiv.org/abs/1903.03934>`_, 2019
  """
  _check_at_least_0('power', power)
  power = float(power)
  return lambda staleness: (1.0 + jnp.asarray(staleness)) ** -power


def hinge(slope: float, start: float) -> Weight:
  r"""Returns a weight that is 1 up to a staleness, and falls from there.

  .. math::

    w(s) = \frac{1}{1 + a \max(s - b, 0)}

  Args:
    slope: The :math:`a`, at least 0.
    start: The :math:`b`, at least 0: the last staleness that weighs 1.

  Returns:
    A function of staleness for :func:`scale_by_staleness`.

  Raises:
    ValueError: If an argument is out of range.

  Examples:
    >>> import dilojax as dx
    >>> weight = dx.hinge(slope=1.0, start=4)
    >>> print(weight(4), weight(5))
    1.0 0.5

  References:
    Xie et al., `Asynchronous Federated Optimization
    <https://arxiv.org/abs/1903.03934>`_, 2019
  """
  _check_at_least_0('slope', slope)
  _check_at_least_0('start', start)
  slope, start = float(slope), float(start)

  def weight(staleness):
    late = jnp.maximum(jnp.asarray(staleness) - start, 0.0)
    return 1.0 / (1.0 + slope * late)

  return weight


def scale_by_staleness(weight: Weight) -> optax.GradientTransformationExtraArgs:
  r"""Multiplies an arrival by a weight that depends on its staleness.

  .. math::

    \Delta \to w(s) \Delta

  Staleness is the number of steps that the server took since it handed the
  worker its params. Belongs first in a chain, before what sums up arrivals.

  Args:
    weight: The function :math:`w`, such as :func:`polynomial`,
      :func:`hinge`, or one of your own.

  Returns:
    An :class:`optax.GradientTransformationExtraArgs` without a state, whose
    `update` needs `staleness`.

  Raises:
    ValueError: If `weight` is no such function; in `update`, if `staleness` is
      missing.

  Examples:
    >>> import jax.numpy as jnp, dilojax as dx
    >>> tx = dx.scale_by_staleness(dx.polynomial(0.5))
    >>> state = tx.init(jnp.zeros(()))
    >>> print(tx.update(jnp.array(8.0), state, staleness=3)[0])
    4.0
  """
  if not callable(weight):
    raise ValueError(
      '`weight` must be a function of staleness, such as `polynomial(0.5)`,'
      f' got {weight!r}.'
    )
  if callable(weight(0)):
    raise ValueError(
      '`weight` must return numbers, got a function that returns functions:'
      ' call it first, as in `polynomial(0.5)`.'
    )

  def update_fn(
    updates, state, params=None, *, staleness: Any = None, **extra_args
  ):
    del params, extra_args
    _server.check_given('scale_by_staleness', staleness=staleness)
    factor = jnp.asarray(weight(staleness), jnp.float32)
    scaled = optax.tree.scale(factor, _server.wide(updates))
    return optax.tree.cast_like(scaled, updates), state

  return optax.GradientTransformationExtraArgs(
    optax.init_empty_state, update_fn
  )


def compensate_delay(strength: float) -> optax.GradientTransformationExtraArgs:
  r"""Corrects an arrival for how far the server has moved in the meantime.

  .. math::

    \Delta \to \Delta + \lambda \Delta \odot \Delta \odot
      (\theta - \theta_\text{launched})

  The diagonal of :math:`\Delta \Delta^\top` stands for the Hessian in a Taylor
  expansion of the gradient. Computed in float32 at least.

  Args:
    strength: The :math:`\lambda`.

  Returns:
    An :class:`optax.GradientTransformationExtraArgs` without a state, whose
    `update` needs `params` and `launched`, the params that the worker was
    handed.

  Raises:
    ValueError: If `strength` is not finite; in `update`, if `params` or
      `launched` is missing.

  Examples:
    >>> import jax.numpy as jnp, dilojax as dx
    >>> tx = dx.compensate_delay(0.5)
    >>> params, launched = jnp.array(4.0), jnp.array(3.0)
    >>> state = tx.init(params)
    >>> print(tx.update(jnp.array(2.0), state, params, launched=launched)[0])
    4.0

  References:
    Zheng et al., `Asynchronous Stochastic Gradient Descent with Delay
    Compensation <https://arxiv.org/abs/1609.08326>`_, 2017; for
    pseudo-gradients Liu et al., 2024, `2401.09135
    <https://arxiv.org/abs/2401.09135>`_
  """
  _checks.check_number('strength', strength)
  if not math.isfinite(strength):
    raise ValueError(
      f'`strength` must be finite, got {strength}: choose 0 for no correction.'
    )

  def update_fn(updates, state, params=None, *, launched=None, **extra_args):
    del extra_args
    _server.check_given('compensate_delay', params=params, launched=launched)
    corrected = jax.tree.map(
      lambda new, now, then: new + strength * new * new * (now - then),
      *map(_server.wide, (updates, params, launched)),
    )
    return optax.tree.cast_like(corrected, updates), state

  return optax.GradientTransformationExtraArgs(
    optax.init_empty_state, update_fn
  )


class DropStaleState(NamedTuple):
  """State of :func:`drop_stale`; it is the server's.

  Attributes:
    inner: State of `tx`.
    answer: What the last arrival led to.
  """

  inner: optax.OptState
  answer: _server.Answer


def drop_stale(
  tx: optax.GradientTransformation, limit: int
) -> optax.GradientTransformationExtraArgs:
  """Leaves an optimizer alone at arrivals that are too old.

  It then neither moves the params nor counts the arrival, and its momentum
  does not decay. The worker is handed the params as they are.

  Args:
    tx: Optimizer or rule of the server. It computes in float32 at least.
    limit: The least staleness that is dropped, at least 1: arrivals of
      staleness 0 to `limit - 1` count.

  Returns:
    An :class:`optax.GradientTransformationExtraArgs`, whose `update` needs
    `staleness`, and for whose state :func:`answer_of` says which arrivals
    stepped.

  Raises:
    ValueError: If an argument is out of range, or of another kind; in
      `update`, if `staleness` is missing.

  Examples:
    >>> import jax.numpy as jnp, optax, dilojax as dx
    >>> tx = dx.drop_stale(optax.sgd(1.0), 10)
    >>> params = jnp.zeros(())
    >>> state = tx.init(params)
    >>> for staleness in (9, 10):
    ...   updates, state = tx.update(
    ...     jnp.ones(()), state, params, staleness=staleness
    ...   )
    ...   print(updates, dx.answer_of(state).stepped)
    -1.0 True
    0.0 False
  """
  _checks.check_transformation('tx', tx)
  _server.check_count('limit', limit)
  tx = optax.with_extra_args_support(tx)

  def init_fn(params):
    _checks.check_inexact(params)
    inner = tx.init(_server.wide(params))
    return DropStaleState(inner, _server.nothing_arrived())

  def update_fn(updates, state, params=None, *, staleness=None, **extra_args):
    _server.check_given('drop_stale', staleness=staleness)

    def count(inner):
      shift, inner = tx.update(
        _server.wide(updates),
        inner,
        _server.wide(params),
        staleness=staleness,
        **extra_args,
      )
      return optax.tree.cast_like(shift, updates), inner

    def drop(inner):
      return optax.tree.zeros_like(updates), inner

    counts = jnp.asarray(staleness) < limit
    shift, inner = jax.lax.cond(counts, count, drop, state.inner)
    return shift, DropStaleState(inner, _answer(counts, inner))

  return optax.GradientTransformationExtraArgs(init_fn, update_fn)


def ringmaster(
  tx: optax.GradientTransformation, limit: int
) -> optax.GradientTransformationExtraArgs:
  """Ringmaster: steps at each arrival whose delay is less than a threshold.

  Args:
    tx: Optimizer of the server; `optax.sgd(lr)` in the paper.
    limit: The threshold R, at least 1.

  Returns:
    :func:`drop_stale`, which is this rule.

  References:
    Maranjyan et al., `Ringmaster ASGD: The First Asynchronous SGD with Optimal
    Time Complexity <https://arxiv.org/abs/2501.16168>`_, 2025
  """
  return drop_stale(tx, limit)


def rennala(
  tx: optax.GradientTransformation, batch: int
) -> optax.GradientTransformationExtraArgs:
  """Rennala: steps on the mean of the first B gradients at the same params.

  Gradients at earlier params are ignored; their workers are handed the params
  as they are.

  Args:
    tx: Optimizer of the server; `optax.sgd(lr)` in the paper.
    batch: Number of gradients B per step, at least 1.

  Returns:
    :func:`drop_stale` around :func:`buffered`: what was handed out before the
    last step has a staleness of 1 or more.

  Raises:
    ValueError: If an argument is out of range, or of another kind.

  Examples:
    >>> import jax.numpy as jnp, optax, dilojax as dx
    >>> tx = dx.rennala(optax.sgd(1.0), 2)
    >>> params = jnp.zeros(())
    >>> state = tx.init(params)
    >>> for grad, staleness in ((1.0, 0), (8.0, 1), (3.0, 0)):
    ...   updates, state = tx.update(
    ...     jnp.array(grad), state, params, staleness=staleness
    ...   )
    ...   print(updates)
    0.0
    0.0
    -2.0

  References:
    Tyurin and Richtárik, `Optimal Time Complexities of Parallel Stochastic
    Optimization Methods Under a Fixed Computation Model
    <https://arxiv.org/abs/2305.12387>`_, 2023
  """
  _server.check_count('batch', batch)
  return drop_stale(_server.buffered(tx, batch), 1)


def _answer(counts, inner):
  """Answers for an optimizer that was run, or was not."""
  answer = _server.answer_of(inner)
  if answer is None:
    return _server.Answer(counts, jnp.array(True), jnp.array(False), counts)
  return _server.Answer(
    stepped=counts & answer.stepped,
    handed=~counts | answer.handed,
    restarted=counts & answer.restarted,
    counted=counts & answer.counted,
  )


def _check_at_least_0(name: str, value: Any) -> None:
  _checks.check_number(name, value)
  if not 0 <= value < math.inf:
    raise ValueError(f'`{name}` must be finite and at least 0, got {value}.')
