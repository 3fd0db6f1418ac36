"""What a replica does to a pseudo-gradient before it leaves."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from dilojax import wire
from dilojax.transforms import _checks
from dilojax.transforms import _messages
from dilojax.transforms import _sharing


class EncodeState(NamedTuple):
  """State of :func:`encode`.

  Attributes:
    count: Number of messages so far, an int32 scalar.
    form: The wire format; no arrays.
  """

  count: jax.Array
  form: Any


class ErrorFeedbackState(NamedTuple):
  """State of :func:`error_feedback`.

  Attributes:
    count: Number of messages so far, an int32 scalar.
    kept: What has not been sent, in float32. Private to a replica.
    form: The wire format; no arrays.
  """

  count: jax.Array
  kept: optax.Updates
  form: Any


def encode(
  codec: wire.Codec, *, seed: int = 0, shared_key: bool = False
) -> optax.GradientTransformation:
  """Encodes pseudo-gradients, once; `reduce` moves them as they are.

  Args:
    codec: The wire format, such as `dilojax.wire.e3m0()`.
    seed: Seed of formats that round or choose at random.
    shared_key: Whether all replicas draw alike, so that they choose the same
      entries. Otherwise their draws differ wherever their values do.

  Returns:
    An :class:`optax.GradientTransformation` for `send` of
    :func:`synchronize`. It turns each leaf into a message, which
    :func:`mean_over` understands.

  Raises:
    ValueError: If `codec` is none, or, from `init`, if params are complex.

  Examples:
    >>> import jax.numpy as jnp, dilojax as dx
    >>> tx = dx.encode(dx.wire.e3m0())
    >>> grads = jnp.array([1.0, 0.3, -0.5])
    >>> message, state = tx.update(grads, tx.init(grads))
    >>> print(message.decode())
    [ 1.    0.25 -0.5 ]

  References:
    Douillard et al., `Streaming DiLoCo with overlapping communication
    <https://arxiv.org/abs/2501.18512>`_, 2025
  """
  _checks.check_codec('codec', codec)
  _checks.check_seed(seed)
  form = _sharing.WireForm(codec)

  def init_fn(params):
    _checks.check_real('encode', params)
    return EncodeState(jnp.zeros([], jnp.int32), form)

  def update_fn(updates, state, params=None):
    del params
    messages = _messages.encode_tree(
      updates, codec, _key(seed, state), shared_key=shared_key
    )
    return messages, state._replace(count=state.count + 1)

  return optax.GradientTransformation(init_fn, update_fn)


def error_feedback(
  codec: wire.Codec,
  decay: float = 1.0,
  *,
  seed: int = 0,
  shared_key: bool = False,
) -> optax.GradientTransformation:
  r"""Encodes pseudo-gradients, and keeps what the format loses for later.

  With the pseudo-gradient :math:`\Delta`, the residual :math:`e`, private to a
  replica, and the format :math:`C`,

  .. math::

    v &= \Delta + d\, e, \\
    q &= C(v), \\
    e &\leftarrow v - q.

  With :math:`d = 1` nothing is ever lost: what was sent plus what is kept is
  what there was, to one rounding in float32 (formats that cut a value's bits
  have none). What is not finite is not kept, and nothing counts as sent of a
  message that :func:`dropping` loses.

  Args:
    codec: The wire format; those that contract profit.
    decay: The :math:`d` above, from 0 to 1. MuLoCo has 0.9.
    seed: As in :func:`encode`.
    shared_key: As in :func:`encode`.

  Returns:
    An :class:`optax.GradientTransformation` for `send` of :func:`synchronize`.

  Raises:
    ValueError: If an argument is out of range, or, from `init`, if params are
      complex.

  Examples:
    >>> import jax.numpy as jnp, dilojax as dx
    >>> tx = dx.error_feedback(dx.wire.top_k(0.5, block_size=2))
    >>> grads = jnp.array([3.0, 2.0])
    >>> state = tx.init(grads)
    >>> for _ in range(2):
    ...   message, state = tx.update(grads, state)
    ...   print(message.decode(), state.kept)
    [3. 0.] [0. 2.]
    [0. 4.] [3. 0.]

  References:
    Thérien et al., `MuLoCo: Muon is a practical inner optimizer for DiLoCo
    <https://arxiv.org/abs/2505.23725>`_, 2025
  """
  _checks.check_codec('codec', codec)
  _checks.check_seed(seed)
  _checks.check_number('decay', decay)
  if not 0 <= decay <= 1:
    raise ValueError(
      f'`decay` must be from 0 to 1, got {decay}: choose 1 to keep all that'
      ' is not sent.'
    )
  form = _sharing.WireForm(codec)

  def init_fn(params):
    _checks.check_real('error_feedback', params)
    wide = lambda leaf: jnp.zeros(jnp.shape(leaf), jnp.float32)
    count = jnp.zeros([], jnp.int32)
    return ErrorFeedbackState(count, jax.tree.map(wide, params), form)

  def update_fn(updates, state, params=None):
    del params
    wanted = jax.tree.map(
      lambda leaf, kept: leaf.astype(jnp.float32) + decay * kept,
      updates,
      state.kept,
    )
    messages = _messages.encode_tree(
      wanted, codec, _key(seed, state), shared_key=shared_key
    )
    # What is not finite would stay for ever, even if it counts for nothing.
    kept = jax.tree.map(
      lambda left: jnp.where(jnp.isfinite(left), left, 0),
      optax.tree.sub(wanted, _messages.decoded(messages)),
    )
    return messages, ErrorFeedbackState(state.count + 1, kept, form)

  return optax.GradientTransformation(init_fn, update_fn)


def kept_unless(
  present: jax.Array, state: optax.OptState, previous: optax.OptState
) -> optax.OptState:
  """Returns the state, with what was kept before if a message was lost.

  Args:
    present: Whether the message has arrived.
    state: State of `send` after the message.
    previous: The state before.
  """
  is_ours = lambda node: isinstance(node, ErrorFeedbackState)

  def of_node(new, old):
    if not is_ours(new):
      return new
    pick = lambda new, old: jnp.where(present, new, old)
    return new._replace(kept=jax.tree.map(pick, new.kept, old.kept))

  return jax.tree.map(of_node, state, previous, is_leaf=is_ours)


def _key(seed, state):
  return jax.random.fold_in(jax.random.key(seed), state.count)
