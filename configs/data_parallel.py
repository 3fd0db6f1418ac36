"""Data parallelism: the baseline of `diloco.py` that sends most.

    dilojax train --config=configs/data_parallel.py --workdir=runs/dp

Gradients are averaged before they are clipped.
"""

import ml_collections

from configs import diloco


def get_config() -> ml_collections.ConfigDict:
  """Returns the config."""
  config = diloco.get_config()
  config.method = 'data_parallel'
  del config.every, config.outer, config.final_synchronization
  return config
