"""Reductions: what the replicas' messages become when they meet."""

from collections.abc import Callable, Sequence
import dataclasses
import functools
import operator
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from dilojax import wire as wire_lib
from dilojax.transforms import _checks
from dilojax.transforms import _meeting
from dilojax.transforms import _messages
from dilojax.transforms import _sharing

GATHERS = ('mean', 'messages')


class Reduction(optax.GradientTransformationExtraArgs):
  """A reduction, which may take two steps: an optax transformation.

  Attributes:
    init: As of :class:`optax.GradientTransformationExtraArgs`.
    update: Both steps at once.
    meet: First step, of encoded messages: each replica gets the means of its
      own rows, encoded again. Takes what `update` takes. None if there is one
      step only.
    share: Second step: all get all of these, decoded. Takes what has met, and
      the params.
    place: Returns room for what has met in a state, given params and the
      states of what sends and of what reduces; empty if messages are not
      encoded.
  """

  # A subclass, since optax gives extra arguments to no other type; of two
  # members, as all of those.
  meet: Callable | None
  share: Callable | None
  place: Callable | None

  def __new__(
    cls,
    init: Callable,
    update: Callable,
    meet: Callable | None = None,
    share: Callable | None = None,
    place: Callable | None = None,
  ):
    self = super().__new__(cls, init, update)
    self.meet, self.share, self.place = meet, share, place
    return self


@jax.tree_util.register_static
@dataclasses.dataclass(frozen=True)
class MeanOver:
  """What :func:`mean_over` does, told by its state. Has no leaves.

  Attributes:
    names: Names of the mapped axes.
    wire: Format of messages that come unencoded, or None.
    result: Format in which the mean comes back, or None for the message's.
    gather: What all replicas are sent: the `'mean'`, or all `'messages'`.
  """

  names: tuple[str, ...]
  wire: wire_lib.Codec | None = None
  result: wire_lib.Codec | None = None
  gather: str = 'mean'

  def traffic(
    self, leaves: Sequence[Any], codec: wire_lib.Codec | None
  ) -> _sharing.Traffic:
    """Counts what a replica sends, given abstract leaves and their format."""
    codec = self.wire or codec
    if codec is None:
      return _sharing.Traffic('all-reduce', _sharing.nbytes(leaves))
    count = lambda codec: sum(codec.nbytes(leaf.shape) for leaf in leaves)
    if self.gather == 'messages':
      return _sharing.Traffic('all-gather', count(codec))
    result = self.result or codec
    return _sharing.Traffic('all-to-all', count(codec), count(result))


def mean_over(
  axis_name: str | Sequence[str],
  *,
  wire: wire_lib.Codec | None = None,
  result: wire_lib.Codec | None = None,
  gather: str = 'mean',
) -> Reduction:
  r"""Averages updates over the replicas along `axis_name`.

  .. math::

    \bar\Delta = \frac{\sum_k w_k \Delta_k}{\sum_k w_k},
    \qquad w_k = 1 \text{ by default.}

  Before an inner optimizer it is data parallelism; as the `reduce` of
  :func:`synchronize` it is DiLoCo's mean of pseudo-gradients.

  Messages that `send` has encoded travel as they are. Replica k gets row k of
  each, averages in float32, and sends the mean to all in the format `result`:
  a second rounding. With `gather='messages'` all replicas get all messages,
  and average alike: nothing is rounded twice, at :math:`(K - 1)` messages sent
  instead of :math:`(K - 1) / K` of a message and of a result.

  Args:
    axis_name: Name, or names, of the mapped axes that enumerate replicas.
    wire: Format in which to encode updates that are not yet encoded: a
      shorthand for `send=encode(wire)`.
    result: Format of the mean; by default that of the messages.
    gather: `'mean'` or `'messages'`: what is sent to all replicas.

  Returns:
    A :class:`Reduction`, an optax transformation whose output no longer varies
    along these axes. Its state has no arrays; it says which axes they are. Its
    `update` accepts `weight`, a scalar of the replica such as its number of
    tokens. One of weight 0 counts for nothing, whatever it sends; where all
    weigh 0 the mean is 0.

  Raises:
    ValueError: If there is no name, or one comes twice, or an option has no
      effect; from `init`, if params are complex and `wire` would encode them.
      In `update`, under a checked :func:`jax.shard_map`, if nothing
      varies along a name: gradients of params that are typed as shared arrive
      summed over the replicas, and a mean of them would be K times too large.

  Examples:
    >>> import jax, jax.numpy as jnp, optax, dilojax as dx
    >>> tx = dx.mean_over('replica')
    >>> mean = lambda grads: tx.update(grads, tx.init(grads))[0]
    >>> print(jax.vmap(mean, axis_name='replica')(jnp.array([1.0, 3.0])))
    [2. 2.]

  References:
    Douillard et al., `Streaming DiLoCo with overlapping communication
    <https://arxiv.org/abs/2501.18512>`_, 2025 (messages of 4 bits, averaged
    in float32)
  """
  names = axis_names(axis_name)
  for name, codec in {'wire': wire, 'result': result}.items():
    if codec is not None:
      _checks.check_codec(name, codec)
  if gather not in GATHERS:
    raise ValueError(
      f'`gather` must be one of {", ".join(map(repr, GATHERS))}, got'
      f' {gather!r}.'
    )
  if result is not None and gather == 'messages':
    raise ValueError(
      "`result` has no effect with `gather='messages'`, which sends no mean:"
      ' remove one of them.'
    )
  about = MeanOver(names, wire, result, gather)

  def init_fn(params) -> Any:
    if wire is not None:
      _checks.check_real('mean_over', params)
    return about

  def encoded(updates):
    """Returns the updates, encoded if `wire` says so."""
    _check_varies(updates, names)
    found = [_messages.is_encoded(leaf) for leaf in _leaves(updates)]
    if wire is not None:
      if any(found):
        raise ValueError(
          '`wire` is for updates that are not encoded yet: leave it out, or'
          ' the `send` that encodes them.'
        )
      return _messages.encode_tree(updates, wire, jax.random.key(0))
    if (result is not None or gather != 'mean') and found and not any(found):
      raise ValueError(
        '`result` and `gather` have no effect on updates that are not encoded:'
        ' give `wire`, or encode them in `send`.'
      )
    if any(found):
      _check_alike(updates)
    return updates

  def meet(updates, state, params=None, *, weight=None, **extra_args):
    del params, extra_args
    messages = _leaves(encoded(updates))
    groups = _meeting.grouped(_first_arrays(messages), names)
    met = _meeting.meet(messages, groups, names, result, weight)
    return tuple(each.padded() for each in met), state

  def share(met, params):
    leaves, structure = jax.tree.flatten(params)
    groups = _meeting.grouped(leaves, names)
    shapes = [leaf.shape for leaf in leaves]
    means = _meeting.share(met, groups, names, shapes)
    return jax.tree.unflatten(structure, means)

  def place(params, send_state, reduce_state):
    del reduce_state
    codec = wire or _sharing.codec_of(send_state)
    return codec and _meeting.place(jax.tree.leaves(params), codec, result)

  def update_fn(updates, state, params=None, *, weight=None, **extra_args):
    del params, extra_args
    updates = encoded(updates)
    if not any(map(_messages.is_encoded, _leaves(updates))):
      return plain_mean(updates, names, weight), state
    messages, structure = jax.tree.flatten(
      updates, is_leaf=_messages.is_encoded
    )
    if gather == 'messages':
      means = _of_all(messages, names, weight)
    else:
      groups = _meeting.grouped(_first_arrays(messages), names)
      shapes = [each.shape for each in messages]
      met = _meeting.meet(messages, groups, names, result, weight)
      means = _meeting.share(met, groups, names, shapes)
    return jax.tree.unflatten(structure, means), state

  if gather == 'messages':
    return Reduction(init_fn, update_fn)
  return Reduction(init_fn, update_fn, meet, share, place)


class Phases(NamedTuple):
  """The two steps of a reduction, and room for what is between them.

  Attributes:
    meet: As of :class:`Reduction`.
    share: As of :class:`Reduction`.
    place: As of :class:`Reduction`.
  """

  meet: Callable
  share: Callable
  place: Callable


def phases(reduce: Any) -> Phases | None:
  """Returns the two steps of a reduction, if it has two."""
  meet, share, place = (getattr(reduce, name, None) for name in Phases._fields)
  if meet is None or share is None or place is None:
    return None
  return Phases(meet, share, place)


def axis_names(axis_name: str | Sequence[str]) -> tuple[str, ...]:
  """Returns one name, or several, as a tuple.

  Raises:
    ValueError: If there is no name, or one comes twice, or is no string.
  """
  is_one = isinstance(axis_name, str) or not isinstance(axis_name, Sequence)
  names: tuple = (axis_name,) if is_one else tuple(axis_name)
  if not all(isinstance(name, str) for name in names):
    raise ValueError(
      '`axis_name` must be a string, or a tuple of strings, got'
      f' {axis_name!r}: name the mapped axes of the replicas.'
    )
  if not names or len(set(names)) < len(names):
    raise ValueError(
      f'`axis_name` must be one name, or several different ones, got {names}.'
    )
  return names


def _check_varies(updates, names):
  varying = lambda leaf: jax.typeof(leaf).manual_axis_type.varying
  # Only a checked shard_map knows; elsewhere not even an index varies.
  if not all(name in varying(jax.lax.axis_index(name)) for name in names):
    return
  leaves = jax.tree.leaves(updates)
  if leaves and not any(set(names) & set(varying(leaf)) for leaf in leaves):
    raise ValueError(
      f'`updates` must vary along {names}, got the same for all replicas:'
      ' gradients of shared params arrive summed. Give every replica params of'
      f' its own, by `in_specs` of P({names[0]!r}) for instance.'
    )


def _check_alike(updates):
  is_encoded = _messages.is_encoded
  forms = {
    leaf.codec if is_encoded(leaf) else None: jax.tree_util.keystr(path)
    for path, leaf in jax.tree.leaves_with_path(updates, is_leaf=is_encoded)
  }
  if len(forms) > 1:
    got = ', '.join(
      f'{path} {f"in {codec.name}" if codec else "not encoded"}'
      for codec, path in forms.items()
    )
    raise ValueError(
      f'`updates` must be encoded in one format, got {got}: give each format a'
      ' `synchronize` of its own, by optax.partition.'
    )


def plain_mean(updates, names, weight=None):
  """Averages leaves as they are."""
  if weight is not None:
    own = _messages.as_weight(weight)
    # Shares of mean 1: weights themselves leave the range of narrow floats.
    share = _over(own, _mean(own, names))
    updates = jax.tree.map(lambda leaf: _messages.times(share, leaf), updates)
  return jax.tree.map(lambda leaf: _mean(leaf, names), updates)


def _mean(leaf, names):
  """Averages a leaf along axes, in its own dtype on the wire."""

  def plain(leaf):
    # One by one: what varies along some of the names only is refused.
    for name in reversed(names):
      leaf = _mean_along(leaf, name)
    return leaf

  wide = lambda leaf: plain(leaf.astype(jnp.float32)).astype(leaf.dtype)
  if jax.typeof(leaf).dtype not in (jnp.bfloat16, jnp.float16):
    return plain(leaf)
  # XLA on CPU widens narrow floats anyway, and aborts the process over it if
  # some axes of the mesh are left to the compiler.
  return jax.lax.platform_dependent(leaf, cpu=wide, default=plain)


def _mean_along(leaf, name):
  if name in jax.sharding.get_abstract_mesh().manual_axes:
    return jax.lax.pmean(leaf, name)
  # An axis of a vmap: XLA on CPU adds along a leading axis far below the speed
  # of memory, but not so in single additions.
  rows = jax.lax.all_gather(leaf, name)
  total = functools.reduce(operator.add, [*rows])
  return total / rows.shape[0]


def _of_all(messages, names, weight):
  """Sends all messages to all, each of whom averages them."""
  weights = _messages.all_weights(names, weight)
  arrived = _messages.from_all(messages, names)
  return [_messages.average(values, weights) for values in arrived]


def _over(value, total):
  """Divides by what all replicas weigh together; nothing by nothing is 0."""
  return jnp.where(total > 0, value / jnp.where(total > 0, total, 1), 0)


def _first_arrays(messages):
  return [jax.tree.leaves(each.message)[0] for each in messages]


def _leaves(tree):
  return jax.tree.leaves(tree, is_leaf=_messages.is_encoded)
