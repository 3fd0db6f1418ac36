"""Tests for `dilojax._near`."""

import pytest

from dilojax import _near


@pytest.mark.parametrize(
  ('name', 'names', 'meant'),
  [
    ('levels.level_1.every', ['eval_every', 'every'], None),
    ('inner.new', ['inner.b1', 'inner.peak_lr'], None),
    ('inner.lr', ['inner.b1', 'inner.peak_lr'], 'inner.peak_lr'),
    ('batch_size', ['data.batch_size'], 'data.batch_size'),
    ('seed.x', ['seed', 'speed'], 'seed'),
    ('row_a', ['row_b', 'other'], 'row_b'),
  ],
)
def test_hint(name, names, meant):
  want = '' if meant is None else f' Did you mean `{meant}`?'
  assert _near.hint(name, names) == want
