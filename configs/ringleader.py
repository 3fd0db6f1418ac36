"""Ringleader: gradients of 100 clients, of any speed, each with own digits.

dilojax train --config=configs/ringleader.py --workdir=runs/ringleader
"""

import ml_collections

from configs import async_local_sgd


def get_config() -> ml_collections.ConfigDict:
  """Returns the config."""
  config = async_local_sgd.get_config()
  config.method = 'ringleader'
  config.num_workers = 100
  config.num_steps = 200  # Gradients of each worker, on average.
  config.eval_every = 20
  config.log_every = 20
  config.checkpoint_every = 100
  config.eval_sequences = 359
  del config.every, config.steps_by_speed

  config.data = ml_collections.ConfigDict()
  config.data.corpus = 'digits'
  config.data.heldout_fraction = 0.2
  config.data.non_iid = 1.0
  config.data.batch_size = 4

  config.model = ml_collections.ConfigDict()
  config.model.name = 'mlp'
  config.model.width = 128
  config.model.num_layers = 2

  config.inner = ml_collections.ConfigDict()
  config.inner.name = 'sgd'
  config.inner.peak_lr = 1.0  # No effect: the server's counts.
  config.inner.schedule = 'constant'
  config.inner.warmup_steps = 0
  config.inner.momentum = 0.0
  config.inner.clip_norm = float('inf')
  config.inner.accumulate = 1

  config.server = ml_collections.ConfigDict()
  config.server.lr = 0.05

  config.times = ml_collections.ConfigDict()
  config.times.name = 'ringleader'

  config.network = ml_collections.ConfigDict()
  config.network.name = 'instant'
  return config
