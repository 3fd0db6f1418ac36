"""DiLoCo with four replicas on the Python standard library's source text.

dilojax train --config=configs/diloco.py --workdir=runs/diloco
"""

import ml_collections


def get_config() -> ml_collections.ConfigDict:
  """Returns the config."""
  config = ml_collections.ConfigDict()
  config.seed = 0
  config.num_steps = 2_000  # Inner steps of each replica.

  config.data = ml_collections.ConfigDict()
  config.data.corpus = 'python_stdlib'
  config.data.tokenizer = 'bytes'
  config.data.heldout_fraction = 0.05  # Of the documents.
  config.data.non_iid = 0.0  # Share of the sequences dealt by cluster.
  config.data.seq_len = 128  # Tokens.
  config.data.batch_size = 8  # Sequences per inner step of one replica.

  config.model = ml_collections.ConfigDict()
  config.model.name = 'decoder'
  config.model.vocab_size = 256
  config.model.num_layers = 2
  config.model.dim = 64
  config.model.num_heads = 2
  config.model.head_dim = 32
  config.model.mlp = 'gelu'
  config.model.mlp_dim = 256
  config.model.tied_head = False
  config.model.qk_norm = True
  config.model.z_loss = 0.0
  config.model.dtype = 'float32'  # Of the computation; params are float32.
  config.model.remat = False

  config.inner = ml_collections.ConfigDict()
  config.inner.name = 'adamw'
  config.inner.peak_lr = 3e-3
  config.inner.schedule = 'cosine'
  config.inner.warmup_steps = 100
  config.inner.final_lr_ratio = 0.1
  config.inner.b1 = 0.9
  config.inner.b2 = 0.99
  config.inner.weight_decay = 0.1
  config.inner.clip_norm = 1.0  # Of a replica's whole gradient.
  config.inner.accumulate = 1  # Parts that a batch is computed in.

  config.method = 'diloco'
  config.num_replicas = 4
  config.every = 50  # Inner steps per round.
  config.final_synchronization = True  # Even if the last round is short.

  config.outer = ml_collections.ConfigDict()
  config.outer.name = 'nesterov'
  config.outer.lr = 0.7
  config.outer.momentum = 0.6

  config.mesh = ml_collections.ConfigDict()
  config.mesh.num_devices = 0  # 0: all; on a CPU, one per replica.
  config.mesh.fsdp = 0  # Devices per replica; 0: as many as there are.
  config.mesh.tensor = 1  # Devices per replica.

  config.eval_every = 500  # Inner steps.
  config.eval_sequences = 512
  config.log_every = 50  # Inner steps.
  config.checkpoint_every = 500  # Inner steps.
  config.keep_checkpoints = 2
  config.non_finite = 'stop'
  return config
