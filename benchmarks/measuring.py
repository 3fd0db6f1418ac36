"""What the benchmarks share: repeats, medians, and how results are said."""

from collections.abc import Callable, Mapping, Sequence
import json
import statistics
import time
from typing import Any

import jax
import optax

from dilojax import _optimizer
from dilojax import _overrides
from dilojax import _position
from dilojax import _segment
from dilojax import build
from dilojax import replicas
from dilojax import schedule
from dilojax import workdir


def seconds(fn: Callable[[], Any]) -> float:
  """Returns how long a call takes, until what it returns is there."""
  begin = time.perf_counter()
  jax.block_until_ready(fn())
  return time.perf_counter() - begin


def interleaved(
  fns: Mapping[str, Callable[[], Any]], repeats: int
) -> dict[str, list[float]]:
  """Times functions in turns, so that other work on the machine meets all."""
  for fn in fns.values():
    jax.block_until_ready(fn())  # Compiles, and warms up.
  times: dict[str, list[float]] = {name: [] for name in fns}
  for _ in range(repeats):
    for name, fn in fns.items():
      times[name].append(seconds(fn))
  return times


def median_and_range(values: Sequence[float]) -> dict[str, float]:
  """Returns the median, the least and the greatest value."""
  return {
    'median': statistics.median(values),
    'min': min(values),
    'max': max(values),
  }


def show(header: Sequence[str], rows: Sequence[Sequence[Any]]) -> None:
  """Prints a table."""
  cells = [[str(cell) for cell in row] for row in (header, *rows)]
  widths = [max(map(len, column)) for column in zip(*cells)]
  for row in cells:
    first, *rest = row
    line = [first.ljust(widths[0]), *map(str.rjust, rest, widths[1:])]
    print('  '.join(line))


def report(benchmark: str, **result: Any) -> None:
  """Prints the result as a line of JSON, with what it was measured on."""
  line = {
    'benchmark': benchmark,
    **result,
    'environment': workdir.environment(),
  }
  print(json.dumps(line))


def batches(setup: build.Setup, num_steps: int) -> Any:
  """Returns batches of a number of steps, on the devices."""
  run = schedule.Run((), 1, num_steps)
  found = _segment.batches(setup, _segment.Segment(1, (run,), False))
  return jax.tree.map(lambda leaf: leaf[:, :num_steps], found)


def setups(
  path: str, overrides: Sequence[tuple[str, str]] = ()
) -> tuple[build.Setup, build.Setup]:
  """Returns the setup of a config, and that with its inner optimizer alone."""
  config = _overrides.load(path, overrides)
  jax.config.update('jax_num_cpu_devices', build.num_cpu_devices(config))
  setup = build.make(config)
  inner = _optimizer.make_inner(build.resolve(config))
  return setup, setup._replace(tx=optax.with_extra_args_support(inner))


def plain_step(setup: build.Setup) -> Callable[..., Any]:
  """Returns an inner step as users write it, which decides with a branch."""

  def step(params, opt_state, batch):
    loss, grads = jax.value_and_grad(setup.model.loss)(params, batch)
    updates, opt_state = setup.tx.update(grads, opt_state, params)
    return (optax.apply_updates(params, updates), opt_state), loss

  return step


def plain_scan(setup: build.Setup) -> Callable[..., Any]:
  """Returns a program that scans over steps; it donates params and state."""
  axes = _position.state_axes(setup)
  step = plain_step(setup)

  def steps(params, opt_state, batches):
    one = lambda carry, batch: step(*carry, batch)
    return jax.lax.scan(one, (params, opt_state), batches)

  program = replicas.over_replicas(
    steps, setup.placement, (*axes, 0), (axes, 0)
  )
  return jax.jit(program, donate_argnums=(0, 1))
