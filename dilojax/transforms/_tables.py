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
      params with a leading axis for the worker. Of no meaning if there is none.
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
    tables: Two: what counts in this round, and what waits for the next.
    turn: Which of them is that of this round, an int32 scalar. They take turns,
      so that none has to be copied.
    served: Which workers this round has handed new params, bool
      `[num_workers]`. None before the first step of the round.
    inner: State of `tx`.
    answer: What the last arrival led to.
  """

  tables: tuple[WorkerMeans, WorkerMeans]
  turn: jax.Array
  served: jax.Array
  inner: optax.OptState
  answer: _server.Answer


class MaleniaState(NamedTuple):
  """State of :func:`malenia`; it is the server's.

  Attributes:
    table: What arrived in this round.
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
  No gradient is lost, and none is used at a staleness above 2n - 2.

  Args:
    tx: Optimizer of the server; `optax.sgd(lr)` in the paper. It is called
      when a step is due, in float32 at least.
    num_workers: Number of workers n, at least 1. The state has twice as many
      copies of the params.

  Returns:
    An :class:`optax.GradientTransformationExtraArgs`, whose `update` needs
    `worker`. A worker is handed params where its arrival stepped.

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
      tables=(_empty(params, num_workers), _empty(params, num_workers)),
      turn=jnp.zeros([], jnp.int32),
      served=jnp.zeros(num_workers, bool),
      inner=tx.init(_server.wide(params)),
      answer=_server.nothing_arrived(),
    )

  def update_fn(updates, state, params=None, *, worker=None, **extra_args):
    _server.check_worker('ringleader', worker, num_workers)
    is_early, turn = state.served[worker], state.turn
    is_next = is_early ^ (turn == 1)
    first = _added(state.tables[0], worker, updates, ~is_next)
    second = _added(state.tables[1], worker, updates, is_next)
    # Once all have arrived the table stays full to the end of the round.
    count = jnp.where(turn == 0, first.count, second.count)
    is_due = ~is_early & jnp.all(count > 0)
    means = lambda: _mean(first.mean), lambda: _mean(second.mean)
    mean = lambda: jax.lax.switch(turn, means)
    told = {'worker': worker, **extra_args}
    shift, inner = _step(tx, is_due, mean, state.inner, updates, params, told)
    served = state.served.at[worker].set(is_early | is_due)
    is_over = jnp.all(served)
    first = _emptied(first, is_over & (turn == 0))
    second = _emptied(second, is_over & (turn == 1))
    turn = jnp.where(is_over, 1 - turn, turn)
    stepped = _server.also_stepped(is_due, inner)
    answer = _server.Answer(stepped, is_due, jnp.array(False), jnp.array(True))
    served = served & ~is_over
    state = RingleaderState((first, second), turn, served, inner, answer)
    return shift, state

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
    `worker`. All workers are restarted where an arrival stepped.

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
    table = _added(state.table, worker, updates, jnp.array(True))
    is_due = jnp.all(table.count > 0)
    mean = lambda: _mean(table.mean)
    told = {'worker': worker, **extra_args}
    shift, inner = _step(tx, is_due, mean, state.inner, updates, params, told)
    table = _emptied(table, is_due)
    stepped = _server.also_stepped(is_due, inner)
    answer = _server.Answer(stepped, is_due, is_due, jnp.array(True))
    return shift, MaleniaState(table, inner, answer)

  return optax.GradientTransformationExtraArgs(init_fn, update_fn)


def _step(tx, is_due, mean, inner, updates, params, told):
  """Steps on the mean of means, if that is due."""

  def step(inner):
    shift, inner = tx.update(mean(), inner, _server.wide(params), **told)
    return optax.tree.cast_like(shift, updates), inner

  def rest(inner):
    return optax.tree.zeros_like(updates), inner

  return jax.lax.cond(is_due, step, rest, inner)


def _empty(params: optax.Params, n: int) -> WorkerMeans:
  zeros = lambda leaf: jnp.zeros((n, *leaf.shape), leaf.dtype)
  mean = jax.tree.map(zeros, _server.wide(params))
  return WorkerMeans(mean, jnp.zeros(n, jnp.int32))


def _emptied(table, is_over):
  return table._replace(count=jnp.where(is_over, 0, table.count))


def _added(table, worker, updates, counts):
  """Adds a gradient to the mean of its worker, if it counts here."""
  before = table.count[worker]

  def added(rows, new):
    row = rows[worker]
    mean = jnp.where(before > 0, row + (new - row) / (before + 1), new)
    return rows.at[worker].set(jnp.where(counts, mean, row))

  mean = jax.tree.map(added, table.mean, _server.wide(updates))
  count = table.count.at[worker].add(counts.astype(jnp.int32))
  return WorkerMeans(mean, count)


def _mean(rows: Any) -> Any:
  """Averages over the workers."""

  def mean(leaf):
    # On CPUs a product is up to a hundred times faster than `jnp.mean`.
    ones = jnp.ones(len(leaf), leaf.dtype)
    return jnp.tensordot(ones, leaf, axes=1, precision='highest') / len(leaf)

  return jax.tree.map(mean, rows)
