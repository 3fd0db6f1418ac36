r"""DiLoCo's main setting: 150 million params, C4, eight replicas.

    dilojax train --config=configs/diloco_c4_150m.py --workdir=runs/c4_150m

The setting of https://arxiv.org/abs/2311.08105 with i.i.d. data: 24,000 steps
of data parallelism, then 128 rounds of 500 steps. Here all replicas take part
in the first phase. The paper's perplexities are 15.08, and 16.23 with one
replica (table 3). First prepare C4, its documents as JSON lines:

    dilojax prepare --pattern='c4/*.jsonl.gz' --out=data/c4_32000 \
      --tokenizer=bpe --vocab_size=32000

Perplexities depend on the tokenizer, which is not the paper's: compare ratios.
Clipping, the betas and the end of the learning rate are not in the paper; they
are those of https://arxiv.org/abs/2407.07852, which repeats it.
"""

import ml_collections


def get_config() -> ml_collections.ConfigDict:
  """Returns the config."""
  config = ml_collections.ConfigDict()
  config.seed = 0
  config.num_steps = 88_000  # Inner steps of each replica.

  config.data = ml_collections.ConfigDict()
  config.data.corpus = 'tokens'
  config.data.path = 'data/c4_32000'  # Folder, or URL in a bucket.
  config.data.non_iid = 0.0  # Share of the sequences dealt by cluster.
  config.data.seq_len = 1024  # Tokens.
  config.data.batch_size = 512  # Sequences per inner step of one replica.

  # Table 1. The head is tied: only then do the params add up to the names.
  config.model = ml_collections.ConfigDict()
  config.model.name = 'decoder'
  config.model.vocab_size = 32_000
  config.model.num_layers = 12
  config.model.dim = 896
  config.model.num_heads = 16
  config.model.head_dim = 64
  config.model.mlp = 'gelu'
  config.model.mlp_dim = 3584  # Not in the table; 4 times the width.
  config.model.tied_head = True
  config.model.qk_norm = False
  config.model.z_loss = 0.0
  config.model.dtype = 'bfloat16'  # Of the computation; params are float32.
  config.model.remat = True

  config.inner = ml_collections.ConfigDict()
  config.inner.name = 'adamw'
  config.inner.peak_lr = 4e-4
  config.inner.schedule = 'cosine'
  config.inner.warmup_steps = 1_000
  config.inner.final_lr_ratio = 0.0
  config.inner.b1 = 0.9
  config.inner.b2 = 0.95
  config.inner.weight_decay = 0.1
  config.inner.clip_norm = 1.0  # Of a replica's whole gradient.
  config.inner.accumulate = 8  # Parts that a batch is computed in.

  config.method = 'post_local'
  config.num_replicas = 8
  config.data_parallel_steps = 24_000  # Inner steps.
  config.every = 500  # Inner steps per round.
  config.final_synchronization = True  # Even if the last round is short.

  config.outer = ml_collections.ConfigDict()
  config.outer.name = 'nesterov'
  config.outer.lr = 0.7
  config.outer.momentum = 0.9

  config.mesh = ml_collections.ConfigDict()
  config.mesh.num_devices = 0  # 0: all.
  config.mesh.fsdp = 0  # Devices per replica; 0: as many as there are.
  config.mesh.tensor = 1  # Devices per replica.

  config.eval_every = 1_000  # Inner steps.
  config.eval_sequences = 2_048
  config.log_every = 100  # Inner steps.
  config.checkpoint_every = 1_000  # Inner steps.
  config.keep_checkpoints = 3
  config.non_finite = 'stop'
  return config
