"""Methods by name that overlap, compress, or average otherwise."""

from collections.abc import Callable, Sequence
import re
from typing import Any

import jax
import optax

from dilojax import wire
from dilojax.transforms import _checks
from dilojax.transforms import _directions
from dilojax.transforms import _fragments
from dilojax.transforms import _late
from dilojax.transforms import _merge
from dilojax.transforms import _reduce
from dilojax.transforms import _send
from dilojax.transforms import _streaming
from dilojax.transforms import _synchronize

_HEAD = r'(^|/)(lm_)?head(/|$)|unemb'


def eager_diloco(
  inner: optax.GradientTransformation,
  outer: optax.GradientTransformation,
  *,
  every: int,
  fragments: _fragments.Fragments | Any = None,
  send: optax.GradientTransformation = optax.identity(),
  axis_name: str | Sequence[str] = 'replica',
) -> optax.GradientTransformationExtraArgs:
  """DiLoCo with the others' share a round late, and the own one fresh.

  Messages have a whole round to arrive. The anchors differ between replicas:
  evaluate their mean, or end with a synchronization (`final=True`).

  The paper has the settings of :func:`streaming_diloco`, messages of 4 bits
  included. The rule is from a third-party note, the settings are published.

  Args:
    inner: Optimizer of the local steps.
    outer: Optimizer of the anchors.
    every: Number of inner steps per round, at least 1.
    fragments: As in :func:`streaming_diloco`; all params at once if None. Each
      fragment is a round of its own late.
    send: Turns a pseudo-gradient into a message, such as :func:`encode`.
    axis_name: Name, or names, of the mapped axes that enumerate replicas.

  Returns:
    A chain of `inner` and :func:`synchronize` with :func:`eager`, one for
    every fragment.

  References:
    Kale et al., `Eager Updates for Overlapped Communication and Computation
    in DiLoCo <https://arxiv.org/abs/2502.12996>`_, 2025
  """
  reduce = _late.eager(_reduce.mean_over(axis_name))
  return _at_once(inner, outer, every, fragments, send, reduce)


def delayed_diloco(
  inner: optax.GradientTransformation,
  outer: optax.GradientTransformation,
  *,
  every: int,
  fragments: _fragments.Fragments | Any = None,
  send: optax.GradientTransformation = optax.identity(),
  axis_name: str | Sequence[str] = 'replica',
) -> optax.GradientTransformationExtraArgs:
  """DiLoCo whose outer step has the mean of the round before.

  Messages have a whole round to arrive. The first outer step moves nothing,
  and the replicas are set back to the anchor all the same.

  The paper needs a lower outer learning rate than without the delay. The rule
  is from a third-party note.

  Args:
    inner: Optimizer of the local steps.
    outer: Optimizer of the anchor.
    every: Number of inner steps per round, at least 1.
    fragments: As in :func:`streaming_diloco`; all params at once if None.
    send: Turns a pseudo-gradient into a message, such as :func:`encode`.
    axis_name: Name, or names, of the mapped axes that enumerate replicas.

  Returns:
    A chain of `inner` and :func:`synchronize` with :func:`one_round_late`, one
    for every fragment.

  References:
    Kale et al., `Eager Updates for Overlapped Communication and Computation
    in DiLoCo <https://arxiv.org/abs/2502.12996>`_, 2025
  """
  reduce = _late.one_round_late(_reduce.mean_over(axis_name))
  return _at_once(inner, outer, every, fragments, send, reduce)


def cocodc(
  inner: optax.GradientTransformation,
  outer: optax.GradientTransformation,
  *,
  fragments: _fragments.Fragments | Any,
  every: int = 100,
  delay: int = 5,
  strength: float = 0.5,
  send: optax.GradientTransformation = optax.identity(),
  axis_name: str | Sequence[str] = 'replica',
) -> optax.GradientTransformationExtraArgs:
  """Streaming DiLoCo whose landings correct for the delay.

  Only one of the paper's two parts: fragments take turns, each once per round.
  Left out is the adaptive part, which sends the fragment that changes most,
  and more than one per round and fragment where the link has room.

  Only the abstract is published: all equations and defaults, with 4 fragments,
  are reconstructions. Do not call results faithful to the paper.

  Args:
    inner: Optimizer of the local steps.
    outer: Optimizer of the anchor; every fragment has its own state of it.
    fragments: As in :func:`streaming_diloco`.
    every: Number of inner steps per round.
    delay: Number of inner steps that a message is on its way.
    strength: That of :func:`delay_compensated`, whose sign is open.
    send: Turns a pseudo-gradient into a message, such as :func:`encode`.
    axis_name: Name, or names, of the mapped axes that enumerate replicas.

  Returns:
    :func:`streaming_diloco` with another merge.

  References:
    `CoCoDC: Communication-computation overlap with delay compensation
    <https://arxiv.org/abs/2504.17672>`_, 2025
  """
  return _streaming.streaming_diloco(
    inner,
    outer,
    every=every,
    fragments=fragments,
    delay=delay,
    merge=_merge.delay_compensated(strength),
    send=send,
    axis_name=axis_name,
  )


def muloco(
  learning_rate: optax.ScalarOrSchedule,
  outer: optax.GradientTransformation | None = None,
  *,
  every: int = 30,
  hidden: Callable[[optax.Params], Any] | None = None,
  adamw_learning_rate: optax.ScalarOrSchedule | None = None,
  momentum: float = 0.95,
  b1: float = 0.9,
  b2: float = 0.99,
  weight_decay: float = 0.0,
  clip_norm: float = 1.0,
  send: optax.GradientTransformation = optax.identity(),
  axis_name: str | Sequence[str] = 'replica',
) -> optax.GradientTransformationExtraArgs:
  """DiLoCo with Muon inside, for matrices between layers.

  Embeddings, heads, norms and scalars have AdamW. To send 2 bits per value,
  `send=error_feedback(wire.statistical(2), 0.9)`.

  The rule and the defaults are those of released code, which has an outer
  learning rate of 0.8 in its configs and 0.7 in its text, an inner one from
  0.016 to 0.063, falling with size, and a weight decay from 5e-4 to 5e-3. The
  scale of Muon's step and its momentum are those of optax.

  Args:
    learning_rate: Inner learning rate, or its schedule by inner steps.
    outer: Optimizer of the anchor; by default Nesterov's with 0.7 and 0.9.
    every: Number of inner steps per round, at least 1.
    hidden: Function from params to a tree of booleans: which leaves have Muon.
      By default those with two axes but embeddings and heads, by their names;
      matrices of stacked layers are not among them.
    adamw_learning_rate: That of all other leaves; by default the same.
    momentum: That of Muon.
    b1: AdamW's first decay.
    b2: AdamW's second decay.
    weight_decay: Decoupled decay of leaves with two axes or more.
    clip_norm: Largest global norm of gradients.
    send: Turns a pseudo-gradient into a message.
    axis_name: Name, or names, of the mapped axes that enumerate replicas.

  Returns:
    A chain of the inner optimizer and :func:`synchronize`.

  References:
    Thérien et al., `MuLoCo: Muon is a practical inner optimizer for DiLoCo
    <https://arxiv.org/abs/2505.23725>`_, 2025
  """
  if not (hidden is None or callable(hidden)):
    raise ValueError(
      '`hidden` must be a function from params to a tree of booleans, or'
      f' None, got {hidden!r}.'
    )
  outer = (
    optax.sgd(0.7, momentum=0.9, nesterov=True) if outer is None else outer
  )
  other = learning_rate if adamw_learning_rate is None else adamw_learning_rate
  is_hidden = _between_layers if hidden is None else hidden
  matrices = lambda params: jax.tree.map(lambda leaf: leaf.ndim > 1, params)
  name = lambda flag: 'muon' if flag else 'adamw'
  inner = optax.partition(
    {
      'muon': optax.contrib.muon(
        learning_rate, beta=momentum, weight_decay=weight_decay
      ),
      'adamw': optax.adamw(
        other, b1=b1, b2=b2, weight_decay=weight_decay, mask=matrices
      ),
    },
    lambda params: jax.tree.map(name, is_hidden(params)),
  )
  link = _synchronize.synchronize(
    outer, every=every, send=send, reduce=_reduce.mean_over(axis_name)
  )
  return optax.chain(optax.clip_by_global_norm(clip_norm), inner, link)


def sparseloco(
  inner: optax.GradientTransformation,
  *,
  every: int,
  lr: float = 1.0,
  fraction: float = 1 / 64,
  decay: float = 0.95,
  values: str = 'statistical',
  block_size: int = 4096,
  axis_name: str | Sequence[str] = 'replica',
) -> optax.GradientTransformationExtraArgs:
  r"""DiLoCo with few values of few bits, and error feedback for momentum.

  With the residual :math:`e_k` of a replica and the format :math:`C`, the
  largest values of each block in few bits,

  .. math::

    e_k &\leftarrow \beta e_k + \Delta_k, \\
    q_k &= C(e_k), \quad e_k \leftarrow e_k - q_k, \\
    \theta &\leftarrow \theta - \frac{\eta}{K} \sum_k q_k.

  Messages are gathered, not reduced. What a replica does not send counts as 0.

  The rule is that of released code, and of notes. Those have 15 to 250 inner
  steps per round, :math:`\eta` from 0.7 to 1 and 32 to 128 of 4096 values; the
  decay is a reconstruction (the code has 0.999, in other units, as it scales
  by :math:`\eta` what it accumulates), and so are 64 of 4096. 2 bits are the
  paper's; its code has 8, in buckets of which `'int8'` is the nearest here.

  Args:
    inner: Optimizer of the local steps; AdamW.
    every: Number of inner steps per round, at least 1.
    lr: Outer learning rate :math:`\eta`.
    fraction: Share of the values of a block to send.
    decay: The :math:`\beta` above.
    values: Format of the values, as of `dilojax.wire.top_k`.
    block_size: Number of values to choose among.
    axis_name: Name, or names, of the mapped axes that enumerate replicas.

  Returns:
    A chain of `inner` and :func:`synchronize`.

  References:
    Sarfi et al., `Communication Efficient LLM Pre-training with SparseLoCo
    <https://arxiv.org/abs/2508.15706>`_, 2025
  """
  _checks.check_transformation('inner', inner)
  _checks.check_rate('lr', lr)
  link = _synchronize.synchronize(
    optax.sgd(lr),
    every=every,
    send=_send.error_feedback(wire.top_k(fraction, block_size, values), decay),
    reduce=_reduce.mean_over(axis_name, gather='messages'),
  )
  return optax.chain(inner, link)


def decoupled_merge(
  inner: optax.GradientTransformation,
  outer: optax.GradientTransformation,
  *,
  fragments: _fragments.Fragments | Any,
  every: int = 24,
  delay: int = 2,
  mask: _directions.Mask | None = None,
  send: optax.GradientTransformation = optax.identity(),
  axis_name: str | Sequence[str] = 'replica',
) -> optax.GradientTransformationExtraArgs:
  """Streaming DiLoCo that averages norms and directions apart.

  How Decoupled DiLoCo merges, without the rest of that system: all replicas
  meet in each synchronization, none is late or missing.

  Pass `weight` to `update`: the paper's is tokens times tokens per step, both
  counted since the last synchronization of the fragment. Replicas with equal
  batches and steps may leave it out.

  Rule and defaults are from third-party notes that agree. The paper has 24
  fragments, :func:`by_bytes`, with embeddings one of their own; its outer
  optimizer is Nesterov's with unpublished numbers.

  Args:
    inner: Optimizer of the local steps.
    outer: Optimizer of the anchor; every fragment has its own state of it.
    fragments: As in :func:`streaming_diloco`.
    every: Number of inner steps per round.
    delay: Number of inner steps that a message is on its way.
    mask: Which leaves are averaged this way, as in
      :func:`radial_directional_mean`; by default all but embeddings, by their
      names.
    send: Turns a pseudo-gradient into a message, such as :func:`encode`.
    axis_name: Name, or names, of the mapped axes that enumerate replicas.

  Returns:
    :func:`streaming_diloco` with another reduction, landing on the anchor.

  References:
    Douillard et al., `Decoupled DiLoCo
    <https://arxiv.org/abs/2604.21428>`_, 2026
  """
  but_embeddings = lambda params: _unlike(_fragments.EMBEDDINGS, params)
  return _streaming.streaming_diloco(
    inner,
    outer,
    every=every,
    fragments=fragments,
    delay=delay,
    merge=_merge.overwrite(),
    send=send,
    reduce=_directions.radial_directional_mean(
      axis_name, mask=but_embeddings if mask is None else mask
    ),
    axis_name=axis_name,
  )


def _at_once(inner, outer, every, fragments, send, reduce):
  """Lands in the step of the launch, all params together or in turns."""
  _checks.check_transformation('inner', inner)
  if fragments is None:
    link = _synchronize.synchronize(
      outer, every=every, send=send, reduce=reduce
    )
    return optax.chain(inner, link)
  return _streaming.streaming_diloco(
    inner,
    outer,
    every=every,
    fragments=fragments,
    delay=0,
    merge=_merge.overwrite(),
    send=send,
    reduce=reduce,
  )


def _between_layers(params):
  """Tells which leaves are matrices between layers."""
  named = _unlike(f'{_fragments.EMBEDDINGS}|{_HEAD}', params)
  return jax.tree.map(lambda leaf, flag: flag and leaf.ndim == 2, params, named)


def _unlike(pattern, params):
  """Tells which leaves have paths in which a pattern is not found."""
  paths, structure = _fragments.paths_of(params)
  flags = [re.search(pattern, path) is None for path in paths]
  return jax.tree.unflatten(structure, flags)
