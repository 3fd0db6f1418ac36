"""Idealized time of a training: computation, and nothing but all-reduces."""

from typing import NamedTuple

from dilojax.simulate import _exchanges


class Seconds(NamedTuple):
  """Seconds of a training, one part after the other.

  Attributes:
    compute: Forward and backward passes.
    communication: All-reduces.
  """

  compute: float
  communication: float

  @property
  def total(self) -> float:
    """Their sum: nothing overlaps."""
    return self.compute + self.communication


def all_reduce_seconds(
  num_bits: float, num_members: float, link: _exchanges.Link
) -> float:
  r"""Returns how long an all-reduce takes that wastes no bandwidth.

  .. math::

    \frac{2 b}{W} \Big(1 - \frac{1}{n}\Big) + \varepsilon

  Args:
    num_bits: Size :math:`b` of the message, in bits.
    num_members: Number :math:`n` of those who take part, at least 1.
    link: Bandwidth :math:`W` of each member, and latency
      :math:`\varepsilon` of the whole.

  Returns:
    Seconds.

  Raises:
    ValueError: If `num_bits` or the latency is below 0, `num_members` below
      1, or the bandwidth not above 0.

  Examples:
    >>> from dilojax import simulate
    >>> simulate.all_reduce_seconds(8e9, 2, simulate.Link(1e9, latency=0.5))
    8.5
  """
  if not num_bits >= 0:
    raise ValueError(f'`num_bits` must be at least 0, got {num_bits}.')
  if not num_members >= 1:
    raise ValueError(f'`num_members` must be at least 1, got {num_members}.')
  if not (link.bandwidth > 0 and link.latency >= 0):
    raise ValueError(
      '`link` must have a bandwidth above 0 and a latency of at least 0, got'
      f' {link}.'
    )
  transfer = 2 * num_bits / link.bandwidth
  return transfer * (1 - 1 / num_members) + link.latency


def training_seconds(
  *,
  num_params: float,
  num_tokens: float,
  num_steps: int,
  num_chips: int,
  between: _exchanges.Link,
  inside: _exchanges.Link | None = None,
  num_replicas: int = 1,
  every: int | None = None,
  bits: float = 16,
  flops: float = 300e12,
) -> Seconds:
  r"""Returns the idealized time of data parallelism, or of DiLoCo.

  :math:`N` params, :math:`D` tokens and :math:`R` chips, each at :math:`Q`
  operations a second, compute for :math:`6 N D / (R Q)` seconds. With
  :math:`a(n, W)` for :func:`all_reduce_seconds`, :math:`T` steps communicate
  for

  .. math::

    T\, a(R, W_1), \qquad
    T\, (1 + 1/H)\, a(R, W_1), \qquad
    T\, a(R/M, W_0) + \frac{T}{H}\, a(R, W_1)

  in data parallelism, DiLoCo with one replica, which is spread over all sites,
  and DiLoCo with :math:`M \ge 2` replicas, each on a site of its own.

  Args:
    num_params: Number :math:`N` of params.
    num_tokens: Number :math:`D` of tokens, of all replicas together.
    num_steps: Number :math:`T` of inner steps.
    num_chips: Number :math:`R` of chips, of all replicas together.
    between: Link :math:`W_1` of a chip to other sites.
    inside: Link :math:`W_0` of a chip inside a site, for several replicas.
    num_replicas: Number :math:`M` of replicas. They divide the chips.
    every: Number :math:`H` of inner steps per round, or None for data
      parallelism.
    bits: Bits per param of a message.
    flops: Operations :math:`Q` of a chip per second.

  Returns:
    Seconds of computation and of communication.

  Raises:
    ValueError: If an argument is out of range, or has no effect.

  Examples:
    >>> from dilojax import simulate
    >>> seconds = simulate.training_seconds(
    ...   num_params=1e9, num_tokens=20e9, num_steps=10_000, num_chips=100,
    ...   between=simulate.Link(10e9), inside=simulate.Link(400e9),
    ...   num_replicas=2, every=100)
    >>> print(f'{seconds.compute:.0f} {seconds.communication:.1f}')
    4000 1100.8

  References:
    Charles et al., `Communication-Efficient Language Model Training Scales
    Reliably and Robustly: Scaling Laws for DiLoCo
    <https://arxiv.org/abs/2503.09799>`_, 2025 (appendix A)
  """
  _check(num_params, num_tokens, num_steps, num_chips, bits, flops)
  _check_replicas(num_chips, num_replicas, every, inside)
  compute = 6 * num_params * num_tokens / (num_chips * flops)
  num_bits = num_params * bits
  outer = all_reduce_seconds(num_bits, num_chips, between)
  inner = outer
  if inside is not None:
    inner = all_reduce_seconds(num_bits, num_chips / num_replicas, inside)
  rounds = 0.0 if every is None else num_steps / every
  return Seconds(compute, inner * num_steps + outer * rounds)


def _check(num_params, num_tokens, num_steps, num_chips, bits, flops):
  """Refuses numbers that are not above 0."""
  given = {
    'num_params': num_params,
    'num_tokens': num_tokens,
    'num_steps': num_steps,
    'num_chips': num_chips,
    'bits': bits,
    'flops': flops,
  }
  for name, number in given.items():
    if not number > 0:
      raise ValueError(f'`{name}` must be above 0, got {number}.')


def _check_replicas(num_chips, num_replicas, every, inside):
  """Refuses replicas that the method has not."""
  if num_replicas < 1 or num_chips % num_replicas:
    raise ValueError(
      f'`num_replicas` must be at least 1 and divide `num_chips` ({num_chips}),'
      f' got {num_replicas}.'
    )
  if every is None and num_replicas > 1:
    raise ValueError(
      '`num_replicas` is of DiLoCo: give `every`, or leave it at 1 for data'
      f' parallelism, got {num_replicas}.'
    )
  if every is not None and every < 1:
    raise ValueError(f'`every` must be at least 1, got {every}.')
  if (inside is None) != (num_replicas == 1):
    raise ValueError(
      '`inside` is the link of several replicas: give it with them, and'
      f' leave it out with one, got {inside} for {num_replicas}.'
    )
