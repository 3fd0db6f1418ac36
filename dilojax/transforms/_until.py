"""A link for the first steps of a training only."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from dilojax import schedule as schedule_lib
from dilojax.transforms import _checks
from dilojax.transforms import _sharing


class UntilState(NamedTuple):
  """State of :func:`until`.

  Attributes:
    step: Number of inner steps taken, an int32 scalar. Shared.
    link: State of the link.
    plan: Schedule; no arrays.
  """

  step: jax.Array
  link: optax.OptState
  plan: Any

  # The attributes above once more, for `replica_axes`.
  SHARING = {
    'step': _sharing.EVERYWHERE,
    'link': _sharing.NESTED,
    'plan': _sharing.EVERYWHERE,
  }


def until(
  num_steps: int, link: optax.GradientTransformation
) -> optax.GradientTransformationExtraArgs:
  """Runs a link in the first `num_steps` inner steps, and then no more.

  Args:
    num_steps: Number of inner steps, at least 1.
    link: Any transformation, such as :func:`mean_over`.

  Returns:
    An :class:`optax.GradientTransformationExtraArgs`. With `step`, the number
    of this inner step as a Python int, the decision falls while tracing.

  Raises:
    ValueError: If `num_steps` is out of range.

  Examples:
    >>> import jax.numpy as jnp, optax, dilojax as dx
    >>> tx = dx.until(1, optax.scale(2.0))
    >>> state = tx.init(jnp.ones(()))
    >>> for _ in range(2):
    ...   updates, state = tx.update(jnp.ones(()), state)
    ...   print(updates)
    2.0
    1.0
  """
  if not _checks.is_int(num_steps):
    raise ValueError(f'`num_steps` must be an int, got {num_steps!r}.')
  if num_steps < 1:
    raise ValueError(f'`num_steps` must be at least 1, got {num_steps}.')
  _checks.check_transformation('link', link)
  plan = _sharing.Plan(schedule_lib.Schedule(1, 1, stop=num_steps))
  link = optax.with_extra_args_support(link)

  def init_fn(params):
    return UntilState(jnp.zeros([], jnp.int32), link.init(params), plan)

  def update_fn(updates, state, params=None, *, step=None, **extra_args):
    def run(updates, link_state):
      new, link_state = link.update(
        updates, link_state, params, step=step, **extra_args
      )
      return jax.tree.map(_sharing.agreeing, new, updates), link_state

    def rest(updates, link_state):
      return updates, link_state

    if step is None:
      is_on = plan.schedule.launches(state.step + 1)
      updates, link_state = jax.lax.cond(is_on, run, rest, updates, state.link)
    else:
      choice = run if plan.schedule.launches(step) else rest
      updates, link_state = choice(updates, state.link)
    return updates, UntilState(state.step + 1, link_state, plan)

  return optax.GradientTransformationExtraArgs(init_fn, update_fn)
