"""DiLoCo on a virtual clock: all workers wait for the slowest.

dilojax train --config=configs/synchronous.py --workdir=runs/synchronous
"""

import ml_collections

from configs import async_local_sgd


def get_config() -> ml_collections.ConfigDict:
  """Returns the config."""
  config = async_local_sgd.get_config()
  config.method = 'synchronous'
  del config.server
  config.steps_by_speed = 'equal'
  config.exchange = 'ring'

  config.outer = ml_collections.ConfigDict()
  config.outer.name = 'nesterov'
  config.outer.lr = 0.7
  config.outer.momentum = 0.6
  return config
