"""Whether a training is long enough for the rounds of its config."""

from collections.abc import Iterator, Mapping
from typing import Any


def check(config: Mapping[str, Any]) -> None:
  """Refuses rounds of which none would end, so that nothing has an effect.

  Raises:
    ValueError: If a link would not land once, and the last step does not
      synchronize in any case.
  """
  if config.get('final_synchronization', True):
    return
  for terms in _first_landings(config):
    first = sum(terms.values())
    if first > config['num_steps']:
      how = ' + '.join(f'`{name}` {n}' for name, n in terms.items() if n)
      raise ValueError(
        f'`num_steps` must be at least {first}, the step of the first landing'
        f' ({how}), got {config["num_steps"]}: replicas would not meet. Choose'
        ' more steps, fewer per round, or `final_synchronization` True.'
      )


def _first_landings(config: Mapping[str, Any]) -> Iterator[dict[str, int]]:
  """Yields for each link the terms of the step in which it first lands."""
  if config['method'] == 'hierarchical':
    for name, level in config['levels'].items():
      yield {f'levels.{name}.every': level['every']}
  elif config['method'] == 'dreamddp':
    yield {'turns': len(config['turns'].split(';'))}
  elif 'every' in config:
    overlap = config.get('overlap', {})
    # Of fragments the first is the last to launch, when a round ends.
    offset = 'overlap.offset' if 'offset' in overlap else 'every'
    late = {'late': config['every']} if 'late' in config else {}
    yield {
      'data_parallel_steps': config.get('data_parallel_steps', 0),
      offset: overlap.get('offset', config['every']),
      'overlap.delay': overlap.get('delay', 0),
      'delay': config.get('delay', 0),
      **late,
    }
