"""Every wire format, and arrays to send."""

import jax
import jax.numpy as jnp
import numpy as np

from dilojax import wire

KEY = jax.random.key(7)

# Short blocks, so that small arrays have several.
FORMATS = {
  'float32': wire.float32(),
  'bfloat16': wire.bfloat16(),
  'float16': wire.float16(),
  'float8': wire.float8(8),
  'int8': wire.int8(8),
  'int8 stochastic': wire.int8(8, 'stochastic'),
  'int8 codebook': wire.int8(8, levels='codebook'),
  'int4': wire.int4(8),
  'int4 stochastic': wire.int4(8, 'stochastic'),
  'e3m0': wire.e3m0(8),
  'e3m0 odd': wire.e3m0(5),
  'e3m0 stochastic': wire.e3m0(8, 'stochastic'),
  'statistical': wire.statistical(2, 8),
  'sign': wire.sign(8),
  'top_k': wire.top_k(0.25, 8),
  'top_k 12 bits': wire.top_k(0.001, 4096),
  'top_k bfloat16': wire.top_k(0.5, 8, 'bfloat16'),
  'top_k int4': wire.top_k(0.4, 8, 'int4'),
  'random_subset': wire.random_subset(0.25, 8),
}

# Those that say that encoding what was decoded gives the same message.
REPEATABLE = (
  *('float32', 'bfloat16', 'float16', 'float8', 'int8', 'int4', 'e3m0'),
  *('e3m0 odd', 'sign', 'top_k', 'top_k 12 bits', 'random_subset'),
)


def encode(codec, x):
  return codec.encode(x, KEY)


def send(codec, x):
  """Returns what arrives."""
  x = jnp.asarray(x)
  return np.asarray(codec.decode(encode(codec, x), x.shape))


def equal(a, b):
  """Tells whether two pytrees have the same bits."""
  same = lambda x, y: x.dtype == y.dtype and x.tobytes() == y.tobytes()
  leaves = jax.tree.map(lambda x, y: same(*map(np.asarray, (x, y))), a, b)
  return all(jax.tree.leaves(leaves))
