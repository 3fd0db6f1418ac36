"""Eager updates: the own share fresh, the others' a round late.

dilojax train --config=configs/eager.py --workdir=runs/eager

The replicas have anchors of their own; what is evaluated as the anchor is
their mean.
"""

import ml_collections

from configs import diloco


def get_config() -> ml_collections.ConfigDict:
  """Returns the config."""
  config = diloco.get_config()
  config.late = 'eager'
  config.outer.lr = 0.4
  return config
