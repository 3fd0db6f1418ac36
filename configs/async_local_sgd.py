"""Asynchronous Local-SGD: workers of unequal speed, delayed Nesterov momentum.

dilojax train --config=configs/async_local_sgd.py --workdir=runs/async
"""

import ml_collections

from configs import small


def get_config() -> ml_collections.ConfigDict:
  """Returns the config."""
  config = small.get_config()
  config.method = 'async_local_sgd'
  for name in ('num_replicas', 'final_synchronization', 'outer'):
    del config[name]
  config.num_workers = 4
  config.every = 20  # Inner steps per round of the fastest worker.
  config.steps_by_speed = 'floor'  # So that rounds take equally long.

  config.server = ml_collections.ConfigDict()
  config.server.lr = 0.7  # Over the `every` arrivals of a round.
  config.server.momentum = 0.6
  config.server.every = 4  # Arrivals per change of the momentum.
  config.server.c = 0.0
  config.server.grace = 0.0  # Seconds.

  config.times = ml_collections.ConfigDict()
  config.times.name = 'fixed'
  config.times.step_seconds = 0.1  # At speed 1.
  config.times.speeds = '1 0.75 0.5 0.25'

  config.network = ml_collections.ConfigDict()
  config.network.name = 'even'
  config.network.num_sites = 2
  config.network.inside_gbit = 100.0
  config.network.between_gbit = 1.0
  config.network.latency = 0.0  # Seconds.
  config.network.message_bytes = 0  # 0: those of the params.
  config.network.shared = 'none'
  return config
