"""Tests for the fits and times of `experiments/scaling_laws`."""

import math

import numpy as np
import pytest

from dilojax import exact
from dilojax import models
from experiments.scaling_laws import loss_fit
from experiments.scaling_laws import parametric
from experiments.scaling_laws import residuals
from experiments.scaling_laws import wall_clock


def test_one_factor_differs_by_more_than_the_losses_are_rounded():
  cells = loss_fit.compute()
  assert exact.count(cells) == (12, 13)
  exactly = [exact.agrees(cell._replace(within=None)) for cell in cells]
  assert sum(exactly) == 3
  [other] = [cell for cell in cells if not exact.agrees(cell)]
  assert (other.row, other.column) == ('data_parallel', 'A')
  assert other.ours == pytest.approx(18.170, abs=5e-4)


def test_counted_sizes_do_not_fit_here():
  counted = dict(zip(loss_fit.SIZES, residuals.counted_sizes()))
  assert exact.count(loss_fit.compute(counted)) == (2, 13)


def test_margins_are_those_that_the_docstring_says():
  for cell in loss_fit.compute():
    width = cell.within * abs(float(cell.paper))
    if cell.column == 'alpha':
      assert width < 2e-4
    if cell.column == 'A':
      assert cell.within < 2.3e-3


def test_a_largest_size_of_241_billion_gives_all_exponents():
  cells = loss_fit.compute({**loss_fit.SIZES, '2.4B': 2.41e9})
  for cell in cells:
    if cell.column == 'A':
      assert abs(cell.ours / float(cell.paper) - 1) < 1.2e-3
    else:
      assert exact.agrees(cell._replace(within=None))


def test_the_joint_exponent_of_size_is_the_mean_of_those_by_replicas():
  # The points are a grid: each number of replicas has all sizes.
  cells = {(c.row, c.column): c.ours for c in loss_fit.compute()}
  each = [cells[f'diloco_m{m}', 'alpha'] for m in loss_fit.REPLICAS]
  assert cells['joint', 'alpha'] == pytest.approx(np.mean(each))


def test_all_residuals_agree_with_counted_sizes_and_none_with_nominal():
  cells = residuals.compute()
  assert exact.count(cells) == (10, 10)
  exactly = [exact.agrees(cell._replace(within=None)) for cell in cells]
  assert sum(exactly) == 6
  nominal = residuals.compute(list(loss_fit.SIZES.values()))
  assert exact.count(nominal) == (0, 10)


def test_a_law_leaves_no_residual():
  sizes = [1e6, 1e7, 1e8, 1e9]
  values = np.array(
    [[20 * n**-0.1 * m**0.01 for m in loss_fit.REPLICAS] for n in sizes]
  )
  for kind in ('indep', 'joint'):
    left = residuals.residuals(values, sizes, kind)
    np.testing.assert_allclose(left, 0, atol=1e-12)
    above = values.copy()
    above[-1] *= math.exp(0.25)
    left = residuals.residuals(above, sizes, kind)
    np.testing.assert_allclose(left, 0.25)


def test_sizes_are_those_of_our_decoder_without_norms():
  [nominal, *_] = residuals.counted_sizes()
  model = models.decoder(
    vocab_size=residuals.VOCABULARY,
    seq_len=2048,
    num_layers=6,
    dim=512,
    num_heads=8,
    head_dim=64,
    mlp_dim=2048,
    mlp='gelu',
    tied_head=True,
    qk_norm=True,
    z_loss=1e-4,
    dtype='float32',
    remat=False,
  )
  # Training takes 6 operations for each, and those of attention.
  attention = 12 * 6 * 8 * 64 * 2048**2
  assert model.flops == 6 * 2048 * nominal + attention


def test_two_forms_agree_and_two_fit_better_than_in_the_paper():
  cells = parametric.compute()
  assert exact.count(cells) == (2, 4)
  others = [cell for cell in cells if not exact.agrees(cell)]
  assert [cell.row for cell in others] == ['A*N^a*M^b+C', 'A*N^a+B*M^b+C']
  assert [exact.printed(cell) for cell in others] == ['0.0025', '0.0032']


def test_a_form_that_contains_another_fits_no_worse():
  left = {form: parametric.residual(form) for form in parametric.FORMS}
  assert left['A*N^a*M^b+C'] < left['A*N^a*M^b']


def test_hours_follow_the_network():
  cells = {(c.row, c.column): c.ours for c in wall_clock.compute()}
  hours = lambda method, network: cells[method, f'hours, {network}']
  networks = list(wall_clock.networks())
  assert networks == ['high', 'medium', 'low']
  compute = 6 * 2.4e9 * 48e9 / (256 * 300e12) / 3600
  for network in networks:
    one = hours('DiLoCo, M = 1', network) - compute
    assert one / (hours('data parallel', network) - compute) == pytest.approx(
      31 / 30
    )
    # More replicas, less to reduce inside.
    assert (
      hours('DiLoCo, M = 8', network)
      < hours('DiLoCo, M = 4', network)
      < hours('DiLoCo, M = 2', network)
    )
  assert hours('DiLoCo, M = 2', 'low') < hours('data parallel', 'low') / 9
  for method in ('DiLoCo, M = 1', 'DiLoCo, M = 2', 'DiLoCo, M = 8'):
    ratio = hours(method, 'high') / hours('data parallel', 'high')
    assert ratio == pytest.approx(1, abs=0.02)
