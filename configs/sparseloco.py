"""SparseLoCo: the largest 2 % of the pseudo-gradient, with feedback.

dilojax train --config=configs/sparseloco.py --workdir=runs/sparseloco
"""

import ml_collections

from configs import diloco


def get_config() -> ml_collections.ConfigDict:
  """Returns the config."""
  config = diloco.get_config()
  config.outer = ml_collections.ConfigDict({'name': 'sgd', 'lr': 1.0})
  config.wire = ml_collections.ConfigDict()
  config.wire.format = 'top_k'
  config.wire.block_size = 4096  # Values that share a scale.
  config.wire.fraction = 0.02
  config.wire.values = 'int8'
  config.wire.error_feedback = 0.95  # Share of what was not sent that is kept.
  config.wire.gather = 'messages'
  return config
