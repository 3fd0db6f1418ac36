"""What is in flight on the links between sites."""

from collections.abc import Collection, Mapping
import math
from typing import Any

from dilojax.simulate import _exchanges
from dilojax.simulate import _network

# The classes of links.
_CLASSES = INSIDE, BETWEEN = 'inside', 'between'


class Links:
  """Links that carry messages, and count them.

  A link that is shared carries one message after the other, in the order in
  which :meth:`begin` is called: call it when the clock is there, not ahead.
  Each direction is a link of its own, and busy for the latency as well. On
  other links every message starts at once, and has the bandwidth to itself.

  `state` is all that this object knows beyond its arguments: when each shared
  link is free again, and the bytes of each class, as a dict of numbers. It can
  go through JSON, floats exactly, and back into :meth:`restore`.

  Args:
    network: The network.
    shared: The classes of links that are shared: 'inside' a site, 'between'
      sites, or both.

  Raises:
    ValueError: If there is no such class.

  Examples:
    >>> from dilojax import simulate
    >>> network = simulate.connect([[8.0, 8.0], [8.0, 8.0]], [0, 1])
    >>> links = simulate.Links(network, shared=['between'])
    >>> links.begin(0.0, 0, 1, 3), links.begin(1.0, 0, 1, 3)
    ((0.0, 3.0), (3.0, 6.0))
    >>> links.state
    {'bytes inside': 0, 'bytes between': 6, 'busy 0 1': 6.0}
  """

  def __init__(self, network: _network.Network, shared: Collection[str] = ()):
    unknown = set([shared] if isinstance(shared, str) else shared)
    unknown -= {INSIDE, BETWEEN}
    if isinstance(shared, str) or unknown:
      raise ValueError(
        f"`shared` must be a list of '{INSIDE}' and '{BETWEEN}', got"
        f' {shared!r}.'
      )
    self._network = network
    self._shared = frozenset(shared)
    self._state: dict[str, Any] = {f'bytes {name}': 0 for name in _CLASSES}

  def begin(
    self, now: float, source: int, target: int, nbytes: float
  ) -> tuple[float, float]:
    """Sends a message as soon as its link is free.

    Args:
      now: When it is ready.
      source: The site that sends.
      target: The site that receives.
      nbytes: Its size in bytes.

    Returns:
      When it starts, at `now` or later, and when it is there.

    Raises:
      ValueError: If there is no such link, or a number is out of range.
    """
    if not 0 <= now < math.inf:
      raise ValueError(f'`now` must be finite and at least 0, got {now}.')
    now = float(now)
    seconds = _network.transfer_seconds(self._network, source, target, nbytes)
    kind = self.count(source, target, nbytes)
    if kind not in self._shared:
      return now, now + seconds
    name = f'busy {source} {target}'
    start = max(now, self._state.get(name, 0.0))
    self._state[name] = start + seconds
    return start, start + seconds

  def count(self, source: int, target: int, nbytes: float) -> str:
    """Counts bytes whose time is computed elsewhere.

    Args:
      source: The site that sends.
      target: The site that receives.
      nbytes: The number of bytes.

    Returns:
      The class of the link.

    Raises:
      ValueError: If there is no such link, or `nbytes` is below 0.
    """
    _network.link_of(self._network, source, target)
    _network.check_nbytes(nbytes)
    kind = INSIDE if source == target else BETWEEN
    is_int = _exchanges.is_int(nbytes)
    self._state[f'bytes {kind}'] += int(nbytes) if is_int else float(nbytes)
    return kind

  @property
  def bytes(self) -> dict[str, Any]:
    """Bytes sent so far, by class of link."""
    return {name: self._state[f'bytes {name}'] for name in _CLASSES}

  @property
  def state(self) -> dict[str, Any]:
    """A copy of the state."""
    return dict(self._state)

  def restore(self, state: Mapping[str, Any]):
    """Goes on from a state.

    Args:
      state: What `state` was.

    Raises:
      ValueError: If it is that of other links.
    """
    busy = {
      f'busy {source} {target}'
      for source, row in enumerate(self._network.links)
      for target, link in enumerate(row)
      if link and (INSIDE if source == target else BETWEEN) in self._shared
    }
    counts = {f'bytes {name}' for name in _CLASSES}
    outside = [each for each in state.values() if not 0 <= each < math.inf]
    if not counts <= set(state) <= counts | busy or outside:
      raise ValueError(
        '`state` must be that of the same links, with numbers of at least 0,'
        f' got {dict(state)}: shared are {sorted(busy) or "none"}.'
      )
    self._state = dict(state)
