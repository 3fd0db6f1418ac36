"""The optimizer of one replica, from a config."""

from collections.abc import Callable, Mapping
import math
from typing import Any

import jax
import optax

from dilojax import _functions
from dilojax import _links
from dilojax import replicas
from dilojax import transforms

Names = Callable[..., tuple[str, ...]]


def make(
  config: Mapping[str, Any],
  axis_names: Names,
  over_shards: Callable = lambda tx: tx,
) -> optax.GradientTransformationExtraArgs:
  """Builds the optimizer of one replica, with the links of the method.

  Args:
    config: The config, its fields checked.
    axis_names: Returns the mapped axes to reduce over, given replica axes.
    over_shards: Makes a link run shard by shard inside a replica.

  Returns:
    The optimizer.

  Raises:
    ValueError: If the links refuse the times of their schedule, or `levels`
      are not named or do not have axes as they must.
  """
  inner = make_inner(config)
  names = axis_names(*num_replicas(config))
  method = config['method']
  if method == 'data_parallel':
    return transforms.data_parallel(inner, axis_name=names)
  if method == 'hierarchical':
    return transforms.hierarchical(inner, _levels(config, axis_names))
  if method == 'sparta':
    return transforms.sparta(
      inner, **config['subset'], seed=config['seed'], axis_name=names
    )
  if method == 'dreamddp':
    turns = [turn.split() for turn in config['turns'].split(';')]
    return transforms.dreamddp(inner, turns, axis_name=names)
  shared = {'every': config['every'], 'axis_name': names}
  if method == 'local_sgd':
    return transforms.local_sgd(inner, **shared)
  if method == 'loscar_sgd':
    given = {name: config[name] for name in ('fraction', 'delay', 'seed')}
    return transforms.loscar_sgd(inner, **given, **shared)
  if method == 'noloco':
    return transforms.noloco(
      inner, **config['gossip'], seed=config['seed'], **shared
    )
  outer = make_outer(config['outer'])
  if method == 'post_local':
    steps = config['data_parallel_steps']
    return transforms.post_local(
      inner, outer, data_parallel_steps=steps, **shared
    )
  return _links.make_diloco(config, inner, outer, names, over_shards)


def make_inner(
  config: Mapping[str, Any], lr: optax.ScalarOrSchedule | None = None
) -> optax.GradientTransformation:
  """Builds the inner optimizer: clip, optimizer with its schedule, skip.

  Args:
    config: The config.
    lr: Learning rate, None for the schedule of the config.
  """
  inner, lr = config['inner'], make_lr(config) if lr is None else lr
  betas = {name: inner[name] for name in ('b1', 'b2') if name in inner}
  decay = inner.get('weight_decay')
  # Matrices and embeddings decay; norms and biases have one axis.
  mask = lambda params: jax.tree.map(lambda leaf: leaf.ndim > 1, params)
  adamw = lambda: optax.adamw(lr, **betas, weight_decay=decay, mask=mask)
  makes = {
    'adamw': adamw,
    'adam': lambda: optax.adam(lr, **betas),
    'sgd': lambda: optax.sgd(lr, momentum=inner['momentum']),
    'lion': lambda: optax.lion(lr, **betas, weight_decay=decay, mask=mask),
    'muon': lambda: optax.partition(
      {
        'muon': optax.contrib.muon(
          lr, beta=inner['momentum'], weight_decay=decay
        ),
        'adamw': adamw(),
      },
      _labels,
    ),
  }
  tx = makes[inner['name']]()
  if math.isfinite(inner['clip_norm']):
    tx = optax.chain(optax.clip_by_global_norm(inner['clip_norm']), tx)
  if config['non_finite'] == 'skip':
    # Never give up: the loop stops when nothing else comes.
    tx = optax.apply_if_finite(tx, max_consecutive_errors=2**31 - 1)
  return tx


def make_outer(outer: Mapping[str, Any]) -> optax.GradientTransformation:
  """Builds the optimizer of an anchor."""
  name = outer['name']
  if _functions.is_reference(name):
    given = {key: value for key, value in outer.items() if key != 'name'}
    return _functions.call(
      name, given, optax.GradientTransformation, 'an optax transformation'
    )
  lr, momentum = outer['lr'], outer.get('momentum')
  makes = {
    'sgd': lambda: optax.sgd(lr),
    'nesterov': lambda: optax.sgd(lr, momentum=momentum, nesterov=True),
    'heavy_ball': lambda: optax.sgd(lr, momentum=momentum),
    'adam': lambda: optax.adam(
      lr, b1=outer['b1'], b2=outer['b2'], eps=outer['eps']
    ),
  }
  return makes[name]()


def make_lr(config: Mapping[str, Any]) -> optax.Schedule:
  r"""Builds the schedule of the inner learning rate, by steps from 0.

  With peak :math:`\eta`, :math:`W` steps of warm-up, and :math:`\rho` as
  `final_lr_ratio`, the :math:`T` steps, counted from 1, have

  .. math::

    \eta_t &= \eta t / W & (t \le W), \\
    \eta_t &= \eta \left(\rho + \tfrac{1 - \rho}{2}
      \left(1 + \cos \pi \tfrac{t - 1 - W}{T - W}\right)\right)
      & (\text{cosine}), \\
    \eta_t &= \eta \left(1 - (1 - \rho)
      \max\left(0, \tfrac{t - 1 - T + D}{D}\right)\right)
      & (\text{wsd, } D \text{ steps of decay}).
  """
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


def num_replicas(config: Mapping[str, Any]) -> dict[str, int]:
  """Returns the number of replicas along each axis, outermost first."""
  if config['method'] != 'hierarchical':
    return {replicas.AXIS: config['num_replicas']}
  levels = reversed(_sorted_levels(config))
  return {level['axis']: level['num_replicas'] for level in levels}


def _labels(params):
  """Says which optimizer a leaf has under Muon: matrices between layers."""

  def label(path, leaf):
    is_end = path and getattr(path[0], 'key', None) in ('embed', 'head')
    return 'muon' if leaf.ndim == 2 and not is_end else 'adamw'

  return jax.tree.map_with_path(label, params)


def _sorted_levels(config):
  """Returns the levels, innermost first."""
  levels = config['levels']
  names = [f'level_{number}' for number in range(1, len(levels) + 1)]
  if set(levels) != set(names):
    raise ValueError(
      f'`levels` must be named {", ".join(names)}, innermost first, got'
      f' {", ".join(sorted(levels))}.'
    )
  return [levels[name] for name in names]


def _levels(config, axis_names):
  levels = _sorted_levels(config)
  axes = [level['axis'] for level in levels]
  reserved = replicas.INSIDE
  taken = [axis for axis in axes if axis.startswith('local_')]
  if len(set(axes)) < len(axes) or set(axes) & set(reserved) or taken:
    raise ValueError(
      '`levels`: each must have an `axis` of its own, other than'
      f" {' and '.join(map(repr, reserved))}, and not 'local_...', got {axes}."
    )
  return [
    transforms.Level(
      make_outer(level['outer']),
      level['every'],
      axis_names(*reversed(axes[: number + 1])),
    )
    for number, level in enumerate(levels)
  ]
