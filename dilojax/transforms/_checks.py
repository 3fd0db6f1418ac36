"""What several links ask of their arguments."""

from collections.abc import Callable
import inspect
import numbers
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

from dilojax import wire
from dilojax.transforms import _messages

_PACKAGE = 'dilojax.'
# Where a wire format is taken for something else: what was meant.
_FOR_CODECS = {
  'send': 'wrap it in `encode`, or `error_feedback`',
  'reduce': 'give it to `send`, wrapped in `encode`',
}
# What does as little as can be, for those who pass None.
_FOR_NONE = {
  'send': '`optax.identity()` changes nothing',
  'reduce': '`optax.identity()` is for one replica, `mean_over` for several',
  'outer': '`optax.sgd(1.0)` moves the anchor to the mean',
}


def check_step(step: int | None, final: bool) -> None:
  """Checks what an update is told of its step."""
  if step is not None and not (is_int(step) and step >= 1):
    raise ValueError(
      '`step` must be a Python int, counted from 1 (None to decide while'
      f' running), got {step!r}.'
    )
  if final and step is None:
    raise ValueError(
      '`final` is decided while tracing: pass `step`, the number of the last'
      ' inner step as a Python int, as well.'
    )


def is_int(value: object) -> bool:
  """Tells whether a value is an int to people, for whom a bool is none."""
  return isinstance(value, int) and not isinstance(value, bool)


def check_transformation(name: str, value: Any) -> None:
  """Refuses what is no optax transformation."""
  if callable(getattr(value, 'init', None)) and callable(
    getattr(value, 'update', None)
  ):
    return
  advice = ''
  if isinstance(value, wire.Codec):
    advice = f': {_FOR_CODECS.get(name, "formats belong in `send`")}'
  elif callable(value):
    advice = ': call it, if it makes one'
  elif value is None and name in _FOR_NONE:
    advice = f': {_FOR_NONE[name]}'
  raise ValueError(
    f'`{name}` must be an optax transformation, with `init` and `update`, got'
    f' {_named(value)}{advice}.'
  )


def check_codec(name: str, value: Any) -> None:
  """Refuses what is no wire format."""
  if isinstance(value, wire.Codec):
    return
  advice = ', such as `dilojax.wire.int8()`'
  if isinstance(value, str) and _is_maker(getattr(wire, value, None)):
    advice = f': pass `dilojax.wire.{value}()`'
  elif _is_maker(value):
    advice = ', which makes one: call it'
  elif isinstance(value, optax.GradientTransformation):
    advice = ': a transformation belongs in `send`'
  raise ValueError(
    f'`{name}` must be a wire format, got {_named(value)}{advice}.'
  )


def check_merge(name: str, value: Any) -> None:
  """Refuses what cannot merge three trees of params."""
  if callable(value) and _takes(value, 3):
    return
  advice = ', which makes one: call it' if _is_maker(value) else ''
  raise ValueError(
    f'`{name}` must be a function of three trees of params (now, at launch,'
    f' and the anchor), such as `overwrite()`, got {_named(value)}{advice}.'
  )


def check_fragments(name: str, value: Any) -> None:
  """Refuses functions that do not name fragments; trees of names may pass."""
  if _is_maker(value) or (callable(value) and not _takes(value, 1)):
    advice = ', which makes one: call it' if _is_maker(value) else ''
    raise ValueError(
      f'`{name}` must be a function from params to names of fragments, such as'
      f' `by_bytes(4)`, or a tree of names, got {_named(value)}{advice}.'
    )


def check_number(name: str, value: Any) -> None:
  """Refuses what is no real number, or not known while tracing."""
  if isinstance(value, jax.core.Tracer):
    raise ValueError(
      f'`{name}` must be known while tracing, got {value}: pass a Python'
      ' number. Hyperparameters can be injected into `inner` and `outer`.'
    )
  if not _is_number(value):
    raise ValueError(f'`{name}` must be a number, got {_named(value)}.')


def check_rate(name: str, value: Any) -> None:
  """Refuses what optax does not take for a rate, traced ones included."""
  is_traced = isinstance(value, jax.core.Tracer)
  if not (is_traced or callable(value) or _is_number(value)):
    raise ValueError(
      f'`{name}` must be a number, or a schedule, got {_named(value)}.'
    )


def check_seed(value: Any) -> None:
  """Refuses what no key can be made of."""
  is_whole = isinstance(value, numbers.Integral) or jnp.issubdtype(
    getattr(value, 'dtype', float), jnp.integer
  )
  if not (_is_number(value) and is_whole):
    raise ValueError(f'`seed` must be an int, got {_named(value)}.')


def check_real(name: str, params: Any) -> None:
  """Refuses leaves that a wire format, or a sign, would lose a part of."""
  found = [
    jax.tree_util.keystr(path) or 'its only leaf'
    for path, leaf in jax.tree.leaves_with_path(params)
    if jnp.issubdtype(jnp.result_type(leaf), jnp.complexfloating)
  ]
  if found:
    raise ValueError(
      f'`{name}` must have real params, got complex ones at'
      f' {", ".join(found)}, whose imaginary part would be lost. Send them'
      ' as they are, by optax.partition, or keep both parts as real params.'
    )


def check_inexact(params: Any) -> None:
  """Refuses leaves of which there is no mean."""
  exact = [
    jax.tree_util.keystr(path)
    for path, leaf in jax.tree.leaves_with_path(params)
    if not jnp.issubdtype(jnp.result_type(leaf), jnp.inexact)
  ]
  if exact:
    raise ValueError(
      f'`params` must be of inexact types, got integers or booleans at'
      f' {", ".join(exact)}: a mean of them is none. Leave them out with'
      ' optax.masked or optax.partition.'
    )


def check_decoded(tree: Any) -> None:
  """Refuses messages that a reduction returns as they came."""
  leaves = jax.tree.leaves(tree, is_leaf=_messages.is_encoded)
  for leaf in filter(_messages.is_encoded, leaves):
    raise ValueError(
      '`reduce` must decode what `send` encodes, got back messages in the'
      f' format {leaf.codec.name!r}: use a reduction that does, such as'
      ' `mean_over`, or a `send` that does not encode.'
    )


def _is_number(value):
  if isinstance(value, np.ndarray | np.generic | jax.Array):
    is_real = jnp.issubdtype(value.dtype, jnp.floating)
    is_real |= jnp.issubdtype(value.dtype, jnp.integer)
    return is_real and value.ndim == 0
  return isinstance(value, numbers.Real) and not isinstance(value, bool)


def _is_maker(value):
  """Tells a function of this package, yet to be called, from what it makes."""
  module = getattr(value, '__module__', None) or ''
  name = getattr(value, '__qualname__', '<locals>')
  return module.startswith(_PACKAGE) and '<locals>' not in name


def _takes(function: Callable, count: int) -> bool:
  """Tells whether a function can be called with so many trees."""
  try:
    signature = inspect.signature(function)
  except (TypeError, ValueError):
    return True  # Unknown, as of some builtins.
  needs = getattr(function, 'needs_schedule', False)
  try:
    signature.bind(*[None] * count, **({'schedule': None} if needs else {}))
  except TypeError:
    return False
  return True


def _named(value):
  """Writes a value in a few words."""
  if isinstance(value, wire.Codec):
    return f'the wire format {value.name!r}'
  if isinstance(value, optax.GradientTransformation):
    return 'an optax transformation'
  if callable(value) and hasattr(value, '__qualname__'):
    return f'the function `{value.__qualname__}`'
  text = repr(value)
  return text if len(text) <= 80 else f'{text[:77]}...'
