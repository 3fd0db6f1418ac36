"""CoCoDC: Streaming DiLoCo with a correction for the delay.

dilojax train --config=configs/cocodc.py --workdir=runs/cocodc

Fragments take turns at fixed steps; the paper lets their changes decide.
"""

import ml_collections

from configs import diloco


def get_config() -> ml_collections.ConfigDict:
  """Returns the config."""
  config = diloco.get_config()
  config.fragments = ml_collections.ConfigDict()
  config.fragments.by = 'layers'
  config.fragments.layers_per_fragment = 1
  config.fragments.order = 'strided'
  config.fragments.outside = 'own'  # Embeddings, norm and head.
  config.overlap = ml_collections.ConfigDict()
  config.overlap.delay = 4  # Inner steps from a launch to its landing.
  config.overlap.merge = 'delay_compensated'
  config.overlap.strength = 0.5
  return config
