"""SPARTA: after each step the mean of a few entries, drawn at random.

dilojax train --config=configs/sparta.py --workdir=runs/sparta
"""

import ml_collections

from configs import data_parallel


def get_config() -> ml_collections.ConfigDict:
  """Returns the config."""
  config = data_parallel.get_config()
  config.method = 'sparta'
  config.num_replicas = 4
  config.subset = ml_collections.ConfigDict()
  config.subset.fraction = 0.005  # Of the entries of each leaf.
  config.subset.pattern = 'independent'
  return config
