"""Two levels: hosts synchronize often, regions rarely.

    dilojax train --config=configs/hierarchical.py --workdir=runs/hierarchical

Two regions of two hosts, a replica on each. The mean within a region is local
SGD's; between regions it is DiLoCo's.
"""

import ml_collections

from configs import diloco


def get_config() -> ml_collections.ConfigDict:
  """Returns the config."""
  config = diloco.get_config()
  outer = config.outer.copy_and_resolve_references()
  config.method = 'hierarchical'
  del config.num_replicas, config.every, config.outer

  config.levels = ml_collections.ConfigDict()  # Innermost first.
  config.levels.level_1 = ml_collections.ConfigDict()
  config.levels.level_1.axis = 'host'
  config.levels.level_1.num_replicas = 2  # In each region.
  config.levels.level_1.every = 10  # Inner steps per round.
  config.levels.level_1.outer = ml_collections.ConfigDict()
  config.levels.level_1.outer.name = 'sgd'
  config.levels.level_1.outer.lr = 1.0

  config.levels.level_2 = ml_collections.ConfigDict()
  config.levels.level_2.axis = 'region'
  config.levels.level_2.num_replicas = 2  # Regions.
  config.levels.level_2.every = 50  # Inner steps per round.
  config.levels.level_2.outer = outer
  return config
