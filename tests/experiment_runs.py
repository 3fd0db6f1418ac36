"""An experiment of two rows, and folders of its runs, without training."""

import json
import math

from dilojax import workdir

EXPERIMENT = '''\
"""Is b better than a?

By <one> & another.
"""

import ml_collections

PAPER_COLUMN = 'ppl'
PARENTS = {'b': 'a'}
EXPECTED = ('b < a', 'b within 5% of a')


def get_config():
  fields = {'seed': 0, 'num_steps': 100, 'mesh': {'fsdp': 4}}
  return ml_collections.ConfigDict({**fields, 'outer': {'lr': 0.1}})


def sweep():
  for seed in (0, 1, 2):
    yield f'a/{seed}', {'seed': seed, 'outer': None}
    yield f'b/{seed}', {'seed': seed, 'outer.lr': 0.7}
'''
PAPER = '# Some paper, table 1\nrow,tokens,ppl\na,1B,15.30\nc,1B,14.2\n'
LOSSES = {'a': (2.0, 2.2, 2.1), 'b': (1.9, 2.05, 2.0)}
STEPS = (0, 50, 100)


def write_experiment(folder, text=EXPERIMENT, paper=PAPER):
  """Writes the experiment, and returns its path."""
  path = folder / 'rows.py'
  path.write_text(text)
  if paper:
    path.with_suffix('.csv').write_text(paper)
  return path


def write_run(folder, loss, seed, fields, nbytes=1000):
  """Writes the folder of a finished run."""
  folder.mkdir(parents=True)
  config = {'seed': seed, 'num_steps': 100, 'mesh': {'fsdp': 0}, **fields}
  records = [
    {
      'step': step,
      'tokens': 32 * step,
      'bytes_sent': nbytes * step // 100,
      'seconds': step / 10 + seed,
      'eval/anchor/loss': loss + (100 - step) / 100,
    }
    for step in STEPS
  ]
  final = {**records[-1], 'eval/anchor/bits_per_byte': loss / math.log(2)}
  text = ''.join(json.dumps(record) + '\n' for record in records)
  (folder / workdir.METRICS).write_text(text)
  for name, value in {
    workdir.CONFIG: config,
    workdir.ENVIRONMENT: {
      'command': ['/somewhere/else/dilojax', 'train'],
      'hostname': 'somewhere-else',
      'python': '3.11.7',
      'packages': {'jax': '0.10.2'},
      'cpus': 2,
      'platform': 'cpu',
      'device_kind': 'cpu',
      'num_devices': 1,
      'commit': '0123456789abcdef',
      'clean': True,
    },
    workdir.SUMMARY: {
      'steps': 100,
      'seconds': 10.0 + seed,
      'num_params': 1234,
      'corpus': {'name': 'text', 'fingerprint': 'f00'},
      'final': final,
      'replicas': [{'bytes_sent': 0}, {'bytes_sent': nbytes}],
    },
  }.items():
    workdir.write_json(folder / name, value)
  return folder


def write_sweep(out):
  """Writes the folders of all runs of the experiment."""
  for row, losses in LOSSES.items():
    fields = {'outer': {'lr': 0.7}} if row == 'b' else {}
    for seed, loss in enumerate(losses):
      nbytes = 250 if row == 'b' else 1000
      write_run(out / row / str(seed), loss, seed, fields, nbytes)
  return out
