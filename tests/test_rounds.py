"""Tests for `dilojax._rounds`."""

import jax
import pytest

from dilojax import build
from dilojax import transforms
from tests import tiny

DELAYED = {'delay': 2, 'merge': 'overwrite'}
HALVES = {'by': 'bytes', 'num_fragments': 2}
# Config, overrides, terms of the first landing, and their sum.
CASES = {
  'local_sgd': ('local_sgd', {}, '`every` 5', 5),
  'diloco': ('diloco', {}, '`every` 5', 5),
  'offset': (
    'diloco',
    {'overlap': {'offset': 3, **DELAYED}},
    '`overlap.offset` 3 + `overlap.delay` 2',
    5,
  ),
  'fragments': (
    'diloco',
    {'fragments': HALVES, 'overlap': DELAYED},
    '`every` 5 + `overlap.delay` 2',
    7,
  ),
  'late': ('delayed', {'overlap': None, 'late': 'eager'}, '`late` 5', 10),
  'post_local': (
    'post_local',
    {'data_parallel_steps': 3},
    '`data_parallel_steps` 3 + `every` 5',
    8,
  ),
  'noloco': ('noloco', {}, '`every` 5', 5),
  'loscar_sgd': ('loscar_sgd', {'delay': 2}, '`every` 5 + `delay` 2', 7),
  'hierarchical': (
    'hierarchical',
    {'levels.level_1.every': 2, 'levels.level_2.every': 6},
    '`levels.level_2.every` 6',
    6,
  ),
}


def config(case, num_steps, *, final=False):
  name, overrides, _, _ = CASES[case]
  return tiny.config(
    name,
    **overrides,
    num_steps=num_steps,
    final_synchronization=final,
  )


@pytest.mark.parametrize('case', CASES)
def test_a_landing_too_late_is_refused(case):
  _, _, terms, first = CASES[case]
  build.check(config(case, first))
  short = config(case, first - 1)
  with pytest.raises(
    ValueError, match=f'must be at least {first}, the'
  ) as error:
    build.check(short)
  assert terms in str(error.value)
  assert f'got {first - 1}: replicas would not meet' in str(error.value)
  # The last step makes them meet.
  build.check(config(case, first - 1, final=True))


@pytest.mark.parametrize('case', CASES)
def test_every_link_lands_exactly_then(case):
  """The links themselves land in that step, and not before."""
  first = CASES[case][-1]
  setup = build.make(config(case, 20))
  params = jax.eval_shape(setup.model.init, jax.random.key(0))
  links = transforms.links(jax.eval_shape(setup.tx.init, params), params)
  schedules = [link.schedule for link in links if link.schedule.stop is None]
  landings = lambda step: [
    schedule.num_landings(step) > schedule.late for schedule in schedules
  ]
  assert all(landings(first))
  assert not all(landings(first - 1))


def test_turns():
  turns = {'turns': 'embed;layer_00;norm head', 'model.num_layers': 1}
  base = {**turns, 'final_synchronization': False}
  build.check(tiny.config('dreamddp', **base, num_steps=3))
  with pytest.raises(ValueError, match='must be at least 3, .*`turns` 3'):
    build.check(tiny.config('dreamddp', **base, num_steps=2))


def test_without_rounds():
  build.check(tiny.config('data_parallel', num_steps=2))
  build.check(tiny.config('sparta', num_steps=2))
