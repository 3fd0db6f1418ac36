"""The fields that there are, by the choices that bring them."""

from dilojax import _functions
from dilojax import _kinds

LR = {'lr': _kinds.POSITIVE}
MOMENTUM = {'momentum': _kinds.MEMORY}
MOMENTS = {'b1': _kinds.MEMORY, 'b2': _kinds.MEMORY}
DECAY = {'weight_decay': _kinds.NOT_NEGATIVE}
LENGTH = {'seq_len': _kinds.at_least(1)}
NON_IID = {'non_iid': _kinds.RATIO}
SPLIT = {'heldout_fraction': _kinds.FRACTION}
TEXTS = {'tokenizer': _kinds.TEXT, **LENGTH, **SPLIT, **NON_IID}
SMALL = {'width': _kinds.at_least(1), 'num_layers': _kinds.at_least(1)}

BLOCK = {'block_size': _kinds.at_least(1)}
ROUNDING = {'rounding': _kinds.one_of('nearest', 'stochastic')}

# What a choice brings with it: group -> field that chooses -> name -> fields.
CHOICES: dict[str, dict[str, dict[str, dict[str, _kinds.Field]]]] = {
  'outer': {
    'name': {
      'sgd': LR,
      'nesterov': {**LR, **MOMENTUM},
      'heavy_ball': {**LR, **MOMENTUM},
      'adam': {**LR, **MOMENTS, 'eps': _kinds.POSITIVE},
    }
  },
  'inner': {
    'name': {
      'adamw': {**MOMENTS, **DECAY},
      'adam': MOMENTS,
      'sgd': MOMENTUM,
      'muon': {**MOMENTUM, **MOMENTS, **DECAY},
      'lion': {**MOMENTS, **DECAY},
    },
    'schedule': {
      'constant': {},
      'cosine': {'final_lr_ratio': _kinds.RATIO},
      'wsd': {
        'final_lr_ratio': _kinds.RATIO,
        'decay_steps': _kinds.at_least(1),
      },
    },
  },
  'data': {
    'corpus': {
      'python_stdlib': TEXTS,
      'files': {**TEXTS, 'pattern': _kinds.TEXT},
      'tokens': {'path': _kinds.TEXT, **LENGTH, **NON_IID},
      'synthetic': {
        'num_symbols': _kinds.Field(
          int, lambda value: 2 <= value <= 256, 'an int from 2 to 256'
        ),
        'num_sequences': _kinds.at_least(2),
        'corpus_seed': _kinds.at_least(0),
        **LENGTH,
        **SPLIT,
      },
      'digits': {**SPLIT, **NON_IID},
    }
  },
  'model': {
    'name': {
      'decoder': {
        'vocab_size': _kinds.at_least(2),
        'num_layers': _kinds.at_least(1),
        'dim': _kinds.at_least(1),
        'num_heads': _kinds.at_least(1),
        'head_dim': _kinds.Field(
          int,
          lambda value: value >= 2 and value % 2 == 0,
          'an even int of at least 2',
        ),
        'mlp': _kinds.one_of('swiglu', 'gelu'),
        'mlp_dim': _kinds.at_least(1),
        'tied_head': _kinds.FLAG,
        'qk_norm': _kinds.FLAG,
        'z_loss': _kinds.NOT_NEGATIVE,
        'dtype': _kinds.one_of('float32', 'bfloat16'),
        'remat': _kinds.FLAG,
      },
      'mlp': SMALL,
      'convnet': SMALL,
    }
  },
  'overlap': {
    'merge': {
      'overwrite': {},
      'mix': {'alpha': _kinds.RATIO},
      'delta': {},
      'delay_compensated': {'strength': _kinds.FINITE},
    }
  },
  'fragments': {
    'by': {
      'layers': {
        'layers_per_fragment': _kinds.at_least(1),
        'order': _kinds.one_of('strided', 'sequential'),
        'outside': _kinds.one_of('own', 'first', 'last', 'ends'),
      },
      'bytes': {'num_fragments': _kinds.at_least(1)},
    }
  },
  'wire': {
    'format': {
      'float32': {},
      'bfloat16': {},
      'float16': {},
      'float8': BLOCK,
      'int8': {**BLOCK, **ROUNDING},
      'int4': {**BLOCK, **ROUNDING},
      'e3m0': {**BLOCK, **ROUNDING},
      'statistical': {**BLOCK, 'bits': _kinds.BITS},
      'sign': BLOCK,
      'top_k': {**BLOCK, 'fraction': _kinds.SHARE, 'values': _kinds.VALUES},
      'random_subset': {
        **BLOCK,
        'fraction': _kinds.SHARE,
        'values': _kinds.VALUES,
      },
    },
    'gather': {
      'mean': {'result': _kinds.one_of('message', 'bfloat16', 'float32')},
      'messages': {},
    },
  },
}

# Workers without a barrier, on a virtual clock.
SPEEDS = {'step_seconds': _kinds.POSITIVE, 'speeds': _kinds.TEXT}
CHOICES['times'] = {
  'name': {
    'fixed': SPEEDS,
    'measured': {
      'path': _kinds.TEXT,
      'order': _kinds.one_of('cycled', 'drawn'),
    },
    'log_normal': {**SPEEDS, 'log_std': _kinds.NOT_NEGATIVE},
    'log_cauchy': {
      **SPEEDS,
      'log_scale': _kinds.NOT_NEGATIVE,
      'longest': _kinds.POSITIVE,
    },
    'half_normal': {**SPEEDS, 'variance': _kinds.NOT_NEGATIVE},
    'stalls': {**SPEEDS, 'probability': _kinds.RATIO, 'stall': _kinds.LIMIT},
    'ringleader': {},
  }
}
LINKS = {
  'latency': _kinds.NOT_NEGATIVE,
  'message_bytes': _kinds.COUNT,
  'shared': _kinds.one_of('none', 'inside', 'between', 'both'),
}
CHOICES['network'] = {
  'name': {
    'instant': {},
    'even': {
      'num_sites': _kinds.at_least(1),
      'inside_gbit': _kinds.POSITIVE,
      'between_gbit': _kinds.POSITIVE,
      **LINKS,
    },
    'table': {'path': _kinds.TEXT, **LINKS},
  }
}
CHOICES['staleness'] = {
  'weight': {
    'polynomial': {'power': _kinds.NOT_NEGATIVE},
    'hinge': {'slope': _kinds.NOT_NEGATIVE, 'start': _kinds.NOT_NEGATIVE},
    'drop': {'limit': _kinds.at_least(1)},
  }
}
CRASHES = {'mean_up': _kinds.POSITIVE, 'mean_down': _kinds.POSITIVE}
QUORUM = {
  'count': _kinds.at_least(1),
  'grace': _kinds.NOT_NEGATIVE,
  'weighted': _kinds.FLAG,
}
WORKERS = {'num_workers': _kinds.at_least(1)}
WORKER_ROUNDS = {
  'every': _kinds.at_least(1),
  'steps_by_speed': _kinds.one_of('equal', 'floor', 'ceil'),
}
SERVER = {
  **LR,
  **MOMENTUM,
  'every': _kinds.at_least(1),
  'c': _kinds.RATIO,
}
UPWARDS = {'push_every': _kinds.at_least(1), 'alpha': _kinds.RATIO}
# Of asynchronous methods: the fields that each has of its own.
GRADIENTS = {
  'ringleader': {},
  'malenia': {},
  'rennala': {'batch': _kinds.at_least(1)},
  'ringmaster': {'limit': _kinds.at_least(1)},
  'ia2sgd': {},
}
ASYNCHRONOUS = ('async_local_sgd', 'halos', 'synchronous', *GRADIENTS)

# An optimizer of the reader's own will do.
OUTER = _kinds.Field(
  str,
  lambda name: (
    name in CHOICES['outer']['name'] or _functions.is_reference(name)
  ),
  f'one of {", ".join(CHOICES["outer"]["name"])}, or {_functions.FORM}',
)
TOP = {
  'seed': _kinds.SEED,
  'num_steps': _kinds.NUM_STEPS,
  'eval_every': _kinds.at_least(1),
  'eval_sequences': _kinds.at_least(1),
  'checkpoint_every': _kinds.at_least(1),
  'keep_checkpoints': _kinds.at_least(1),
  'log_every': _kinds.at_least(1),
  'non_finite': _kinds.one_of('stop', 'skip'),
}
REPLICAS = {'num_replicas': _kinds.at_least(1)}
ROUNDS = {'every': _kinds.at_least(1), 'final_synchronization': _kinds.FLAG}
SWITCH = {'data_parallel_steps': _kinds.at_least(1)}
GOSSIP = {
  'lr': _kinds.POSITIVE,
  'momentum': _kinds.MEMORY,
  'pull': _kinds.POSITIVE,
}
SUBSET = {
  'fraction': _kinds.SHARE,
  'pattern': _kinds.one_of('independent', 'partition', 'fresh_partition'),
}
LOSCAR = {'fraction': _kinds.SHARE, 'delay': _kinds.at_least(0)}
TURNS = {'turns': _kinds.TEXT}
GROUPS_OF_METHODS = (
  'outer',
  'overlap',
  'levels',
  'fragments',
  'wire',
  'subset',
  'gossip',
  'server',
  'local',
  'times',
  'network',
  'staleness',
  'crashes',
  'quorum',
)
# Single fields that DiLoCo may have.
OPTIONS = {
  'late': _kinds.one_of('delayed', 'eager'),
  'reduce': _kinds.one_of('radial_directional', 'isotropic'),
  'drop': _kinds.FRACTION,
  'prune': _kinds.FRACTION,
}
CLUSTERED = ('python_stdlib', 'files')
