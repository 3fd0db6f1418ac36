"""The methods by name: each a short composition of the links."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import optax

from dilojax.transforms import _checks
from dilojax.transforms import _fragments
from dilojax.transforms import _merge
from dilojax.transforms import _reduce
from dilojax.transforms import _sharing
from dilojax.transforms import _subset
from dilojax.transforms import _synchronize
from dilojax.transforms import _until


def data_parallel(
  inner: optax.GradientTransformation,
  *,
  axis_name: str | Sequence[str] = 'replica',
) -> optax.GradientTransformationExtraArgs:
  """Averages the gradients of all replicas at every step.

  Whatever `inner` clips, it clips the mean.

  Args:
    inner: Optimizer of every replica; they stay equal.
    axis_name: Name, or names, of the mapped axes that enumerate replicas.

  Returns:
    A chain of :func:`mean_over` and `inner`.
  """
  _checks.check_transformation('inner', inner)
  link = _reduce.mean_over(axis_name)
  return optax.with_extra_args_support(optax.chain(link, inner))


def local_sgd(
  inner: optax.GradientTransformation,
  *,
  every: int,
  axis_name: str | Sequence[str] = 'replica',
) -> optax.GradientTransformationExtraArgs:
  """Local steps of `inner`, then the mean of the params.

  Args:
    inner: Optimizer of the local steps.
    every: Number of inner steps per round, at least 1.
    axis_name: Name, or names, of the mapped axes that enumerate replicas.

  Returns:
    :func:`diloco` with `optax.sgd(1.0)` outside.

  References:
    Stich, `Local SGD Converges Fast and Communicates Little
    <https://arxiv.org/abs/1805.09767>`_, 2018
  """
  return diloco(inner, optax.sgd(1.0), every=every, axis_name=axis_name)


def diloco(
  inner: optax.GradientTransformation,
  outer: optax.GradientTransformation,
  *,
  every: int,
  axis_name: str | Sequence[str] = 'replica',
) -> optax.GradientTransformationExtraArgs:
  """Local steps of `inner`, then one step of `outer` on their mean.

  The paper has AdamW inside, `optax.sgd(0.7, momentum=0.9, nesterov=True)`
  outside, and 500 inner steps per round.

  Args:
    inner: Optimizer of the local steps.
    outer: Optimizer of the anchor.
    every: Number of inner steps per round, at least 1.
    axis_name: Name, or names, of the mapped axes that enumerate replicas.

  Returns:
    A chain of `inner` and :func:`synchronize`.

  References:
    Douillard et al., `DiLoCo: Distributed Low-Communication Training of
    Language Models <https://arxiv.org/abs/2311.08105>`_, 2023
  """
  _checks.check_transformation('inner', inner)
  link = _synchronize.synchronize(
    outer, every=every, reduce=_reduce.mean_over(axis_name)
  )
  return optax.chain(inner, link)


def post_local(
  inner: optax.GradientTransformation,
  outer: optax.GradientTransformation,
  *,
  every: int,
  data_parallel_steps: int,
  axis_name: str | Sequence[str] = 'replica',
) -> optax.GradientTransformationExtraArgs:
  """Data parallelism first, then rare synchronization.

  The anchor is taken at the switch, where `outer` is still fresh. With
  `optax.sgd(1.0)` outside it is post-local SGD; DiLoCo's paper trains 24,000
  of 88,000 steps in this way.

  Args:
    inner: Optimizer of the local steps; it goes on over the switch.
    outer: Optimizer of the anchor.
    every: Number of inner steps per round, at least 1.
    data_parallel_steps: Number of inner steps before the switch, at least 1.
    axis_name: Name, or names, of the mapped axes that enumerate replicas.

  Returns:
    A chain of :func:`until`, `inner` and :func:`synchronize`.

  References:
    Lin et al., `Don't Use Large Mini-Batches, Use Local SGD
    <https://arxiv.org/abs/1808.07217>`_, 2018
  """
  _checks.check_transformation('inner', inner)
  _fragments.check_count('data_parallel_steps', data_parallel_steps)
  mean = _reduce.mean_over(axis_name)
  link = _synchronize.synchronize(
    outer, every=every, reduce=mean, start=data_parallel_steps
  )
  return optax.chain(_until.until(data_parallel_steps, mean), inner, link)


def lookahead(
  inner: optax.GradientTransformation, *, every: int, step_size: float
) -> optax.GradientTransformationExtraArgs:
  """Slow weights that go a share of the way of the fast: one replica.

  Unlike :func:`optax.lookahead` it takes and returns plain params.

  Args:
    inner: Optimizer of the fast weights.
    every: Number of inner steps per round, at least 1.
    step_size: Share of the way; the paper has 0.5.

  Returns:
    A chain of `inner` and :func:`synchronize`, without communication.

  References:
    Zhang et al., `Lookahead Optimizer: k steps forward, 1 step back
    <https://arxiv.org/abs/1907.08610>`_, 2019
  """
  _checks.check_transformation('inner', inner)
  _checks.check_rate('step_size', step_size)
  link = _synchronize.synchronize(
    optax.sgd(step_size), every=every, reduce=optax.identity()
  )
  return optax.chain(inner, link)


def snoo(
  inner: optax.GradientTransformation,
  *,
  every: int,
  lr: float,
  momentum: float,
) -> optax.GradientTransformationExtraArgs:
  r"""Nesterov's step on the displacement of one replica.

  With :math:`\Delta` the anchor minus the replica,

  .. math::

    b &\leftarrow \mu b + \Delta, \\
    \theta &\leftarrow \theta - \eta (\Delta + \mu b).

  Args:
    inner: Optimizer of the fast weights.
    every: Number of inner steps per round, at least 1.
    lr: Outer learning rate :math:`\eta`.
    momentum: Outer momentum :math:`\mu`.

  Returns:
    A chain of `inner` and :func:`synchronize`, without communication.

  References:
    Kallusky et al., `SNOO: Step-K Nesterov Outer Optimizer
    <https://arxiv.org/abs/2510.15830>`_, 2025
  """
  _checks.check_transformation('inner', inner)
  _checks.check_rate('lr', lr)
  _checks.check_rate('momentum', momentum)
  link = _synchronize.synchronize(
    optax.sgd(lr, momentum=momentum, nesterov=True),
    every=every,
    reduce=optax.identity(),
  )
  return optax.chain(inner, link)


def sparta(
  inner: optax.GradientTransformation,
  fraction: float = 0.005,
  *,
  outer: optax.GradientTransformation | None = None,
  every: int | None = None,
  pattern: str = 'independent',
  seed: int = 0,
  axis_name: str | Sequence[str] = 'replica',
) -> optax.GradientTransformationExtraArgs:
  """Averages a few random entries of the params after each inner step.

  With `outer` and `every`, also DiLoCo: the released code has
  `optax.sgd(0.7, momentum=0.9, nesterov=True)` and 100 inner steps.

  Args:
    inner: Optimizer of the local steps.
    fraction: Share of the entries, above 0 and up to 1.
    outer: Optimizer of the anchor, or None for no anchor.
    every: Number of inner steps per round of DiLoCo, or None.
    pattern: How entries are drawn, see :func:`subset_mean_over`.
    seed: Seed of the draws.
    axis_name: Name, or names, of the mapped axes that enumerate replicas.

  Returns:
    A chain of `inner`, :func:`subset_mean_over` and, with `outer`,
    :func:`synchronize`, which sees the replica averaged.

  Raises:
    ValueError: If one of `outer` and `every` is given alone.

  References:
    Released as code by EXO Labs, without a paper.
  """
  _checks.check_transformation('inner', inner)
  if (outer is None) != (every is None):
    raise ValueError(
      f'`outer` and `every` belong together, got {outer} and {every}: give'
      ' both for DiLoCo, or none.'
    )
  links = [
    _subset.subset_mean_over(axis_name, fraction, pattern=pattern, seed=seed)
  ]
  if outer is not None and every is not None:
    mean = _reduce.mean_over(axis_name)
    links.append(_synchronize.synchronize(outer, every=every, reduce=mean))
  return optax.chain(inner, *links)


def loscar_sgd(
  inner: optax.GradientTransformation,
  *,
  every: int,
  fraction: float,
  delay: int = 0,
  merge: _merge.Merge | None = None,
  seed: int = 0,
  axis_name: str | Sequence[str] = 'replica',
) -> optax.GradientTransformationExtraArgs:
  """Local SGD that averages random entries, while training goes on.

  Args:
    inner: Optimizer of the local steps.
    every: Number of inner steps per round, at least 1.
    fraction: Share of the entries, above 0 and up to 1.
    delay: Number of inner steps that a message is on its way.
    merge: How means enter the replica, by default :func:`delta`;
      :func:`overwrite` is the baseline that loses the steps in between.
    seed: Seed of the draws.
    axis_name: Name, or names, of the mapped axes that enumerate replicas.

  Returns:
    A chain of `inner` and :func:`subset_mean_over`.

  References:
    `LOSCAR-SGD <https://arxiv.org/abs/2605.20866>`_, 2026
  """
  _checks.check_transformation('inner', inner)
  link = _subset.subset_mean_over(
    axis_name,
    fraction,
    every=every,
    delay=delay,
    merge=_merge.delta() if merge is None else merge,
    seed=seed,
  )
  return optax.chain(inner, link)


class Level(NamedTuple):
  """A level of :func:`hierarchical`.

  Attributes:
    outer: Optimizer of this level's anchor.
    every: Number of inner steps per round, at least 1.
    axis_name: Name, or names, of the mapped axes that it averages over.
  """

  outer: optax.GradientTransformation
  every: int
  axis_name: str | Sequence[str]


def hierarchical(
  inner: optax.GradientTransformation, levels: Sequence[Level]
) -> optax.GradientTransformationExtraArgs:
  """Synchronizes often nearby, and rarely far away.

  A landing of a higher level moves the replicas. The levels below take the
  new anchor for theirs, so that their next pseudo-gradient, and with it their
  momentum, does not count that jump.

  Args:
    inner: Optimizer of the local steps.
    levels: Innermost first. Each averages over the axes of those before it,
      and more: hosts, then regions and hosts.

  Returns:
    A chain of `inner` and a :func:`synchronize` per level.

  Raises:
    ValueError: If there is no level, or a level leaves out an axis of the one
      below it.

  References:
    Lin et al., `Don't Use Large Mini-Batches, Use Local SGD
    <https://arxiv.org/abs/1808.07217>`_, 2018 (hierarchical local SGD)
  """
  _checks.check_transformation('inner', inner)
  if not (
    isinstance(levels, Sequence)
    and all(isinstance(level, Level) for level in levels)
  ):
    raise ValueError(
      f'`levels` must be a list of `Level(outer, every, axis_name)`, got'
      f' {levels!r}.'
    )
  if not levels:
    raise ValueError('`levels` must have at least one level, got none.')
  means = [_reduce.mean_over(level.axis_name) for level in levels]
  names = [_reduce.axis_names(level.axis_name) for level in levels]
  for below, above in zip(names, names[1:]):
    if not set(below) <= set(above):
      raise ValueError(
        f'`levels`: one over {above} cannot stand above one over {below}.'
        ' Name all axes of the level below, and more.'
      )
  chain = optax.chain(
    inner,
    *(
      _synchronize.synchronize(level.outer, every=level.every, reduce=mean)
      for level, mean in zip(levels, means)
    ),
  )

  # The type of a state says nothing of its parts.
  update_chain: Any = chain.update

  def update_fn(
    updates, state, params=None, *, step=None, final=False, **extra_args
  ):
    updates, (inner_state, *links) = update_chain(
      updates, state, params, step=step, final=final, **extra_args
    )
    for number, above in enumerate(links):
      links[:number] = _sharing.reanchored(
        links[:number], above, step=step, final=final
      )
    return updates, (inner_state, *links)

  return optax.GradientTransformationExtraArgs(chain.init, update_fn)
