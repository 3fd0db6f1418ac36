"""Profiles of our models, and the commands that make and use them."""

import functools
import json

import jax
import numpy as np
import pytest

from dilojax import _profile
from dilojax import build
from dilojax import cli
from dilojax import models
from dilojax import simulate
from dilojax import transforms
from tests import tiny

TURNS = 'head final_norm; ; layer_00; embed'


@functools.cache
def setup(**overrides):
  return build.make(tiny.config('dreamddp', turns=TURNS, **overrides))


def decoder(**kwargs):
  fields = {**tiny.MODEL, 'seq_len': 8, 'num_layers': 3, **kwargs}
  fields.pop('name')
  return models.decoder(**fields)


def ordered(model, batch, depth=1):
  params = jax.eval_shape(model.init, jax.random.key(0))
  labels = transforms.by_module(depth)(params)
  return _profile.order(model, params, batch, labels)


def tokens():
  return {'tokens': np.zeros((2, 9), np.int32)}


@pytest.mark.parametrize('remat', [False, True])
def test_the_backward_pass_visits_units_from_the_last_to_the_first(remat):
  want = ['head', 'final_norm', 'layer_02', 'layer_01', 'layer_00', 'embed']
  assert [*ordered(decoder(remat=remat), tokens())] == want


def test_a_tied_embedding_is_ready_when_the_pass_ends():
  names = ordered(decoder(tied_head=True), tokens())
  assert (names[0], names[-1]) == ('final_norm', 'embed')


def test_parts_of_layers_are_in_order_as_well():
  names = ordered(decoder(num_layers=1), tokens(), depth=2)
  assert names == (
    'head',
    'final_norm',
    'layer_00/mlp',
    'layer_00/mlp_norm',
    'layer_00/attention',
    'layer_00/attention_norm',
    'embed',
  )


@pytest.mark.slow
def test_a_program_has_the_gradients_of_its_units():
  model = decoder(num_layers=2)
  params, batch = jax.jit(model.init)(jax.random.key(0)), tokens()
  labels = transforms.by_module()(params)
  fn = _profile._gradient_of(model, labels, {'head', 'layer_01'})
  loss, got = jax.jit(fn)(params, batch)
  whole = jax.jit(jax.value_and_grad(model.loss))
  want_loss, want = whole(params, batch)
  np.testing.assert_allclose(loss, want_loss, rtol=1e-6)
  assert {name for name, part in got.items() if jax.tree.leaves(part)} == {
    'head',
    'layer_01',
  }
  for name in ('head', 'layer_01'):
    for one, other in zip(
      jax.tree.leaves(got[name]), jax.tree.leaves(want[name])
    ):
      np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-7)


@pytest.mark.slow
def test_times_are_differences_of_the_shortest_runs(monkeypatch):
  """Of two runs of each program; the third is shorter than the second."""
  times = iter([5, 9, 7, 11, 20] + [4, 7, 9, 12, 15])
  monkeypatch.setattr(_profile, '_seconds', lambda run: float(next(times)))
  found = _profile.profile(setup(), bandwidth=8e3, latency=0.5, repeats=1)
  assert [unit.name for unit in found] == [
    'head',
    'final_norm',
    'layer_00',
    'embed',
  ]
  assert [unit.backward for unit in found] == [3, 0, 4, 4]
  # 2 * 3 / 4 of 8 * 8 values of 4 bytes, at 1000 bytes per second.
  head, norm, _, embed = (unit.reduce for unit in found)
  assert head == embed == pytest.approx(0.5 + 1.5 * 0.256)
  assert norm == pytest.approx(0.5 + 1.5 * 0.032)


@pytest.mark.parametrize(
  ('kwargs', 'match'),
  [
    ({'bandwidth': 0.0}, '`bandwidth` must be finite and above 0, got 0.0'),
    ({'latency': -1.0}, '`latency` must be finite and at least 0, got -1.0'),
    ({'repeats': 0}, '`repeats` must be at least 1, got 0'),
  ],
)
def test_links_that_cannot_be_are_refused(kwargs, match):
  given = {'bandwidth': 1e9, 'latency': 0.0, 'repeats': 1, **kwargs}
  with pytest.raises(ValueError, match=match):
    _profile.check(**given)


def test_one_replica_has_nobody_to_average_with():
  one = setup(num_replicas=1, **{'mesh.num_devices': 1})
  with pytest.raises(ValueError, match='`num_replicas` must be at least 2'):
    _profile.profile(one, bandwidth=1e9)


def options():
  """Returns the options that make the config of a command tiny."""
  changes = {'model': tiny.MODEL, 'data': tiny.DATA, **tiny.SMALL}
  del changes['every']
  config = tiny.ROOT / 'configs' / 'dreamddp.py'
  return [
    f'--config={config}',
    *(f'--config.{name}={value!r}' for name, value in changes.items()),
  ]


@pytest.mark.slow
def test_commands_measure_and_plan(tmp_path, capsys):
  path = tmp_path / 'profile.csv'
  command = ['profile', *options(), f'--config.turns={TURNS}']
  link = ['--bandwidth=1', '--latency=0.5']
  assert cli.main([*command, *link, '--repeats=1', f'--out={path}']) == 0
  capsys.readouterr()
  units = simulate.read_profile(path)
  assert [unit.name for unit in units][-1] == 'embed'
  assert all(unit.reduce >= 0.5 for unit in units)

  plan = ['simulate', 'dreamddp', str(path), '--every=4']
  assert cli.main([*plan, '--json']) == 0
  report = json.loads(capsys.readouterr().out)
  assert report == simulate.dreamddp_report(units, every=4)
  assert cli.main(plan) == 0
  text = capsys.readouterr().out
  assert f"turns: '{report['turns']}'" in text
  # The field of a config, as it stands.
  made = build.make(tiny.config('dreamddp', turns=report['turns']))
  assert {link.schedule.every for link in build.links(made)} == {4}
  params = jax.eval_shape(made.model.init, jax.random.key(0))
  assert sum(link.nbytes for link in build.links(made)) == 4 * sum(
    leaf.size for leaf in jax.tree.leaves(params)
  )


def test_a_command_says_what_is_wrong(tmp_path, capsys):
  command = ['simulate', 'dreamddp', str(tmp_path / 'none.csv'), '--every=4']
  assert cli.main(command) == 2
  assert 'none.csv' in capsys.readouterr().err
  path = tmp_path / 'profile.csv'
  path.write_text('name,backward_s,comm_s\nu,1,1\n')
  command = ['simulate', 'dreamddp', str(path), '--every=4']
  assert cli.main([*command, '--start_rule=x']) == 2
  assert '`start_rule` must be one of' in capsys.readouterr().err


def test_turns_of_a_config_must_fit_its_model():
  with pytest.raises(ValueError, match=r"\['embed'\] have no turn"):
    build.make(tiny.config('dreamddp', turns='head final_norm; layer_00'))
