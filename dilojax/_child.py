"""A run of a sweep, in a process that ends with the one that started it."""

from collections.abc import Sequence
import json
import os
import signal
import sys
import threading

# Everything else is imported where it is used: a run counts that time.


def main(argv: Sequence[str]) -> int:
  """Runs a command of the command line; returns the exit status.

  Standard input must be a pipe whose other end only the starting process has:
  once that is gone, be it by SIGKILL, the pipe ends, and so does this process,
  as if by SIGTERM: a training saves its state.
  """
  threading.Thread(target=_end_with_parent, daemon=True).start()
  if hasattr(signal, 'SIGUSR2'):
    # SLURM sends it to all of a job; who started this one will say so.
    signal.signal(signal.SIGUSR2, signal.SIG_IGN)
  if argv[0] == 'calibrate':
    from dilojax import _estimate

    print(json.dumps(_estimate.measure(json.loads(argv[1]))))
    return 0
  from dilojax import cli

  # What the run records as its command is one that a person can give.
  sys.argv[:] = ['dilojax', *argv]
  return cli.main(argv)


def _end_with_parent():
  while os.read(0, 1):  # Not sys.stdin, whose lock would be held at the exit.
    pass
  os.kill(os.getpid(), signal.SIGTERM)


if __name__ == '__main__':
  sys.exit(main(sys.argv[1:]))
