"""Layers of the decoder. Axes: Batch, Length, Dim, Heads, K(head dim), F(mlp).

In attention, L counts queries and M keys.
"""

from flax import nnx
import jax
import jax.numpy as jnp

EPSILON = 1e-6
ROPE_BASE = 10_000.0


@jax.custom_vjp
def _matmul(x_BxLxD, w_DxF):
  return jnp.einsum('bld,df->blf', x_BxLxD, w_DxF)


def _matmul_fwd(x_BxLxD, w_DxF):
  # Written out, since this is what a derivative of the gradient goes through.
  return jnp.einsum('bld,df->blf', x_BxLxD, w_DxF), (x_BxLxD, w_DxF)


def _matmul_bwd(residuals, grad_BxLxF):
  x_BxLxD, w_DxF = residuals
  dx_BxLxD = jnp.einsum('blf,df->bld', grad_BxLxF, w_DxF)
  # A contraction over tokens has to transpose its left operand. JAX puts the
  # gradient there. XLA on CPU then also moves the nonlinearity's derivative
  # into the strided copy, which costs more than the product itself when F is
  # large: let the narrower operand be the left one.
  if w_DxF.shape[0] < w_DxF.shape[1]:
    dw_DxF = jnp.einsum('bld,blf->df', x_BxLxD, grad_BxLxF)
  else:
    dw_DxF = jnp.einsum('blf,bld->fd', grad_BxLxF, x_BxLxD).T
  return dx_BxLxD, dw_DxF


_matmul.defvjp(_matmul_fwd, _matmul_bwd)


def matmul(x_BxLxD: jax.Array, w_DxF: jax.Array) -> jax.Array:
  """Multiplies activations by a weight, in the dtype of the activations.

  Args:
    x_BxLxD: Activations.
    w_DxF: Weight, cast to the dtype of `x_BxLxD`.

  Returns:
    The product, BxLxF.

  .. note::
    The order of the backward pass's operands is chosen for speed, so forward
    mode (:func:`jax.jvp`) of this alone is not defined. Gradients can be
    differentiated in either mode.
  """
  return _matmul(*_vary_alike(x_BxLxD, w_DxF.astype(x_BxLxD.dtype)))


def _vary_alike(x, w):
  # In a shard_map a weight may be shared where activations differ. JAX casts
  # the arguments of its own operations, but not those of a custom_vjp.
  varying = lambda leaf: jax.typeof(leaf).manual_axis_type.varying
  axes = varying(x) | varying(w)

  def cast(leaf):
    missing = tuple(axes - varying(leaf))
    return jax.lax.pcast(leaf, missing, to='varying') if missing else leaf

  return cast(x), cast(w)


def rms_norm(x: jax.Array, scale_D: jax.Array) -> jax.Array:
  """Divides by the root of the mean square along the last axis, in float32.

  Args:
    x: Activations of any rank.
    scale_D: Learned factor of each entry along the last axis.

  Returns:
    Activations in the dtype of `x`.
  """
  wide = x.astype(jnp.float32)
  mean = jnp.mean(jnp.square(wide), axis=-1, keepdims=True)
  scale = jnp.expand_dims(scale_D, tuple(range(x.ndim - 1)))
  return (wide * jax.lax.rsqrt(mean + EPSILON) * scale).astype(x.dtype)


def rotate(x_BxLxHxK: jax.Array) -> jax.Array:
  r"""Rotates pairs of entries by angles proportional to the position.

  The entries `i` and `i + K/2` at position `l` turn by
  :math:`l \cdot 10000^{-2i/K}`, so that the product of a query and a key
  depends on the distance between their positions only.

  Args:
    x_BxLxHxK: Queries or keys.

  Returns:
    Array of the same shape and dtype.

  References:
    Su et al., `RoFormer <https://arxiv.org/abs/2104.09864>`_, 2021
  """
  length, head_dim = x_BxLxHxK.shape[1], x_BxLxHxK.shape[3]
  frequency_K = ROPE_BASE ** (-jnp.arange(0, head_dim, 2) / head_dim)
  angle_LxK = jnp.outer(jnp.arange(length), frequency_K)
  angle_1xLx1xK = angle_LxK[None, :, None, :]
  sin, cos = jnp.sin(angle_1xLx1xK), jnp.cos(angle_1xLx1xK)
  first, second = jnp.split(x_BxLxHxK.astype(jnp.float32), 2, axis=-1)
  rotated_BxLxHxK = jnp.concatenate(
    [first * cos - second * sin, second * cos + first * sin], axis=-1
  )
  return rotated_BxLxHxK.astype(x_BxLxHxK.dtype)


def attend(
  query_BxLxHxK: jax.Array, key_BxMxHxK: jax.Array, value_BxMxHxK: jax.Array
) -> jax.Array:
  """Averages the values of the past, weighted by softmax over scaled products.

  Args:
    query_BxLxHxK: Queries.
    key_BxMxHxK: Keys of the same positions.
    value_BxMxHxK: Values of the same positions.

  Returns:
    Averages, BxLxHxK.
  """
  length, _, head_dim = query_BxLxHxK.shape[1:]
  is_past_LxM = jnp.tril(jnp.ones((length, length), bool))
  bias_1x1xLxM = jnp.where(is_past_LxM, 0.0, -1e30)[None, None]
  score_BxHxLxM = jnp.einsum(
    'blhk,bmhk->bhlm', query_BxLxHxK * head_dim**-0.5, key_BxMxHxK
  )
  # Softmax in float32; products, also of the backward pass, in the dtype of
  # the arguments.
  score_BxHxLxM = score_BxHxLxM.astype(jnp.float32) + bias_1x1xLxM
  # Any shift is right, this one does not overflow.
  shift_BxHxLx1 = jax.lax.stop_gradient(
    score_BxHxLxM.max(axis=-1, keepdims=True)
  )
  weight_BxHxLxM = jnp.exp(score_BxHxLxM - shift_BxHxLx1)
  # The division is left to the end, where it takes K entries and not M.
  total_BxLxHx1 = weight_BxHxLxM.sum(axis=-1).swapaxes(1, 2)[..., None]
  sum_BxLxHxK = jnp.einsum(
    'bhlm,bmhk->blhk',
    weight_BxHxLxM.astype(value_BxMxHxK.dtype),
    value_BxMxHxK,
  )
  return (sum_BxLxHxK / total_BxLxHx1).astype(value_BxMxHxK.dtype)


class Attention(nnx.Module):
  """Causal self-attention with rotary positions."""

  def __init__(self, dim, num_heads, head_dim, qk_norm, out_scale, rngs):
    """Draws the weights; `out_scale` multiplies those of the projection out."""
    self.num_heads = num_heads
    width = num_heads * head_dim
    self.query = normal(rngs, dim, width)
    self.key = normal(rngs, dim, width)
    self.value = normal(rngs, dim, width)
    self.out = normal(rngs, width, dim, scale=out_scale)
    self.qk_norm = qk_norm
    if qk_norm:
      self.query_norm = ones(head_dim)
      self.key_norm = ones(head_dim)

  def __call__(self, x_BxLxD):
    """Maps BxLxD to BxLxD."""
    heads = lambda x: x.reshape(*x.shape[:2], self.num_heads, -1)
    query_BxLxHxK = heads(matmul(x_BxLxD, self.query[...]))
    key_BxLxHxK = heads(matmul(x_BxLxD, self.key[...]))
    value_BxLxHxK = heads(matmul(x_BxLxD, self.value[...]))
    if self.qk_norm:
      query_BxLxHxK = rms_norm(query_BxLxHxK, self.query_norm[...])
      key_BxLxHxK = rms_norm(key_BxLxHxK, self.key_norm[...])
    mean_BxLxHxK = attend(
      rotate(query_BxLxHxK), rotate(key_BxLxHxK), value_BxLxHxK
    )
    return matmul(mean_BxLxHxK.reshape(*x_BxLxD.shape[:2], -1), self.out[...])


class Mlp(nnx.Module):
  """Position-wise network: `kind` is 'swiglu' or 'gelu'."""

  def __init__(self, dim, mlp_dim, kind, out_scale, rngs):
    """Draws the weights; `out_scale` multiplies those of the projection out."""
    self.kind = kind
    if kind == 'swiglu':
      self.gate = normal(rngs, dim, mlp_dim)
    self.up = normal(rngs, dim, mlp_dim)
    self.down = normal(rngs, mlp_dim, dim, scale=out_scale)

  def __call__(self, x_BxLxD):
    """Maps BxLxD to BxLxD."""
    up_BxLxF = matmul(x_BxLxD, self.up[...])
    if self.kind == 'swiglu':
      hidden_BxLxF = jax.nn.silu(matmul(x_BxLxD, self.gate[...])) * up_BxLxF
    else:
      hidden_BxLxF = jax.nn.gelu(up_BxLxF)
    return matmul(hidden_BxLxF, self.down[...])


class Block(nnx.Module):
  """Attention and MLP, each after a norm and beside a residual connection."""

  def __init__(self, attention, mlp, dim):
    """Takes the two layers."""
    self.attention_norm = ones(dim)
    self.attention = attention
    self.mlp_norm = ones(dim)
    self.mlp = mlp

  def __call__(self, x_BxLxD):
    """Maps BxLxD to BxLxD."""
    x_BxLxD += self.attention(rms_norm(x_BxLxD, self.attention_norm[...]))
    return x_BxLxD + self.mlp(rms_norm(x_BxLxD, self.mlp_norm[...]))


def pick(values: jax.Array, index: jax.Array) -> jax.Array:
  """Returns one value along the last axis, of each row.

  As a sum, since XLA aborts at looking up in what two axes of a mesh shard.
  All other terms are zeros: nothing is rounded.

  Args:
    values: Finite values, of shape (..., N).
    index: Which of the N, of shape (...).

  Examples:
    >>> pick(jnp.array([[1.0, 2.0], [3.0, 4.0]]), jnp.array([1, 0])).tolist()
    [2.0, 3.0]
  """
  is_it = jax.nn.one_hot(index, values.shape[-1], dtype=bool)
  return jnp.sum(jnp.where(is_it, values, 0), axis=-1)


def normal(rngs, fan_in, fan_out, *, scale=1.0):
  """Draws a weight that keeps the variance, times `scale`."""
  weight = jax.random.normal(rngs.params(), (fan_in, fan_out), jnp.float32)
  return nnx.Param(weight * (scale * fan_in**-0.5))


def ones(size):
  """Makes the factors of a norm."""
  return nnx.Param(jnp.ones((size,), jnp.float32))
