"""A run that takes moments."""

import contextlib
import pathlib

import jax

from dilojax import _engines
from dilojax import _overrides
from dilojax import build
from dilojax import metrics
from dilojax import workdir

ROOT = pathlib.Path(__file__).parents[1]
MODEL = {
  'name': 'decoder',
  'vocab_size': 8,
  'num_layers': 1,
  'dim': 8,
  'num_heads': 1,
  'head_dim': 8,
  'mlp': 'gelu',
  'mlp_dim': 16,
  'tied_head': False,
  'qk_norm': True,
  'z_loss': 0.0,
  'dtype': 'float32',
  'remat': False,
}
DATA = {
  'corpus': 'synthetic',
  'seq_len': 8,
  'num_symbols': 8,
  'num_sequences': 400,
  'corpus_seed': 0,
  'heldout_fraction': 0.2,
  'batch_size': 4,
}
SMALL = {
  'num_steps': 13,
  'every': 5,
  'inner.warmup_steps': 2,
  'eval_every': 6,
  'eval_sequences': 8,
  'log_every': 6,
  'checkpoint_every': 6,
  'mesh.num_devices': 4,
}


def config(name='diloco', **overrides):
  """Returns a config of `configs/`, tiny, with overrides by dotted name.

  An override of None removes a field; one by a dict replaces a group.
  """
  changes = {'model': MODEL, 'data': DATA, **SMALL, **overrides}
  base = _overrides.load(ROOT / 'configs' / f'{name}.py')
  there = build.resolve(base)
  pairs = [
    (key, 'null' if value is None else repr(value))
    for key, value in changes.items()
    if key != 'every' or 'every' in there
  ]
  return _overrides.load(ROOT / 'configs' / f'{name}.py', pairs)


def run(folder, config, *, changes=(), written=None, spy=None):
  """Trains in this process; returns the summary.

  Args:
    folder: Where to.
    config: The config.
    changes: As for the command line.
    written: List to which records are added.
    spy: Function of the setup, that returns the one to train.
  """
  engine = _engines.of(config)
  setup = engine.make(config)
  setup = spy(setup) if spy else setup
  with workdir.opened(folder, build.resolve(config), changes=changes) as path:

    def sink(step):
      file = path / workdir.METRICS
      resume_step = step if file.exists() else None
      into = (written if written is not None else []).append
      return metrics.tee(
        metrics.jsonl(file, resume_step=resume_step),
        metrics.Sink(into, lambda: None),
      )

    return engine.train(
      setup, path, sink=sink, notify=lambda text: None, clock=lambda: 0.0
    )


def state(folder, config, step):
  """Returns the leaves of a checkpoint by path, on the host."""
  from dilojax import _position

  setup = build.make(config)
  axes = _position.state_axes(setup)
  position = _position.restore(folder / workdir.CHECKPOINTS, step, setup, axes)
  leaves = jax.tree.leaves_with_path((position.params, position.opt_state))
  return {
    jax.tree_util.keystr(path): jax.device_get(leaf) for path, leaf in leaves
  }


@contextlib.contextmanager
def raises_when_saving(monkeypatch, step):
  """Makes the process fail where it would save a step."""
  from dilojax import checkpoint

  save = checkpoint.save

  def failing(folder, at, *args, **kwargs):
    if at == step:
      raise KeyboardInterrupt
    save(folder, at, *args, **kwargs)

  with monkeypatch.context() as patch:
    patch.setattr(checkpoint, 'save', failing)
    yield
