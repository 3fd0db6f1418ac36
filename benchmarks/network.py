"""Hosts that share a machine: network namespaces, joined by links of a rate.

Needs Linux, root, iproute2 and util-linux. Nothing of it has a name outside:
each namespace is kept by a process that ends with this one, however it ends,
and what is in a namespace goes with it.
"""

import collections
from collections.abc import Generator, Sequence
import contextlib
import fcntl
import json
import os
import pathlib
import select
import shutil
import struct
import subprocess
import sys
import tempfile
import threading
import time
from typing import IO, NamedTuple, cast

MTU = 9000  # Jumbo frames: headers are under 1% of them.
TOOLS = ('ip', 'tc', 'unshare', 'nsenter', 'setpriv', 'mount')

# A name of its own, so that what asks for its address finds that of eth0; and
# no IPv6, which would talk unasked.
_KEEP = """\
mount --bind "$1" /etc/hosts
printf %s "$2" >/proc/sys/kernel/hostname
for all in /proc/sys/net/ipv6/conf/*/disable_ipv6; do
  [ -e "$all" ] && echo 1 >"$all"
done
ip link set lo up && echo ready && exec cat >/dev/null
"""
_TUNSETIFF, _IFF_TAP, _IFF_NO_PI = 0x400454CA, 0x0002, 0x1000


class Shape(NamedTuple):
  """What a link does to what it carries.

  Attributes:
    rate: Bits per second that a host may send, in the words of tc.
    delay: Seconds from one host to another.
  """

  rate: str
  delay: float


class Network(NamedTuple):
  """Hosts on one network.

  Attributes:
    hosts: Numbers in the system of the processes that keep the namespaces.
    delay: What delays frames: `netem` (tc), `relay` (a thread of this
      process, for kernels without netem), or nothing.
  """

  hosts: tuple[int, ...]
  delay: str


def address(index: int) -> str:
  """Returns the address of a host."""
  return f'10.213.0.{index + 1}'


def inside(network: Network, index: int) -> tuple[str, ...]:
  """Returns what goes in front of a command to run it on a host.

  It runs in the current folder, and is killed when this process is.
  """
  with_this = ('setpriv', '--pdeathsig', 'KILL')
  here = ('sh', '-c', 'cd "$0" && exec "$@"', os.getcwd())
  return (*with_this, *_inside(network.hosts[index]), *here)


def sent(network: Network, index: int) -> int:
  """Returns the bytes that a host has sent, with headers."""
  command = (*inside(network, index), 'ip', '-s', '-j', 'link', 'show', 'eth0')
  [link] = json.loads(_said(command))
  return link['stats64']['tx']['bytes']


def missing(shape: Shape) -> str | None:
  """Says why there can be no network here, if there can be none."""
  if sys.platform != 'linux':
    return f'network namespaces are of Linux, and this is {sys.platform}.'
  if os.geteuid() != 0:
    return 'it needs root, to make network namespaces.'
  tools = [name for name in TOOLS if not shutil.which(name)]
  if tools:
    return f'it needs iproute2 and util-linux: {", ".join(tools)} missing.'
  try:
    with opened(2, shape):
      return None
  except OSError as error:
    return str(error)


@contextlib.contextmanager
def opened(num_hosts: int, shape: Shape | None = None) -> Generator[Network]:
  """Makes a network, and removes it.

  Args:
    num_hosts: Number of hosts.
    shape: What its links do; None for links as fast as the machine.

  Yields:
    The network.

  Raises:
    OSError: If the system refuses, with what it says.
  """
  with contextlib.ExitStack() as stack:
    folder = pathlib.Path(stack.enter_context(tempfile.TemporaryDirectory()))
    names = [f'dilojax{index}' for index in range(num_hosts)]
    lines = [f'{address(index)} {name}' for index, name in enumerate(names)]
    table = folder / 'hosts'
    table.write_text('\n'.join(['127.0.0.1 localhost', *lines, '']))
    keep = lambda name: stack.enter_context(_kept(table, name))
    middle, *hosts = map(keep, ['switch', *names])
    ports = [f'p{index}' for index in range(num_hosts)]
    for index, host in enumerate(hosts):
      peer = f'type veth peer name eth0 mtu {MTU} netns {host}'
      _ip(middle, f'link add name {ports[index]} mtu {MTU} {peer}')
    how = ''
    if shape:
      for host in hosts:
        # A queue that is never full: what is dropped would be sent twice.
        limits = f'rate {shape.rate} burst 128kb latency 2s'
        _tc(host, f'qdisc add dev eth0 root tbf {limits}')
      if shape.delay:
        how = _delay(stack, middle, ports, shape.delay)
    if how != 'relay':
      _bridge(middle, 'b', ports)
    for index, host in enumerate(hosts):
      _ip(
        host, f'addr add {address(index)}/24 dev eth0', 'link set dev eth0 up'
      )
    yield Network(tuple(hosts), how)


def _delay(stack, middle, ports, delay):
  """Delays what comes to each port, and says by which means."""
  try:
    for port in ports:
      delayed = f'delay {1e3 * delay:g}ms limit 100000'
      _tc(middle, f'qdisc add dev {port} root netem {delayed}')
    return 'netem'
  except OSError:
    pass  # Many kernels for virtual machines lack it.
  taps = [_tap(stack, middle, f't{index}') for index in range(len(ports))]
  for index, port in enumerate(ports):
    _bridge(middle, f'b{index}', [port, f't{index}'])
  stop, stopped = os.pipe()
  stack.callback(os.close, stop)
  thread = threading.Thread(target=_relay, args=(taps, delay, stop))
  thread.start()
  stack.callback(thread.join)
  stack.callback(os.close, stopped)
  return 'relay'


def _relay(taps: Sequence[int], delay: float, stop: int) -> None:
  """Moves frames between taps, each some time after it came."""
  waiting: collections.deque = collections.deque()  # All wait equally long.
  places: dict[bytes, int] = {}
  while True:
    left = None
    if waiting:
      left = max(0.0, waiting[0][0] - time.monotonic())
    ready, _, _ = select.select([*taps, stop], [], [], left)
    if stop in ready:
      return
    due = time.monotonic() + delay
    for tap in ready:
      with contextlib.suppress(BlockingIOError):
        for _ in range(64):
          frame = os.read(tap, 1 << 17)
          places[frame[6:12]] = tap
          waiting.append((due, tap, frame))
    while waiting and waiting[0][0] <= time.monotonic():
      _, source, frame = waiting.popleft()
      target = places.get(frame[:6])
      for tap in taps if target is None else [target]:
        if tap != source:
          os.write(tap, frame)


def _tap(stack, middle, name):
  """Returns the end of a new device, which lives as long as it is open."""
  tap = os.open('/dev/net/tun', os.O_RDWR | os.O_NONBLOCK)
  stack.callback(os.close, tap)
  wanted = struct.pack('16sH22x', b'dilojax%d', _IFF_TAP | _IFF_NO_PI)
  found = fcntl.ioctl(tap, _TUNSETIFF, wanted)
  given = found[:16].rstrip(b'\0').decode()
  _said(('ip', 'link', 'set', 'dev', given, 'netns', str(middle), 'name', name))
  _ip(middle, f'link set dev {name} mtu {MTU} txqueuelen 100000')
  return tap


def _bridge(middle, name, ports):
  _ip(
    middle,
    f'link add name {name} type bridge',
    *(f'link set dev {port} master {name} up' for port in ports),
    f'link set dev {name} up',
  )


@contextlib.contextmanager
def _kept(table, name):
  """Keeps a namespace; it ends when the pipe to its keeper does."""
  command = ('unshare', '--net', '--uts', '--mount', 'sh', '-c', _KEEP, 'sh')
  with subprocess.Popen(
    (*command, str(table), name),
    stdin=subprocess.PIPE,
    stdout=subprocess.PIPE,
    stderr=subprocess.PIPE,
    text=True,
    start_new_session=True,
  ) as keeper:
    said, failed = cast(IO[str], keeper.stdout), cast(IO[str], keeper.stderr)
    if said.readline() != 'ready\n':
      raise OSError(f'a network namespace: {failed.read().strip()}')
    yield keeper.pid


def _inside(host):
  return ('nsenter', '-t', str(host), '--net', '--uts', '--mount')


def _ip(host, *lines):
  _said((*_inside(host), 'ip', '-batch', '-'), '\n'.join(lines))


def _tc(host, line):
  _said((*_inside(host), 'tc', *line.split()))


def _said(command, text=''):
  """Returns what a command writes."""
  try:
    done = subprocess.run(
      command, input=text, capture_output=True, text=True, check=True
    )
  except subprocess.CalledProcessError as error:
    words = ' '.join(error.cmd).partition('--mount ')[2] or error.cmd[0]
    raise OSError(f'{words} {text}: {error.stderr.strip()}') from error
  return done.stdout
