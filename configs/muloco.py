"""MuLoCo: Muon inside, and pseudo-gradients of 2 bits with feedback.

dilojax train --config=configs/muloco.py --workdir=runs/muloco
"""

import ml_collections

from configs import diloco


def get_config() -> ml_collections.ConfigDict:
  """Returns the config."""
  config = diloco.get_config()
  config.inner = ml_collections.ConfigDict(
    {
      'name': 'muon',
      'peak_lr': 1e-2,
      'schedule': 'cosine',
      'warmup_steps': 100,
      'final_lr_ratio': 0.1,
      'momentum': 0.95,
      'b1': 0.9,
      'b2': 0.99,
      'weight_decay': 0.1,
      'clip_norm': 1.0,
      'accumulate': 1,
    }
  )
  config.wire = ml_collections.ConfigDict()
  config.wire.format = 'statistical'
  config.wire.block_size = 512  # Values that share a scale.
  config.wire.bits = 2
  config.wire.error_feedback = 0.9  # Share of what was not sent that is kept.
  config.wire.gather = 'mean'
  config.wire.result = 'message'  # Format of the mean.
  return config
