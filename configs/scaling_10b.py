"""DiLoCo with two replicas at the scaling laws' size of 10B params.

    dilojax train --config=configs/scaling_10b.py --workdir=runs/scaling_10b

The largest run of https://arxiv.org/abs/2503.09799, table 5: held-out loss
2.086 on C4 after 200 billion tokens, and 2.09 with data parallelism. Inner
learning rate and batch are those of its fits (table 10), 4.1e-5 and 911
thousand tokens, here a power of two. First prepare C4 as `diloco_c4_150m.py`
says, with 32,768 tokens.
"""

import ml_collections

from configs import streaming_1b


def get_config() -> ml_collections.ConfigDict:
  """Returns the config."""
  config = streaming_1b.get_config()
  config.num_steps = 190_735  # Inner steps of each replica.

  config.data.path = 'data/c4_32768'
  config.data.seq_len = 2048  # Tokens.
  config.data.batch_size = 256  # Sequences per inner step of one replica.

  # Table 3.
  config.model.vocab_size = 32_768
  config.model.num_layers = 48
  config.model.dim = 4096
  config.model.num_heads = 64
  config.model.mlp_dim = 16_384

  config.inner.peak_lr = 4.1e-5
  config.inner.weight_decay = 0.128  # As there.
  config.inner.accumulate = 16  # Parts that a batch is computed in.
  config.outer.lr = 0.6  # Figure 7.
  return config
