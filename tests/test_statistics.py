"""Tests for `dilojax._statistics`."""

import math

import numpy as np
import pytest
from scipy import stats

from dilojax import _statistics

FIRST, SECOND = [2.0, 2.5, 3.5, 2.2], [1.8, 2.6, 3.0, 1.9]
RISES = [a - b for a, b in zip(FIRST, SECOND)]


@pytest.mark.parametrize('n', [2, 3, 4])
def test_is_the_paired_test_of_scipy(n):
  of = _statistics.estimate(RISES[:n])
  want = lambda kind: (
    stats.ttest_rel(FIRST[:n], SECOND[:n], alternative=kind).pvalue
  )
  assert _statistics.p_above(of) == pytest.approx(want('greater'))
  assert _statistics.p_below(of) == pytest.approx(want('less'))
  assert _statistics.p_apart(of) == pytest.approx(want('two-sided'))


@pytest.mark.parametrize('limit', [-0.2, 0.1, 0.4])
def test_a_limit_is_that_of_one_sample(limit):
  of = _statistics.estimate(RISES)
  want = stats.ttest_1samp(RISES, limit, alternative='greater').pvalue
  assert _statistics.p_above(of, limit) == pytest.approx(want)
  below = _statistics.p_below(of, limit)
  assert below == pytest.approx(1 - want)


def test_two_values_have_a_closed_form():
  # With one degree of freedom t is Cauchy: P(T > t) = 1/2 - arctan(t) / pi.
  of = _statistics.estimate([1.0, 4.0])
  assert of == pytest.approx((2.5, 1.5, 2))
  want = 0.5 - math.atan(2.5 / 1.5) / math.pi
  assert _statistics.p_above(of) == pytest.approx(want)


def test_three_values_have_a_closed_form():
  # With two: P(T > t) = 1/2 - t / (2 sqrt(2 + t^2)).
  of = _statistics.estimate([1.0, 2.0, 6.0])
  error = math.sqrt((4 + 1 + 9) / 2 / 3)
  assert of == pytest.approx((3.0, error, 3))
  t = 3.0 / error
  want = 0.5 - t / (2 * math.sqrt(2 + t**2))
  assert _statistics.p_above(of) == pytest.approx(want)


def test_a_confident_test_is_wrong_as_rarely_as_it_says():
  noise = np.random.default_rng(0).normal(size=(4000, 3))
  ps = [_statistics.p_above(_statistics.estimate([*row])) for row in noise]
  wrong = np.mean(np.array(ps) < 0.05)
  assert abs(wrong - 0.05) < 4 * math.sqrt(0.05 * 0.95 / 4000)


@pytest.mark.parametrize(('value', 'p'), [(0.1, 0.0), (0.0, 0.5), (-0.1, 1.0)])
def test_without_spread(value, p):
  assert _statistics.p_above(_statistics.estimate([value] * 3)) == p


@pytest.mark.parametrize('values', [[], [1.0], [1.0, math.nan, 2.0]])
def test_without_a_test(values):
  of = _statistics.estimate(values)
  assert of.n == len(values)
  assert math.isnan(of.error)
  assert math.isnan(_statistics.p_above(of))
  assert math.isnan(_statistics.p_apart(of))
