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
