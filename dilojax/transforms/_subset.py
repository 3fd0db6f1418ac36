"""Averaging of random entries: SPARTA and LOSCAR-SGD."""

from collections.abc import Sequence
import dataclasses
import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from dilojax import schedule as schedule_lib
from dilojax.transforms import _checks
from dilojax.transforms import _draw
from dilojax.transforms import _merge
from dilojax.transforms import _reduce
from dilojax.transforms import _sharing

_LARGEST_LEAF = 2**31 - 1
_DELTA = _merge.delta()


class SubsetState(NamedTuple):
  """State of :func:`subset_mean_over`.

  Attributes:
    step: Number of inner steps taken, an int32 scalar. Shared: masks are drawn
      from it.
    reduce: Axes and bytes of a message; no arrays.
    arrived: Means of the drawn entries on their way, a list of vectors in
      float32; empty without a delay. Shared.
    sent: The replica's own values of these entries at the launch. Private to a
      replica.
    plan: Schedule; no arrays.
  """

  step: jax.Array
  reduce: Any
  arrived: Any
  sent: Any
  plan: Any

  # The attributes above once more, for `replica_axes`.
  SHARING = {
    'step': _sharing.EVERYWHERE,
    'reduce': _sharing.REDUCED,
    'arrived': _sharing.REDUCED,
    'sent': _sharing.PRIVATE,
    'plan': _sharing.EVERYWHERE,
  }


@jax.tree_util.register_static
@dataclasses.dataclass(frozen=True)
class SubsetOver:
  """What :func:`subset_mean_over` sends, told by its state. Has no leaves.

  Attributes:
    names: Names of the mapped axes.
    nbytes: Bytes of the drawn entries.
  """

  names: tuple[str, ...]
  nbytes: int

  def traffic(self, leaves: Sequence[Any], codec: Any) -> _sharing.Traffic:
    """Tells what a replica sends, whatever the leaves."""
    del leaves, codec
    return _sharing.Traffic('all-reduce', self.nbytes)


def subset_mean_over(
  axis_name: str | Sequence[str],
  fraction: float,
  *,
  every: int = 1,
  delay: int = 0,
  merge: _merge.Merge = _DELTA,
  pattern: str = 'independent',
  seed: int = 0,
) -> optax.GradientTransformationExtraArgs:
  r"""Averages a random part of the params over the replicas.

  The last link of a chain, or the last before :func:`synchronize`: it sees
  where the replica :math:`x_k` is about to land. After every `every` steps the
  entries :math:`S` are drawn, the same on all replicas, and their values
  :math:`y_k` averaged; `delay` steps later

  .. math::

    x_k \leftarrow \mathrm{merge}(x_k, y_k, \mathrm{mean}_j y_j)
      \text{ on } S,

  which without a delay is the mean. All other entries stay as they are, bit
  by bit. Values travel in float32, without indices: only those of :math:`S`
  are moved. No anchor is kept.

  Args:
    axis_name: Name, or names, of the mapped axes that enumerate replicas.
    fraction: Share of the entries of each leaf, above 0 and up to 1. At least
      one of a leaf is drawn.
    every: Number of inner steps per round, at least 1.
    delay: Number of inner steps that a message is on its way, less than
      `every`.
    merge: How means enter the replica. :func:`delta` keeps what it did on
      these entries since the launch, and the mean of all replicas.
    pattern: `'independent'`: drawn anew each time. `'partition'`: the entries
      are shuffled once and walked through, each once in
      :math:`\lceil 1 / \text{fraction} \rceil` rounds. `'fresh_partition'`:
      shuffled again after each pass.
    seed: Seed of the draws.

  Returns:
    An :class:`optax.GradientTransformationExtraArgs`. Its `update` accepts
    `step` and `final` as that of :func:`synchronize` does. Draws depend on the
    number of steps taken, so that a resumed training has the same.

  Raises:
    ValueError: If an argument is out of range, if `params` has leaves of
      integers, or is missing in `update`.

  Examples:
    >>> import jax, jax.numpy as jnp, dilojax as dx
    >>> tx = dx.subset_mean_over('replica', 0.5)
    >>> def land(params):
    ...   still = jnp.zeros(4)
    ...   return params + tx.update(still, tx.init(params), params)[0]
    >>> params = jnp.array([[0.0] * 4, [1.0] * 4])
    >>> landed = jax.vmap(land, axis_name='replica')(params)
    >>> print((landed == 0.5).sum(axis=1), landed.mean())
    [2 2] 0.5

  .. note::
    Optax adds updates to params, so replicas land one rounding away from the
    mean.
  """
  schedule = _checked(fraction, every, delay, pattern)
  _checks.check_merge('merge', merge)
  _checks.check_seed(seed)
  mean_over = _reduce.mean_over(axis_name)
  names = _reduce.axis_names(axis_name)
  if getattr(merge, 'needs_schedule', False):
    merge = functools.partial(merge, schedule=schedule)

  def init_fn(params):
    leaves = jax.tree.leaves_with_path(params)
    _check_leaves(leaves)
    message = [
      jnp.zeros(
        _draw.num_drawn(jnp.size(leaf), fraction, pattern), _wide_type(leaf)
      )
      for _, leaf in leaves
    ]
    return SubsetState(
      step=jnp.zeros([], jnp.int32),
      reduce=SubsetOver(names, _sharing.nbytes(message)),
      arrived=message if delay else [],
      # Another copy, so that a state can be donated.
      sent=jax.tree.map(jnp.array, message) if delay else [],
      plan=_sharing.Plan(schedule),
    )

  def update_fn(
    updates, state, params=None, *, step=None, final=False, **extra_args
  ):
    del extra_args
    if params is None:
      raise ValueError(
        '`subset_mean_over` averages params: pass `params` to `update`.'
      )
    _checks.check_step(step, final)
    olds, structure = jax.tree.flatten(params)
    # What was launched before this step. A step as an int may stand for others
    # of its kind, as in a loop: draws come from the state.
    num_launches = state.step // every

    def drawn(number):
      sizes = [jnp.size(leaf) for leaf in olds]
      key = jax.random.key(seed)
      return _draw.entries(key, number, sizes, fraction, pattern)

    def taken(updates, entries):
      """Returns where the replica is about to land on the entries."""
      news = jax.tree.leaves(updates)
      take = lambda leaves: list(map(_draw.take, leaves, entries))
      landing: Any = optax.apply_updates(take(olds), take(news))
      return [leaf.astype(_wide_type(leaf)) for leaf in landing]

    def landed(updates, entries, target):
      """Makes the updates end at the target on the entries."""
      news = jax.tree.leaves(updates)
      changed = []
      for old, new, entry, value in zip(olds, news, entries, target):
        # Rounded first, so that all replicas land on the same.
        value = value.astype(old.dtype).astype(value.dtype)
        step_there = value - _draw.take(old, entry).astype(value.dtype)
        changed.append(_draw.put(new, entry, step_there.astype(new.dtype)))
      return jax.tree.unflatten(structure, changed)

    def averaged(updates, entries):
      sent = taken(updates, entries)
      return sent, mean_over.update(sent, mean_over.init(sent))[0]

    def stay(updates, state):
      return jax.tree.map(_sharing.agreeing, updates, params), state

    def meet(updates, state):
      entries = drawn(num_launches)
      sent, mean = averaged(updates, entries)
      return landed(updates, entries, merge(sent, sent, mean)), state

    def launch(updates, state):
      sent, mean = averaged(updates, drawn(num_launches))
      updates, _ = stay(updates, state)
      return updates, state._replace(arrived=mean, sent=sent)

    def land(updates, state):
      entries = drawn(num_launches - 1)
      target = merge(taken(updates, entries), state.sent, state.arrived)
      return landed(updates, entries, target), state

    events = {'launch': launch, 'land': land} if delay else {'launch': meet}
    if step is None and every > 1:
      # A branch, not a select: quiet steps must not communicate.
      count = state.step + 1
      index = schedule.launches(count) + 2 * (delay > 0) * schedule.lands(count)
      branches = (stay, *events.values())
      updates, state = jax.lax.switch(index, branches, updates, state)
    elif step is None:
      updates, state = meet(updates, state)
    elif final:
      ends = {'land': land, 'meet': meet}
      for name in schedule.final_events(step, False):
        updates, state = ends[name](updates, state)
    else:
      for name in schedule.events(step):
        updates, state = events.get(name, stay)(updates, state)
    return updates, state._replace(step=state.step + 1)

  return optax.GradientTransformationExtraArgs(init_fn, update_fn)


def _checked(fraction, every, delay, pattern):
  _checks.check_number('fraction', fraction)
  if fraction == 0:
    raise ValueError(
      '`fraction` must be above 0, got 0: leave the link out to average'
      ' nothing.'
    )
  if not 0 < fraction <= 1:
    raise ValueError(
      f'`fraction` must be above 0 and at most 1, got {fraction}.'
    )
  for name, value in {'every': every, 'delay': delay}.items():
    if not _checks.is_int(value):
      raise ValueError(f'`{name}` must be an int, got {value!r}.')
  if every < 1:
    raise ValueError(f'`every` must be at least 1, got {every}.')
  if not 0 <= delay < every:
    raise ValueError(
      f'`delay` must be at least 0 and less than `every` ({every}), got'
      f' {delay}: choose a smaller one, or a larger `every`.'
    )
  if pattern not in _draw.PATTERNS:
    raise ValueError(
      f'`pattern` must be one of {", ".join(map(repr, _draw.PATTERNS))}, got'
      f' {pattern!r}.'
    )
  return schedule_lib.Schedule(every, every, delay)


def _check_leaves(leaves):
  is_exact = lambda leaf: not jnp.issubdtype(jnp.result_type(leaf), jnp.inexact)
  refused = {
    'of inexact types': is_exact,
    f'of at most {_LARGEST_LEAF} entries': (
      lambda leaf: jnp.size(leaf) > _LARGEST_LEAF
    ),
  }
  for wanted, is_refused in refused.items():
    found = [
      jax.tree_util.keystr(path) for path, leaf in leaves if is_refused(leaf)
    ]
    if found:
      raise ValueError(
        f'`params` must be {wanted}, got others at {", ".join(found)}. Leave'
        ' them out with optax.masked or optax.partition.'
      )


def _wide_type(leaf):
  return jnp.promote_types(jnp.result_type(leaf), jnp.float32)
