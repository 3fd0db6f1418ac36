"""HALoS: a server in each region, above them a global one, nobody waits.

dilojax train --config=configs/halos.py --workdir=runs/halos

The environment of the released example: four regions with four workers each,
and messages of Pythia-70M.
"""

import ml_collections

from configs import async_local_sgd

# Relative to the fastest of the published speeds.
SPEEDS = (
  (0.232, 0.907, 0.828, 0.347),
  (0.574, 0.531, 0.722, 0.194),
  (0.852, 0.132, 0.896, 0.107),
  (0.827, 0.515, 0.527, 0.788),
)


def get_config() -> ml_collections.ConfigDict:
  """Returns the config."""
  config = async_local_sgd.get_config()
  config.method = 'halos'
  config.num_workers = 16
  config.every = 8
  config.steps_by_speed = 'ceil'

  config.server = ml_collections.ConfigDict()
  config.server.lr = 0.3
  config.server.momentum = 0.5
  config.server.every = 2
  config.server.c = 0.0

  config.local = ml_collections.ConfigDict()
  config.local.lr = 3.2
  config.local.momentum = 0.9
  config.local.every = 16
  config.local.c = 0.0
  config.local.push_every = 32  # Arrivals per message to the global server.
  config.local.alpha = 0.75  # Weight of its own params when others arrive.

  config.times.step_seconds = 0.238391
  speeds = [speed for region in SPEEDS for speed in region]
  config.times.speeds = ' '.join(f'{v / max(speeds):.6g}' for v in speeds)

  config.network = ml_collections.ConfigDict()
  config.network.name = 'table'
  config.network.path = 'experiments/halos/bandwidth.csv'  # Gbit/s.
  config.network.latency = 0.0  # Seconds.
  config.network.message_bytes = 281_706_496  # 70,426,624 params.
  config.network.shared = 'none'
  return config
