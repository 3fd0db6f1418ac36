"""What several links ask of their arguments."""


def check_step(step: int | None, final: bool) -> None:
  """Checks what an update is told of its step."""
  if step is not None and not (is_int(step) and step >= 1):
    raise ValueError(
      '`step` must be a Python int, counted from 1 (None to decide while'
      f' running), got {step!r}.'
    )
  if final and step is None:
    raise ValueError(
      '`final` is decided while tracing: pass `step`, the number of the last'
      ' inner step as a Python int, as well.'
    )


def is_int(value: object) -> bool:
  """Tells whether a value is an int to people, for whom a bool is none."""
  return isinstance(value, int) and not isinstance(value, bool)
