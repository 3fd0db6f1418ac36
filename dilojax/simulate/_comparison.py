"""Methods side by side, by what their links leave of a training's time."""

from collections.abc import Iterable, Mapping, Sequence
import math
from typing import Any, NamedTuple

from dilojax.simulate import _exchanges
from dilojax.simulate import _utilization


class Method(NamedTuple):
  """What a method sends between sites, and when.

  Attributes:
    every: Number of steps per round.
    num_fragments: Number of fragments that take turns; 1 for the whole model.
    order: 'strided' or 'sequential'.
    rule: 'exact' or 'rounded', as in :func:`in_turns`.
    delay: Number of steps from a launch to its landing.
    bits: Bits on the link for each param.
  """

  every: int = 1
  num_fragments: int = 1
  order: str = 'strided'
  rule: str = 'exact'
  delay: int = 0
  bits: float = 16.0


def method_names(methods: Sequence[Method]) -> tuple[str, ...]:
  """Names methods by all in which they may differ.

  Examples:
    >>> from dilojax import simulate
    >>> ddp = simulate.Method()
    >>> simulate.method_names([ddp, ddp._replace(every=100, num_fragments=8)])
    ('every step, 16 bits', 'every 100, 8 fragments, 16 bits')
  """
  differ = lambda name: len({getattr(each, name) for each in methods}) > 1

  def name(method):
    words = ['every step' if method.every == 1 else f'every {method.every}']
    if method.num_fragments > 1:
      words.append(f'{method.num_fragments} fragments')
      words += [method.order] * (differ('order') or method.order != 'strided')
      words += [method.rule] * (differ('rule') or method.rule != 'exact')
    words += [f'delay {method.delay}'] * bool(method.delay)
    return ', '.join([*words, f'{method.bits:g} bits'])

  return tuple(map(name, methods))


def utilization_report(
  layers: _exchanges.Layers,
  methods: Sequence[Method],
  *,
  bandwidths: Iterable[float] = (),
  targets: Iterable[float] = (),
  latency: float = 0.0,
  inside: _exchanges.Link | None = None,
  inside_bits: float = 16.0,
  grid: Sequence[float] = _utilization.GRID,
  curves: bool = False,
  num_steps: int = 2000,
) -> dict[str, Any]:
  """Simulates methods over links between sites, as plain JSON values.

  Args:
    layers: What a step computes.
    methods: What is sent between sites.
    bandwidths: Of the link between sites, in bits per second.
    targets: Utilizations for which the bandwidth is wanted.
    latency: Of the link between sites, in seconds per message.
    inside: Link inside a site. If there is one, gradients are averaged over it
      in every step.
    inside_bits: Bits on that link for each param.
    grid: As in :func:`required_bandwidth`.
    curves: Whether to report the utilization over all of the grid.
    num_steps: Number of steps.

  Returns:
    `num_layers`, `num_params`, `compute_s_per_step`, `num_steps`, the lowest
    and highest `grid_gbit_per_s`, and `methods`. Each of these has its `name`
    and settings; `links`, one for each bandwidth; `required_gbit_per_s`, one
    for each target, None where the grid is not enough; and `curve`, if asked
    for.

  Raises:
    ValueError: If an argument is out of range.
  """
  bandwidths, targets = tuple(bandwidths), tuple(targets)
  num_layers, level = len(layers.forward), int(inside is not None)
  inner_links, inner = (), ()
  if inside is not None:
    inner_links = (inside,)
    inner = _exchanges.together(num_layers, bits=inside_bits)
  outer = [
    _exchanges.in_turns(num_layers, level=level, **method._asdict())
    for method in methods
  ]

  def run(exchanges, bandwidth):
    links = (*inner_links, _exchanges.Link(bandwidth, latency))
    return _utilization.utilization(
      layers, (*inner, *exchanges), links, num_steps=num_steps
    )

  def links(exchanges):
    for bandwidth in bandwidths:
      found = run(exchanges, bandwidth)
      *within, between = (sent / num_steps for sent in found.bytes_sent)
      yield {
        'gbit_per_s': bandwidth / 1e9,
        'utilization': found.utilization,
        'exposed_s_per_step': found.exposed_seconds / num_steps,
        'bytes_per_step': between,
        **({'inside_bytes_per_step': within[0]} if within else {}),
      }

  def required(exchanges):
    found = _utilization.required_bandwidth(
      layers,
      (*inner, *exchanges),
      targets,
      links=(*inner_links, _exchanges.Link(latency=latency)),
      grid=grid,
      num_steps=num_steps,
    )
    return [
      {
        'utilization': target,
        'gbit_per_s': bandwidth / 1e9 if math.isfinite(bandwidth) else None,
      }
      for target, bandwidth in zip(targets, found)
    ]

  def report(name, method, exchanges):
    found = {'name': name, **method._asdict(), 'links': list(links(exchanges))}
    found['required_gbit_per_s'] = required(exchanges) if targets else []
    if curves:
      values = run(exchanges, list(grid)).utilization.tolist()
      found['curve'] = [
        {'gbit_per_s': bandwidth / 1e9, 'utilization': value}
        for bandwidth, value in zip(grid, values)
      ]
    return found

  alone = _utilization.utilization(layers, (), [_exchanges.Link()], num_steps=1)
  return {
    'num_layers': num_layers,
    'num_params': round(math.fsum(layers.num_params), 3),
    'compute_s_per_step': alone.seconds,
    'num_steps': num_steps,
    'grid_gbit_per_s': [grid[0] / 1e9, grid[-1] / 1e9],
    'methods': list(map(report, method_names(methods), methods, outer)),
  }


def utilization_table(report: Mapping[str, Any]) -> str:
  """Writes what :func:`utilization_report` returns as Markdown.

  Args:
    report: The report.

  Returns:
    A line on the model; a table of the bandwidths and one of the targets, where
    there are any.
  """
  lines = [
    f'{report["num_layers"]} layers, {report["num_params"]:,.0f} params,'
    f' {report["compute_s_per_step"]:.3g} s of computation per step,'
    f' {report["num_steps"]} steps.'
  ]
  methods = report['methods']
  if any(method['links'] for method in methods):
    inside = 'inside_bytes_per_step' in methods[0]['links'][0]
    header = ['method', 'Gbit/s', 'utilization', 'waits per step']
    header += ['sent per step', *(['inside a site'] if inside else [])]
    rows = [
      [
        method['name'],
        f'{link["gbit_per_s"]:g}',
        f'{link["utilization"]:.1%}',
        f'{link["exposed_s_per_step"]:.3g} s',
        _size(link['bytes_per_step']),
        *([_size(link['inside_bytes_per_step'])] if inside else []),
      ]
      for method in methods
      for link in method['links']
    ]
    lines += ['', *_table(header, rows)]
  if any(method['required_gbit_per_s'] for method in methods):
    low, high = report['grid_gbit_per_s']
    targets = [
      f'{each["utilization"]:.4g}' for each in methods[0]['required_gbit_per_s']
    ]
    rows = [
      [
        method['name'],
        *(
          _required(each['gbit_per_s'], low, high)
          for each in method['required_gbit_per_s']
        ),
      ]
      for method in methods
    ]
    lines += ['', 'Gbit/s for a utilization of', '']
    lines += _table(['method', *targets], rows)
  return '\n'.join(lines)


def _required(bandwidth, low, high):
  if bandwidth is None:
    return f'over {high:g}'
  # Less might do: the grid does not go on.
  return f'{"at most " * (bandwidth <= low)}{bandwidth:.3g}'


def _size(nbytes):
  units = ['B', 'kB', 'MB', 'GB', 'TB', 'PB']
  while nbytes >= 999.5 and len(units) > 1:
    nbytes, units = nbytes / 1000, units[1:]
  return f'{nbytes:.3g} {units[0]}'


def _table(header, rows):
  widths = [max(map(len, column)) for column in zip(header, *rows)]
  join = lambda row: '| ' + ' | '.join(map(str.ljust, row, widths)) + ' |'
  rule = '| ' + ' | '.join('-' * width for width in widths) + ' |'
  return [join(header), rule, *map(join, rows)]
