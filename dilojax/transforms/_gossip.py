"""Gossip: replicas that meet in pairs, and never all at once."""

from collections.abc import Sequence
import dataclasses
import functools
import itertools
import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from dilojax import wire as wire_lib
from dilojax.transforms import _checks
from dilojax.transforms import _messages
from dilojax.transforms import _reduce
from dilojax.transforms import _sharing
from dilojax.transforms import _synchronize


class PairsState(NamedTuple):
  """State of :func:`pairs_over`.

  Attributes:
    count: Number of meetings so far, an int32 scalar. Shared: pairs are drawn
      from it.
    pairs: What :func:`pairs_over` does; no arrays.
    varies: Says that the result differs between replicas; no arrays.
  """

  count: jax.Array
  pairs: Any
  varies: Any

  # The attributes above once more, for `replica_axes`.
  SHARING = {
    'count': _sharing.EVERYWHERE,
    'pairs': _sharing.EVERYWHERE,
    'varies': _sharing.EVERYWHERE,
  }


@jax.tree_util.register_static
@dataclasses.dataclass(frozen=True)
class PairsOver:
  """What :func:`pairs_over` does, told by its state. Has no leaves.

  Attributes:
    names: Names of the mapped axes.
    wire: Format in which anchors travel, or None for float32.
    sends_anchor: Whether they do.
  """

  names: tuple[str, ...]
  wire: wire_lib.Codec | None = None
  sends_anchor: bool = True

  def traffic(
    self, leaves: Sequence[Any], codec: wire_lib.Codec | None
  ) -> _sharing.Traffic:
    """Counts what a replica sends, given abstract leaves and their format."""

    def size(codec):
      if codec is None:
        return _sharing.nbytes(leaves)
      return sum(codec.nbytes(leaf.shape) for leaf in leaves)

    anchor = size(self.wire) if self.sends_anchor else 0
    return _sharing.Traffic('collective-permute', size(codec) + anchor)


def pairs_over(
  axis_name: str | Sequence[str],
  *,
  lr: float = 0.7,
  pull: float = 0.7,
  wire: wire_lib.Codec | None = None,
  seed: int = 0,
) -> optax.GradientTransformationExtraArgs:
  r"""Averages with one other replica, drawn anew each time, and pulls to it.

  With the pseudo-gradient :math:`\Delta^k` and the anchor :math:`\theta^k` of a
  replica, and means over its pair,

  .. math::

    \bar\Delta^k = \eta\, \mathrm{mean}_j \Delta^j
      + g\, (\theta^k - \mathrm{mean}_j \theta^j).

  For the `reduce` of :func:`synchronize`, with `optax.sgd(1.0, momentum=mu)`
  for `outer`: every replica has an anchor and a momentum of its own. The mean
  of all anchors moves as if all had met, whatever the pairs and the pull.

  Pairs are drawn from a list in which every two replicas meet once, with a key
  that all share: each other replica is as likely a partner as any, so that
  spread decays on average as with pairs drawn from all pairings. A program has
  a branch per entry of the list, of which one runs, and moves what one replica
  sends. With an odd number of replicas one sits out in turn, a group of its
  own. With several names whose sizes are even and odd, more may.

  Args:
    axis_name: Name, or names, of the mapped axes that enumerate replicas.
    lr: Outer learning rate :math:`\eta`; the pull is not scaled by it.
    pull: The :math:`g` above. With 0 no anchors travel, and they drift apart.
    wire: Format in which anchors travel, by default as they are. Both see
      what was decoded, so that the mean of all anchors stays right.
      Pseudo-gradients travel in the form that `send` gives them.
    seed: Seed of the pairs.

  Returns:
    A reduction whose output differs between replicas, and agrees within no
    more than a pair.

  Raises:
    ValueError: If there is no name, or one comes twice, or `lr` or `pull` is
      out of range. In `update`, if `params` is missing, or a `weight` is given.

  Examples:
    >>> import jax, jax.numpy as jnp, optax, dilojax as dx
    >>> tx = dx.pairs_over('replica', lr=1.0, pull=0.0)
    >>> meet = lambda delta: tx.update(delta, tx.init(delta), delta)[0]
    >>> print(jax.vmap(meet, axis_name='replica')(jnp.array([1.0, 3.0])))
    [2. 2.]

  References:
    Kolehmainen et al., `NoLoCo: No-all-reduce Low Communication Training
    Method for Large Models <https://arxiv.org/abs/2506.10911>`_, 2025
  """
  names = _reduce.axis_names(axis_name)
  _check_positive('lr', lr)
  _checks.check_number('pull', pull)
  _checks.check_seed(seed)
  if wire is not None:
    _checks.check_codec('wire', wire)
  if not (pull >= 0 and math.isfinite(pull)):
    raise ValueError(f'`pull` must be finite and at least 0, got {pull}.')
  if wire is not None and not pull:
    raise ValueError(
      '`wire` has no effect without `pull`, since no anchors travel: leave it'
      ' out.'
    )
  about = PairsOver(names, wire, pull > 0)

  def init_fn(params):
    if wire is not None:
      _checks.check_real('pairs_over', params)
    return PairsState(jnp.zeros([], jnp.int32), about, _sharing.Varies())

  def update_fn(updates, state, params=None, *, weight=None, **extra_args):
    del extra_args
    if pull and params is None:
      raise ValueError(
        '`pairs_over` pulls anchors together: pass `params` to `update`, or'
        ' `pull=0`.'
      )
    if weight is not None:
      raise ValueError(
        '`weight` has no meaning in a pair of equals: leave it out, or use'
        ' `mean_over`.'
      )
    key = jax.random.fold_in(jax.random.key(seed), state.count)
    anchor = params if pull else ()
    if wire is not None:
      anchor = _messages.encode_tree(anchor, wire, key)
    own = (updates, anchor)
    theirs = _messages.decoded(_exchanged(own, names, key))
    own = _messages.decoded(own)
    mean = jax.tree.map(lambda x, y: lr / 2 * (x + y), own[0], theirs[0])
    if pull:
      drawn = lambda mean, x, y: mean + pull / 2 * (x - y)
      mean = jax.tree.map(drawn, mean, own[1], theirs[1])
    return mean, state._replace(count=state.count + 1)

  return optax.GradientTransformationExtraArgs(init_fn, update_fn)


def noloco(
  inner: optax.GradientTransformation,
  *,
  every: int = 50,
  lr: float = 0.7,
  momentum: float = 0.5,
  pull: float = 0.7,
  send: optax.GradientTransformation = optax.identity(),
  wire: wire_lib.Codec | None = None,
  seed: int = 0,
  axis_name: str | Sequence[str] = 'replica',
) -> optax.GradientTransformationExtraArgs:
  r"""Local steps of `inner`, then a step on what two replicas have.

  .. math::

    b^k &\leftarrow \mu b^k + \eta\, \mathrm{mean}_j \Delta^j
      + g\, (\theta^k - \mathrm{mean}_j \theta^j), \\
    \theta^k &\leftarrow \theta^k - b^k,

  with means over a pair that is drawn anew in each round. Nothing is ever
  common to all: the result is an ensemble, whose spread follows the inner
  learning rate. Let that decay, and evaluate the mean.

  Args:
    inner: Optimizer of the local steps.
    every: Number of inner steps per round, at least 1.
    lr: Outer learning rate :math:`\eta`.
    momentum: Outer momentum :math:`\mu`, of the heavy ball.
    pull: The :math:`g` above, with :math:`\mu < g < \sqrt{2 + \mu^2}`, the
      published range, and :math:`g < 2 (1 - \mu^2)`.
    send: As of :func:`synchronize`: how pseudo-gradients travel.
    wire: How anchors travel, see :func:`pairs_over`.
    seed: Seed of the pairs.
    axis_name: Name, or names, of the mapped axes that enumerate replicas.

  Returns:
    A chain of `inner` and :func:`synchronize` with :func:`pairs_over`.

  Raises:
    ValueError: If `momentum` is not from 0 to below 1, or `pull` is outside
      its range.

  References:
    Kolehmainen et al., `NoLoCo: No-all-reduce Low Communication Training
    Method for Large Models <https://arxiv.org/abs/2506.10911>`_, 2025. The
    signs are those of its appendix and code; one printed equation differs.

  .. note::
    The second bound is ours. With pairs drawn at random among many replicas
    the mean square of the spread, left alone, shrinks if and only if
    :math:`0 < g < 2 (1 - \mu^2)`; with few it may for a larger :math:`g`. Up to
    :math:`\mu = 0.5` the published bound is the tighter one.
  """
  _checks.check_transformation('inner', inner)
  _checks.check_number('momentum', momentum)
  _checks.check_number('pull', pull)
  if not 0 <= momentum < 1:
    raise ValueError(
      f'`momentum` must be at least 0 and below 1, got {momentum}.'
    )
  greatest = min(math.sqrt(2 + momentum**2), 2 * (1 - momentum**2))
  if momentum >= greatest:
    raise ValueError(
      f'`momentum` leaves no room for `pull`, which must be above it and below'
      f' {greatest:.4g}, got {momentum}: choose a smaller one, such as 0.5.'
    )
  if not momentum < pull < greatest:
    raise ValueError(
      f'`pull` must be above `momentum` ({momentum}) and below'
      f' {greatest:.4g}, where anchors stay together, got {pull}. To go'
      ' elsewhere, compose `synchronize` and `pairs_over` yourself.'
    )
  link = _synchronize.synchronize(
    optax.sgd(1.0, momentum=momentum),
    every=every,
    reduce=pairs_over(axis_name, lr=lr, pull=pull, wire=wire, seed=seed),
    send=send,
  )
  return optax.chain(inner, link)


@functools.cache
def involutions(size: int) -> tuple[tuple[int, ...], ...]:
  """Returns `size` pairings of as many members.

  Each maps members to their partners, alone or not. Over all of them every
  member has every member, itself included, for a partner exactly once.

  Args:
    size: Number of members.

  Examples:
    >>> involutions(4)
    ((0, 1, 2, 3), (3, 2, 1, 0), (1, 0, 3, 2), (2, 3, 0, 1))
  """
  odd = size - 1 + size % 2
  turns = [[(turn - k) % odd for k in range(odd)] for turn in range(odd)]
  if size % 2:
    return tuple(map(tuple, turns))
  # Whoever would sit out meets the last member, as in a round robin.
  for turn in turns:
    [alone] = (k for k, partner in enumerate(turn) if k == partner)
    turn[alone] = odd
    turn.append(alone)
  return tuple(map(tuple, [list(range(size)), *turns]))


def pairings(sizes: Sequence[int]) -> list[tuple[tuple[int, ...], ...]]:
  """Lists the pairings over axes of these sizes: one involution per axis.

  Args:
    sizes: Sizes of the axes.

  Returns:
    Pairings in which every two members meet exactly once, without the one in
    which everybody is alone.
  """
  is_alone = lambda involution: involution == tuple(range(len(involution)))
  return [
    each
    for each in itertools.product(*map(involutions, sizes))
    if not all(map(is_alone, each))
  ]


def _exchanged(tree, names, key):
  """Returns what the partner has sent, or the own where one is alone."""
  listed = pairings([jax.lax.axis_size(name) for name in names])
  if not listed:
    return tree

  def exchange(tree, pairing):
    # Leaf by leaf: in one buffer they would be gathered inside a replica.
    for name, partners in zip(names, pairing):
      pairs = list(enumerate(partners))
      if any(k != partner for k, partner in pairs):
        tree = jax.lax.ppermute(tree, name, pairs)
    return tree

  branches = [functools.partial(exchange, pairing=each) for each in listed]
  return jax.lax.switch(
    jax.random.randint(key, (), 0, len(branches)), branches, tree
  )


def _check_positive(name, value):
  _checks.check_number(name, value)
  if not (value > 0 and math.isfinite(value)):
    raise ValueError(f'`{name}` must be finite and above 0, got {value}.')
