"""Streaming: fragments that take turns, and what is built on them."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import optax

from dilojax.transforms import _checks
from dilojax.transforms import _fragments
from dilojax.transforms import _merge
from dilojax.transforms import _reduce
from dilojax.transforms import _stacked
from dilojax.transforms import _synchronize


def offsets(every: int, num_fragments: int) -> tuple[int, ...]:
  r"""Spreads the launches of fragments evenly over a round.

  Fragment :math:`p` of :math:`P` has :math:`\lfloor pH/P \rfloor`, with 0 read
  as :math:`H`. The round is never rounded: where :math:`P` does not divide
  :math:`H`, the distances differ by one step.

  Args:
    every: Number :math:`H` of inner steps per round.
    num_fragments: Number :math:`P` of fragments, at most `every`: two would
      launch in the same step otherwise.

  Returns:
    The offset of every fragment, all different, from 1 to `every`.

  Raises:
    ValueError: If `num_fragments` is out of range.

  Examples:
    >>> import dilojax as dx
    >>> dx.offsets(100, 3)
    (100, 33, 66)
  """
  _fragments.check_count('every', every)
  _fragments.check_count('num_fragments', num_fragments)
  if num_fragments > every:
    raise ValueError(
      f'`num_fragments` must be at most `every` ({every}), got'
      f' {num_fragments}: two fragments would launch in the same step. Make'
      ' larger fragments, or a larger `every`.'
    )
  return tuple(
    p * every // num_fragments or every for p in range(num_fragments)
  )


def in_turns(
  link: Callable[[str, int], optax.GradientTransformation],
  fragments: _fragments.Fragments | Any,
  *,
  every: int,
) -> optax.GradientTransformationExtraArgs:
  """Gives every fragment a link of its own, with launches spread evenly.

  An :func:`optax.partition` of `link(name, offset)` for every fragment, with
  the :func:`offsets` of a round in the order of sorted names. Each link has
  its own anchor, counter and outer state.

  Args:
    link: Makes the link of a fragment from its name and its offset.
    fragments: Function from params to the names of their fragments, such as
      :func:`by_layer`, or a tree of names.
    every: Number of inner steps per round, at least the number of fragments.

  Returns:
    An :class:`optax.GradientTransformationExtraArgs`, the last link of a chain.

  Raises:
    ValueError: From `init` and `update`, which know the params: if there are
      more fragments than steps, or names that are no strings.

  Examples:
    >>> import jax.numpy as jnp, optax, dilojax as dx
    >>> tx = dx.in_turns(
    ...   lambda name, offset: dx.synchronize(
    ...     optax.sgd(0.7), every=10, offset=offset,
    ...     reduce=dx.mean_over('replica')),
    ...   dx.by_bytes(2), every=10)
    >>> params = [jnp.zeros(3), jnp.zeros(2)]
    >>> [link.schedule.offset for link in dx.links(tx.init(params), params)]
    [10, 5]
  """
  if not callable(link):
    raise ValueError(
      '`link` must be a function of the name of a fragment and its offset, got'
      f' {link!r}.'
    )
  _checks.check_fragments('fragments', fragments)

  def take_turns(params):
    labels = fragments(params) if callable(fragments) else fragments
    names = set(jax.tree.leaves(labels))
    odd = [name for name in names if not isinstance(name, str)]
    if odd or not names:
      raise ValueError(
        '`fragments` must give strings, one for every leaf, got'
        f' {odd or "none: `params` has no leaf"}.'
      )
    names = sorted(names)
    turns = zip(names, offsets(every, len(names)))
    links = {name: link(name, offset) for name, offset in turns}
    return optax.partition(links, labels), labels

  def init_fn(params):
    tx, labels = take_turns(params)
    return tx.init(_stacked.split(params, labels))

  def update_fn(updates, state, params=None, **extra_args):
    if params is None:
      raise ValueError(
        '`in_turns` finds the fragments of params: pass `params` to `update`.'
      )
    # Not from updates, as a partition would: their dtypes may differ.
    tx, labels = take_turns(params)
    updates, state = tx.update(
      _stacked.split(updates, labels),
      state,
      _stacked.split(params, labels),
      **extra_args,
    )
    return _stacked.join(updates), state

  return optax.GradientTransformationExtraArgs(init_fn, update_fn)


def streaming_diloco(
  inner: optax.GradientTransformation,
  outer: optax.GradientTransformation,
  *,
  every: int,
  fragments: _fragments.Fragments | Any,
  delay: int | Mapping[str, int] = 1,
  merge: _merge.Merge = _merge.mix(0.5),
  send: optax.GradientTransformation = optax.identity(),
  reduce: optax.GradientTransformation | None = None,
  axis_name: str | Sequence[str] = 'replica',
) -> optax.GradientTransformationExtraArgs:
  """DiLoCo fragment by fragment, late and mixed.

  Every fragment is synchronized once per round, in a step of its own: the peak
  of communication is that of the largest fragment. While its message is on
  its way, for `delay` inner steps, the replicas go on.

  The paper has `by_layer(layers_per_fragment=3)`,
  `optax.sgd(0.4, momentum=0.9, nesterov=True)` outside, 30 or 100 inner steps
  per round, and messages of 4 bits.

  Args:
    inner: Optimizer of the local steps.
    outer: Optimizer of the anchor; every fragment has its own state of it.
    every: Number of inner steps per round, at least the number of fragments.
      Never rounded.
    fragments: Function from params to the names of their fragments:
      :func:`by_layer`, :func:`by_stacked_layer`, :func:`by_bytes`,
      :func:`by_pattern`, or one of your own; or a tree of names.
    delay: Number of inner steps that a message is on its way, less than
      `every`; or one for each fragment, by its name. Several may be on their
      way at once.
    merge: How a new anchor enters the replica.
    send: Turns a pseudo-gradient into a message, such as compression.
    reduce: Turns the replicas' messages into one; the mean over `axis_name`
      unless given.
    axis_name: Name, or names, of the mapped axes that enumerate replicas.

  Returns:
    A chain of `inner` and :func:`in_turns` with a :func:`synchronize` for every
    fragment.

  Raises:
    ValueError: If `every` or `delay` is out of range; and from `init`, which
      knows the params, if there are more fragments than steps, or delays for
      other fragments than there are.

  Examples:
    >>> import jax, jax.numpy as jnp, optax, dilojax as dx
    >>> tx = dx.streaming_diloco(
    ...   optax.adamw(1e-3), optax.sgd(0.4, momentum=0.9, nesterov=True),
    ...   every=100, fragments=dx.by_layer(layers_per_fragment=1))
    >>> params = {'embed': jnp.zeros(3), 'layers': [jnp.zeros(2), jnp.zeros(2)]}
    >>> for link in dx.links(jax.eval_shape(tx.init, params), params):
    ...   print(link.schedule.offset, link.schedule.delay, link.nbytes)
    100 1 8
    33 1 8
    66 1 12

  References:
    Douillard et al., `Streaming DiLoCo with overlapping communication
    <https://arxiv.org/abs/2501.18512>`_, 2025
  """
  _checks.check_transformation('inner', inner)
  _checks.check_fragments('fragments', fragments)
  mean = _reduce.mean_over(axis_name) if reduce is None else reduce

  def link(name, offset):
    return _synchronize.synchronize(
      outer,
      every=every,
      offset=offset,
      delay=delay[name] if isinstance(delay, Mapping) else delay,
      merge=merge,
      send=send,
      reduce=mean,
    )

  def labels(params):
    found = fragments(params) if callable(fragments) else fragments
    names = set(jax.tree.leaves(found))
    if isinstance(delay, Mapping) and names != set(delay):
      raise ValueError(
        f'`delay` must have the fragments {sorted(names)}, got {dict(delay)}.'
      )
    return found

  # Built once in vain, to refuse wrong numbers before there are params.
  for name in delay if isinstance(delay, Mapping) else ('',):
    link(name, every)
  return optax.chain(inner, in_turns(link, labels, every=every))
