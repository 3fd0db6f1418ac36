"""DiLoCo after a first quarter of data parallelism.

dilojax train --config=configs/post_local.py --workdir=runs/post_local
"""

import ml_collections

from configs import diloco


def get_config() -> ml_collections.ConfigDict:
  """Returns the config."""
  config = diloco.get_config()
  config.method = 'post_local'
  config.data_parallel_steps = 500  # Inner steps.
  return config
