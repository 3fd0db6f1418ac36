"""A small language model trains as well on messages of few bits."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import dilojax as dx
from dilojax import models
from dilojax import wire
from tests.transforms import training
from tests.transforms.training import K

NUM_STEPS, EVERY, BATCH, LENGTH, VOCAB = 150, 5, 8, 8, 8
# Of what training gains, as much may be lost to a format.
TOLERANCE = 0.05
MODEL = models.decoder(
  vocab_size=VOCAB,
  seq_len=LENGTH,
  num_layers=1,
  dim=16,
  num_heads=1,
  head_dim=16,
  mlp_dim=32,
  mlp='gelu',
  tied_head=False,
  qk_norm=True,
  z_loss=0.0,
  dtype='float32',
  remat=False,
)
FORMATS = {
  'bfloat16': dx.encode(wire.bfloat16()),
  'float16': dx.encode(wire.float16()),
  'float8': dx.encode(wire.float8()),
  'int8': dx.encode(wire.int8()),
  'int8 stochastic': dx.encode(wire.int8(rounding='stochastic')),
  'int8 codebook': dx.encode(wire.int8(levels='codebook')),
  'int4': dx.encode(wire.int4()),
  'e3m0': dx.encode(wire.e3m0()),
  'statistical': dx.error_feedback(wire.statistical(2)),
  'sign': dx.error_feedback(wire.sign(block_size=64)),
  'top_k': dx.error_feedback(wire.top_k(1 / 8)),
  'top_k of int8': dx.error_feedback(wire.top_k(1 / 8, values='int8')),
  'random_subset': dx.error_feedback(wire.random_subset(1 / 4)),
}


def sequences(seed, *lead):
  """Draws sequences in which a token mostly tells the next."""
  rng = np.random.default_rng(seed)
  tokens = np.zeros((*lead, LENGTH + 1), np.int32)
  tokens[..., 0] = rng.integers(VOCAB, size=lead)
  for n in range(LENGTH):
    noise = (rng.random(lead) < 0.1) * rng.integers(VOCAB, size=lead)
    tokens[..., n + 1] = (3 * tokens[..., n] + 1 + noise) % VOCAB
  return jnp.asarray(tokens)


@functools.cache
def final_loss(name):
  """Returns the held-out loss of the anchor, without a format if `name` is."""
  tx = optax.chain(
    optax.adam(1e-2),
    dx.synchronize(
      optax.sgd(0.7, momentum=0.5, nesterov=True),
      every=EVERY,
      send=FORMATS[name] if name else optax.identity(),
      reduce=dx.mean_over('replica'),
    ),
  )
  params = MODEL.init(jax.random.key(0))
  state = tx.init(params)
  axes = dx.replica_axes(state)

  def train(params, state, batches):
    def step(carry, tokens):
      params, state = carry
      grads = jax.grad(MODEL.loss)(params, {'tokens': tokens})
      updates, state = tx.update(grads, state, params)
      return (optax.apply_updates(params, updates), state), None

    return jax.lax.scan(step, (params, state), batches)[0]

  mapped = jax.vmap(train, (None, axes, 0), (0, axes), axis_name='replica')
  _, state = jax.jit(mapped)(
    params, training.copies(state, axes), sequences(1, K, NUM_STEPS, BATCH)
  )
  anchor = dx.anchor_of(state, params)
  held_out = {'tokens': sequences(2, 256)}
  before, after = (MODEL.loss(each, held_out) for each in (params, anchor))
  return float(before), float(after)


@pytest.mark.slow
@pytest.mark.parametrize('name', FORMATS)
def test_a_format_costs_little_of_what_training_gains(name):
  before, plain = final_loss(None)
  _, encoded = final_loss(name)
  assert plain < 0.6 * before
  assert encoded - plain < TOLERANCE * (before - plain)
