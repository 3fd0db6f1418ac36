"""From a config to optimizer, model, data, placement: its only reader."""

from collections.abc import Callable, Mapping
import math
from typing import Any, NamedTuple

import jax
import ml_collections
import optax

from dilojax import _fields
from dilojax import data
from dilojax import models
from dilojax import replicas
from dilojax import transforms

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


def make(config: Mapping) -> Setup:
  """Builds a run.

  Args:
    config: As in `configs/`.

  Returns:
    The parts of the run.

  Raises:
    ValueError: If a field is missing, unknown, out of range, without effect,
      or at odds with another, the devices, or the corpus.
  """
  config = resolve(config)
  check(config)
  placement = make_placement(config)
  model, dataset = make_model(config), make_dataset(config)
  if dataset.vocab_size and dataset.vocab_size != config['model']['vocab_size']:
    raise ValueError(
      f"`model.vocab_size` must be the tokenizer's ({dataset.vocab_size}),"
      f' got {config["model"]["vocab_size"]}.'
    )
  batch_size, lr = config['data']['batch_size'], make_lr(config)
  return Setup(
    model=model,
    tx=make_optimizer(config, placement),
    lr=lambda step: float(lr(step - 1)),
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


def resolve(config: Mapping) -> dict[str, Any]:
  """Returns a config as plain JSON values."""
  if isinstance(config, ml_collections.ConfigDict):
    config = config.to_dict()
  return {
    name: resolve(value) if isinstance(value, Mapping) else value
    for name, value in config.items()
  }


def check(config: Mapping) -> None:
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
  shaped = inner['warmup_steps'] + inner.get('decay_steps', 0)
  if shaped > num_steps:
    raise ValueError(
      f'`inner.warmup_steps` and `inner.decay_steps` take {shaped} steps, more'
      f' than `num_steps` ({num_steps}): choose fewer.'
    )
  if config.get('data_parallel_steps', 0) >= num_steps:
    raise ValueError(
      f'`data_parallel_steps` ({config["data_parallel_steps"]}) must be less'
      f' than `num_steps` ({num_steps}); for nothing but data parallelism use'
      " `method` 'data_parallel'."
    )
  _check_overlap(config)
  is_image = config['data']['corpus'] == 'digits'
  if is_image == (config['model']['name'] == 'decoder'):
    raise ValueError(
      f'`model.name` {config["model"]["name"]!r} does not fit `data.corpus`'
      f' {config["data"]["corpus"]!r}: decoders take text, the others digits.'
    )
  # The links check their own arguments; abstract axes are enough for that.
  make_optimizer(config, None)


def _check_overlap(config):
  overlap = config.get('overlap')
  if overlap and overlap['merge'] == 'delta' and not overlap['delay']:
    raise ValueError(
      "`overlap.merge` 'delta' has no effect with `overlap.delay` 0: choose a"
      " delay, or 'overwrite'."
    )


def num_cpu_devices(config: Mapping) -> int:
  """Returns how many virtual devices a run wants if it runs on a CPU.

  `mesh.num_devices`, or for 0 one a replica, up to a divisor of their number
  that is at most `MAX_CPU_DEVICES`.
  """
  config = resolve(config)
  mesh = config['mesh']
  if mesh['num_devices']:
    return mesh['num_devices']
  total = math.prod(_num_replicas(config).values())
  fits = [n for n in range(1, MAX_CPU_DEVICES + 1) if total % n == 0]
  return max(fits) * max(1, mesh['fsdp']) * mesh['tensor']


def make_placement(config: Mapping) -> replicas.Placement:
  """Lays the replicas out on the devices there are."""
  mesh = config['mesh']
  num_devices = mesh['num_devices']
  if not num_devices and jax.default_backend() == 'cpu':
    num_devices = min(num_cpu_devices(config), len(jax.devices()))
  return replicas.place(
    _num_replicas(config),
    num_devices or None,
    fsdp=mesh['fsdp'] or None,
    tensor=mesh['tensor'],
  )


def make_model(config: Mapping) -> models.Model:
  """Builds the model, from the group `model` and the length of sequences."""
  fields = dict(config['model'])
  name = fields.pop('name')
  if name == 'decoder':
    return models.decoder(seq_len=config['data']['seq_len'], **fields)
  return models.classifier(kind=name, **fields)


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


def make_optimizer(
  config: Mapping, placement: replicas.Placement | None
) -> optax.GradientTransformationExtraArgs:
  """Builds the optimizer of one replica, with the links of the method."""
  inner = make_inner(config)
  names = lambda *axes: placement.axis_names(*axes) if placement else axes
  method = config['method']
  if method == 'data_parallel':
    return transforms.data_parallel(inner, axis_name=_all(names, config))
  if method == 'hierarchical':
    return transforms.hierarchical(inner, _levels(config, names))
  shared = {'every': config['every'], 'axis_name': _all(names, config)}
  if method == 'local_sgd':
    return transforms.local_sgd(inner, **shared)
  outer = _make_outer(config['outer'])
  if method == 'post_local':
    steps = config['data_parallel_steps']
    return transforms.post_local(
      inner, outer, data_parallel_steps=steps, **shared
    )
  if 'overlap' not in config:
    return transforms.diloco(inner, outer, **shared)
  overlap = config['overlap']
  link = transforms.synchronize(
    outer,
    every=config['every'],
    reduce=transforms.mean_over(shared['axis_name']),
    offset=overlap['offset'],
    delay=overlap['delay'],
    merge=_make_merge(overlap),
  )
  return optax.chain(inner, link)


def make_inner(config: Mapping) -> optax.GradientTransformation:
  """Builds the inner optimizer: clip, optimizer with its schedule, skip."""
  inner = config['inner']
  lr = make_lr(config)
  betas = {name: inner[name] for name in ('b1', 'b2') if name in inner}
  decay = inner.get('weight_decay')
  # Matrices and embeddings decay; norms and biases have one axis.
  mask = lambda params: jax.tree.map(lambda leaf: leaf.ndim > 1, params)
  makes = {
    'adamw': lambda: optax.adamw(lr, **betas, weight_decay=decay, mask=mask),
    'adam': lambda: optax.adam(lr, **betas),
    'sgd': lambda: optax.sgd(lr, momentum=inner['momentum']),
    'lion': lambda: optax.lion(lr, **betas, weight_decay=decay, mask=mask),
    'muon': lambda: optax.contrib.muon(
      lr,
      beta=inner['momentum'],
      weight_decay=decay,
      adam_b1=inner['b1'],
      adam_b2=inner['b2'],
      adam_weight_decay=decay,
    ),
  }
  tx = makes[inner['name']]()
  if math.isfinite(inner['clip_norm']):
    tx = optax.chain(optax.clip_by_global_norm(inner['clip_norm']), tx)
  if config['non_finite'] == 'skip':
    # Never give up: the loop stops when nothing else comes.
    tx = optax.apply_if_finite(tx, max_consecutive_errors=2**31 - 1)
  return tx


def make_lr(config: Mapping) -> optax.Schedule:
  """Builds the schedule of the inner learning rate, by steps from 0."""
  inner, num_steps = config['inner'], config['num_steps']
  peak, warmup = inner['peak_lr'], inner['warmup_steps']
  rest = num_steps - warmup
  if inner['schedule'] == 'cosine':
    ratio = inner['final_lr_ratio']
    main = optax.cosine_decay_schedule(peak, max(rest, 1), alpha=ratio)
  elif inner['schedule'] == 'wsd':
    length = inner['decay_steps']
    end = peak * inner['final_lr_ratio']
    main = optax.linear_schedule(peak, end, length, rest - length)
  else:
    main = optax.constant_schedule(peak)
  if not warmup:
    return main
  # The first step is not lost on a rate of 0.
  rise = optax.linear_schedule(peak / warmup, peak, warmup - 1)
  return optax.join_schedules([rise, main], [warmup])


def _make_outer(outer):
  lr, momentum = outer['lr'], outer.get('momentum')
  makes = {
    'sgd': lambda: optax.sgd(lr),
    'nesterov': lambda: optax.sgd(lr, momentum=momentum, nesterov=True),
    'heavy_ball': lambda: optax.sgd(lr, momentum=momentum),
    'adam': lambda: optax.adam(
      lr, b1=outer['b1'], b2=outer['b2'], eps=outer['eps']
    ),
  }
  return makes[outer['name']]()


def _make_merge(overlap):
  makes = {
    'overwrite': transforms.overwrite,
    'mix': lambda: transforms.mix(overlap['alpha']),
    'delta': transforms.delta,
  }
  return makes[overlap['merge']]()


def _sorted_levels(config) -> list[Any]:
  """Returns the levels, innermost first: `level_1`, `level_2`, and so on."""
  return [config['levels'][name] for name in sorted(config['levels'])]


def _num_replicas(config) -> dict[str, int]:
  """Returns the number of replicas along each axis, outermost first."""
  if config['method'] != 'hierarchical':
    return {replicas.AXIS: config['num_replicas']}
  levels = reversed(_sorted_levels(config))
  return {level['axis']: level['num_replicas'] for level in levels}


def _levels(config, names):
  levels = _sorted_levels(config)
  axes = [level['axis'] for level in levels]
  reserved = (replicas.FSDP, replicas.TENSOR)
  if len(set(axes)) < len(axes) or set(axes) & set(reserved):
    raise ValueError(
      f'`levels`: each needs an `axis` of its own, other than {reserved}, got'
      f' {axes}.'
    )
  return [
    transforms.Level(
      _make_outer(level['outer']),
      level['every'],
      names(*reversed(axes[: number + 1])),
    )
    for number, level in enumerate(levels)
  ]


def _all(names, config):
  return names(*_num_replicas(config))


def describe(setup: Setup) -> list[str]:
  """Says in a few lines what a run will do, before it does."""
  placement, total = setup.placement, setup.placement.total
  state = jax.eval_shape(lambda: setup.model.init(jax.random.key(0)))
  links = transforms.links(jax.eval_shape(setup.tx.init, state), state)
  num_params = sum(leaf.size for leaf in jax.tree.leaves(state))
  mesh = ', '.join(f'{name} {n}' for name, n in placement.mesh.shape.items())
  steps, epoch = setup.num_steps, setup.streams.epoch_steps
  lines = [
    f'Corpus {setup.dataset.name} ({setup.dataset.fingerprint}):'
    f' {len(setup.dataset.train):,} sequences to train on,'
    f' {len(setup.dataset.heldout):,} held out.',
    f'Model of {num_params:,} params; {total} replicas on'
    f' {placement.mesh.size} devices ({mesh}).',
    f'Batch: {setup.batch_size} sequences per replica and step,'
    f' {setup.batch_size * total} over all; {steps:,} steps,'
    f' {steps / epoch:.2g} epochs.',
  ]
  for link in links:
    schedule = link.schedule
    count = schedule.num_messages(steps)
    over = ', '.join(link.axis_names)
    late = f', landing {schedule.delay} steps later' * bool(schedule.delay)
    lines.append(
      f'Over {over}: every {schedule.every} steps from step'
      f' {schedule.start + schedule.offset}{late}; {count:,} messages of'
      f' {link.nbytes:,} bytes per replica.'
    )
  return lines
