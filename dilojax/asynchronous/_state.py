"""Where an asynchronous training stands, beside its clock."""

import dataclasses
from typing import Any

import numpy as np

from dilojax.asynchronous import _system

# In the order of equal times: what arrives is there for what is then due.
KINDS = ('done', 'arrival', 'up', 'update', 'down', 'back')

Sender = tuple[str, int]


@dataclasses.dataclass
class Running:
  """A worker in a round.

  Attributes:
    private: Its private state before the round.
    launched: The params that it was handed.
    version: Updates of its server when it was handed them.
    round: Rounds that it has begun.
    first: Inner steps that it has done before this round, in rounds that
      arrived.
    clock: Inner steps that all had done when it began this round.
    waits: Whether its message is at the server, for an update to come.
  """

  private: Any
  launched: Any
  version: int = 0
  round: int = 0
  first: int = 0
  clock: int = 0
  waits: bool = False


@dataclasses.dataclass
class Serving:
  """A server.

  Attributes:
    params: Its params.
    rule_state: State of its rule.
    merged: Its params when it last had those of its parent; None of the last.
    message: What is on its way to the parent, None if nothing is.
    answer: The parent's params on their way back, None if they are not.
    version: Updates of its params.
    parent_version: Updates of the parent when it handed out its params.
    arrivals: Arrivals since it had them.
    steps: Inner steps behind its next message.
    sent_steps: Inner steps behind `message`.
    waiting: Those whose messages wait for an update, in order.
    closes: Whether an update is due.
  """

  params: Any
  rule_state: Any
  merged: Any = None
  message: Any = None
  answer: Any = None
  version: int = 0
  parent_version: int = 0
  arrivals: int = 0
  steps: int = 0
  sent_steps: int = 0
  waiting: list[Sender] = dataclasses.field(default_factory=list)
  closes: bool = False


@dataclasses.dataclass
class Counts:
  """What has been spent so far.

  Attributes:
    steps: Inner steps of the rounds that ended.
    merged_steps: Of those whose messages are part of the last server's params.
    dropped_steps: Of those whose messages were refused.
    rounds: Rounds that ended.
    lost_rounds: Rounds that did not: by a crash, or broken off.
  """

  steps: int = 0
  merged_steps: int = 0
  dropped_steps: int = 0
  rounds: int = 0
  lost_rounds: int = 0


@dataclasses.dataclass
class State:
  """All of a training but its queue and links.

  Attributes:
    workers: The workers.
    servers: The servers.
    counts: What has been spent.
    measured: Since somebody last took them: inner steps of a round, and what
      was measured in it.
  """

  workers: list[Running]
  servers: list[Serving]
  counts: Counts
  measured: list[tuple[int, dict[str, Any]]]


ARRAYS = {
  Running: ('private', 'launched'),
  Serving: ('params', 'rule_state', 'merged', 'message', 'answer'),
}


def start(system: _system.System, params: _system.Params) -> State:
  """Returns the state before the first event."""
  return State(
    workers=[
      Running(system.work.init(k), params) for k in range(len(system.workers))
    ],
    servers=[
      Serving(
        params,
        server.rule.init(params),
        merged=None if server.parent is None else params,
      )
      for server in system.servers
    ],
    counts=Counts(),
    measured=[],
  )


def pack(state: State) -> tuple[dict[str, Any], dict[str, Any]]:
  """Splits a state into arrays and plain JSON."""
  arrays, meta = {}, {}
  for name in ('workers', 'servers'):
    split = [_split(each) for each in getattr(state, name)]
    arrays[name] = {str(i): found for i, (found, _) in enumerate(split)}
    meta[name] = [plain for _, plain in split]
  for plain in meta['servers']:
    plain['waiting'] = [list(sender) for sender in plain['waiting']]
  meta['counts'] = dataclasses.asdict(state.counts)
  meta['measured'] = [
    [steps, {name: float(np.asarray(value)) for name, value in values.items()}]
    for steps, values in state.measured
  ]
  return arrays, meta


def unpack(arrays: dict[str, Any], meta: dict[str, Any]) -> State:
  """Puts together what :func:`pack` split."""
  joined = lambda name, kind: [
    kind(**{**dict.fromkeys(ARRAYS[kind]), **arrays[name][str(i)]}, **plain)
    for i, plain in enumerate(meta[name])
  ]
  servers = joined('servers', Serving)
  for serving in servers:
    serving.waiting = [(kind, number) for kind, number in serving.waiting]
  return State(
    workers=joined('workers', Running),
    servers=servers,
    counts=Counts(**meta['counts']),
    measured=[(steps, values) for steps, values in meta['measured']],
  )


def _split(node):
  """Separates the arrays of a node; what is absent is not among them."""
  names = ARRAYS[type(node)]
  fields = {
    field.name: getattr(node, field.name) for field in dataclasses.fields(node)
  }
  arrays = {name: fields.pop(name) for name in names}
  return {k: v for k, v in arrays.items() if v is not None}, fields
