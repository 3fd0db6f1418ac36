"""Tests for `dilojax._functions`: an outer optimizer of the reader's own."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dilojax import _functions
from dilojax import _optimizer
from dilojax import build
from dilojax import workdir
from tests import test_train
from tests import tiny

MODULE = '''\
"""Optimizers."""

import optax

NUMBER = 3


def scaled(lr: float, flip: bool = False, *, power: 'int' = 1):
  if lr < 0:
    raise ValueError('`lr` is negative.')
  return optax.sgd(lr**power * (-1 if flip else 1))


def same(lr, momentum):
  return optax.sgd(lr, momentum=momentum, nesterov=True)


def by_place(lr, /):
  return optax.sgd(lr)


def number(lr):
  return lr
'''


@pytest.fixture
def module(tmp_path, monkeypatch):
  """Returns the name of a module in the current folder."""
  name = f'module_{abs(hash(tmp_path))}'
  (tmp_path / f'{name}.py').write_text(MODULE)
  monkeypatch.chdir(tmp_path)
  return name


def config(outer):
  made = tiny.config().unlock()
  del made.outer
  made.outer = outer
  return made


def test_its_arguments_are_fields(module):
  given = {'name': f'{module}:scaled', 'lr': 3, 'power': 2}
  build.check(config(given))
  tx = _optimizer.make_outer(given)
  step, _ = tx.update(jnp.ones(2), tx.init(jnp.ones(2)))
  np.testing.assert_array_equal(step, [-9.0, -9.0])
  # What is neither annotated nor ours; optax itself will do.
  build.check(config({'name': 'optax:lion', 'learning_rate': 0.1, 'b1': 0.9}))


@pytest.mark.parametrize(
  ('member', 'given', 'message'),
  [
    ('scaled', {}, '`outer.lr` is missing: it must be a number.'),
    ('scaled', {'lr': 'x'}, "`outer.lr` must be a number, got 'x'."),
    ('scaled', {'lr': True}, '`outer.lr` must be a number, got True.'),
    ('scaled', {'lr': 1.0, 'flip': 1}, '`outer.flip` must be True or False'),
    ('scaled', {'lr': 1.0, 'power': 1.5}, '`outer.power` must be an int'),
    ('same', {'lr': [1], 'momentum': 1}, '`outer.lr` must be a number, a text'),
    ('scaled', {'lt': 1.0}, '`outer.lt` is unknown, got 1.0. Did you mean'),
    ('scaled', {'lr': 1.0, 'momentum': 0.9}, '`outer.momentum` has no effect'),
    ('scale', {'lr': 1.0}, "no function 'scale'. Did you mean `scaled`?"),
    ('NUMBER', {'lr': 1.0}, "no function 'NUMBER'"),
    ('', {'lr': 1.0}, "no function ''"),
    ('by_place', {}, 'an argument `lr` that a config cannot give'),
  ],
)
def test_what_does_not_fit(member, given, message, module):
  wrong = config({'name': f'{module}:{member}', **given})
  with pytest.raises(ValueError, match=re.escape(message)):
    build.check(wrong)


@pytest.mark.parametrize('name', ['not.there:f', ':f', '..a:f', 'a b:f'])
def test_a_module_that_is_not_there(name):
  with pytest.raises(ValueError, match='must be MODULE:FUNCTION, of a module'):
    build.check(config({'name': name, 'lr': 1.0}))


def test_a_name_that_is_neither():
  with pytest.raises(ValueError, match='adam, or MODULE:FUNCTION, got'):
    build.check(config({'name': 'nestrov', 'lr': 1.0}))


@pytest.mark.parametrize(
  ('member', 'lr', 'message'),
  [
    ('scaled', -1.0, r'fails with lr=-1.0: ValueError: `lr` is negative'),
    ('number', 1.0, 'must return an optax transformation, got float'),
  ],
)
def test_what_it_returns(member, lr, message, module):
  with pytest.raises(ValueError, match=message):
    build.make(config({'name': f'{module}:{member}', 'lr': lr}))


def test_equal_to_ours_it_trains_the_same(module, tmp_path):
  changes = {'num_steps': 4, 'every': 2, 'eval_every': 4}
  ours = test_train.config_of('diloco', **changes)
  theirs = ours.copy_and_resolve_references().unlock()
  theirs.outer.name = f'{module}:same'
  finals = []
  for name, each in {'ours': ours, 'theirs': theirs}.items():
    tiny.run(tmp_path / name, each)
    finals.append(tiny.state(tmp_path / name, each, 4))
  jax.tree.map(np.testing.assert_array_equal, *finals)


def test_its_file_is_recorded(module, tmp_path):
  given = {'name': f'{module}:scaled', 'lr': 1.0}
  [(name, digest)] = workdir.functions(build.resolve(config(given))).items()
  assert name == given['name']
  assert len(digest) == 16
  assert digest == _functions.fingerprint(f'{module}:same')
  (tmp_path / f'{module}.py').write_text(MODULE + '# Another.\n')
  assert _functions.fingerprint(name) not in ('', digest)
  plain = build.resolve(tiny.config())
  assert workdir.functions(plain) == {}
  assert len(_functions.fingerprint('optax:sgd')) == 16
  assert _functions.fingerprint('math:sqrt') == ''
