"""A decoder language model whose sizes cover those of the papers."""

from flax import nnx
import jax
import jax.numpy as jnp

from dilojax.models import _layers
from dilojax.models import _model


def decoder(
  *,
  vocab_size: int,
  seq_len: int,
  num_layers: int,
  dim: int,
  num_heads: int,
  head_dim: int,
  mlp_dim: int,
  mlp: str,
  tied_head: bool,
  qk_norm: bool,
  z_loss: float,
  dtype: str,
  remat: bool,
  one_hot: bool = False,
) -> _model.Model:
  r"""Predicts each token of a sequence from those before it.

  Blocks of causal attention with rotary positions and of an MLP, each behind
  an RMS norm; no biases. With logits :math:`y`, vocabulary :math:`v` and
  target :math:`i`, the training loss is the mean over all tokens of

  .. math::

    \log Z - y_i + \zeta (\log Z)^2, \quad Z = \sum\nolimits_v e^{y_v}.

  A batch is a dict whose `tokens`, int32 of shape (batch, `seq_len` + 1), hold
  a sequence and, shifted by one, its targets.

  `flops` of a sequence are :math:`6 N L + 12\, n h k L^2` for :math:`L` tokens,
  :math:`n` layers, :math:`h` heads of size :math:`k`, and :math:`N` entries of
  matrices that tokens are multiplied by: the head is among them, tied or not,
  the embedding, which is looked up, is not. Attention counts in full although
  half of it is masked; `remat` adds nothing.

  Args:
    vocab_size: Number of different tokens.
    seq_len: Number of tokens that are predicted.
    num_layers: Number of blocks.
    dim: Width of the residual stream.
    num_heads: Number of attention heads.
    head_dim: Size of a head, even. The product with `num_heads` may differ
      from `dim`.
    mlp_dim: Width inside the MLP.
    mlp: 'swiglu' (three matrices) or 'gelu' (two).
    tied_head: Whether logits are products with the embedding, so that the
      model has no matrix `head`.
    qk_norm: Whether queries and keys pass an RMS norm.
    z_loss: Weight :math:`\zeta` of the squared log-normalizer; 0 for none.
    dtype: 'float32' or 'bfloat16', the dtype of activations and of the weights
      as they are multiplied. Params, norms, softmax and loss stay float32.
    remat: Whether the backward pass computes each block again instead of
      storing what is inside: less memory for a third more computation. (XLA
      on CPU computes again, but early, and so frees little.)
    one_hot: Whether embeddings are products with one-hot vectors, and not
      looked up. XLA aborts at looking up in a table that two axes of a mesh
      shard inside a replica. Costs 2 `vocab_size` `dim` operations per token,
      which `flops` does not count.

  Returns:
    A :class:`Model`, whose `evaluate` gives `loss`, without z-loss. Its params
    hold `embed`, `layer_00`, `layer_01`, ..., `final_norm` and, unless
    `tied_head`, `head`.

  Raises:
    ValueError: If an argument is out of range, or, from `loss` and `evaluate`,
      if the tokens have another shape.

  Examples:
    >>> import jax
    >>> from dilojax import models
    >>> model = models.decoder(
    ...   vocab_size=256, seq_len=16, num_layers=2, dim=32, num_heads=2,
    ...   head_dim=16, mlp_dim=64, mlp='swiglu', tied_head=True, qk_norm=False,
    ...   z_loss=0.0, dtype='float32', remat=False)
    >>> params = model.init(jax.random.key(0))
    >>> list(params)
    ['embed', 'final_norm', 'layer_00', 'layer_01']
    >>> params['layer_01']['mlp']['up'].shape
    (32, 64)

  References:
    Vaswani et al., `Attention Is All You Need
    <https://arxiv.org/abs/1706.03762>`_, 2017; Shazeer, `GLU Variants Improve
    Transformer <https://arxiv.org/abs/2002.05202>`_, 2020; Wortsman et al.,
    `Small-scale proxies for large-scale Transformer training instabilities
    <https://arxiv.org/abs/2309.14322>`_, 2023 (QK norm, z-loss)
  """
  _model.check_sizes(
    vocab_size=vocab_size,
    seq_len=seq_len,
    num_layers=num_layers,
    dim=dim,
    num_heads=num_heads,
    head_dim=head_dim,
    mlp_dim=mlp_dim,
  )
  if head_dim % 2:
    raise ValueError(
      '`head_dim` must be even, since positions rotate pairs of entries, got'
      f' {head_dim}.'
    )
  _model.check_choice('mlp', mlp, ('swiglu', 'gelu'))
  _model.check_choice('dtype', dtype, ('float32', 'bfloat16'))
  flags = dict(
    tied_head=tied_head, qk_norm=qk_norm, remat=remat, one_hot=one_hot
  )
  for name, flag in flags.items():
    if not isinstance(flag, bool):
      raise ValueError(f'`{name}` must be True or False, got {flag!r}.')
  if not 0 <= z_loss < float('inf'):
    raise ValueError(
      f'`z_loss` must be at least 0 and finite (0 for none), got {z_loss}.'
    )

  def build(rngs):
    return _Decoder(
      vocab_size=vocab_size,
      num_layers=num_layers,
      dim=dim,
      num_heads=num_heads,
      head_dim=head_dim,
      mlp_dim=mlp_dim,
      mlp=mlp,
      tied_head=tied_head,
      qk_norm=qk_norm,
      dtype=dtype,
      remat=remat,
      one_hot=one_hot,
      rngs=rngs,
    )

  graph = nnx.graphdef(nnx.eval_shape(lambda: build(nnx.Rngs(0))))

  def init(key):
    return nnx.to_pure_dict(nnx.state(build(nnx.Rngs(key)), nnx.Param))

  def mean_losses(params, batch):
    tokens_BxL = batch['tokens']
    if tokens_BxL.ndim != 2 or tokens_BxL.shape[1] != seq_len + 1:
      raise ValueError(
        '`tokens` must have the shape (batch, `seq_len` + 1), here (batch,'
        f' {seq_len + 1}), got {tokens_BxL.shape}.'
      )
    model = nnx.merge(graph, nnx.State(params))
    logits_BxLxV = model(tokens_BxL[:, :-1]).astype(jnp.float32)
    log_total_BxL = jax.nn.logsumexp(logits_BxLxV, axis=-1)
    logit_BxL = _layers.pick(logits_BxLxV, tokens_BxL[:, 1:])
    cross_entropy = jnp.mean(log_total_BxL - logit_BxL)
    return cross_entropy, z_loss * jnp.mean(jnp.square(log_total_BxL))

  def loss(params, batch):
    cross_entropy, penalty = mean_losses(params, batch)
    return cross_entropy + penalty if z_loss else cross_entropy

  def evaluate(params, batch):
    return {'loss': mean_losses(params, batch)[0]}

  width = num_heads * head_dim
  mlp_matrices = 3 if mlp == 'swiglu' else 2
  per_layer = 4 * dim * width + mlp_matrices * dim * mlp_dim
  per_token = 6 * (num_layers * per_layer + dim * vocab_size)
  attention = 12 * num_layers * width * seq_len
  return _model.Model(init, loss, evaluate, seq_len * (per_token + attention))


class _Decoder(nnx.Module):
  """Maps tokens to logits."""

  def __init__(
    self,
    *,
    vocab_size,
    num_layers,
    dim,
    num_heads,
    head_dim,
    mlp_dim,
    mlp,
    tied_head,
    qk_norm,
    dtype,
    remat,
    one_hot,
    rngs,
  ):
    self.dtype = dtype
    self.remat = remat
    self.one_hot = one_hot
    self.tied_head = tied_head
    # Two additions a block: the residual stream keeps its size at any depth.
    out_scale = (2 * num_layers) ** -0.5
    # Numbers of equal width, so that sorted names are in the order of layers.
    digits = max(2, len(str(num_layers - 1)))
    self.layers = tuple(f'layer_{i:0{digits}}' for i in range(num_layers))

    # The scale of a head, since it may be one: logits start with variance 1.
    shape = (vocab_size, dim)
    table_VxD = jax.random.normal(rngs.params(), shape, jnp.float32)
    self.embed = nnx.Param(table_VxD * dim**-0.5)
    for name in self.layers:
      block = _layers.Block(
        _layers.Attention(dim, num_heads, head_dim, qk_norm, out_scale, rngs),
        _layers.Mlp(dim, mlp_dim, mlp, out_scale, rngs),
        dim,
      )
      setattr(self, name, block)
    self.final_norm = _layers.ones(dim)
    if not tied_head:
      self.head = _layers.normal(rngs, dim, vocab_size)

  def __call__(self, tokens_BxL):
    embed_VxD = self.embed[...]
    if self.one_hot:
      one_hot_BxLxV = jax.nn.one_hot(tokens_BxL, embed_VxD.shape[0])
      x_BxLxD = (one_hot_BxLxV @ embed_VxD).astype(self.dtype)
    else:
      x_BxLxD = embed_VxD[tokens_BxL].astype(self.dtype)
    apply = lambda block, x_BxLxD: block(x_BxLxD)
    if self.remat:
      apply = nnx.remat(apply)
    for name in self.layers:
      x_BxLxD = apply(getattr(self, name), x_BxLxD)
    x_BxLxD = _layers.rms_norm(x_BxLxD, self.final_norm[...])
    head_DxV = embed_VxD.T if self.tied_head else self.head[...]
    return _layers.matmul(x_BxLxD, head_DxV)
