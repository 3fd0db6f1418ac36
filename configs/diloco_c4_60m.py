"""DiLoCo's smallest model: `diloco_c4_150m.py` with 3 layers.

    dilojax train --config=configs/diloco_c4_60m.py --workdir=runs/c4_60m

Table 4 of https://arxiv.org/abs/2311.08105 compares the sizes.
"""

import ml_collections

from configs import diloco_c4_150m


def get_config() -> ml_collections.ConfigDict:
  """Returns the config."""
  config = diloco_c4_150m.get_config()
  config.model.num_layers = 3
  return config
