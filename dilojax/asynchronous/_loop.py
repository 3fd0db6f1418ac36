"""The event loop: it moves a virtual clock, and the training with it."""

from collections.abc import Iterator, Sequence
import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

from dilojax import simulate
from dilojax import transforms
from dilojax.asynchronous import _state
from dilojax.asynchronous import _system


class Loop:
  """A training in virtual time.

  Time is computed from worker times and links; the training is real. Rounds
  begin to be computed when workers have what they need, each on the device of
  its worker, and are waited for when their messages arrive: so they overlap,
  and nothing depends on how many there are. Equal systems have equal
  trajectories.

  Args:
    system: The training.
    params: Params of all servers and workers at the beginning.
    devices: Devices that compute rounds, in turns; one for all if there is
      one. Servers are on the first.

  Attributes:
    state: Where the training stands, to be read.

  Raises:
    ValueError: If the parts of the system do not fit together.
  """

  def __init__(
    self,
    system: _system.System,
    params: _system.Params,
    devices: Sequence[jax.Device] | None = None,
  ):
    _system.check(system)
    self._system = system
    self._devices = list(devices or jax.devices()[:1])
    self._links = simulate.Links(system.network, system.shared)
    self._queue = simulate.Queue(_state.KINDS)
    self._senders = [
      _system.senders(system, j) for j in range(len(system.servers))
    ]
    self._numbers = [
      {sender: number for number, sender in enumerate(senders)}
      for senders in self._senders
    ]
    held = sum(leaf.nbytes for leaf in jax.tree.leaves(params))
    self._nbytes = held if system.nbytes is None else system.nbytes
    self._apply = [_make_apply(server.rule) for server in system.servers]
    self._results: dict[int, tuple] = {}
    self.state = _state.start(system, jax.device_put(params, self._devices[0]))
    for k in range(len(system.workers)):
      self._hand(k, is_sent=False)

  @property
  def now(self) -> float:
    """Virtual time in seconds."""
    return self._queue.now

  @property
  def nbytes(self) -> int:
    """Bytes of a message."""
    return self._nbytes

  @property
  def bytes(self) -> dict[str, Any]:
    """Bytes sent so far, by class of link."""
    return self._links.bytes

  def advance(self) -> Iterator[bool]:
    """Handles one event after the other, for as long as there are any.

    Yields:
      Whether the last server's params have moved, after each event.
    """
    handlers = {
      'done': self._done,
      'arrival': self._arrive,
      'update': self._update,
      'up': self._up,
      'down': self._down,
      'back': self._back,
    }
    root = self.state.servers[0]
    while len(self._queue):
      version = root.version
      event = self._queue.pop()
      handlers[event.kind](event.worker, event.round)
      yield root.version != version

  def save(self) -> tuple[dict[str, Any], dict[str, Any]]:
    """Returns all that a training goes on with: arrays, and plain JSON.

    It may be called between any two events. The arrays are good until the next.
    """
    arrays, meta = _state.pack(self.state)
    return arrays, {
      **meta,
      'queue': self._queue.to_json(),
      'links': self._links.state,
    }

  def restore(self, arrays: dict[str, Any], meta: dict[str, Any]) -> None:
    """Goes on from what :meth:`save` returned.

    Args:
      arrays: The arrays.
      meta: The rest.
    """
    self.state = _state.unpack(arrays, meta)
    self._queue = simulate.Queue.from_json(meta['queue'])
    self._links.restore(meta['links'])
    self._results = {}

  # Workers.

  def _hand(self, k, is_sent=True):
    """Hands a worker the params of its server, and lets it begin a round."""
    worker, running = self._system.workers[k], self.state.workers[k]
    server = self._system.servers[worker.server]
    serving = self.state.servers[worker.server]
    running.launched, running.version = serving.params, serving.version
    at = self.now
    if is_sent and server.meet is None:
      site = self._system.network.worker_sites[k]
      _, at = self._links.begin(self.now, server.site, site, self._nbytes)
    self._begin(k, at)

  def _begin(self, k, at):
    """Begins a round from the params that the worker has."""
    running, counts = self.state.workers[k], self.state.counts
    num_steps = self._system.workers[k].num_steps
    running.round += 1
    running.clock, running.waits = counts.steps, False
    self._results.pop(k, None)
    end = at + self._system.times.seconds(k, running.round - 1, num_steps)
    crashes = self._system.crashes
    outage = crashes and crashes.first(k, at, end)
    if outage:
      counts.lost_rounds += 1
      if np.isfinite(outage.end):
        self._queue.push(outage.end, 'back', k, running.round)
    elif np.isfinite(end):
      self._queue.push(end, 'done', k, running.round)
      self._results[k] = self._compute(k)

  def _compute(self, k):
    """Starts the computation of a worker's round."""
    running, work = self.state.workers[k], self._system.work
    num_steps = self._system.workers[k].num_steps
    device = self._devices[k % len(self._devices)]
    inputs = work.inputs(k, running.first, running.clock, num_steps)
    given = (running.launched, running.private, inputs)
    if len(self._devices) > 1:
      given = jax.device_put(given, device)
    return work.run(*given)

  def _done(self, k, round):
    if round != self.state.workers[k].round:
      return  # It was broken off.
    counts, worker = self.state.counts, self._system.workers[k]
    counts.rounds += 1
    counts.steps += worker.num_steps
    server, at = self._system.servers[worker.server], self.now
    if server.meet is None:
      site = self._system.network.worker_sites[k]
      _, at = self._links.begin(at, site, server.site, self._nbytes)
    self._queue.push(at, 'arrival', k, round)

  def _arrive(self, k, round):
    if round == self.state.workers[k].round:
      self._receive(self._system.workers[k].server, ('worker', k))

  def _back(self, k, round):
    if round == self.state.workers[k].round:
      self._hand(k)

  # Servers.

  def _receive(self, j, sender):
    """Takes a message, or lets it wait."""
    server, serving = self._system.servers[j], self.state.servers[j]
    if server.quorum is None and not server.grace:
      self._answer([sender], self._take(j, sender))
      self._push(j)
      return
    serving.waiting.append(sender)
    if sender[0] == 'worker':
      self.state.workers[sender[1]].waits = True
    if len(serving.waiting) >= (server.quorum or 1) and not serving.closes:
      serving.closes = True
      meets = server.meet(self._nbytes) if server.meet else 0.0
      self._queue.push(self.now + server.grace + meets, 'update', j)

  def _update(self, j, round):
    """Applies what waits at a server, and answers to all that sent it."""
    del round
    server, serving = self._system.servers[j], self.state.servers[j]
    senders, serving.waiting, serving.closes = serving.waiting, [], False
    if server.quorum is None:
      answers = [self._take(j, sender) for sender in senders]
      for sender, answer in zip(senders, answers):
        self._answer([sender], answer)
    else:
      if server.meet is not None:
        self._count_meeting(senders)
      self._take_mean(j, senders)
      self._answer(senders, None)
    self._push(j)

  def _take(self, j, sender):
    """Applies a message; returns the answer of the rule."""
    serving = self.state.servers[j]
    message, launched, version, num_steps = self._opened(sender)
    serving.params, serving.rule_state, flags = self._apply[j](
      message,
      serving.params,
      serving.rule_state,
      {
        'worker': np.int32(self._numbers[j][sender]),
        'staleness': np.int32(serving.version - version),
        'launched': launched,
      },
    )
    # On the host as one array: its entries are read one by one.
    answer = flags if flags is None else transforms.Answer(*np.asarray(flags))
    self._count(j, num_steps, answer)
    return answer

  def _take_mean(self, j, senders):
    """Applies the mean of what several have sent."""
    serving, server = self.state.servers[j], self._system.servers[j]
    opened = [self._opened(sender) for sender in senders]
    steps = [num_steps for *_, num_steps in opened]
    weights = steps if server.is_weighted else [1] * len(steps)
    total = np.float32(sum(weights))
    message = _mean(
      [message for message, *_ in opened],
      [np.float32(weight) / total for weight in weights],
    )
    serving.params, serving.rule_state, _ = self._apply[j](
      message, serving.params, serving.rule_state, {}
    )
    self._count(j, sum(steps), None)
    serving.arrivals += len(senders) - 1

  def _opened(self, sender):
    """Returns a message, params and version it started from, and its steps."""
    kind, number = sender
    if kind == 'server':
      below = self.state.servers[number]
      launched, version = below.merged, below.parent_version
      return below.message, launched, version, below.sent_steps
    running = self.state.workers[number]
    result = self._results.pop(number, None) or self._compute(number)
    if len(self._devices) > 1:
      result = jax.device_put(result, self._devices[0])
    message, running.private, measured = result
    num_steps = self._system.workers[number].num_steps
    running.first += num_steps
    self.state.measured.append((num_steps, measured))
    return message, running.launched, running.version, num_steps

  def _count(self, j, num_steps, answer):
    serving, counts = self.state.servers[j], self.state.counts
    serving.version += int(answer is None or answer.stepped)
    serving.arrivals += 1
    if answer is not None and not answer.counted:
      counts.dropped_steps += num_steps
    elif j == 0:
      counts.merged_steps += num_steps
    else:
      serving.steps += num_steps

  def _answer(self, senders, answer):
    """Lets senders go on, as the rule has it."""
    for sender in senders:
      kind, number = sender
      if kind == 'server':
        self._return(number)
      elif answer is None or answer.handed or answer.restarted:
        self._hand(number)
      else:
        self._begin(number, self.now)
    if answer is not None and answer.restarted:
      [(kind, number)] = senders
      if kind == 'worker':
        self._restart(self._system.workers[number].server, number)

  def _restart(self, j, arrived):
    """Hands all other workers of a server its params: rounds are broken off."""
    for kind, k in self._senders[j]:
      if kind == 'worker' and k != arrived:
        self.state.counts.lost_rounds += 1
        self._hand(k)

  def _push(self, j):
    """Sends what a server has done to its parent, when it is time."""
    server, serving = self._system.servers[j], self.state.servers[j]
    if server.parent is None or serving.message is not None:
      return
    if serving.arrivals < server.push_every:
      return
    serving.message = _difference(serving.merged, serving.params)
    serving.sent_steps, serving.steps = serving.steps, 0
    site = self._system.servers[server.parent].site
    _, at = self._links.begin(self.now, server.site, site, self._nbytes)
    self._queue.push(at, 'up', j)

  def _up(self, j, round):
    del round
    self._receive(self._system.servers[j].parent, ('server', j))

  def _return(self, j):
    """Sends a server below the params of its parent."""
    server, serving = self._system.servers[j], self.state.servers[j]
    parent = self.state.servers[server.parent]
    serving.answer, serving.parent_version = parent.params, parent.version
    site = self._system.servers[server.parent].site
    _, at = self._links.begin(self.now, site, server.site, self._nbytes)
    self._queue.push(at, 'down', j)

  def _down(self, j, round):
    """Merges the parent's params; counting starts anew."""
    del round
    server, serving = self._system.servers[j], self.state.servers[j]
    serving.params = _mix(server.alpha, serving.params, serving.answer)
    serving.merged = serving.params
    serving.message = serving.answer = None
    serving.arrivals = 0

  def _count_meeting(self, senders):
    """Counts what members of a collective send, each to the next."""
    sites = [self._system.network.worker_sites[k] for _, k in senders]
    for site, following in zip(sites, [*sites[1:], *sites[:1]]):
      self._links.count(site, following, self._nbytes)


def _make_apply(rule):
  """Returns the program of a server's update."""
  rule = optax.with_extra_args_support(rule)

  # Workers hold the params, but nobody else has the state.
  @functools.partial(jax.jit, donate_argnums=2)
  def apply(message, params, rule_state, given):
    updates, rule_state = rule.update(message, rule_state, params, **given)
    params = optax.apply_updates(params, updates)
    answer = transforms.answer_of(rule_state)
    return params, rule_state, None if answer is None else jnp.stack(answer)

  return apply


@jax.jit
def _difference(before, after):
  return optax.tree.sub(before, after)


@functools.partial(jax.jit, static_argnums=0)
def _mix(alpha, own, other):
  mix = lambda one, two: (alpha * one + (1 - alpha) * two).astype(one.dtype)
  return jax.tree.map(mix, own, other)


@jax.jit
def _mean(messages, weights):
  """Adds one after the other, so that the order is that of arrival."""
  scaled = [optax.tree.scale(w, each) for w, each in zip(weights, messages)]
  return functools.reduce(optax.tree.add, scaled)
