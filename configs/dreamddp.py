"""DreamDDP: the params of each layer averaged before a step of their own.

dilojax train --config=configs/dreamddp.py --workdir=runs/dreamddp

`turns` is a plan for this model. For another one, or another link:

    dilojax profile --config=configs/dreamddp.py --bandwidth=0.1 \
      --latency=0.001 --out=profile.csv
    dilojax simulate dreamddp profile.csv --every=10
"""

import ml_collections

from configs import local_sgd


def get_config() -> ml_collections.ConfigDict:
  """Returns the config."""
  config = local_sgd.get_config()
  config.method = 'dreamddp'
  del config.every
  # By first keys of the params; each `;` ends an inner step of the round.
  config.turns = 'head final_norm layer_01; layer_00; embed; ; ; ; ; ; ; '
  return config
