"""What each replica has done and sent so far."""

from collections.abc import Sequence
from typing import Any

from dilojax import transforms

Ledger = list[dict[str, Any]]

EMPTY = {'steps': 0, 'tokens': 0, 'synchronizations': 0, 'bytes_sent': 0}


def start(num_replicas: int) -> Ledger:
  """Returns the ledger before the first step."""
  return [dict(EMPTY) for _ in range(num_replicas)]


def resize(ledger: Ledger, num_replicas: int) -> Ledger:
  """Drops the last replicas, or adds some that have done nothing yet."""
  return (ledger + start(num_replicas))[:num_replicas]


def advance(
  ledger: Ledger,
  links: Sequence[transforms.Link],
  first: int,
  last: int,
  *,
  tokens_per_step: int,
  final: bool,
) -> Ledger:
  """Adds the steps from `first` to `last`.

  Args:
    ledger: The ledger before them.
    links: The links that communicate. A message's payload is counted once,
      whatever way the collective takes.
    first: First step, from 1.
    last: Last step.
    tokens_per_step: Tokens of one replica in a step.
    final: Whether the last step ends the training.

  Returns:
    The ledger after them, the same for every replica that was there.
  """
  num_steps = last - first + 1
  added = {
    **EMPTY,
    'steps': num_steps,
    'tokens': num_steps * tokens_per_step,
  }
  for link in links:
    messages, landings = _counts(link, last, final)
    old_messages, old_landings = _counts(link, first - 1, False)
    added['synchronizations'] += landings - old_landings
    added['bytes_sent'] += (messages - old_messages) * link.nbytes
  return [
    {name: value + added[name] for name, value in row.items()} for row in ledger
  ]


def wire_bytes(link: transforms.Link, num_replicas: int) -> float:
  r"""Returns the bytes that a replica puts on the network for a message.

  The ledger counts a message of :math:`b` bytes once, whatever way it takes.
  Of :math:`K` replicas with a network card each, which waste nothing, one puts

  .. math::

    2 \tfrac{K - 1}{K} b, \qquad
    \tfrac{K - 1}{K} (b + r), \qquad
    (K - 1) b

  on the network for an all-reduce, for an all-to-all whose mean of :math:`r`
  bytes returns through an all-gather, and for an all-gather of the messages;
  and :math:`b` for a permutation, which sends each to one partner. Rings do,
  such as those of gloo and NCCL. What is the same for all is paid once if
  several replicas live on one machine.

  Args:
    link: The link.
    num_replicas: Number of replicas along its axes, at least 1.

  Returns:
    Bytes of payload, without what the network adds to it.

  Raises:
    ValueError: If it is not known how much such a collective sends.

  Examples:
    >>> from dilojax import schedule
    >>> times = schedule.Schedule(50, 50)
    >>> link = transforms.Link(times, ('replica',), 400, True)
    >>> wire_bytes(link, 2), wire_bytes(link, 4)
    (400.0, 600.0)
  """
  share = (num_replicas - 1) / num_replicas
  ways = {
    'all-reduce': 2 * share * link.nbytes,
    'all-to-all': share * (link.nbytes + link.result_nbytes),
    'all-gather': (num_replicas - 1) * float(link.nbytes),
    'collective-permute': float(link.nbytes if num_replicas > 1 else 0),
  }
  if link.op not in ways:
    raise ValueError(
      f'`link.op` must be one of {", ".join(ways)}, got {link.op!r}.'
    )
  return ways[link.op]


def _counts(link, step, final):
  """Counts messages and landings in the steps 1 to `step`."""
  schedule = link.schedule
  if not final or link.overwrites is None:
    return schedule.num_messages(step), schedule.num_landings(step)
  messages, landings = _counts(link, step - 1, False)
  events = schedule.final_events(step, link.overwrites)
  messages += sum(event in ('start', 'meet') for event in events)
  landings += sum(event in ('land', 'meet') for event in events)
  return messages, landings
