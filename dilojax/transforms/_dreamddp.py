"""DreamDDP: each part averaged in a step of its own, before that step."""

from collections.abc import Sequence
import dataclasses
import itertools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from dilojax import schedule as schedule_lib
from dilojax.transforms import _checks
from dilojax.transforms import _fragments
from dilojax.transforms import _reduce
from dilojax.transforms import _sharing
from dilojax.transforms import _stacked


class TurnState(NamedTuple):
  """State of a turn of :func:`dreamddp`.

  Attributes:
    step: Number of inner steps taken, an int32 scalar. Shared.
    reduce: Axes and bytes of a message; no arrays.
    plan: Schedule; no arrays.
  """

  step: jax.Array
  reduce: Any
  plan: Any

  # The attributes above once more, for `replica_axes`.
  SHARING = {
    'step': _sharing.EVERYWHERE,
    'reduce': _sharing.REDUCED,
    'plan': _sharing.EVERYWHERE,
  }


@jax.tree_util.register_static
@dataclasses.dataclass(frozen=True)
class TurnOver:
  """What a turn of :func:`dreamddp` sends, told by its state. Has no leaves.

  Attributes:
    names: Names of the mapped axes.
    nbytes: Bytes of the fragments whose turn it is.
  """

  names: tuple[str, ...]
  nbytes: int

  def traffic(self, leaves: Sequence[Any], codec: Any) -> _sharing.Traffic:
    """Tells what a replica sends, whatever the leaves."""
    del leaves, codec
    return _sharing.Traffic('all-reduce', self.nbytes)


def by_module(depth: int = 1) -> _fragments.Fragments:
  """Makes a fragment of each entry of nested params.

  Args:
    depth: Number of keys that make a name, at least 1. A path that is shorter
      is the name of its leaf.

  Returns:
    A function from params to their fragments' names, such as `layer_00`, or
    with a depth of 2 `layer_00/mlp`.

  Raises:
    ValueError: If `depth` is out of range.

  Examples:
    >>> import dilojax as dx
    >>> params = {'embed': 0.0, 'layer_00': {'mlp': {'up': 0.0, 'down': 0.0}}}
    >>> dx.by_module(2)(params)['layer_00']['mlp']['up']
    'layer_00/mlp'
  """
  _fragments.check_count('depth', depth)

  def labels(params):
    paths, structure = _fragments.paths_of(params)
    names = ['/'.join(path.split('/')[:depth]) for path in paths]
    return jax.tree.unflatten(structure, names)

  return labels


def dreamddp(
  inner: optax.GradientTransformation,
  turns: Sequence[Sequence[str]],
  *,
  extra: Sequence[Sequence[str]] | None = None,
  fragments: _fragments.Fragments | Any = None,
  axis_name: str | Sequence[str] = 'replica',
) -> optax.GradientTransformationExtraArgs:
  r"""Local steps, in each of which some fragments start from their mean.

  In step :math:`t`, counted from 1, the params :math:`x_k` of the fragments
  `turns[(t - 1) % len(turns)]` are averaged *before* the local step, while the
  backward pass computes the gradient :math:`g_k` at the params before:

  .. math::

    x_k \leftarrow \bar x + u(g_k, \bar x), \qquad
    \bar x = \mathrm{mean}_j\, x_j,

  where `inner` moves by :math:`u`. All other fragments take the local step of
  `inner`, which sees all of them at once. There is no anchor, and nothing that
  a replica would have to keep. Averaging needs no gradient, so a compiler can
  hide it behind both passes.

  With one fragment per turn, or as many as there are, it is PLSGD; with all in
  one turn FLSGD, local SGD but for the order: :func:`local_sgd` steps first and
  averages then. `dilojax.simulate.plan_dreamddp` makes `turns` from measured
  times, so that the link is never waited for if that can be.

  Args:
    inner: Optimizer of the local steps.
    turns: Names of the fragments that are averaged in each step of a round;
      each fragment once. A step may have none.
    extra: Names of fragments that each step of a round averages once more.
    fragments: Function from params to the names of their fragments, or a tree
      of names; :func:`by_module` if None.
    axis_name: Name, or names, of the mapped axes that enumerate replicas.

  Returns:
    An :class:`optax.GradientTransformationExtraArgs`. Its `update` accepts
    `step` as that of :func:`synchronize` does; with `final=True` beside it, the
    step ends on the mean of all params. Other arguments reach `inner`. Its
    state has that of `inner`, and that of each turn by its name.

  Raises:
    ValueError: If `turns` or `extra` is out of range, or, from `init` and
      `update`, which know the params, if `turns` has other fragments than they
      have, or if `params` is missing.

  Examples:
    Two replicas that stand still: one step averages `a`, the next `b`.

    >>> import jax, jax.numpy as jnp, optax, dilojax as dx
    >>> tx = dx.dreamddp(optax.sgd(0.1), [['a'], ['b']])
    >>> def train(params, num_steps):
    ...   state, still = tx.init(params), optax.tree.zeros_like(params)
    ...   for step in range(1, num_steps + 1):
    ...     updates, state = tx.update(still, state, params, step=step)
    ...     params = optax.apply_updates(params, updates)
    ...   return params
    >>> params = {'a': jnp.array([0.0, 2.0]), 'b': jnp.array([0.0, 4.0])}
    >>> for num_steps in (1, 2):
    ...   run = lambda params: train(params, num_steps)
    ...   after = jax.vmap(run, axis_name='replica')(params)
    ...   print(after['a'], after['b'])
    [1. 1.] [0. 4.]
    [1. 1.] [2. 2.]

  References:
    Tang et al., `DreamDDP: Accelerating Data Parallel Distributed LLM Training
    with Layer-wise Scheduled Partial Synchronization
    <https://arxiv.org/abs/2502.11058>`_, 2025
  """
  names = _reduce.axis_names(axis_name)
  extra = [()] * len(turns) if extra is None else extra
  _check_turns(turns, extra)
  _checks.check_transformation('inner', inner)
  _checks.check_fragments('fragments', fragments)
  inner = optax.with_extra_args_support(inner)
  every = len(turns)
  due = [frozenset(turn) | frozenset(more) for turn, more in zip(turns, extra)]

  def cut(tree, params):
    """Returns the leaves of a tree in parts, and the name of each."""
    labels = by_module() if fragments is None else fragments
    labels = labels(params) if callable(labels) else labels
    found = jax.tree.leaves(labels)
    _check_fragments(turns, extra, found, params)
    return _stacked.split(tree, labels), found

  def init_fn(params):
    parts, labels = cut(params, params)
    leaves = jax.tree.leaves(parts)

    def link(members, offset, overwrites):
      sent = [leaf for leaf, name in zip(leaves, labels) if name in members]
      plan = _sharing.Plan(schedule_lib.Schedule(every, offset), overwrites)
      nbytes = sum(leaf.size * leaf.dtype.itemsize for leaf in sent)
      step = jnp.zeros([], jnp.int32)
      return TurnState(step, TurnOver(names, nbytes), plan)

    digits = len(str(every))
    links = {
      f'turn_{offset:0{digits}}': link(members, offset, False)
      for offset, members in enumerate(turns, start=1)
      if members
    }
    # These land like updates, which no training needs to end with.
    links |= {
      f'extra_{offset:0{digits}}': link(members, offset, None)
      for offset, members in enumerate(extra, start=1)
      if members
    }
    return inner.init(params), links

  def update_fn(
    updates, state, params=None, *, step=None, final=False, **extra_args
  ):
    if params is None:
      raise ValueError('`dreamddp` averages params: pass `params` to `update`.')
    _checks.check_step(step, final)
    inner_state, links = state

    def averaged(members, params):
      parts, labels = cut(params, params)
      leaves, structure = jax.tree.flatten(parts)
      leaves = [
        _mean(leaf, names) if name in members else leaf
        for leaf, name in zip(leaves, labels)
      ]
      return _stacked.join(jax.tree.unflatten(structure, leaves))

    if step is None:
      # A branch, not a select: quiet steps must not communicate.
      index = next(iter(links.values())).step % every
      branches = [
        lambda params, members=members: averaged(members, params)
        for members in due
      ]
      start = jax.lax.switch(index, branches, params)
    elif final:
      # All are averaged in the end: no turn, which would be one more message.
      start = averaged(frozenset(extra[(step - 1) % every]), params)
    else:
      start = averaged(due[(step - 1) % every], params)

    updates, inner_state = inner.update(
      updates, inner_state, start, step=step, final=final, **extra_args
    )
    # From the update, which stays as it is where nothing was averaged.
    landing = lambda update, start, own: (
      update
      if start is own
      else (update + (_wide(start) - _wide(own))).astype(update.dtype)
    )
    updates = jax.tree.map(landing, updates, start, params)
    if final:
      replica = optax.apply_updates(params, updates)
      end = averaged(frozenset(itertools.chain(*turns)), replica)
      towards = lambda end, own, update: (_wide(end) - _wide(own)).astype(
        update.dtype
      )
      updates = jax.tree.map(towards, end, params, updates)
    links = {
      name: link._replace(step=link.step + 1) for name, link in links.items()
    }
    return updates, (inner_state, links)

  return optax.GradientTransformationExtraArgs(init_fn, update_fn)


def _mean(leaf, names):
  return _sharing.agreeing(_reduce.plain_mean(leaf, names), leaf)


def _wide(leaf):
  return leaf.astype(jnp.promote_types(leaf.dtype, jnp.float32))


def _check_turns(turns, extra):
  every = len(turns)
  if not every:
    raise ValueError('`turns` must have at least one step, got none.')
  wrong = [turn for turn in (*turns, *extra) if isinstance(turn, str)]
  if wrong:
    raise ValueError(
      f'`turns` and `extra` must have a sequence of names for each step, got'
      f' the text {wrong[0]!r}: put it in brackets.'
    )
  if len(extra) != every:
    raise ValueError(
      f'`extra` must have as many steps as `turns` ({every}), got {len(extra)}.'
    )
  named = list(itertools.chain(*turns))
  twice = sorted({name for name in named if named.count(name) > 1})
  if twice:
    raise ValueError(
      f'`turns` must have each fragment once, got {twice} more often: `extra`'
      ' is for those.'
    )
  both = sorted(
    {name for turn, more in zip(turns, extra) for name in more if name in turn}
  )
  if both:
    raise ValueError(
      f'`extra` must have other fragments than the same step of `turns`, got'
      f' {both}.'
    )


def _check_fragments(turns, extra, labels, params):
  if len(labels) < len(jax.tree.leaves(params)):
    raise ValueError(
      '`fragments` must give a name for every leaf of `params`'
      f' ({len(jax.tree.leaves(params))}), got {len(labels)}.'
    )
  _checks.check_inexact(params)
  named, there = set(itertools.chain(*turns)), set(labels)
  if named != there:
    missing, unknown = sorted(there - named), sorted(named - there)
    raise ValueError(
      f'`turns` must have the fragments of `params`, each once: {missing} have'
      f' no turn, and {unknown} are none of theirs. There are'
      f' {_fragments.listed(sorted(there))}.'
    )
  unknown = sorted(set(itertools.chain(*extra)) - there)
  if unknown:
    raise ValueError(
      f'`extra` must have fragments of `params`, got {unknown}. There are'
      f' {_fragments.listed(sorted(there))}.'
    )
