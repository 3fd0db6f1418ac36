"""What does DiLoCo cost: communication, time, computation?

The columns of table 2 of https://arxiv.org/abs/2311.08105 that are not
perplexity, counted by the ledger that training writes, from abstract params of
the 150M model: nothing is trained. Expected: all cells agree.

    dilojax table experiments/diloco/communication.py

N is 64,000 steps of 512 sequences, and H is 500, so that the paper's `8xN` and
`8xN/H` are 512,000 and 1,024. Units:

- communication: messages of the size of the model that all replicas send;
- time: steps that follow one another in a replica, over N;
- compute and data: tokens of all replicas, over those of the baseline.

The row `data parallel / DiLoCo` is the abstract's "communicating 500 times
less". The paper counts exchanges of params, and so do we: a network needs up
to twice as many bytes for an all-reduce, for either method.
"""

import pathlib
from typing import Any, NamedTuple

import jax
import optax

from dilojax import _ledger
from dilojax import exact
from dilojax import models
from dilojax import transforms

NUM_STEPS = 64_000
NUM_REPLICAS = 8
EVERY = 500
BATCH_TOKENS = 512 * 1024
# What the paper's formulas stand for.
VALUES = {
  '0': 0,
  '8xN': NUM_REPLICAS * NUM_STEPS,
  '8xN/H': NUM_REPLICAS * NUM_STEPS // EVERY,
}


def compute() -> list[exact.Cell]:
  """Returns the cells of the table."""
  params = abstract_params()
  rows = {row['method']: row for row in _published()}
  ours = {method: costs(method, params) for method in rows}
  cells = []
  for method, row in rows.items():
    paper = Costs(
      str(VALUES[row['communication']]),
      row['time'].removesuffix('x'),
      row['compute_and_data'].removesuffix('x'),
    )
    cells += [
      exact.Cell(method, column.replace('_', ' '), value, text)
      for column, value, text in zip(Costs._fields, ours[method], paper)
    ]
  less = ours['8x_batch_data_parallel'][0] / ours['diloco'][0]
  row = 'data parallel / DiLoCo'
  return [*cells, exact.Cell(row, 'communication', less, '500')]


class Costs(NamedTuple):
  """What a method costs, in the units above."""

  communication: Any
  time: Any
  compute_and_data: Any


def costs(method: str, params: Any) -> Costs:
  """Returns what a method costs, given shapes of params."""
  inner = optax.adamw(4e-4, weight_decay=0.1)
  outer = optax.sgd(0.7, momentum=0.9, nesterov=True)
  accumulate = optax.MultiSteps(inner, 8).gradient_transformation()
  # Optimizer, replicas, and batches of a replica, one after the other.
  tx, num_replicas, num_batches = {
    'baseline_finetuned': (inner, 1, NUM_STEPS),
    '8x_batch_data_parallel': (
      transforms.data_parallel(inner),
      NUM_REPLICAS,
      NUM_STEPS,
    ),
    '8x_batch_microbatching': (accumulate, 1, 8 * NUM_STEPS),
    '8x_updates': (inner, 1, 8 * NUM_STEPS),
    'diloco': (
      transforms.diloco(inner, outer, every=EVERY),
      NUM_REPLICAS,
      NUM_STEPS,
    ),
  }[method]
  ledger = _ledger.advance(
    _ledger.start(num_replicas),
    transforms.links(jax.eval_shape(tx.init, params), params),
    1,
    num_batches,
    tokens_per_step=BATCH_TOKENS,
    final=True,
  )
  size = sum(
    leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(params)
  )
  total = lambda name: sum(row[name] for row in ledger)
  return Costs(
    total('bytes_sent') / size,
    max(row['steps'] for row in ledger) / NUM_STEPS,
    total('tokens') / (NUM_STEPS * BATCH_TOKENS),
  )


def abstract_params() -> Any:
  """Returns the shapes of the 150M model's params."""
  model = models.decoder(
    vocab_size=32_000,
    seq_len=1024,
    num_layers=12,
    dim=896,
    num_heads=16,
    head_dim=64,
    mlp_dim=4 * 896,
    mlp='gelu',
    tied_head=True,
    qk_norm=False,
    z_loss=0.0,
    dtype='float32',
    remat=False,
  )
  return jax.eval_shape(lambda: model.init(jax.random.key(0)))


def _published():
  return exact.read(pathlib.Path(__file__).with_suffix('.csv'))
