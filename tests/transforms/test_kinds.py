"""Arguments of the wrong kind are refused at once, in words that help."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import dilojax as dx
from dilojax import wire

SGD = optax.sgd(0.1)
MEAN = dx.mean_over('replica')
NAN = float('nan')


def synchronize(**changes):
  arguments: dict[str, Any] = {
    'outer': SGD,
    'every': 2,
    'reduce': MEAN,
    **changes,
  }
  return dx.synchronize(**arguments)


def streaming(**changes):
  arguments: dict[str, Any] = {
    'every': 3,
    'fragments': dx.by_bytes(2),
    **changes,
  }
  return dx.streaming_diloco(SGD, SGD, **arguments)


# Words of the message, by what is called.
TRANSFORMATIONS: dict[str, Callable[..., Any]] = {
  'send': lambda value: synchronize(send=value),
  'reduce': lambda value: synchronize(reduce=value),
  'outer': lambda value: synchronize(outer=value),
  'reduce of dropping': lambda value: dx.dropping(value, 0.5),
  'reduce of one_round_late': dx.one_round_late,
  'reduce of eager': dx.eager,
  'reduce of isotropic': dx.isotropic,
  'reduce of streaming': lambda value: streaming(reduce=value or 3),
  'link of until': lambda value: dx.until(2, value),
  'outer of a level': lambda value: dx.hierarchical(
    SGD, [dx.Level(value, 2, 'replica')]
  ),
  'inner of data_parallel': dx.data_parallel,
  'inner of local_sgd': lambda value: dx.local_sgd(value, every=2),
  'inner of diloco': lambda value: dx.diloco(value, SGD, every=2),
  'outer of diloco': lambda value: dx.diloco(SGD, value, every=2),
  'inner of post_local': lambda value: dx.post_local(
    value, SGD, every=2, data_parallel_steps=1
  ),
  'inner of lookahead': lambda value: dx.lookahead(
    value, every=2, step_size=0.5
  ),
  'inner of snoo': lambda value: dx.snoo(value, every=2, lr=0.7, momentum=0.9),
  'inner of hierarchical': lambda value: dx.hierarchical(
    value, [dx.Level(SGD, 2, 'replica')]
  ),
  'inner of sparta': dx.sparta,
  'inner of loscar_sgd': lambda value: dx.loscar_sgd(
    value, every=2, fraction=0.5
  ),
  'inner of streaming': lambda value: dx.streaming_diloco(
    value, SGD, every=3, fragments=dx.by_bytes(2)
  ),
  'inner of cocodc': lambda value: dx.cocodc(
    value, SGD, fragments=dx.by_bytes(2)
  ),
  'inner of eager_diloco': lambda value: dx.eager_diloco(value, SGD, every=2),
  'inner of delayed_diloco': lambda value: dx.delayed_diloco(
    value, SGD, every=2
  ),
  'outer of muloco': lambda value: dx.muloco(
    0.1, 3 if value is None else value
  ),
  'inner of sparseloco': lambda value: dx.sparseloco(value, every=2),
  'inner of decoupled_merge': lambda value: dx.decoupled_merge(
    value, SGD, fragments=dx.by_bytes(2)
  ),
  'inner of noloco': dx.noloco,
  'inner of dreamddp': lambda value: dx.dreamddp(value, [['a']]),
}
NO_TRANSFORMATIONS: dict[str, tuple[Any, str]] = {
  'None': (None, 'got (None|3)'),
  'format': (wire.int8(), "got the wire format 'int8': .*`(send|encode)`"),
  'not called': (optax.sgd, 'got the function `sgd`: call it'),
  'not called, ours': (dx.encode, 'got the function `encode`: call it'),
  'text': ('adam', "got 'adam'"),
  'update alone': ({'update': SGD.update}, 'got {'),
}


@pytest.mark.parametrize('kind', NO_TRANSFORMATIONS)
@pytest.mark.parametrize('name', TRANSFORMATIONS)
def test_transformations(name, kind):
  value, words = NO_TRANSFORMATIONS[kind]
  argument = name.partition(' of ')[0]
  with pytest.raises(
    ValueError, match=f'`{argument}` must be an optax transf.*{words}'
  ):
    TRANSFORMATIONS[name](value)


@pytest.mark.parametrize(
  ('name', 'value', 'words'),
  [
    ('send', wire.int8(), 'wrap it in `encode`'),
    ('send', None, '`optax.identity.*` changes nothing'),
    ('reduce', None, '`mean_over` for several'),
    ('outer', None, '`optax.sgd.*` moves the anchor'),
  ],
)
def test_transformations_say_what_was_meant(name, value, words):
  with pytest.raises(ValueError, match=words):
    synchronize(**{name: value})


def test_anything_that_inits_and_updates_is_a_transformation():
  class Own:
    init = staticmethod(SGD.init)
    update = staticmethod(SGD.update)

  params = jnp.ones(2)
  for reduce in (Own(), optax.identity(), optax.chain(SGD, SGD)):
    synchronize(reduce=reduce).init(params)


CODECS: dict[str, Callable[..., Any]] = {
  'codec of encode': dx.encode,
  'codec of error_feedback': dx.error_feedback,
  'wire of mean_over': lambda value: dx.mean_over('replica', wire=value),
  'result of mean_over': lambda value: dx.mean_over('replica', result=value),
  'wire of pairs_over': lambda value: dx.pairs_over('replica', wire=value),
  'wire of noloco': lambda value: dx.noloco(SGD, wire=value),
}


@pytest.mark.parametrize(
  ('value', 'words'),
  [
    (wire.int8, 'got the function `int8`, which makes one: call it'),
    (wire.float32, 'got the function `float32`, which makes one: call it'),
    ('int8', r"got 'int8': pass `dilojax.wire.int8\(\)`"),
    ('int9', "got 'int9', such as"),
    ('Codec', "got 'Codec'"),
    (8, 'got 8, such as'),
    (dx.encode(wire.int8()), 'got an optax transformation: .*`send`'),
  ],
)
@pytest.mark.parametrize('name', CODECS)
def test_formats(name, value, words):
  argument = name.partition(' of ')[0]
  with pytest.raises(
    ValueError, match=f'`{argument}` must be a wire format, {words}'
  ):
    CODECS[name](value)


MERGES: dict[str, Callable[..., Any]] = {
  'synchronize': lambda value: synchronize(merge=value),
  'streaming': lambda value: streaming(merge=value),
  'subset': lambda value: dx.subset_mean_over('replica', 0.5, merge=value),
}


@pytest.mark.parametrize(
  ('value', 'words'),
  [
    (dx.overwrite, 'the function `overwrite`, which makes one: call it'),
    (dx.mix, 'the function `mix`, which makes one: call it'),
    (dx.delta, 'the function `delta`, which makes one: call it'),
    (dx.delay_compensated, 'the function `delay_compensated`, which makes'),
    (lambda now, anchor: anchor, 'the function `<lambda>`'),
    ('mix', "'mix'"),
    (None, 'None'),
    (SGD, 'an optax transformation'),
  ],
)
@pytest.mark.parametrize('name', MERGES)
def test_merges(name, value, words):
  message = f'`merge` must be a function of three trees .*got {words}'
  with pytest.raises(ValueError, match=message):
    MERGES[name](value)


@pytest.mark.parametrize(
  'merge',
  [
    dx.delay_compensated(0.5),
    dx.mix(0),
    lambda now, launched, anchor: anchor,
    lambda *trees: trees[-1],
    lambda now, launched, anchor, extra=None: anchor,
    jax.jit(lambda now, launched, anchor: anchor),
  ],
)
def test_merges_of_ones_own(merge):
  synchronize(merge=merge, delay=1)


@pytest.mark.parametrize(
  'value',
  [
    dx.by_layer,
    dx.by_bytes,
    dx.by_pattern,
    dx.by_stacked_layer,
    dx.by_module,
    lambda: {},
  ],
)
@pytest.mark.parametrize(
  'make',
  [
    lambda value: streaming(fragments=value),
    lambda value: dx.in_turns(lambda *_: SGD, value, every=3),
    lambda value: dx.eager_diloco(SGD, SGD, every=3, fragments=value),
    lambda value: dx.dreamddp(SGD, [['a']], fragments=value),
  ],
)
def test_fragments(make, value):
  with pytest.raises(ValueError, match='`fragments` must be a function from'):
    make(value)


NUMBERS: dict[str, Callable[..., Any]] = {
  'alpha': dx.mix,
  'strength': dx.delay_compensated,
  'probability': lambda value: dx.dropping(MEAN, value),
  'decay': lambda value: dx.error_feedback(wire.int8(), value),
  'share': dx.sign_prune,
  'fraction': lambda value: dx.subset_mean_over('replica', value),
  'lr': lambda value: dx.pairs_over('replica', lr=value),
  'pull': lambda value: dx.pairs_over('replica', pull=value),
  'momentum': lambda value: dx.noloco(SGD, momentum=value),
}


@pytest.mark.parametrize('value', ['a', None, True, [0.5], 1j, np.ones(2), NAN])
@pytest.mark.parametrize('name', NUMBERS)
def test_numbers(name, value):
  with pytest.raises(ValueError, match=f'`{name}` must be .*, got'):
    NUMBERS[name](value)


@pytest.mark.parametrize('name', NUMBERS)
def test_numbers_are_known_while_tracing(name):
  def make(value):
    NUMBERS[name](value)
    return value

  with pytest.raises(ValueError, match=f'`{name}` must be known while tracing'):
    jax.jit(make)(0.5)
  NUMBERS[name](np.float32(0.4))
  NUMBERS[name](jnp.array(0.4))


@pytest.mark.parametrize(
  ('name', 'make'),
  [
    ('step_size', lambda value: dx.lookahead(SGD, every=2, step_size=value)),
    ('lr', lambda value: dx.snoo(SGD, every=2, lr=value, momentum=0.0)),
    ('lr', lambda value: dx.sparseloco(SGD, every=2, lr=value)),
  ],
)
def test_rates_are_numbers_or_schedules(name, make):
  for value in ('a', None, [0.5]):
    with pytest.raises(ValueError, match=f'`{name}` must be a number, or a'):
      make(value)
  for value in (1, 0.5, jnp.array(0.5), optax.constant_schedule(0.5)):
    make(value)


@pytest.mark.parametrize(
  'make',
  [
    lambda seed: dx.encode(wire.int8(), seed=seed),
    lambda seed: dx.error_feedback(wire.int8(), seed=seed),
    lambda seed: dx.dropping(MEAN, 0.5, seed=seed),
    lambda seed: dx.pairs_over('replica', seed=seed),
    lambda seed: dx.subset_mean_over('replica', 0.5, seed=seed),
  ],
)
def test_seeds(make):
  for seed in ('a', 0.5, None, True, np.ones(2, int), jax.random.key(0)):
    with pytest.raises(ValueError, match='`seed` must be an int, got'):
      make(seed)
  for seed in (3, 2**32 - 1, np.int64(3), jnp.uint32(3)):
    make(seed)


@pytest.mark.parametrize(
  'make',
  [
    dx.mean_over,
    dx.pairs_over,
    dx.radial_directional_mean,
    lambda name: dx.subset_mean_over(name, 0.5),
    lambda name: dx.dropping(MEAN, 0.5, axis_name=name or 3),
    lambda name: dx.dreamddp(SGD, [['a']], axis_name=name),
  ],
)
@pytest.mark.parametrize('name', [3, None, ('a', 3), {'a'}])
def test_names_of_axes(make, name):
  with pytest.raises(ValueError, match='`axis_name` must be a string, or a t'):
    make(name)


@pytest.mark.parametrize(
  ('make', 'value', 'words'),
  [
    (dx.hierarchical, 3, '`levels` must be a list of'),
    (dx.hierarchical, [(SGD, 2, 'a')], '`levels` must be a list of'),
    (lambda tx, n: dx.until(n, tx), 'a', '`num_steps` must be an int'),
    (
      lambda tx, n: dx.post_local(tx, tx, every=2, data_parallel_steps=n),
      0.5,
      '`data_parallel_steps` must be an int',
    ),
    (
      lambda tx, link: dx.in_turns(link, dx.by_bytes(2), every=3),
      SGD,
      '`link` must be a function',
    ),
    (
      lambda tx, hidden: dx.muloco(0.1, tx, hidden=hidden),
      True,
      '`hidden` must be a function',
    ),
    (lambda tx, axis: dx.sign_prune(0.5, axis=axis), 'x', '`axis` must be an'),
    (lambda tx, share: wire.top_k(share), 'a', '`fraction` must be above 0'),
    (lambda tx, share: wire.random_subset(share), None, '`fraction` must be'),
  ],
)
def test_others(make, value, words):
  with pytest.raises(ValueError, match=words):
    make(SGD, value)


@pytest.mark.parametrize(
  'reduce',
  [
    optax.identity(),
    dx.one_round_late(optax.identity()),
    dx.eager(optax.identity()),
    dx.isotropic(optax.identity()),
  ],
)
def test_what_is_encoded_has_to_be_decoded(reduce):
  tx = synchronize(send=dx.encode(wire.int8()), reduce=reduce)
  params = jnp.ones((2, 2))
  with pytest.raises(
    ValueError, match="`reduce` must decode .* in the format 'int8'"
  ):
    tx.update(params, tx.init(params), params, step=2)


COMPLEX = {'real': jnp.ones(2), 'w': jnp.ones((2, 2), jnp.complex64)}
LOSES: dict[str, Any] = {
  'encode': dx.encode(wire.int8()),
  'error_feedback': dx.error_feedback(wire.float32()),
  'mean_over': dx.mean_over('replica', wire=wire.bfloat16()),
  'pairs_over': dx.pairs_over('replica', wire=wire.bfloat16()),
  'sign_prune': dx.sign_prune(0.5),
}


@pytest.mark.parametrize('name', LOSES)
def test_complex_params_are_refused_by_name(name):
  message = rf"`{name}` must have real params, got .* at \['w'\], whose"
  with pytest.raises(ValueError, match=message):
    LOSES[name].init(COMPLEX)
  LOSES[name].init({'real': COMPLEX['real']})
  # Also within the link that has them, and of those alone.
  place = 'reduce' if name.endswith('over') else 'send'
  tx = synchronize(**{place: LOSES[name]})
  with pytest.raises(ValueError, match=message):
    jax.eval_shape(tx.init, COMPLEX)
  optax.masked(tx, {'real': True, 'w': False}).init(COMPLEX)


def test_no_format_drops_an_imaginary_part():
  for codec in (wire.float32(), wire.int8(), wire.sign(), wire.top_k(0.5)):
    with pytest.raises(ValueError, match=f'`{codec.name}` would lose the im'):
      codec.encode(COMPLEX['w'])


def test_complex_params_meet_unencoded():
  """The mean, and the landing on it, have both parts."""
  tx = synchronize(outer=optax.sgd(1.0), every=1)
  moved = jnp.array([[1 + 2j], [3 - 4j]], jnp.complex64)

  def land(updates):
    start = jnp.zeros_like(updates)
    return tx.update(updates, tx.init(start), start, step=1)[0]

  landed = jax.vmap(land, axis_name='replica')(moved)
  np.testing.assert_allclose(landed, np.full((2, 1), 2 - 1j), rtol=1e-6)
