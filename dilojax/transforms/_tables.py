"""Rules of a server that keep a table with a row for every worker."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from dilojax.transforms import _checks
from dilojax.transforms import _server


class WorkerMeans(NamedTuple):
  """Gradients of the workers; what a worker has sent is in one mean.

  Attributes:
    mean: Mean of the gradients of each worker, in float32; a tree like the
      params with a leading axis for the worker. 0 where there is none.
    count: How many they are, int32 `[num_workers]`.
  """

  mean: optax.Updates
  count: jax.Array


class GradientTableState(NamedTuple):
  """State of :func:`gradient_table`; it is the server's.

  Attributes:
    slots: Last arrival of each worker, in float32; a tree like the params with
      a leading axis for the worker. 0 before the first.
  """

  slots: optax.Updates


class RingleaderState(NamedTuple):
  """State of :func:`ringleader`; it is the server's.

  Attributes:
    current: WorkerMeans of this round.
    next: WorkerMeans of the round after it.
    served: Which workers this round has handed new params, bool
      `[num_workers]`. None before the first step of the round.
    inner: State of `tx`.
    answer: What the last arrival led to.
  """

  current: WorkerMeans
  next: WorkerMeans
  served: jax.Array
  inner: optax.OptState
  answer: _server.Answer


class MaleniaState(NamedTuple):
  """State of :func:`malenia`; it is the server's.

  Attributes:
    table: WorkerMeans of this round.
    inner: State of `tx`.
    answer: What the last arrival led to.
  """

  table: WorkerMeans
  inner: optax.OptState
  answer: _server.Answer


def gradient_table(num_workers: int) -> optax.GradientTransformationExtraArgs:
  r"""Replaces the slot of the worker that arrived, and averages all slots.

  With :math:`g_k` the last arrival of worker k of n,

  .. math::

    \bar g = \frac{1}{n} \sum_k g_k.

  Followed by `optax.sgd(lr)` it is IA²SGD: the params move at each arrival. A
  worker that has not arrived yet counts as 0, so the first steps are short.

  Args:
    num_workers: Number of workers n, at least 1. The state has as many copies
      of the params.

  Returns:
    An :class:`optax.GradientTransformationExtraArgs`, whose `update` needs
    `worker`.

  Raises:
    ValueError: If `num_workers` is out of range; in `update`, if `worker` is
      missing, or known and out of range.

  Examples:
    >>> import jax.numpy as jnp, dilojax as dx
    >>> tx = dx.gradient_table(2)
    >>> state = tx.init(jnp.zeros(()))
    >>> for worker, grad in ((0, 4.0), (1, 2.0), (1, 6.0)):
    ...   mean, state = tx.update(jnp.array(grad), state, worker=worker)
    ...   print(mean)
    2.0
    3.0
    5.0

  References:
    Maranjyan and Richtárik, `Ringleader ASGD
    <https://arxiv.org/abs/2509.22860>`_, 2025 (there a baseline)
  """
  _server.check_count('num_workers', num_workers)

  def init_fn(params):
    _checks.check_inexact(params)
    return GradientTableState(_empty(params, num_workers).mean)

  def update_fn(updates, state, params=None, *, worker=None, **extra_args):
    del params, extra_args
    _server.check_worker('gradient_table', worker, num_workers)
    slots = jax.tree.map(
      lambda rows, new: rows.at[worker].set(new),
      state.slots,
      _server.wide(updates),
    )
    mean = optax.tree.cast_like(_mean(slots), updates)
    return mean, GradientTableState(slots)

  return optax.GradientTransformationExtraArgs(init_fn, update_fn)


def ringleader(
  tx: optax.GradientTransformation, num_workers: int
) -> optax.GradientTransformationExtraArgs:
  r"""Ringleader: n steps per round, one for each worker, none too old.

  In a round, worker k of n has :math:`b_k \ge 1` gradients in the table, all at
  the params that it was last handed.

  1. Each arrival is added to its worker's mean. Nothing moves, and workers go
     on at the params that they have, until all are in the table.
  2. Now, and at each further arrival of a worker not served in this round,
     which is added first, `tx` steps on the mean of means,

     .. math::

       \bar g = \frac{1}{n} \sum_k \frac{1}{b_k} \sum_{i \le b_k} g_{k,i},

     and the worker is handed the new params: it is served. What served
     workers send is kept for the next round, and they go on.

  After n steps all are served, and the next round begins with what was kept.
  No gradient is lost, and none is used more than 2n - 2 steps after its params
  were handed out.

  Args:
    tx: Optimizer of the server; `optax.sgd(lr)` in the paper. It is called
      when a step is due, in float32 at least.
    num_workers: Number of workers n, at least 1. The state has twice as many
      copies of the params.

  Returns:
    An :class:`optax.GradientTransformationExtraArgs`, whose `update` needs
    `worker`. By :func:`answer_of`, a worker is handed params where its arrival
    stepped.

  Raises:
    ValueError: If an argument is out of range, or of another kind; in
      `update`, if `worker` is missing, or known and out of range.

  Examples:
    >>> import jax.numpy as jnp, optax, dilojax as dx
    >>> tx = dx.ringleader(optax.sgd(1.0), 2)
    >>> params = jnp.zeros(())
    >>> state = tx.init(params)
    >>> for worker, grad in ((0, 1.0), (0, 3.0), (1, 4.0), (1, 9.0), (0, 5.0)):
    ...   grad = jnp.array(grad)
    ...   updates, state = tx.update(grad, state, params, worker=worker)
    ...   print(f'{updates:.1f}', dx.answer_of(state).handed)
    0.0 False
    0.0 False
    -3.0 True
    0.0 False
    -3.5 True

  References:
    Maranjyan and Richtárik, `Ringleader ASGD: The First Asynchronous SGD with
    Optimal Time Complexity under Data Heterogeneity
    <https://arxiv.org/abs/2509.22860>`_, 2025. A worker gets params once a
    round, as in the paper; its published script hands them out more often.
  """
  _checks.check_transformation('tx', tx)
  _server.check_count('num_workers', num_workers)
  tx = optax.with_extra_args_support(tx)

  def init_fn(params):
    _checks.check_inexact(params)
    return RingleaderState(
      current=_empty(params, num_workers),
      next=_empty(params, num_workers),
      served=jnp.zeros(num_workers, bool),
      inner=tx.init(_server.wide(params)),
      answer=_server.nothing_arrived(),
    )

  def update_fn(updates, state, params=None, *, worker=None, **extra_args):
    _server.check_worker('ringleader', worker, num_workers)
    fresh = _server.wide(updates)
    is_early = state.served[worker]
    current = _added(state.current, worker, fresh, ~is_early)
    following = _added(state.next, worker, fresh, is_early)
    # Once all have arrived the table stays full to the end of the round.
    is_due = ~is_early & _is_full(current)
    told = {'worker': worker, **extra_args}
    shift, inner = _stepped(
      tx, is_due, current, state.inner, updates, params, told
    )
    served = state.served.at[worker].set(is_early | is_due)
    is_over = jnp.all(served)
    current, following = jax.lax.cond(
      is_over,
      lambda tables: (tables[1], optax.tree.zeros_like(tables[0])),
      lambda tables: tables,
      (current, following),
    )
    stepped, never = _server.also_stepped(is_due, inner), jnp.array(False)
    answer = _server.Answer(
      stepped, handed=is_due, restarted=never, counted=~never
    )
    served = served & ~is_over
    return shift, RingleaderState(current, following, served, inner, answer)

  return optax.GradientTransformationExtraArgs(init_fn, update_fn)


def malenia(
  tx: optax.GradientTransformation, num_workers: int
) -> optax.GradientTransformationExtraArgs:
  r"""Malenia: one step per round, when every worker has sent something.

  The params rest until each worker k of n has :math:`b_k \ge 1` gradients in
  the table. Then `tx` steps on the mean of means,

  .. math::

    \bar g = \frac{1}{n} \sum_k \frac{1}{b_k} \sum_{i \le b_k} g_{k,i},

  all workers are handed the new params, and what they were at is dropped.

  Args:
    tx: Optimizer of the server; `optax.sgd(lr)` in the paper. It is called
      when a step is due, in float32 at least.
    num_workers: Number of workers n, at least 1. The state has as many copies
      of the params.

  Returns:
    An :class:`optax.GradientTransformationExtraArgs`, whose `update` needs
    `worker`. By :func:`answer_of`, all are restarted where an arrival stepped.

  Raises:
    ValueError: If an argument is out of range, or of another kind; in
      `update`, if `worker` is missing, or known and out of range.

  Examples:
    >>> import jax.numpy as jnp, optax, dilojax as dx
    >>> tx = dx.malenia(optax.sgd(1.0), 2)
    >>> params = jnp.zeros(())
    >>> state = tx.init(params)
    >>> for worker, grad in ((0, 1.0), (0, 3.0), (1, 4.0)):
    ...   grad = jnp.array(grad)
    ...   updates, state = tx.update(grad, state, params, worker=worker)
    ...   print(f'{updates:.1f}', dx.answer_of(state).restarted)
    0.0 False
    0.0 False
    -3.0 True

  References:
    Tyurin and Richtárik, `Optimal Time Complexities of Parallel Stochastic
    Optimization Methods Under a Fixed Computation Model
    <https://arxiv.org/abs/2305.12387>`_, 2023. There a round may want more
    gradients; this is the form that Ringleader's authors compare with.
  """
  _checks.check_transformation('tx', tx)
  _server.check_count('num_workers', num_workers)
  tx = optax.with_extra_args_support(tx)

  def init_fn(params):
    _checks.check_inexact(params)
    return MaleniaState(
      table=_empty(params, num_workers),
      inner=tx.init(_server.wide(params)),
      answer=_server.nothing_arrived(),
    )

  def update_fn(updates, state, params=None, *, worker=None, **extra_args):
    _server.check_worker('malenia', worker, num_workers)
    fresh = _server.wide(updates)
    table = _added(state.table, worker, fresh, jnp.array(True))
    is_due = _is_full(table)
    told = {'worker': worker, **extra_args}
    shift, inner = _stepped(
      tx, is_due, table, state.inner, updates, params, told
    )
    rest = lambda table: table
    table = jax.lax.cond(is_due, optax.tree.zeros_like, rest, table)
    stepped = _server.also_stepped(is_due, inner)
    answer = _server.Answer(
      stepped, handed=is_due, restarted=is_due, counted=jnp.array(True)
    )
    return shift, MaleniaState(table, inner, answer)

  return optax.GradientTransformationExtraArgs(init_fn, update_fn)


def _stepped(tx, is_due, table, inner, updates, params, told):
  """Steps on the mean of means, if that is due."""

  def step(inner):
    mean, now = _mean(table.mean), _server.wide(params)
    shift, inner = tx.update(mean, inner, now, **told)
    return optax.tree.cast_like(shift, updates), inner

  def rest(inner):
    return optax.tree.zeros_like(updates), inner

  return jax.lax.cond(is_due, step, rest, inner)


def _empty(params: optax.Params, n: int) -> WorkerMeans:
  zeros = lambda leaf: jnp.zeros((n, *leaf.shape), leaf.dtype)
  mean = jax.tree.map(zeros, _server.wide(params))
  return WorkerMeans(mean, jnp.zeros(n, jnp.int32))


def _is_full(table):
  return jnp.all(table.count > 0)


def _added(table, worker, fresh, counts):
  """Adds a gradient to the mean of its worker, if it counts."""
  count = table.count.at[worker].add(counts.astype(jnp.int32))

  def added(rows, new):
    row = rows[worker]
    mean = row + (new - row) / jnp.maximum(count[worker], 1)
    # By selection: a product with 0 would keep NaN.
    return rows.at[worker].set(jnp.where(counts, mean, row))

  return WorkerMeans(jax.tree.map(added, table.mean, fresh), count)


def _mean(rows: Any) -> Any:
  """Averages over the workers."""
  return jax.tree.map(lambda leaf: jnp.mean(leaf, axis=0), rows)
