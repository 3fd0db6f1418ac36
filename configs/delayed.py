"""DiLoCo whose messages arrive late and are mixed in, in one fragment.

dilojax train --config=configs/delayed.py --workdir=runs/delayed
"""

import ml_collections

from configs import diloco


def get_config() -> ml_collections.ConfigDict:
  """Returns the config."""
  config = diloco.get_config()
  config.overlap = ml_collections.ConfigDict()
  config.overlap.offset = 50  # First launch, in inner steps.
  config.overlap.delay = 5  # Inner steps from a launch to its landing.
  config.overlap.merge = 'mix'
  config.overlap.alpha = 0.5  # Weight of the replica's own params.
  return config
