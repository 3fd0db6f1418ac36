"""How much less does Streaming DiLoCo send, in total and at its peak?

Two claims of the text of https://arxiv.org/abs/2501.18512: a model of 24
layers in fragments of three lowers the peak to an eighth, and rounds of 100
steps in 4 bits send 400 times less than data parallelism in 16. Counted from
what our links say of themselves, for the 1B model; nothing is trained.

    dilojax table experiments/streaming_diloco/communication.py

Expected: of two cells one agrees, the peak. In total ours send 394 times less,
not 400: E3M0 as we send it has a scale of 2 bytes for each 256 values, so that
16 / (4 + 16/256) x 100 = 394. The paper counts 4 bits for a value and no
scales; the cell below, without them, is 400.

The paper's peak counts layers alone. Our `by_layer` gives the embedding, the
head and the last norm a fragment of their own, the ninth. It is smaller than
three layers, so that the whole model is 8.9 times the largest fragment.
"""

import pathlib

import jax
import optax

from dilojax import _ledger
from dilojax import exact
from dilojax import models
from dilojax import transforms
from dilojax import wire

EVERY = 100
NUM_ROUNDS = 100
LAYERS_PER_FRAGMENT = 3


def compute() -> list[exact.Cell]:
  """Returns the cells of the claims."""
  paper = {row['item']: row['value'] for row in _published()}
  params = abstract_params()
  layers = {name: params[name] for name in params if name.startswith('layer')}
  found = {
    method: links(method, params)
    for method in ('data_parallel', 'diloco', 'streaming')
  }
  peak = peak_bytes(links('diloco', layers)) / peak_bytes(
    links('streaming', layers)
  )
  whole = peak_bytes(found['diloco']) / peak_bytes(found['streaming'])
  sixteen_bits = sent_bytes(found['data_parallel'])
  total = sixteen_bits / sent_bytes(found['streaming'])
  # Without scales: as many values, at 4 bits.
  values = sum(leaf.size for leaf in jax.tree.leaves(params))
  bare = sixteen_bits / (NUM_ROUNDS * values * 4 / 8)
  claim = 'peak bandwidth reduction for 24 layers / 3 per fragment'
  cells = [
    exact.Cell('peak of a step: DiLoCo / Streaming', name, ours, published)
    for name, ours, published in (
      ('layers', peak, paper[claim]),
      ('whole model', whole, ''),
    )
  ]
  claim = 'total bits reduction H=100 with 4-bit vs 16-bit DP'
  row = 'in total: data parallel 16 bits / Streaming 4 bits'
  return [
    *cells,
    exact.Cell(row, 'whole model', total, paper[claim]),
    exact.Cell(row, 'without scales', bare),
  ]


def abstract_params():
  """Returns the shapes of the 1B model's params."""
  model = models.decoder(
    vocab_size=32_000,
    seq_len=1024,
    num_layers=24,
    dim=2048,
    num_heads=32,
    head_dim=64,
    mlp_dim=8192,
    mlp='gelu',
    tied_head=False,
    qk_norm=True,
    z_loss=1e-4,
    dtype='bfloat16',
    remat=False,
  )
  return jax.eval_shape(lambda: model.init(jax.random.key(0)))


def links(method: str, params) -> list[transforms.Link]:
  """Returns the links of a method: in 4 bits, or 16 for data parallelism."""
  inner = optax.adamw(4e-4)
  outer = optax.sgd(0.4, momentum=0.9, nesterov=True)
  send = transforms.encode(wire.e3m0())
  mean = transforms.mean_over('replica')
  tx = {
    'data_parallel': optax.chain(
      transforms.mean_over('replica', wire=wire.bfloat16()), inner
    ),
    'diloco': optax.chain(
      inner,
      transforms.synchronize(outer, every=EVERY, send=send, reduce=mean),
    ),
    'streaming': transforms.streaming_diloco(
      inner,
      outer,
      every=EVERY,
      fragments=transforms.by_layer(layers_per_fragment=LAYERS_PER_FRAGMENT),
      send=send,
    ),
  }[method]
  return transforms.links(jax.eval_shape(tx.init, params), params)


def peak_bytes(found: list[transforms.Link]) -> int:
  """Returns the bytes that a replica sends after a step, at most."""
  return max(
    sum(link.nbytes for link in found if link.schedule.launches(step))
    for step in range(1, 2 * EVERY + 1)
  )


def sent_bytes(found: list[transforms.Link]) -> int:
  """Returns the bytes that a replica sends in all rounds, by the ledger."""
  [row] = _ledger.advance(
    _ledger.start(1),
    found,
    1,
    NUM_ROUNDS * EVERY,
    tokens_per_step=1,
    final=False,
  )
  return row['bytes_sent']


def _published():
  return exact.read(pathlib.Path(__file__).with_name('claims.csv'))
