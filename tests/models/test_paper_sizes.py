"""The decoder at the sizes of the papers' models has the size of their names.

The tables do not say how many matrices an MLP has, nor whether the head is
tied. Two matrices, four times as wide inside, and a tied head give the names
of DiLoCo (arXiv 2311.08105) and of the scaling laws (2503.09799) to 4%; three
matrices would be 14% to 35% too large. Streaming DiLoCo (2501.18512) rounds
names of the same models: its 1B model is the other paper's 1.3B.
"""

import math

import jax
import pytest

from dilojax import models

# Name, layers, dim, heads, head_dim, mlp_dim, vocabulary, params, tolerance.
DILOCO = [
  ('60M', 3, 896, 16, 64, 3584, 32_000, 60e6, 0.04),
  ('150M', 12, 896, 16, 64, 3584, 32_000, 150e6, 0.04),
  ('400M', 12, 1536, 12, 128, 6144, 32_000, 400e6, 0.04),
]
STREAMING = [
  ('35M', 6, 512, 8, 64, 2048, 32_000, 35e6, 0.04),
  ('100M', 9, 768, 12, 64, 3072, 32_000, 90e6, 0.04),
  ('200M', 12, 1024, 16, 64, 4096, 32_000, 180e6, 0.04),
  ('300M', 15, 1280, 20, 64, 5120, 32_000, 330e6, 0.04),
  ('500M', 18, 1536, 24, 64, 6144, 32_000, 550e6, 0.04),
  ('1B', 24, 2048, 32, 64, 8192, 32_000, 1.3e9, 0.04),
  ('4B', 36, 3072, 48, 64, 12288, 32_000, 4e9, 0.05),
]
SCALING = [
  ('35M', 6, 512, 8, 64, 2048, 32_768, 35e6, 0.04),
  ('90M', 9, 768, 12, 64, 3072, 32_768, 90e6, 0.04),
  ('180M', 12, 1024, 16, 64, 4096, 32_768, 180e6, 0.04),
  ('330M', 15, 1280, 20, 64, 5120, 32_768, 330e6, 0.04),
  ('550M', 18, 1536, 24, 64, 6144, 32_768, 550e6, 0.04),
  ('1.3B', 24, 2048, 32, 64, 8192, 32_768, 1.3e9, 0.04),
  ('2.4B', 30, 2560, 40, 64, 10240, 32_768, 2.4e9, 0.04),
  ('4B', 36, 3072, 48, 64, 12288, 32_768, 4e9, 0.05),
  ('10B', 48, 4096, 64, 64, 16384, 32_768, 10e9, 0.04),
]


def make(num_layers, dim, num_heads, head_dim, mlp_dim, vocab_size, mlp):
  return models.decoder(
    vocab_size=vocab_size,
    seq_len=1024,
    num_layers=num_layers,
    dim=dim,
    num_heads=num_heads,
    head_dim=head_dim,
    mlp_dim=mlp_dim,
    mlp=mlp,
    tied_head=True,
    qk_norm=True,
    z_loss=1e-4,
    dtype='bfloat16',
    remat=True,
  )


@pytest.mark.slow
@pytest.mark.parametrize('row', DILOCO + STREAMING + SCALING, ids=str)
def test_params_are_as_many_as_the_name_says(row):
  _, *sizes, expected, tolerance = row
  model = make(*sizes, 'gelu')
  params = jax.eval_shape(model.init, jax.random.key(0))
  count = sum(math.prod(leaf.shape) for leaf in jax.tree.leaves(params))
  assert abs(count / expected - 1) < tolerance


@pytest.mark.parametrize('mlp', ['gelu', 'swiglu'])
@pytest.mark.parametrize('row', DILOCO, ids=str)
def test_a_training_step_can_be_traced(row, mlp):
  _, *sizes, _, _ = row
  model = make(*sizes, mlp)
  params = jax.eval_shape(model.init, jax.random.key(0))
  batch = {'tokens': jax.ShapeDtypeStruct((2, 1025), 'int32')}
  grads = jax.eval_shape(jax.grad(model.loss), params, batch)
  assert grads == params
