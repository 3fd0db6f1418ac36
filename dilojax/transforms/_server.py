"""The server of asynchronous training: its rules act on single arrivals."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

from dilojax.transforms import _checks

# What a rule may ask of `update`.
_MEANINGS = {
  'params': 'the params of the server',
  'worker': 'the number of the worker that arrived, from 0',
  'staleness': 'the steps of the server since it handed out `launched`',
  'launched': 'the params that the worker was handed',
}


class Answer(NamedTuple):
  """What follows from an arrival, for whoever hands out the params.

  Attributes:
    stepped: Whether the params of the server moved, a bool scalar. Staleness
      counts these steps.
    handed: Whether the worker that arrived gets the params as they are now, a
      bool scalar. Otherwise it goes on from those that it was handed before.
    restarted: Whether all workers get the params as they are now, a bool
      scalar. The others drop the round that they are in.
    counted: Whether the arrival is part of the params, or of what waits for a
      step, a bool scalar. False if it was refused.
  """

  stepped: jax.Array
  handed: jax.Array
  restarted: jax.Array
  counted: jax.Array


def answer_of(state: optax.OptState) -> Answer | None:
  """Returns what the last arrival led to.

  Args:
    state: State of any chain, after an update.

  Returns:
    The answer of the rule in it that has one. Of rules in each other it is
    that of the outermost, which knows the others. None if there is none: each
    arrival moves the params, and the worker is handed the new ones.

  Raises:
    ValueError: If two rules of a chain answer.

  Examples:
    >>> import jax.numpy as jnp, optax, dilojax as dx
    >>> tx = dx.buffered(optax.sgd(1.0), 2)
    >>> params = jnp.zeros(())
    >>> state = tx.init(params)
    >>> for _ in range(2):
    ...   updates, state = tx.update(jnp.ones(()), state, params)
    ...   print(dx.answer_of(state).stepped)
    False
    True
  """
  answers = lambda node: isinstance(getattr(node, 'answer', None), Answer)
  nodes = jax.tree.leaves(state, is_leaf=answers)
  found = [node for node in nodes if answers(node)]
  if len(found) > 1:
    kinds = ', '.join(type(node).__name__ for node in found)
    raise ValueError(
      f'`state` must have one rule that answers, got {kinds}: put one into the'
      ' other, as in `drop_stale(buffered(tx, 4), 10)`.'
    )
  return found[0].answer if found else None


class DelayedNesterovState(NamedTuple):
  """State of :func:`delayed_nesterov`; it is the server's.

  Attributes:
    count: Number of arrivals, an int32 scalar.
    momentum: Momentum, in float32.
    gathered: Sum of the pseudo-gradients since the momentum last changed, in
      float32.
  """

  count: jax.Array
  momentum: optax.Updates
  gathered: optax.Updates


def delayed_nesterov(
  lr: optax.ScalarOrSchedule,
  momentum: float | jax.Array,
  every: int,
  c: float | jax.Array = 0.0,
) -> optax.GradientTransformationExtraArgs:
  r"""Steps at each arrival, with a momentum that changes at each n-th.

  For the j-th arrival of a pseudo-gradient :math:`\Delta`, with n for `every`,

  .. math::

    a &\leftarrow a + \Delta, \\
    \theta &\leftarrow \theta - \eta (c \mu m + \Delta / n),
      \quad j \bmod n \ne 0, \\
    m &\leftarrow \mu m + a / n, \quad
    \theta \leftarrow \theta - \eta ((1 - c n + c) \mu m + \Delta / n), \quad
    a \leftarrow 0, \quad j \bmod n = 0.

  Without `c` the params are, after each n arrivals, where one step of
  Nesterov's rule on the mean of the n would have led. With `every=1` it is
  `optax.sgd(lr, momentum, nesterov=True)`.

  Args:
    lr: Learning rate :math:`\eta`, or a schedule over arrivals. Each one moves
      the params by its n-th part: compare rates with n in mind.
    momentum: Momentum :math:`\mu`, at least 0 and less than 1.
    every: Arrivals per change of the momentum; the number of workers, in the
      paper.
    c: Share of the momentum that each arrival between two changes is given,
      from 0 to 1/n. With 1/n all arrivals have the same.

  Returns:
    An :class:`optax.GradientTransformationExtraArgs`. It needs nothing but
    the pseudo-gradient; other arguments are ignored. It computes in float32 at
    least.

  Raises:
    ValueError: If an argument is out of range.

  Examples:
    >>> import jax.numpy as jnp, optax, dilojax as dx
    >>> tx = dx.delayed_nesterov(1.0, 0.5, every=2)
    >>> state = tx.init(jnp.zeros(()))
    >>> for arrival in (1.0, 3.0):
    ...   updates, state = tx.update(jnp.array(arrival), state)
    ...   print(updates)
    -0.5
    -2.5

  References:
    Liu et al., `Asynchronous Local-SGD Training for Language Modeling
    <https://arxiv.org/abs/2401.09135>`_, 2024
  """
  _checks.check_rate('lr', lr)
  check_count('every', every)
  if not isinstance(momentum, jax.core.Tracer):
    _checks.check_number('momentum', momentum)
    if not 0 <= momentum < 1:
      raise ValueError(
        f'`momentum` must be at least 0 and less than 1, got {momentum}.'
      )
  if not isinstance(c, jax.core.Tracer):
    _checks.check_number('c', c)
    if not 0 <= c <= 1 / every:
      raise ValueError(
        f'`c` must be from 0 to 1 / `every` ({1 / every:g}), got {c}.'
      )

  def init_fn(params):
    _checks.check_inexact(params)
    zeros = lambda: optax.tree.zeros_like(wide(params))
    return DelayedNesterovState(jnp.zeros([], jnp.int32), zeros(), zeros())

  def update_fn(updates, state, params=None, **extra_args):
    del params, extra_args
    fresh = wide(updates)
    gathered = optax.tree.add(state.gathered, fresh)
    is_due = (state.count + 1) % every == 0
    changed = jax.tree.map(
      lambda m, a: jnp.where(is_due, momentum * m + a / every, m),
      state.momentum,
      gathered,
    )
    share = momentum * jnp.where(is_due, 1 - c * every + c, c)
    rate: Any = lr(state.count) if callable(lr) else lr
    shift = jax.tree.map(
      lambda m, new: -rate * (share * m + new / every), changed, fresh
    )
    gathered = jax.tree.map(lambda a: jnp.where(is_due, 0, a), gathered)
    changed = optax.tree.cast_like(changed, state.momentum)
    state = DelayedNesterovState(state.count + 1, changed, gathered)
    return optax.tree.cast_like(shift, updates), state

  return optax.GradientTransformationExtraArgs(init_fn, update_fn)


class BufferedState(NamedTuple):
  """State of :func:`buffered`; it is the server's.

  Attributes:
    steps: Mean of the buffer in float32, what it has, and the state of `tx`.
    answer: What the last arrival led to.
  """

  steps: optax.MultiStepsState
  answer: Answer


def buffered(
  tx: optax.GradientTransformation, size: int
) -> optax.GradientTransformationExtraArgs:
  """Collects arrivals, and steps on the mean of each `size` of them.

  In between the params rest. The worker that arrived is handed the params
  either way.

  Args:
    tx: Optimizer of the server, such as `optax.sgd(1.0)`. It gets means, and
      computes in float32 at least. What looks at single arrivals, such as
      :func:`scale_by_staleness`, belongs before this link in the chain.
    size: Number of arrivals per step.

  Returns:
    An :class:`optax.GradientTransformationExtraArgs`, for whose state
    :func:`answer_of` says which arrivals stepped.

  Raises:
    ValueError: If an argument is out of range, or of another kind.

  Examples:
    >>> import jax.numpy as jnp, optax, dilojax as dx
    >>> tx = dx.buffered(optax.sgd(1.0), 2)
    >>> params = jnp.zeros(())
    >>> state = tx.init(params)
    >>> for arrival in (1.0, 3.0):
    ...   updates, state = tx.update(jnp.array(arrival), state, params)
    ...   print(updates)
    0.0
    -2.0

  References:
    Nguyen et al., `Federated Learning with Buffered Asynchronous Aggregation
    <https://arxiv.org/abs/2106.06639>`_, 2022
  """
  _checks.check_transformation('tx', tx)
  check_count('size', size)
  steps = optax.MultiSteps(tx, size)

  def init_fn(params):
    _checks.check_inexact(params)
    return BufferedState(steps.init(wide(params)), nothing_arrived())

  def update_fn(updates, state, params=None, **extra_args):
    shift, inner = steps.update(
      wide(updates), state.steps, wide(params), **extra_args
    )
    is_due = jnp.asarray(inner.mini_step) == 0
    # Once more, by selection: `MultiSteps` multiplies by 0, and NaN stays.
    shift = jax.tree.map(lambda leaf: jnp.where(is_due, leaf, 0), shift)
    mean = jax.tree.map(lambda a: jnp.where(is_due, 0, a), inner.acc_grads)
    answer = Answer(
      stepped=also_stepped(is_due, inner.inner_opt_state),
      handed=jnp.array(True),
      restarted=jnp.array(False),
      counted=jnp.array(True),
    )
    state = BufferedState(inner._replace(acc_grads=mean), answer)
    return optax.tree.cast_like(shift, updates), state

  return optax.GradientTransformationExtraArgs(init_fn, update_fn)


def nothing_arrived() -> Answer:
  """Returns what a state says before the first arrival."""
  return Answer(*(jnp.array(False) for _ in Answer._fields))


def also_stepped(is_due: jax.Array, inner: optax.OptState) -> jax.Array:
  """Tells whether a rule stepped, if what it wraps may refuse to."""
  answer = answer_of(inner)
  return is_due if answer is None else is_due & answer.stepped


def wide(tree: Any) -> Any:
  """Copies a tree in float32, or in its own dtypes if they are wider."""
  widen = lambda leaf: jnp.array(
    leaf, jnp.promote_types(jnp.result_type(leaf), jnp.float32)
  )
  return jax.tree.map(widen, tree)


def check_count(name: str, value: Any) -> None:
  """Refuses what does not count at least one thing."""
  if not _checks.is_int(value):
    raise ValueError(f'`{name}` must be an int, got {value!r}.')
  if value < 1:
    raise ValueError(f'`{name}` must be at least 1, got {value}.')


def check_given(rule: str, **values: Any) -> None:
  """Refuses an update that was not told what a rule needs."""
  for name, value in values.items():
    if value is None:
      raise ValueError(
        f'`{rule}` needs `{name}`, {_MEANINGS[name]}: pass it to `update`.'
      )


def check_worker(rule: str, worker: Any, num_workers: int) -> None:
  """Refuses workers out of range, as far as that is known while tracing."""
  check_given(rule, worker=worker)
  if isinstance(worker, int | np.integer) and not 0 <= worker < num_workers:
    raise ValueError(
      f'`worker` must be from 0 to {num_workers - 1}, since `num_workers` is'
      f' {num_workers}, got {worker}.'
    )
