"""Seconds from the command to the first steps, and what they are spent on.

    python -m benchmarks.startup

Runs `dilojax train` in processes of their own, for one short round.
"""

import argparse
import json
import pathlib
import subprocess
import sys
import tempfile
import time

from benchmarks import measuring

PHASES = ('imports', 'corpus', 'state', 'first_segment')


def main() -> None:
  """Measures, and prints a table and a line of JSON."""
  args = parse_args()
  found = [_one(args.config) for _ in range(args.repeats)]
  spent = {
    name: measuring.median_and_range([each[name] for each in found])
    for name in found[0]
  }
  measuring.show(
    ('phase', 'seconds', 'least', 'greatest'),
    [
      (name, *(f'{each[key]:.2f}' for key in ('median', 'min', 'max')))
      for name, each in spent.items()
    ],
  )
  measuring.report('startup', seconds=spent, settings=vars(args))


def _one(config):
  with tempfile.TemporaryDirectory() as folder:
    command = (
      *(sys.executable, '-m', 'dilojax.cli', 'train', f'--config={config}'),
      *(f'--workdir={folder}/run', '--config.num_steps=2', '--config.every=2'),
      '--config.inner.warmup_steps=0',
    )
    begin = time.monotonic()
    subprocess.run(command, check=True, capture_output=True)
    whole = time.monotonic() - begin
    path = pathlib.Path(folder, 'run', 'summary.json')
    timing = json.loads(path.read_text())['timing']
  times = [0.0, *(timing[name] for name in PHASES)]
  names = ('imports', 'corpus and links', 'params and state', 'first round')
  spent = {
    name: after - before for name, before, after in zip(names, times, times[1:])
  }
  return {
    'to the end of the first round': times[-1],
    **{f'  {name}': value for name, value in spent.items()},
    'whole command': whole,
  }


def parse_args() -> argparse.Namespace:
  """Reads the command line."""
  parser = argparse.ArgumentParser(
    description=__doc__.partition('\n')[0],
    formatter_class=argparse.ArgumentDefaultsHelpFormatter,
  )
  parser.add_argument(
    '--config', default='configs/quickstart.py', help='config'
  )
  parser.add_argument('--repeats', type=int, default=5, help='at least 5')
  return parser.parse_args()


if __name__ == '__main__':
  main()
