"""The known name that a wrong one is nearest to."""

from collections.abc import Iterable
import difflib


def hint(name: str, names: Iterable[str]) -> str:
  """Returns a hint at the nearest name, or nothing."""
  # What is in a group is not meant for a field outside, but for one of a group.
  possible = [
    other
    for other in names
    if '.' not in name or '.' in other or name.startswith(f'{other}.')
  ]
  close = difflib.get_close_matches(name, possible, n=1, cutoff=0.6)
  close = [other for other in close if _is_like(name, other)]
  return f' Did you mean `{close[0]}`?' if close else ''


def _is_like(name, other):
  """Tells whether more is alike than the group."""
  last, other_last = (text.rpartition('.')[2] for text in (name, other))
  alike = difflib.SequenceMatcher(None, last, other_last).ratio()
  return alike >= 0.4 or name.startswith(f'{other}.')
