"""DiLoCo at the size of our experiments: a run takes a minute or two.

    dilojax train --config=configs/small.py --workdir=runs/small

A decoder of 0.13 million params, half a million tokens for each replica, and 50
rounds, since outer momentum needs rounds rather than tokens.
"""

import ml_collections

from configs import diloco


def get_config() -> ml_collections.ConfigDict:
  """Returns the config."""
  config = diloco.get_config()
  config.num_steps = 1_000  # Inner steps of each replica.
  config.data.batch_size = 4  # Sequences per inner step of one replica.
  config.inner.warmup_steps = 50
  config.every = 20  # Inner steps per round.
  config.eval_every = 250  # Inner steps.
  config.eval_sequences = 256
  return config
