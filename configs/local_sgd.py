"""Local steps, then the mean of the params: `diloco.py` without momentum.

dilojax train --config=configs/local_sgd.py --workdir=runs/local_sgd
"""

import ml_collections

from configs import diloco


def get_config() -> ml_collections.ConfigDict:
  """Returns the config."""
  config = diloco.get_config()
  config.method = 'local_sgd'
  del config.outer
  return config
