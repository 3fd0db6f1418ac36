"""What running two points at a time saves, and what the cache of programs does.

    python -m benchmarks.sweep [--num_steps N] [--batch_size N] [--points N]
                               [--jobs 1 2]

Sweeps the same points in new folders with each number of jobs, calibration and
compilation included, and once more without the persistent compilation cache.
On two cores, two at a time must take at most 0.65 of the time of one by one, in
runs of about a minute: choose `--num_steps` so. With larger batches than the
default a run that has all cores to itself can use them.
"""

import argparse
import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile
import time

from benchmarks import measuring

# One replica on one device: what small sweeps are made of.
_EXPERIMENT = '''\
"""Points that differ in the seed."""

from configs import small


def get_config():
  config = small.get_config()
  config.num_steps = {num_steps}
  config.data.batch_size = {batch_size}
  config.num_replicas = 1
  config.mesh.num_devices = 1
  return config


def sweep():
  for seed in range({points}):
    yield f'one/{{seed}}', {{'seed': seed}}
'''


def main() -> None:
  """Measures, and prints a table and a line of JSON."""
  args = parse_args()
  with tempfile.TemporaryDirectory() as name:
    folder = pathlib.Path(name)
    experiment = folder / 'points.py'
    experiment.write_text(
      _EXPERIMENT.format(
        num_steps=args.num_steps,
        batch_size=args.batch_size,
        points=args.points,
      )
    )
    found = {}
    for jobs in args.jobs:
      out = folder / f'jobs_{jobs}'
      found[f'{jobs} at a time'] = _one(experiment, out, jobs, {})
    jobs = args.jobs[-1]
    off = {'JAX_ENABLE_COMPILATION_CACHE': 'false'}
    out = folder / 'no_cache'
    found[f'{jobs} at a time, no cache'] = _one(experiment, out, jobs, off)
  first = next(iter(found.values()))['seconds']
  measuring.show(
    ('sweep', 'seconds', 'of the first', 'seconds of a run', 'to its steps'),
    [
      (
        name,
        f'{each["seconds"]:.1f}',
        f'{each["seconds"] / first:.3f}',
        f'{each["run"]:.1f}',
        f'{each["start"]:.1f}',
      )
      for name, each in found.items()
    ],
  )
  measuring.report('sweep', seconds=found, settings=vars(args))


def _one(experiment, out, jobs, environ):
  """Runs a sweep; returns its time, and that of a run in it."""
  command = [sys.executable, '-m', 'dilojax.cli', 'sweep', str(experiment)]
  command += [f'--out={out}', f'--jobs={jobs}']
  begin = time.monotonic()
  subprocess.run(command, env={**os.environ, **environ}, check=True)
  seconds = time.monotonic() - begin
  summaries = [json.loads(p.read_text()) for p in out.rglob('summary.json')]
  start = lambda each: each['timing']['first_segment']
  whole = lambda each: each['timing']['state'] + each['seconds']
  return {
    'seconds': seconds,
    'run': statistics.fmean(map(whole, summaries)),
    'start': statistics.fmean(map(start, summaries)),
  }


def parse_args() -> argparse.Namespace:
  """Returns the settings."""
  parser = argparse.ArgumentParser(description=__doc__.partition('\n')[0])
  parser.add_argument('--num_steps', type=int, default=3600)
  parser.add_argument('--batch_size', type=int, default=4)
  parser.add_argument('--points', type=int, default=6)
  parser.add_argument('--jobs', type=int, nargs='+', default=[1, 2])
  return parser.parse_args()


if __name__ == '__main__':
  main()
