"""NoLoCo: pairs, drawn anew each round, exchange what they have.

dilojax train --config=configs/noloco.py --workdir=runs/noloco

The replicas have anchors of their own; what is evaluated as the anchor is
their mean.
"""

import ml_collections

from configs import diloco


def get_config() -> ml_collections.ConfigDict:
  """Returns the config."""
  config = diloco.get_config()
  del config.outer
  config.method = 'noloco'
  config.gossip = ml_collections.ConfigDict()
  config.gossip.lr = 0.7
  config.gossip.momentum = 0.5
  config.gossip.pull = 0.7  # Of a replica's anchor to the mean of the pair's.
  return config
