"""What `scripts/quickstart` trains, in minutes on two cores.

    dilojax train --config=configs/quickstart.py --workdir=runs/quickstart

A decoder of 0.8 million params, 120 steps: enough to see the order of methods
at equal steps, far from what the model can reach.
"""

import ml_collections

from configs import diloco


def get_config() -> ml_collections.ConfigDict:
  """Returns the config."""
  config = diloco.get_config()
  config.num_steps = 120  # Inner steps of each replica.
  config.every = 10  # Inner steps per round.
  config.model.num_layers = 4
  config.model.dim = 128
  config.model.num_heads = 4
  config.model.mlp_dim = 512
  config.inner.warmup_steps = 20
  config.eval_every = 30
  config.eval_sequences = 64
  config.log_every = 5
  config.checkpoint_every = 60
  return config
