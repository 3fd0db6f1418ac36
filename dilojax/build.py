"""From a config to optimizer, model, data, placement: its only reader."""

from collections.abc import Callable, Mapping
import math
from typing import Any, NamedTuple

import jax
import ml_collections
import optax

from dilojax import _fields
from dilojax import _ledger
from dilojax import _optimizer
from dilojax import _rounds
from dilojax import _shards
from dilojax import _terminal
from dilojax import _workers
from dilojax import data
from dilojax import models
from dilojax import processes
from dilojax import replicas
from dilojax import transforms
from dilojax.transforms import _prune

Config = Mapping[str, Any] | ml_collections.ConfigDict

# On a CPU a device is a share of the cores: more of them no longer help.
MAX_CPU_DEVICES = 8


class Setup(NamedTuple):
  """What a run consists of.

  Attributes:
    model: Functions of one replica's params.
    tx: Optimizer of one replica, with its links.
    lr: Inner learning rate at a step, counted from 1.
    dataset: The corpus.
    streams: Batches of every replica.
    heldout: Batches of sequences that no replica trains on.
    placement: Where the replicas are.
    seed: Seed of the params.
    num_steps: Inner steps of each replica.
    batch_size: Sequences per inner step of one replica.
    accumulate: Parts that a batch is computed in.
    final: Whether the last step ends in a synchronization in any case.
    skips: Whether a replica skips steps with gradients that are not finite.
    eval_every: Inner steps between evaluations.
    log_every: Inner steps between records.
    checkpoint_every: Inner steps between checkpoints.
    keep_checkpoints: Number of newest checkpoints kept.
  """

  model: models.Model
  tx: optax.GradientTransformationExtraArgs
  lr: Callable[[int], float]
  dataset: data.Dataset
  streams: data.Streams
  heldout: list[dict]
  placement: replicas.Placement
  seed: int
  num_steps: int
  batch_size: int
  accumulate: int
  final: bool
  skips: bool
  eval_every: int
  log_every: int
  checkpoint_every: int
  keep_checkpoints: int


def make(config: Config, *, dataset: data.Dataset | None = None) -> Setup:
  """Builds a run.

  Args:
    config: As in `configs/`.
    dataset: The corpus of the config, None to load it.

  Returns:
    The parts of the run.

  Raises:
    ValueError: If a field is missing, unknown, out of range, without effect,
      or at odds with another, the devices, or the corpus.
  """
  config = resolve(config)
  check(config)
  if _workers.is_asynchronous(config):
    raise ValueError(
      f'`method` {config["method"]!r} has workers on a virtual clock, and no'
      ' replicas that meet on devices: this is for the other methods.'
    )
  placement = make_placement(config)
  shards = (placement.mesh.shape[name] for name in replicas.INSIDE)
  model = make_model(config, one_hot=min(shards) > 1)
  dataset = make_dataset(config) if dataset is None else dataset
  check_corpus(config, dataset)
  batch_size = config['data']['batch_size']
  lr = jax.jit(_optimizer.make_lr(config))
  tx = make_optimizer(config, placement)
  # Fragments and the like are known, and refused, once there are params.
  params = jax.eval_shape(model.init, jax.random.key(0))
  if 'prune' in config:
    lengths = [leaf.shape[-1] for leaf in jax.tree.leaves(params) if leaf.ndim]
    _prune.check_share('prune', config['prune'], lengths)
  jax.eval_shape(tx.init, params)
  return Setup(
    model=model,
    tx=tx,
    lr=lambda step: float(jax.device_get(lr(step - 1))),
    dataset=dataset,
    streams=data.streams(
      dataset,
      num_replicas=placement.total,
      batch_size=batch_size,
      seed=config['seed'],
      non_iid=config['data'].get('non_iid', 0.0),
    ),
    heldout=data.heldout_batches(
      dataset,
      num_sequences=config['eval_sequences'],
      batch_size=math.gcd(config['eval_sequences'], batch_size),
    ),
    placement=placement,
    seed=config['seed'],
    num_steps=config['num_steps'],
    batch_size=batch_size,
    accumulate=config['inner']['accumulate'],
    final=config.get('final_synchronization', False),
    skips=config['non_finite'] == 'skip',
    eval_every=config['eval_every'],
    log_every=config['log_every'],
    checkpoint_every=config['checkpoint_every'],
    keep_checkpoints=config['keep_checkpoints'],
  )


def resolve(config: Config) -> dict[str, Any]:
  """Returns a config as plain JSON values."""
  if isinstance(config, ml_collections.ConfigDict):
    config = config.to_dict()
  return {
    name: resolve(value) if isinstance(value, Mapping) else value
    for name, value in config.items()
  }


def check_corpus(config: Mapping, dataset: data.Dataset) -> None:
  """Checks that a corpus has what a config asks for.

  Raises:
    ValueError: If its tokens are others, or it has too few held-out sequences.
  """
  if dataset.vocab_size and dataset.vocab_size != config['model']['vocab_size']:
    raise ValueError(
      f"`model.vocab_size` must be the tokenizer's ({dataset.vocab_size}),"
      f' got {config["model"]["vocab_size"]}.'
    )
  wanted = config['eval_sequences']
  if wanted > len(dataset.heldout):
    raise ValueError(
      f'`eval_sequences` must be at most {len(dataset.heldout)}, the number of'
      f' held-out sequences, got {wanted}: choose fewer, or a larger'
      ' `data.heldout_fraction`.'
    )


def check(config: Config) -> None:
  """Checks every field of a config, and what goes together.

  Raises:
    ValueError: See :func:`make`. It names all fields that are wrong by
      themselves at once.
  """
  config = resolve(config)
  _fields.check(config)
  inner, num_steps = config['inner'], config['num_steps']
  if config['data']['batch_size'] % inner['accumulate']:
    raise ValueError(
      f'`data.batch_size` ({config["data"]["batch_size"]}) must be a multiple'
      f' of `inner.accumulate` ({inner["accumulate"]}).'
    )
  ramps = [name for name in ('warmup_steps', 'decay_steps') if name in inner]
  shaped = sum(inner[name] for name in ramps)
  if shaped > num_steps:
    named = ' and '.join(f'`inner.{name}`' for name in ramps)
    raise ValueError(
      f'{named} must be at most `num_steps` ({num_steps}), got {shaped}: choose'
      ' less warm-up, or more steps.'
    )
  if config.get('data_parallel_steps', 0) >= num_steps:
    raise ValueError(
      f'`data_parallel_steps` ({config["data_parallel_steps"]}) must be less'
      f' than `num_steps` ({num_steps}); for nothing but data parallelism use'
      " `method` 'data_parallel'."
    )
  overlap = config.get('overlap', {})
  if overlap.get('alpha') == 1:
    raise ValueError(
      '`overlap.alpha` must be less than 1, got 1: nothing would ever reach a'
      ' replica.'
    )
  late_merges = ('delta', 'delay_compensated')
  if overlap.get('merge') in late_merges and not overlap['delay']:
    raise ValueError(
      f'`overlap.merge` {overlap["merge"]!r} has no effect with'
      " `overlap.delay` 0: choose a delay, or 'overwrite'."
    )
  if 'late' in config and overlap.get('delay'):
    raise ValueError(
      f'`late` {config["late"]!r} gives messages a whole round to arrive: leave'
      f' out `overlap.delay` ({overlap["delay"]}), or `late`.'
    )
  sent = config.get('wire', {})
  if sent.get('format') == 'float32' and sent['error_feedback']:
    raise ValueError(
      "`wire.error_feedback` has no effect with `wire.format` 'float32', which"
      ' loses nothing: choose 0.'
    )
  if config.get('reduce') == 'radial_directional' and sent.get('gather') == (
    'mean'
  ):
    raise ValueError(
      "`wire.gather` must be 'messages' with `reduce` 'radial_directional',"
      " which needs them all, got 'mean'."
    )
  is_image = config['data']['corpus'] == 'digits'
  if is_image == (config['model']['name'] == 'decoder'):
    raise ValueError(
      f'`model.name` {config["model"]["name"]!r} does not fit `data.corpus`'
      f' {config["data"]["corpus"]!r}: decoders take text, the others digits.'
    )
  if _workers.is_asynchronous(config):
    _workers.check(config)
    return
  # The links check their own times; names of axes are enough for that.
  _optimizer.make(config, lambda *axes: axes)
  _rounds.check(config)


def num_cpu_devices(config: Config) -> int:
  """Returns how many virtual devices a process wants if it runs on a CPU.

  With one process `mesh.num_devices`, or for 0 one a replica, up to a divisor
  of their number that is at most `MAX_CPU_DEVICES`. Several processes share
  the devices of `mesh.num_devices`, or have for 0 up to `MAX_CPU_DEVICES` each.

  Raises:
    ValueError: If the processes cannot have equally many.
  """
  config = resolve(config)
  mesh, count = config['mesh'], processes.count()
  if mesh['num_devices']:
    if mesh['num_devices'] % count:
      raise ValueError(
        f'`mesh.num_devices` must be a multiple of the number of processes'
        f' ({count}), got {mesh["num_devices"]}.'
      )
    return mesh['num_devices'] // count
  if _workers.is_asynchronous(config):
    return min(config['num_workers'], MAX_CPU_DEVICES)
  total = math.prod(_optimizer.num_replicas(config).values())
  inside = max(1, mesh['fsdp']) * mesh['tensor']
  sizes = range(1, MAX_CPU_DEVICES + 1)
  fits = [n for n in sizes if total % (n * count) == 0]
  if fits:
    return max(fits) * inside
  if count % (total * inside) == 0:
    return 1
  raise ValueError(
    f'`num_replicas` ({total}) must be a multiple of the number of processes'
    f' ({count}), or the number of processes one of the devices that the'
    f' replicas take together ({total * inside}): choose one of the two, or'
    ' `mesh.num_devices`.'
  )


def make_placement(config: Mapping) -> replicas.Placement:
  """Lays the replicas out on the devices there are."""
  mesh = config['mesh']
  num_devices, count = mesh['num_devices'], processes.count()
  if jax.process_count() != count:
    raise ValueError(
      f'{jax.process_count()} processes share these devices and have not been'
      ' joined: start them with `dilojax train --distributed`.'
    )
  if not num_devices and jax.default_backend() == 'cpu':
    num_devices = min(num_cpu_devices(config) * count, len(jax.devices()))
  if count > 1 and num_devices not in (0, len(jax.devices())):
    raise ValueError(
      f'`mesh.num_devices` must be 0 or the number of devices that the'
      f' {count} processes have ({len(jax.devices())}), got {num_devices}.'
    )
  return replicas.place(
    _optimizer.num_replicas(config),
    num_devices or None,
    fsdp=mesh['fsdp'] or None,
    tensor=mesh['tensor'],
  )


def make_optimizer(
  config: Mapping, placement: replicas.Placement
) -> optax.GradientTransformationExtraArgs:
  """Builds the optimizer of one replica, for where the replicas are."""
  over_shards = lambda tx: _shards.over_shards(tx, placement)
  return _optimizer.make(config, placement.axis_names, over_shards)


def make_model(config: Mapping, *, one_hot: bool = False) -> models.Model:
  """Builds the model, from the group `model` and the length of sequences.

  Args:
    config: As in `configs/`.
    one_hot: As of :func:`dilojax.models.decoder`.
  """
  fields = dict(config['model'])
  name = fields.pop('name')
  if name != 'decoder':
    return models.classifier(kind=name, **fields)
  seq_len = config['data']['seq_len']
  return models.decoder(seq_len=seq_len, one_hot=one_hot, **fields)


def make_dataset(config: Mapping) -> data.Dataset:
  """Loads the corpus of the group `data`."""
  fields = dict(config['data'])
  corpus = fields.pop('corpus')
  fields.pop('batch_size')
  fields.pop('non_iid', None)
  if 'corpus_seed' in fields:
    fields['seed'] = fields.pop('corpus_seed')
  load = {
    'python_stdlib': data.python_stdlib,
    'files': data.files,
    'tokens': data.tokens,
    'synthetic': data.synthetic,
    'digits': data.digits,
  }[corpus]
  return load(**fields)


def links(setup: Setup) -> list[transforms.Link]:
  """Lists the links of a run that communicate, and what a replica sends.

  One replica along the axes of a link has nobody to send to: 0 bytes.
  """
  params = _abstract_params(setup)
  found = transforms.links(jax.eval_shape(setup.tx.init, params), params)
  is_alone = lambda link: setup.placement.count(link.axis_names) == 1
  return [link._replace(nbytes=0) if is_alone(link) else link for link in found]


def _abstract_params(setup):
  return jax.eval_shape(setup.model.init, jax.random.key(0))


def describe(setup: Setup) -> list[str]:
  """Says in a few lines what a run will do, before it does."""
  placement, total = setup.placement, setup.placement.total
  params = _abstract_params(setup)
  num_params = sum(leaf.size for leaf in jax.tree.leaves(params))
  mesh = ', '.join(f'{name} {n}' for name, n in placement.mesh.shape.items())
  steps, epoch = setup.num_steps, setup.streams.epoch_steps
  lines = [
    f'Corpus {setup.dataset.name} ({setup.dataset.fingerprint}):'
    f' {len(setup.dataset.train):,} sequences to train on,'
    f' {len(setup.dataset.heldout):,} held out.',
    f'Model of {num_params:,} params; {_terminal.counted(total, "replica")} on'
    f' {_terminal.counted(placement.mesh.size, "device")} ({mesh}).',
    f'Batch: {_terminal.counted(setup.batch_size, "sequence")} per replica and'
    f' step, {setup.batch_size * total} over all;'
    f' {_terminal.counted(steps, "step")}, {steps / epoch:.2g} epochs.',
  ]
  found = links(setup)
  for link in found:
    [does] = _ledger.advance(
      _ledger.start(1), [link], 1, steps, tokens_per_step=0, final=setup.final
    )
    lines.append(
      f'{_said(link)};'
      f' {_terminal.counted(does["synchronizations"], "synchronization")},'
      f' {does["bytes_sent"]:,} bytes sent per replica.'
    )
  if len(found) > 1:
    but = ', the last excepted' * setup.final
    lines.append(f'At most {_peak(found, steps):,} bytes sent in a step{but}.')
  return lines


def _said(link):
  """Says when a link communicates, and how."""
  schedule = link.schedule
  name = f'{link.name}, over' if link.name else 'Over'
  often = 'step' if schedule.every == 1 else f'{schedule.every:,} steps'
  delay = _terminal.counted(schedule.delay, 'step')
  lands = f', landing {delay} later' * bool(schedule.delay)
  late = ', landing a round later' * schedule.late
  back = (
    f', and all-gather of {link.result_nbytes:,},' if link.result_nbytes else ''
  )
  return (
    f'{name} {", ".join(link.axis_names) or "nothing"}: {link.op} of'
    f' {link.nbytes:,} bytes{back} every {often} from step'
    f' {schedule.start + schedule.offset}{lands}{late}'
  )


def _peak(found, num_steps):
  """Returns the most bytes that links send in a step."""
  period = max(link.schedule.every for link in found)
  start = max(link.schedule.start for link in found)
  launched = lambda step: sum(
    link.nbytes for link in found if link.schedule.launches(step)
  )
  last = min(num_steps, start + 2 * period)
  return max(map(launched, range(1, last + 1)))
