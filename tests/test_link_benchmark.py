"""Tests for `benchmarks.link` and `benchmarks.network`."""

import contextlib
import os
import socket
import subprocess
import sys
import threading
import time

import jax
import pytest

from benchmarks import link
from benchmarks import network
from dilojax import _overrides
from dilojax import build
from dilojax import schedule
from dilojax import transforms

FAST = network.Shape('1gbit', 0.0)


def each(op, every, nbytes, result=0):
  """Returns a link over one axis."""
  times = schedule.Schedule(every, every)
  return transforms.Link(times, ('replica',), nbytes, True, result, op)


def test_bytes_are_messages_times_what_each_takes():
  links = [each('all-reduce', 5, 80), each('all-to-all', 4, 40, 20)]
  # In 20 steps 4 sums, of which each goes round twice, and 5 of two phases.
  want = 4 * 2 * 80 * 3 / 4 + 5 * (40 + 20) * 3 / 4
  assert link.total(links, 20, 4, final=False) == want
  assert link.total(links, 20, 1, final=False) == 0.0
  # A short last round has a synchronization of its own.
  more = link.total(links[:1], 22, 4, final=True)
  assert more == link.total(links[:1], 25, 4, final=False)


@pytest.mark.parametrize('name', link.ROWS)
@pytest.mark.parametrize('num_processes', [2, 4])
def test_rows_are_configs(name, num_processes):
  given = link.fields(name, 24, num_processes)
  config = _overrides.load(link.ROWS[name].config, [*given.items()])
  build.check(config)
  assert config.num_replicas == num_processes


def test_predictions():
  rounds = 3
  predict = lambda name: link.predict(name, link.EVERY * rounds, 4)
  given = link.fields('data parallel', 1, 4)
  config = _overrides.load('configs/data_parallel.py', [*given.items()])
  model = build.make_model(build.resolve(config))
  params = jax.eval_shape(model.init, jax.random.key(0))
  twice = 1.5 * 4 * sum(leaf.size for leaf in jax.tree.leaves(params))
  assert predict('data parallel') == twice * link.EVERY * rounds
  # Half a byte a value, with scales, there and back.
  e3m0 = predict('Streaming e3m0')
  assert 1 / 8 < e3m0 / (twice * rounds) < 0.14
  # Each of the three others gets it whole, in place of 3/4 of it twice.
  assert predict('Streaming e3m0, all messages') == 2 * e3m0


def test_step_seconds_leave_out_rounds_that_compile():
  times = {12: 30.0, 24: 50.0, 36: 56.0, 48: 68.0}
  records = [
    {'step': step, 'seconds': seconds, 'train/loss': 1.0}
    for step, seconds in times.items()
  ]
  records.append({'step': 48, 'seconds': 99.0, 'eval/anchor/loss': 1.0})
  assert link.step_seconds(records) == [0.5, 1.0]


@pytest.mark.parametrize(('excess', 'agrees'), [(49, True), (51, False)])
def test_what_both_runs_send_is_subtracted(excess, agrees):
  ran = lambda sent, seconds: link.Ran(sent, seconds, 60.0, '')
  short = ran([5_200, 7_200], [])
  # 1,000 bytes more are predicted; one of two hosts sends some beside.
  slow = ran([6_200, 8_200 + excess], [3.0, 5.0])
  fast = ran([6_200, 8_200], [2.0])
  found = link.summary([200.0, 1_200.0], short, [slow], [fast])
  assert found['counted_bytes'] == [1_000, 1_000 + excess]
  assert found['subtracted_bytes'] == [5_000, 7_000]
  assert found['counted_over_predicted']['max'] == 1 + excess / 1_000
  assert found['agrees'] is agrees
  assert found['shaped_over_unshaped'] == 2.0


@pytest.mark.parametrize(
  ('module', 'name', 'value', 'reason'),
  [
    (sys, 'platform', 'darwin', 'this is darwin'),
    (os, 'geteuid', lambda: 1000, 'needs root'),
    (network.shutil, 'which', lambda name: None, 'ip, tc, unshare'),
  ],
)
def test_reasons_to_skip(monkeypatch, capsys, module, name, value, reason):
  for other, name_of in ((sys, 'platform'), (os, 'geteuid')):
    fine = {'platform': 'linux', 'geteuid': lambda: 0}[name_of]
    monkeypatch.setattr(other, name_of, fine)
  monkeypatch.setattr(module, name, value)
  monkeypatch.setattr(sys, 'argv', ['link'])
  link.main()
  assert reason in capsys.readouterr().out


@contextlib.contextmanager
def relayed(num_hosts, delay):
  """Runs a relay; yields the sockets of hosts, whose packets are frames."""
  with contextlib.ExitStack() as stack:
    pairs = [
      socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
      for _ in range(num_hosts)
    ]
    for near, far in pairs:
      stack.enter_context(near).settimeout(10.0)
      stack.enter_context(far).setblocking(False)
    stop, stopped = os.pipe()
    stack.callback(os.close, stop)
    taps = [far.fileno() for _, far in pairs]
    thread = threading.Thread(target=network._relay, args=(taps, delay, stop))
    thread.start()
    stack.callback(thread.join)
    stack.callback(os.close, stopped)
    yield [near for near, _ in pairs]


def frame(target, source, payload):
  """Returns a frame between hosts; None is all of them."""
  place = lambda host: bytes([255] * 6 if host is None else [2] * 5 + [host])
  return place(target) + place(source) + payload


def test_relay_delays_and_keeps_order():
  delay = 0.2
  with relayed(2, delay) as (first, second):
    begin = time.monotonic()
    sent = [frame(1, 0, bytes([number])) for number in range(50)]
    for one in sent:
      first.send(one)
    assert [second.recv(1 << 16) for _ in sent] == sent
    # All were under way together: nothing waits for another to arrive.
    assert delay <= time.monotonic() - begin < 10 * delay


def test_relay_learns_where_hosts_are():
  with relayed(3, 0.0) as hosts:
    hosts[0].send(frame(None, 0, b'who'))
    assert [host.recv(99)[12:] for host in hosts[1:]] == [b'who'] * 2
    hosts[1].send(frame(0, 1, b'me'))
    assert hosts[0].recv(99)[12:] == b'me'
    hosts[2].send(frame(0, 2, b'and me'))
    # Nobody else got the answer to the first, nor the asker its question.
    assert hosts[0].recv(99)[12:] == b'and me'
    for host in hosts:
      host.setblocking(False)
      with pytest.raises(BlockingIOError):
        host.recv(99)


COUNT = """
import socket
def count(peer):
  return sum(map(len, iter(lambda: peer.recv(65536), b'')))
"""
SERVE = f"""{COUNT}
with socket.create_server((socket.gethostname(), 1234)) as server:
  server.settimeout(60)
  print('up', flush=True)
  peer, _ = server.accept()
  with peer:
    peer.sendall(bytes(count(peer)))
"""
ASK = f"""{COUNT}
with socket.create_connection(('dilojax0', 1234), 60) as peer:
  peer.sendall(bytes(2_000_000))
  peer.shutdown(socket.SHUT_WR)
  print(count(peer))
"""


@pytest.mark.parametrize('delay', [0.0, 0.02])
def test_hosts_talk_over_what_is_counted(delay):
  shape = network.Shape('1gbit', delay)
  reason = network.missing(shape)
  if reason:
    pytest.skip(reason)
  with network.opened(2, shape) as opened:
    start = lambda index, code: subprocess.Popen(
      (*network.inside(opened, index), sys.executable, '-c', code),
      stdout=subprocess.PIPE,
      text=True,
    )
    with start(0, SERVE) as server:
      assert server.stdout.readline() == 'up\n'
      with start(1, ASK) as asker:
        assert asker.communicate(timeout=60)[0] == '2000000\n'
    for index in range(2):
      assert network.sent(opened, index) == pytest.approx(2e6, rel=0.05)
    keepers = opened.hosts
  # Nothing is left: no keeper, and with it no namespace.
  for keeper in keepers:
    with pytest.raises(ProcessLookupError):
      os.kill(keeper, 0)
