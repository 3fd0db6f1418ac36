"""The merge of Decoupled DiLoCo: norm and direction apart, by fragment.

dilojax train --config=configs/decoupled_merge.py --workdir=runs/decoupled_merge
"""

import ml_collections

from configs import diloco


def get_config() -> ml_collections.ConfigDict:
  """Returns the config."""
  config = diloco.get_config()
  config.reduce = 'radial_directional'
  config.fragments = ml_collections.ConfigDict()
  config.fragments.by = 'bytes'
  config.fragments.num_fragments = 4
  config.overlap = ml_collections.ConfigDict()
  config.overlap.delay = 2  # Inner steps from a launch to its landing.
  config.overlap.merge = 'overwrite'
  return config
