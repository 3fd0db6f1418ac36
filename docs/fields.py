"""Writes the tables of configs.md: the configs, and the fields they may have.

python docs/fields.py
"""

import ast
from collections.abc import Iterator, Mapping
import pathlib

from dilojax import _choices
from dilojax import _fields
from dilojax import _functions

PAGE = pathlib.Path(__file__).with_name('configs.md')
CONFIGS = PAGE.parents[1] / 'configs'

# Unit and scope of every field.
MEANINGS = {
  'seed': 'seed of the params and of the order of the data',
  'num_steps': 'inner steps of each replica',
  'eval_every': 'inner steps between evaluations; there is one at the end too',
  'eval_sequences': 'held-out sequences (or images) in an evaluation',
  'checkpoint_every': 'inner steps between checkpoints',
  'keep_checkpoints': 'newest checkpoints that are kept',
  'log_every': 'inner steps between records of training',
  'non_finite': 'what happens at a gradient that is not finite: the run stops,'
  ' or the replica skips the step',
  'method': 'who communicates what, and when',
  'num_replicas': 'replicas K, over all devices',
  'every': 'inner steps per round, H',
  'final_synchronization': 'whether the last step ends in a synchronization,'
  ' even if the last round is short',
  'turns': 'params that are averaged before each inner step of a round, by'
  ' their first keys; steps are separated by `;`',
  'data_parallel_steps': 'inner steps before the switch, of each replica',
  'outer.name': 'optimizer of the anchor; one of your own by its place, with'
  ' its arguments as fields',
  'outer.lr': 'outer learning rate, per synchronization',
  'outer.momentum': 'outer momentum, per synchronization',
  'outer.b1': 'decay of the first moment, per synchronization',
  'outer.b2': 'decay of the second moment, per synchronization',
  'outer.eps': 'added to the root of the second moment',
  'num_workers': 'workers, each with a device for its rounds',
  'steps_by_speed': 'inner steps per round of slower workers: as many'
  ' (`equal`), or in proportion to their speed, rounded down or up',
  'exchange': 'how the workers meet: in a ring through the best order of the'
  ' sites, or by messages to the server and back',
  'compensation': 'weight of the correction for what the server did meanwhile',
  'server.lr': 'learning rate of the server, over `server.every` arrivals; per'
  ' step where it steps on means',
  'server.momentum': 'momentum of the server',
  'server.every': 'arrivals per change of the momentum',
  'server.c': 'share of the momentum in the arrivals between',
  'server.grace': 'seconds for which arrivals are collected, and then answered',
  'server.batch': 'gradients per step',
  'server.limit': 'delay from which gradients are dropped',
  'local.lr': 'as `server.lr`, of the server of a site',
  'local.momentum': 'momentum of the server of a site',
  'local.every': 'arrivals per change of its momentum',
  'local.c': 'share of its momentum in the arrivals between',
  'local.push_every': 'arrivals per message to the global server',
  'local.alpha': 'weight of its own params when the global ones arrive',
  'times.name': 'how long inner steps take',
  'times.step_seconds': 'seconds of an inner step at speed 1',
  'times.speeds': 'speed of each worker, numbers with spaces between, or one'
  ' for all',
  'times.path': 'CSV of measured times, with the columns `worker`, `seconds`',
  'times.order': 'measured times in their order, again and again, or at random',
  'times.log_std': 'standard deviation of the logarithm',
  'times.log_scale': 'scale of the Cauchy distribution of the logarithm',
  'times.longest': 'longest seconds of an inner step',
  'times.variance': 'variance of what comes on top, as an absolute value',
  'times.probability': 'probability that an inner step stalls',
  'times.stall': 'seconds of a stall, inf for ever',
  'network.name': 'what lies between workers and servers',
  'network.num_sites': 'sites, with equally many workers each',
  'network.inside_gbit': 'Gbit/s inside a site',
  'network.between_gbit': 'Gbit/s between two sites',
  'network.path': 'CSV of Gbit/s, with the column `region` and one for each',
  'network.latency': 'seconds beyond the bits of a message',
  'network.message_bytes': 'bytes of a message on the clock; 0: of the params',
  'network.shared': 'links on which messages wait for each other',
  'staleness.weight': 'weight of an arrival, by its staleness s',
  'staleness.power': '(1 + s) to the minus this power',
  'staleness.slope': '1 / (1 + slope (s - start)) from `start` on',
  'staleness.start': 'last staleness of weight 1',
  'staleness.limit': 'staleness from which arrivals are dropped',
  'crashes.mean_up': 'mean seconds until a worker crashes',
  'crashes.mean_down': 'mean seconds until it is back',
  'quorum.count': 'messages that an update waits for',
  'quorum.grace': 'seconds for which it then waits for more',
  'quorum.weighted': 'whether messages count by their inner steps',
  'overlap.offset': 'first inner step with a launch, at most `every`',
  'overlap.delay': 'inner steps from a launch to its landing, less than'
  ' `every`',
  'overlap.merge': 'how a new anchor enters a replica',
  'overlap.alpha': "weight of the replica's own params",
  'overlap.strength': 'weight of the term of second order',
  'late': 'whether landings are with what arrived in the round before: the'
  " others' share (`eager`), or all (`delayed`)",
  'reduce': 'how pseudo-gradients are averaged, if not plainly',
  'drop': "probability that a replica's pseudo-gradient is lost in a round",
  'prune': 'share of the entries of a pseudo-gradient that are not sent, by'
  ' size and sign',
  'fragments.by': 'how params are split into fragments that take turns',
  'fragments.layers_per_fragment': 'layers that are synchronized together',
  'fragments.order': 'which layers: every n-th, or neighbours',
  'fragments.outside': 'where embeddings, last norm and head go',
  'fragments.num_fragments': 'number of fragments of about equal bytes',
  'wire.format': 'how pseudo-gradients travel',
  'wire.block_size': 'values that share a scale, or of which some are chosen',
  'wire.rounding': 'how values are rounded',
  'wire.bits': 'bits per value',
  'wire.fraction': 'share of the values of a block that is sent',
  'wire.values': 'format of the values that are sent',
  'wire.error_feedback': 'decay of what was not sent and is kept for the next'
  ' message; 0 to forget it',
  'wire.gather': 'what all replicas are sent: the mean, or every message',
  'wire.result': "format of the mean: the messages', or a wider one",
  'subset.fraction': 'share of the entries of each leaf that is averaged after'
  ' each inner step',
  'subset.pattern': 'how these entries are drawn',
  'fraction': 'share of the entries of each leaf that is averaged in a round',
  'delay': 'inner steps from a launch to its landing',
  'gossip.lr': 'outer learning rate, per synchronization',
  'gossip.momentum': 'outer momentum, per synchronization',
  'gossip.pull': "pull of a replica's anchor to the mean of the pair's",
  'levels.NAME.axis': 'name of the axis of replicas that this level adds, such'
  ' as `host`',
  'levels.NAME.num_replicas': 'replicas along this axis, within one index of'
  ' the level above',
  'levels.NAME.every': 'inner steps per round of this level',
  'inner.peak_lr': 'inner learning rate after the warm-up',
  'inner.warmup_steps': 'inner steps of linear warm-up',
  'inner.clip_norm': "limit of the global norm of a replica's gradient; in"
  ' data parallelism, of the mean gradient',
  'inner.accumulate': 'parts that a batch of a replica is computed in, one'
  ' after the other',
  'inner.name': 'optimizer of the inner steps',
  'inner.b1': 'decay of the first moment, per inner step',
  'inner.b2': 'decay of the second moment, per inner step',
  'inner.momentum': 'decay of the momentum, per inner step',
  'inner.weight_decay': 'decoupled weight decay, times the learning rate per'
  ' inner step; of matrices and embeddings, not of norms and biases',
  'inner.schedule': 'inner learning rate after the warm-up',
  'inner.final_lr_ratio': 'learning rate at the end of the run over `peak_lr`',
  'inner.decay_steps': 'inner steps of the linear decay at the end',
  'data.batch_size': 'sequences (or images) per inner step of one replica, a'
  ' multiple of `inner.accumulate`',
  'data.corpus': 'where the data come from',
  'data.tokenizer': '`bytes`, or the path of a Hugging Face `tokenizers` JSON'
  ' file',
  'data.seq_len': 'tokens that are predicted in a sequence',
  'data.heldout_fraction': 'share of the distinct documents that is held out',
  'data.non_iid': 'share of the training sequences that is dealt by cluster;'
  ' 0 for iid',
  'data.num_clusters': 'clusters of documents',
  'data.pattern': 'path or glob pattern of the files',
  'data.path': 'folder or URL that `dilojax prepare` wrote',
  'data.num_symbols': 'size of the alphabet',
  'data.num_sequences': 'sequences, training and held-out together',
  'data.corpus_seed': 'seed of the text, apart from that of the run',
  'model.name': 'the model',
  'model.vocab_size': "number of different tokens, the tokenizer's",
  'model.num_layers': 'blocks of a decoder; hidden layers of the others',
  'model.dim': 'width of the residual stream',
  'model.num_heads': 'attention heads',
  'model.head_dim': 'width of a head',
  'model.mlp': 'kind of the MLP in a block',
  'model.mlp_dim': 'width inside the MLP',
  'model.tied_head': 'whether the head is the embedding',
  'model.qk_norm': 'whether queries and keys are normalized',
  'model.z_loss': 'weight of the squared log-normalizer in the training loss;'
  ' 0 for none',
  'model.dtype': 'of the computation; params are float32',
  'model.remat': 'whether the backward pass computes blocks again, for less'
  ' memory',
  'model.width': 'units or channels of a hidden layer',
  'mesh.num_devices': 'devices of the run; 0 for all, or on a CPU for one per'
  ' replica, up to 8',
  'mesh.fsdp': 'devices that a replica is sharded over by its longest axes; 0'
  ' for all that are left',
  'mesh.tensor': 'devices that a replica is sharded over by its second-longest'
  ' axes',
}


def tables() -> str:
  """Returns the tables: one for each group of fields."""
  written = [f'### {title}\n\n{_table(rows)}\n' for title, rows in _sections()]
  return '\n'.join(written)


def configs() -> str:
  """Returns a table of the files in configs/, with their first lines."""
  lines = ['| config | what it trains |', '| --- | --- |']
  for path in sorted(CONFIGS.glob('[!_]*.py')):
    text = ast.get_docstring(ast.parse(path.read_text())) or ''
    first = ' '.join(text.partition('\n\n')[0].split()).removesuffix('.')
    lines.append(f'| `configs/{path.name}` | {first} |')
  return '\n'.join(lines) + '\n'


def write() -> None:
  """Puts the tables into the page."""
  text = PAGE.read_text()
  for name, table in (('configs', configs()), ('fields', tables())):
    begin, end = f'<!-- {name}:begin -->\n', f'<!-- {name}:end -->'
    before, _, rest = text.partition(begin)
    text = before + begin + table + end + rest.partition(end)[2]
  PAGE.write_text(text)


def _sections() -> Iterator[tuple[str, list[tuple[str, str, str, str]]]]:
  methods = {name: {'method': name} for name in _names({}, 'method')}
  methods['diloco'] |= dict.fromkeys(_choices.OPTIONS)
  methods['async_local_sgd'] |= {'compensation': 0.0}
  yield 'Run and method', _rows('', methods)
  yield 'outer', _rows('outer', _variants('outer', 'name', method='diloco'))
  yield (
    'overlap',
    _rows('overlap', _variants('overlap', 'merge', method='diloco')),
  )
  fragments = _variants('fragments', 'by', method='diloco')
  yield 'fragments', _rows('fragments', fragments)
  yield (
    'wire',
    _rows(
      'wire',
      _variants('wire', 'format', method='diloco'),
      _variants('wire', 'gather', method='diloco'),
    ),
  )
  yield 'subset', _rows('subset', {'sparta': {'method': 'sparta'}})
  yield 'gossip', _rows('gossip', {'noloco': {'method': 'noloco'}})
  methods = {
    name: {'method': name, 'crashes': {}} for name in _choices.ASYNCHRONOUS
  }
  methods['synchronous'] |= {'quorum': {}}
  for group in ('server', 'local', 'crashes', 'quorum'):
    yield group, _rows(group, methods)
  for group, key in (('times', 'name'), ('network', 'name')):
    yield group, _rows(group, _variants(group, key, method='halos'))
  weights = _variants('staleness', 'weight', method='async_local_sgd')
  yield 'staleness', _rows('staleness', weights)
  level = {'method': 'hierarchical', 'levels': {'NAME': {}}}
  yield 'levels', _rows('levels.NAME', {'hierarchical': level})
  yield (
    'inner',
    _rows('inner', _variants('inner', 'name'), _variants('inner', 'schedule')),
  )
  clustered = {
    corpus: {'data': {'corpus': corpus, 'non_iid': 0.5}}
    for corpus in _names({}, 'data.corpus')
  }
  yield 'data', _rows('data', clustered)
  yield 'model', _rows('model', _variants('model', 'name'))
  yield 'mesh', _rows('mesh', {'': {}})


def _names(config: Mapping, name: str) -> list[str]:
  """Returns the names that a field has to choose from."""
  allowed = _fields.expected(config)[name].allowed
  allowed = allowed.removesuffix(f', or {_functions.FORM}')
  return allowed.removeprefix('one of ').split(', ')


def _variants(group: str, key: str, **config: str) -> dict[str, dict]:
  """Returns a config for every choice in a group."""
  names = _names({**config, group: {}}, f'{group}.{key}')
  return {name: {**config, group: {key: name}} for name in names}


def _rows(group: str, *kinds: Mapping[str, Mapping]):
  """Returns name, choices, values and meaning of the fields of a group."""
  allowed: dict[str, str] = {}
  only_with: dict[str, list[str]] = {}
  for variants in kinds:
    found: dict[str, list[str]] = {}
    for choice, config in variants.items():
      for name, field in _fields.expected(config).items():
        if name.rpartition('.')[0] == group:
          allowed.setdefault(name, field.allowed)
          found.setdefault(name, []).append(f'`{choice}`')
    only_with |= {
      name: choices
      for name, choices in found.items()
      if len(choices) < len(variants)
    }
  return [
    (name, ', '.join(only_with.get(name, [])), value, MEANINGS[name])
    for name, value in allowed.items()
  ]


def _table(rows) -> str:
  lines = [
    '| field | only with | value | meaning |',
    '| --- | --- | --- | --- |',
    *(
      f'| `{name}` | {choices} | {allowed} | {meaning} |'
      for name, choices, allowed, meaning in rows
    ),
  ]
  return '\n'.join(lines)


if __name__ == '__main__':
  write()
