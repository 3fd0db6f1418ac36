"""DiLoCo's largest model: `diloco_c4_150m.py`, wider.

    dilojax train --config=configs/diloco_c4_400m.py --workdir=runs/c4_400m

Table 4 of https://arxiv.org/abs/2311.08105 compares the sizes.
"""

import ml_collections

from configs import diloco_c4_150m


def get_config() -> ml_collections.ConfigDict:
  """Returns the config."""
  config = diloco_c4_150m.get_config()
  config.model.dim = 1536
  config.model.num_heads = 12
  config.model.head_dim = 128
  config.model.mlp_dim = 6144  # Not in the table; 4 times the width.
  return config
