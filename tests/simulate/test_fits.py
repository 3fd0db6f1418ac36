"""Tests for `dilojax.simulate._fits`."""

import math

import numpy as np
import pytest

from dilojax import simulate

SIZES = np.array([1e6, 3e6, 1e7, 1e8, 1e8])
REPLICAS = np.array([1, 2, 4, 1, 8])


def test_a_fit_finds_the_law_that_made_the_values():
  law = simulate.PowerLaw(19.0, (-0.1, 0.02))
  values = [law(n, m) for n, m in zip(SIZES, REPLICAS)]
  found = simulate.fit_power_law(values, SIZES, REPLICAS)
  np.testing.assert_allclose(found.scale, 19.0, rtol=1e-9)
  np.testing.assert_allclose(found.exponents, (-0.1, 0.02), rtol=1e-9)


def test_what_a_fit_leaves_is_orthogonal_to_every_input():
  values = np.random.default_rng(0).uniform(1, 3, len(SIZES))
  law = simulate.fit_power_law(values, SIZES, REPLICAS)
  left = np.log(values) - np.log(law(SIZES, REPLICAS))
  for column in (np.ones(5), np.log(SIZES), np.log(REPLICAS)):
    assert abs(left @ column) < 1e-9


def test_a_scale_of_inputs_goes_into_the_factor():
  values = [4.0, 3.0, 2.5]
  law = simulate.fit_power_law(values, [1.0, 2.0, 4.0])
  moved = simulate.fit_power_law(values, [1e6, 2e6, 4e6])
  [exponent] = law.exponents
  assert moved.exponents == pytest.approx((exponent,))
  assert moved.scale == pytest.approx(law.scale * 1e6**-exponent)


def test_the_margin_of_a_linear_function_is_the_sum_of_its_weights():
  weights = np.array([[1.0, -2.0], [0.5, 0.0]])
  linear = lambda values: (weights * values).sum()
  margin = simulate.rounding_margin(linear, np.ones((2, 2)), 0.1)
  assert margin == pytest.approx(0.1 * 3.5)


def test_no_rounding_within_the_margin_moves_a_fit_further():
  random = np.random.default_rng(1)
  values = np.array([3.485, 3.167, 2.95, 2.784, 2.653])
  fit = lambda values: simulate.fit_power_law(values, SIZES, REPLICAS)
  exponent = lambda values: fit(values).exponents[0]
  margin = simulate.rounding_margin(exponent, values, 0.0005)
  moved = [
    abs(
      exponent(values + random.uniform(-0.0005, 0.0005, 5)) - exponent(values)
    )
    for _ in range(50)
  ]
  assert 0.2 * margin < max(moved) <= margin * 1.001


@pytest.mark.parametrize(
  ('values', 'inputs', 'message'),
  [
    ([1.0, 0.0], [[1.0, 2.0]], '`values` must be above 0'),
    ([1.0, math.nan], [[1.0, 2.0]], '`values` must be above 0'),
    ([1.0, 2.0], [[1.0, -2.0]], r'`inputs\[0\]` must be above 0'),
    ([1.0, 2.0], [[1.0, 2.0, 3.0]], r'`inputs\[0\]` must be a sequence of 2'),
    ([1.0, 2.0, 3.0], [[2.0, 2.0, 2.0]], '`inputs` must vary'),
    ([1.0, 2.0], [[1.0, 2.0], [1.0, 3.0]], '`inputs` must vary'),
  ],
)
def test_what_cannot_be_fitted_is_refused(values, inputs, message):
  with pytest.raises(ValueError, match=message):
    simulate.fit_power_law(values, *inputs)


def test_a_negative_half_width_is_refused():
  with pytest.raises(ValueError, match='`half_width` must be at least 0'):
    simulate.rounding_margin(sum, [1.0], -0.1)
