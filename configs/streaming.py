"""Streaming DiLoCo: three fragments in turns, a step late, in 4 bits.

dilojax train --config=configs/streaming.py --workdir=runs/streaming
"""

import ml_collections

from configs import diloco


def get_config() -> ml_collections.ConfigDict:
  """Returns the config."""
  config = diloco.get_config()
  config.outer.lr = 1.0  # Mixing takes half of a landing away again.
  config.outer.momentum = 0.8
  config.fragments = ml_collections.ConfigDict()
  config.fragments.by = 'layers'
  config.fragments.layers_per_fragment = 1
  config.fragments.order = 'strided'
  config.fragments.outside = 'own'  # Embeddings, norm and head.
  config.overlap = ml_collections.ConfigDict()
  config.overlap.delay = 1  # Inner steps from a launch to its landing.
  config.overlap.merge = 'mix'
  config.overlap.alpha = 0.5  # Weight of the replica's own params.
  config.wire = ml_collections.ConfigDict()
  config.wire.format = 'e3m0'
  config.wire.block_size = 256  # Values that share a scale.
  config.wire.rounding = 'nearest'
  config.wire.error_feedback = 0.0  # Share of what was not sent that is kept.
  config.wire.gather = 'mean'
  config.wire.result = 'message'  # Format of the mean.
  return config
