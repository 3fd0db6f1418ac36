"""Tests for `dilojax._verdicts`."""

import math

import pytest

from dilojax import _verdicts

# Seeds shift all rows alike, and noise is far below the differences.
NOISE = {0: (0.001, 0.002, -0.001), 1: (-0.002, 0.001, 0.001)}
SEEDS = (0.0, 0.3, -0.2)


def values(*means, noise=1.0):
  """Returns the values of rows a, b, ... with given means."""
  return {
    name: {
      seed: mean + shift + noise * NOISE[place % 2][seed]
      for seed, shift in enumerate(SEEDS)
    }
    for place, (name, mean) in enumerate(zip('abcd', means))
  }


def verdict(text, of, confidence=0.95):
  return _verdicts.judge(_verdicts.parse(text, of), of, confidence).verdict


APART, LEVEL = values(1.0, 1.1, 1.3), values(1.0, 1.0005, 1.001)


@pytest.mark.parametrize(
  ('text', 'want', 'level'),
  [
    ('a < b', 'holds', 'undecided'),
    ('b < a', 'does not hold', 'undecided'),
    ('b > a', 'holds', 'undecided'),
    ('a > b', 'does not hold', 'undecided'),
    ('a, b, c increase', 'holds', 'undecided'),
    ('c, b, a increase', 'does not hold', 'undecided'),
    ('c, b, a decrease', 'holds', 'undecided'),
    ('a, b, c decrease', 'does not hold', 'undecided'),
    # One pair the wrong way round.
    ('a, c, b increase', 'does not hold', 'undecided'),
    ('a within 1% of b', 'holds', 'holds'),
    ('b within 1% of a', 'does not hold', 'holds'),
    ('c within 50% of a', 'holds', 'holds'),
    # The gap from c to a is 0.3, of which b closes two thirds.
    ('b closes 50% of the gap from c to a', 'holds', 'undecided'),
    ('b closes 80% of the gap from c to a', 'does not hold', 'undecided'),
  ],
)
def test_truth(text, want, level):
  assert verdict(text, APART) == want
  assert verdict(text, LEVEL) == level


def test_a_ratio_is_that_of_each_seed():
  """Seeds shift what rows are, and leave their ratios alone."""
  scale = (1.0, 1.7, 0.6)
  of = {
    name: {seed: each * mean for seed, each in enumerate(scale)}
    for name, mean in {'a': 1.1, 'b': 1.0, 'c': 1.3, 'd': 1.25}.items()
  }
  of['a'][1] *= 1.001
  assert verdict('c/d < a/b', of) == 'holds'
  assert verdict('a/b < c/d', of) == 'does not hold'
  assert verdict('b/b, c/d, a/b increase', of) == 'holds'
  assert verdict('a/b within 6% of c/d', of) == 'holds'
  statement = _verdicts.parse('c/d < a/b', of)
  found = _verdicts.judge(statement, of, 0.95)
  assert found.finding.startswith('difference -0.0604')


def test_a_ratio_of_what_is_no_row_or_not_positive():
  of = values(1.0, 0.1)
  with pytest.raises(ValueError, match="names 'c', which is no row"):
    _verdicts.parse('a/c < b', of)
  with pytest.raises(ValueError, match="'a/b' is a ratio"):
    verdict('a/b < a', of)


@pytest.mark.parametrize('row', 'ab')
def test_a_bound_that_noise_straddles_is_undecided(row):
  of = values(1.0, 1.01)
  of['b'] = {seed: 1.01 * of['a'][seed] + 0.003 * seed for seed in of['b']}
  assert verdict('b within 1.3% of a', of) == 'undecided'
  assert verdict('b within 5% of a', of) == 'holds'


def test_the_mean_alone_holds_nothing():
  of = {'a': dict(enumerate((1.0, 1.2, 0.8))), 'b': dict(enumerate((1.1,) * 3))}
  found = _verdicts.judge(_verdicts.parse('a < b', of), of, 0.95)
  assert found.verdict == 'undecided'
  # t = 0.1 / (0.2 / sqrt(3)), with two degrees of freedom.
  t = 0.1 / (0.2 / math.sqrt(3))
  assert found.p == pytest.approx(0.5 - t / (2 * math.sqrt(2 + t * t)))
  # Between 1 - p and 1 - p / 2, so that it matters how many sides a test has.
  assert verdict('a < b', of, 0.74) == 'holds'
  assert verdict('a < b', of, 0.77) == 'undecided'


def test_pairs_are_those_of_a_seed():
  """Differences between seeds are far above that of the rows."""
  of = values(1.0, 1.01)
  assert verdict('a < b', of) == 'holds'
  crossed = {'a': of['a'], 'b': dict(zip((1, 2, 0), of['b'].values()))}
  assert verdict('a < b', crossed) == 'undecided'


def test_seeds_in_common_alone_count():
  of = values(1.0, 1.1)
  of['b'][7] = of['b'].pop(2)
  found = _verdicts.judge(_verdicts.parse('a < b', of), of, 0.9)
  assert found.n == 2
  of['b'][8] = of['b'].pop(1)
  found = _verdicts.judge(_verdicts.parse('a < b', of), of, 0.9)
  assert (found.verdict, found.n) == ('undecided', 1)
  assert 'one seed in common' in found.finding
  of['b'] = {9: 1.1}
  found = _verdicts.judge(_verdicts.parse('a < b', of), of, 0.9)
  assert (found.verdict, found.n) == ('undecided', 0)


def test_what_is_not_finite_is_undecided():
  of = values(1.0, 1.1)
  of['b'][1] = math.nan
  found = _verdicts.judge(_verdicts.parse('a < b', of), of, 0.95)
  assert (found.verdict, math.isnan(found.p)) == ('undecided', True)


def test_chances_of_a_wrong_order_are_shared_out():
  # p of the opposite is between half and all of what one pair is allowed.
  level = dict(enumerate((1.0, 1.0, 1.0)))
  below = dict(enumerate((0.91, 0.97, 0.94)))
  above = dict(enumerate((1.1, 1.2, 1.3)))
  of = {'a': level, 'b': below, 'c': above}
  assert verdict('a < b', of) == 'does not hold'
  assert verdict('a, b, c increase', of) == 'undecided'
  below.update({0: 0.93, 1: 0.95, 2: 0.94})
  assert verdict('a, b, c increase', of) == 'does not hold'


def test_words():
  of = values(1.0, 1.1, noise=0)
  of['b'][0] += 0.01
  found = _verdicts.judge(_verdicts.parse('a < b', of), of, 0.95)
  assert _verdicts.words(found) == (
    'a < b: holds (difference -0.1033 ± 0.0033, p = 0.00052, n = 3)'
  )


@pytest.mark.parametrize(
  'text',
  ['a', 'a <b', 'a = b', 'a increase', 'a within b', 'a within x% of b', 7],
)
def test_refuses_other_words(text):
  with pytest.raises(ValueError, match='`EXPECTED` must hold statements such'):
    _verdicts.parse(text, 'ab')


@pytest.mark.parametrize(
  'text', ['a < bb', 'bb within 3% of a', 'a, bb increase']
)
def test_refuses_unknown_rows(text):
  with pytest.raises(ValueError, match="names 'bb', which is no row: there"):
    _verdicts.parse(text, 'ab')


def test_suggests_a_row():
  with pytest.raises(ValueError, match='Did you mean `diloco`'):
    _verdicts.parse('a < dilocco', ['a', 'diloco'])


@pytest.mark.parametrize('text', ['a < a', 'a, b, a increase'])
def test_refuses_a_row_twice(text):
  with pytest.raises(ValueError, match='names one twice'):
    _verdicts.parse(text, 'ab')


def test_names_may_hold_commas_and_signs():
  rows = ['delay=1,mix=0.5', 'delay=4,mix=0.5', 'K=1e-3']
  parsed = _verdicts.parse(f'{", ".join(rows)} decrease', rows)
  assert parsed.rows == tuple(rows)


@pytest.mark.parametrize('confidence', [0.5, 1.0, 95.0, math.nan])
def test_refuses_confidence(confidence):
  with pytest.raises(ValueError, match='`confidence` must be above 0.5'):
    verdict('a < b', APART, confidence)


def test_refuses_ratios_to_nothing():
  with pytest.raises(ValueError, match="'b' has values that are not positive"):
    verdict('a within 1% of b', values(1.0, -1.0))
