"""LOSCAR-SGD: local SGD that averages entries while it goes on.

dilojax train --config=configs/loscar_sgd.py --workdir=runs/loscar_sgd
"""

import ml_collections

from configs import local_sgd


def get_config() -> ml_collections.ConfigDict:
  """Returns the config."""
  config = local_sgd.get_config()
  config.method = 'loscar_sgd'
  config.fraction = 0.25  # Of the entries of each leaf, in each round.
  config.delay = 4  # Inner steps from a launch to its landing.
  return config
