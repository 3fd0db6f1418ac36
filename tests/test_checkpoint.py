"""What is saved comes back, bit by bit and whole, or is refused by name."""

import contextlib
import json
import pathlib
import random
import shutil
import signal
import subprocess
import sys
import time

import hypothesis
from hypothesis import strategies as st
import jax
import jax.numpy as jnp
import numpy as np
import optax
import optax.contrib
import pytest

import dilojax as dx
from dilojax import checkpoint
from tests.transforms import training

K = 8
EVERY = 3
PARAMS = {
  'matrix': jax.ShapeDtypeStruct((6, 4), jnp.float32),
  'half': jax.ShapeDtypeStruct((5,), jnp.bfloat16),
  'frozen': jax.ShapeDtypeStruct((3, 2), jnp.float32),
  'scale': jax.ShapeDtypeStruct((), jnp.float32),
  'empty': jax.ShapeDtypeStruct((0, 3), jnp.float32),
  'layers': {i: jax.ShapeDtypeStruct((4,), jnp.float32) for i in (0, 2, 10)},
  'a/b.c': [jax.ShapeDtypeStruct((2,), jnp.float32)],
}


def optimizer():
  label = lambda path, leaf: (
    'frozen'
    if 'frozen' in jax.tree_util.keystr(path)
    else 'muon'
    if leaf.ndim == 2 and leaf.size
    else 'adamw'
  )
  inner = optax.partition(
    {
      'muon': optax.contrib.muon(0.02),
      'adamw': optax.adamw(optax.linear_schedule(0.0, 0.01, 10)),
      'frozen': optax.set_to_zero(),
    },
    lambda params: jax.tree.map_with_path(label, params),
  )
  return optax.chain(
    optax.clip_by_global_norm(1.0),
    inner,
    dx.synchronize(
      optax.sgd(0.7, momentum=0.9, nesterov=True),
      every=EVERY,
      reduce=dx.mean_over('replica'),
      delay=1,
      merge=dx.delta(),
    ),
  )


def abstract(num_devices=None, num_replicas=K):
  """The state of all replicas, on a mesh of so many devices."""
  opt_state = jax.eval_shape(optimizer().init, PARAMS)
  mesh = num_devices and mesh_of(num_devices)

  def one(axis, part):
    spec = jax.P() if axis is None else jax.P('replica')
    lead = () if axis is None else (num_replicas,)
    sharding = mesh and jax.NamedSharding(mesh, spec)
    return jax.tree.map(
      lambda leaf: jax.ShapeDtypeStruct(
        (*lead, *leaf.shape), leaf.dtype, sharding=sharding
      ),
      part,
    )

  axes = (0, dx.replica_axes(opt_state))
  return jax.tree.map(
    one, axes, (PARAMS, opt_state), is_leaf=lambda axis: axis is None
  )


def mesh_of(num_devices):
  auto = (jax.sharding.AxisType.Auto,)
  return jax.make_mesh((num_devices,), ('replica',), auto)


def scrambled(like, seed=0):
  """Arrays of random bits, so with NaN payloads, infinities and subnormals."""
  rng = np.random.default_rng(seed)

  def one(leaf):
    dtype = np.dtype(leaf.dtype)
    count = int(np.prod(leaf.shape))
    value = np.frombuffer(rng.bytes(count * dtype.itemsize), dtype)
    return jax.device_put(value.reshape(leaf.shape), leaf.sharding)

  return jax.tree.map(one, like)


def bits(tree):
  leaves, structure = jax.tree.flatten(tree)
  view = lambda leaf: (str(leaf.dtype), leaf.shape, np.asarray(leaf).tobytes())
  return structure, [view(leaf) for leaf in leaves]


def specs(tree):
  struct = lambda leaf: jax.ShapeDtypeStruct(
    leaf.shape, leaf.dtype, sharding=leaf.sharding, weak_type=leaf.weak_type
  )
  return jax.tree.map(struct, tree)


@pytest.fixture(scope='module')
def saved(tmp_path_factory):
  """A folder with steps 1 and 2, and the state of step 2, on 4 devices."""
  folder = tmp_path_factory.mktemp('saved')
  state = scrambled(abstract(4))
  checkpoint.save(folder, 1, state, {'position': 1}, keep=2)
  checkpoint.save(folder, 2, state, {'position': [2, None, 0.1]}, keep=2)
  return folder, state


@pytest.mark.parametrize('num_devices', [1, 2, 4, 8])
@pytest.mark.parametrize('ambient', [False, True])
def test_restores_bitwise_onto_other_devices(saved, num_devices, ambient):
  folder, state = saved
  mesh = mesh_of(num_devices)
  with jax.set_mesh(mesh) if ambient else contextlib.nullcontext():
    like = abstract(num_devices)
    restored, meta = checkpoint.restore(folder, 2, like)
  assert bits(restored) == bits(state)
  assert meta == {'position': [2, None, 0.1]}
  of = lambda tree: [leaf.sharding for leaf in jax.tree.leaves(tree)]
  assert of(restored) == of(like)


def test_saves_and_restores_under_a_mesh(tmp_path):
  state = scrambled(abstract(4))
  with jax.set_mesh(mesh_of(4)):
    checkpoint.save(tmp_path, 0, state, {}, keep=1)
    # An abstract state made here says nothing of devices.
    like = jax.eval_shape(lambda: jax.tree.map(jnp.zeros_like, state))
    host, _ = checkpoint.restore(tmp_path, 0, like)
  assert bits(host) == bits(state)


def test_without_shardings_restores_to_the_host(saved):
  folder, state = saved
  restored, _ = checkpoint.restore(folder, 2, abstract())
  assert bits(restored) == bits(state)
  assert {type(leaf) for leaf in jax.tree.leaves(restored)} == {np.ndarray}


def test_saves_every_leaf(saved):
  # known_faults 46: an unknown class was saved as an empty dict.
  folder, state = saved
  path = folder / '2'
  manifest = json.loads((path / checkpoint.MANIFEST).read_text())
  leaves = jax.tree.leaves(state)
  assert len(manifest['leaves']) == len(leaves)
  on_disk = sum(p.stat().st_size for p in path.rglob('*') if p.is_file())
  assert on_disk > sum(leaf.nbytes for leaf in leaves) / 2


@pytest.mark.parametrize(
  'values',
  [
    np.full(4, -0.0, np.float32),
    np.float32(-0.0),
    np.array([0x7FC00001, 0xFFC12345, 0x7F800001], np.uint32).view(np.float32),
    np.zeros(3, np.int32),
    np.full(3, -0.0, jnp.bfloat16),
    np.array([1, -8, 7], jnp.int4),
    np.array([0.5, np.nan], jnp.float8_e4m3fn),
    np.array([True, False]),
    np.array([1 + 2j], np.complex64),
    np.zeros((2, 0), np.uint8),
  ],
  ids=lambda values: f'{values.dtype}{list(values.shape)}',
)
def test_keeps_extreme_values(tmp_path, values):
  # Also a tree of one leaf, whose path is empty.
  state = jnp.array(values)
  checkpoint.save(tmp_path, 3, state, {}, keep=1)
  restored, _ = checkpoint.restore(tmp_path, 3, specs(state))
  assert bits(restored) == bits(state) == bits(values)


@pytest.mark.parametrize('state', [{}, (optax.EmptyState(), None)])
def test_keeps_trees_without_leaves(tmp_path, state):
  checkpoint.save(tmp_path, 3, state, {'epoch': 1}, keep=1)
  assert checkpoint.restore(tmp_path, 3, state) == (state, {'epoch': 1})


def test_keeps_weak_types(tmp_path):
  state = {'weak': jnp.asarray(-0.0), 'strong': jnp.zeros([])}
  checkpoint.save(tmp_path, 0, state, {}, keep=1)
  restored, _ = checkpoint.restore(tmp_path, 0, specs(state))
  assert bits(restored) == bits(state)
  assert restored['weak'].weak_type
  assert not restored['strong'].weak_type


@hypothesis.settings(max_examples=10, deadline=None, database=None)
@hypothesis.given(
  st.dictionaries(
    st.text(max_size=5) | st.integers(),
    st.integers(-100, 100),
    min_size=1,
    max_size=5,
  )
)
def test_keeps_any_keys(tmp_path_factory, values):
  # JAX sorts the keys of dicts, so they are all of one type.
  for kind in (str, int):
    part = {key: n for key, n in values.items() if isinstance(key, kind)}
    state = jax.tree.map(jnp.array, part)
    folder = tmp_path_factory.mktemp('keys')
    checkpoint.save(folder, 0, state, {}, keep=1)
    restored, _ = checkpoint.restore(folder, 0, specs(state))
    assert jax.tree.map(int, restored) == part


def test_any_leaf_missing_or_added_is_refused(saved):
  # known_faults 36.
  folder, state = saved
  like = specs(state)
  leaves, structure = jax.tree.flatten_with_path(like)
  for index, (path, leaf) in enumerate(leaves):
    name = jax.tree_util.keystr(path)
    values = [leaf for _, leaf in leaves]
    for change, report in [
      (None, 'wanted nothing'),
      ({'x': leaf}, 'saved nothing'),
    ]:
      values[index] = change
      with pytest.raises(ValueError, match='`like`') as info:
        checkpoint.restore(folder, 2, jax.tree.unflatten(structure, values))
      assert f'{name}: ' in str(info.value)
      assert report in str(info.value)


def test_differing_leaves_are_named_before_loading(saved, monkeypatch):
  folder, state = saved
  load = lambda *args: pytest.fail('loads before it compares')
  monkeypatch.setattr(checkpoint.ocp, 'load', load)
  params, opt_state = specs(state)
  params['matrix'] = jax.ShapeDtypeStruct((K, 6, 5), jnp.float32)
  params['half'] = jax.ShapeDtypeStruct((K, 5), jnp.float16)
  with pytest.raises(ValueError, match='2 that differ') as info:
    checkpoint.restore(folder, 2, (params, opt_state))
  text = "[0]['matrix']: saved float32[8,6,4], wanted float32[8,6,5]"
  assert text in str(info.value)
  text = "[0]['half']: saved bfloat16[8,5], wanted float16[8,5]"
  assert text in str(info.value)


def test_shardings_that_do_not_fit_are_refused(saved):
  folder, state = saved
  params, opt_state = specs(state)
  sharding = jax.NamedSharding(mesh_of(4), jax.P(None, 'replica'))
  params['half'] = jax.ShapeDtypeStruct((K, 5), jnp.bfloat16, sharding=sharding)
  with pytest.raises(ValueError, match=r"`like`.*\[0\]\['half'\]"):
    checkpoint.restore(folder, 2, (params, opt_state))


def damaged(path: pathlib.Path):
  """Damages a file in many ways, one after the other."""
  content = path.read_bytes()
  spots = {0, len(content) // 3, len(content) // 2, len(content) - 1}
  for index in spots if content else ():
    flipped = bytearray(content)
    flipped[index] ^= 1 << index % 8
    path.write_bytes(flipped)
    yield
  for size in {0, len(content) // 2, len(content) - 1} if content else ():
    path.write_bytes(content[:size])
    yield
  path.unlink()
  yield
  path.write_bytes(content)


def test_any_damage_is_found(saved, tmp_path):
  folder, state = saved
  shutil.copytree(folder, tmp_path / 'copy')
  folder = tmp_path / 'copy'
  like = specs(state)
  files = [path for path in (folder / '2').rglob('*') if path.is_file()]
  assert len(files) > 5
  for path in files:
    for _ in damaged(path):
      with pytest.raises(ValueError, match='damaged') as info:
        checkpoint.restore(folder, 2, like)
      assert f'{folder / "2"}' in str(info.value)
      assert 'Remove this folder to continue from step 1.' in str(info.value)
      assert checkpoint.steps(folder) == [1, 2]
  checkpoint.restore(folder, 2, like)

  (folder / '2' / 'state' / 'new').write_text('')
  with pytest.raises(ValueError, match='changed: state/new'):
    checkpoint.restore(folder, 2, like)
  (folder / '1' / checkpoint.MANIFEST).write_text('{}')
  for read in (checkpoint.read_meta, lambda *a: checkpoint.restore(*a, like)):
    with pytest.raises(ValueError, match='There is no earlier checkpoint'):
      read(folder, 1)


def test_damage_before_the_digests_is_found(saved, tmp_path):
  # As if orbax itself had written less than it should have.
  folder, state = saved
  shutil.copytree(folder, tmp_path / 'copy')
  path = tmp_path / 'copy' / '2'
  files = [p for p in (path / 'state').rglob('*') if p.is_file()]
  max(files, key=lambda p: p.stat().st_size).unlink()
  (path / checkpoint.DIGESTS).write_text(checkpoint._digests(path))
  with pytest.raises(ValueError, match='cannot, though its files'):
    checkpoint.restore(tmp_path / 'copy', 2, specs(state))


def test_digests_are_those_of_sha256sum(saved):
  folder, _ = saved
  command = ['sha256sum', '--check', '--strict', checkpoint.DIGESTS]
  subprocess.run(command, cwd=folder / '2', check=True, capture_output=True)


def test_keeps_the_newest(tmp_path):
  for step in (2, 9, 10, 100):
    checkpoint.save(tmp_path, step, {'x': jnp.zeros([])}, {'n': step}, keep=2)
  assert checkpoint.steps(tmp_path) == [10, 100]
  assert {path.name for path in tmp_path.iterdir()} == {'10', '100'}
  assert checkpoint.read_meta(tmp_path, 10) == {'n': 10}


def test_sees_complete_checkpoints_only(tmp_path):
  state = {'x': jnp.zeros([])}
  checkpoint.save(tmp_path, 4, state, {}, keep=1)
  for name in ('notes', '.saving-9', '.removing-3', '007', '-1', '1.5', '+8'):
    (tmp_path / name).mkdir()
  (tmp_path / '5').write_text('a file')
  assert checkpoint.steps(tmp_path) == [4]
  assert checkpoint.steps(tmp_path / 'missing') == []
  checkpoint.save(tmp_path, 6, state, {}, keep=1)
  left = {path.name for path in tmp_path.iterdir()}
  assert left == {'notes', '007', '-1', '1.5', '+8', '5', '6'}


@pytest.mark.parametrize('stage', ['_write_leaves', '_digests', '_sync'])
def test_failed_saves_lose_nothing(tmp_path, monkeypatch, stage):
  state = {'x': jnp.zeros([])}
  checkpoint.save(tmp_path, 1, state, {}, keep=1)

  def fail(*_):
    raise OSError('no space left on device')

  with monkeypatch.context() as patch:
    patch.setattr(checkpoint, stage, fail)
    with pytest.raises(ValueError, match='`folder`.*no space left'):
      checkpoint.save(tmp_path, 2, state, {}, keep=1)
  assert checkpoint.steps(tmp_path) == [1]
  checkpoint.save(tmp_path, 2, state, {}, keep=1)
  assert [path.name for path in tmp_path.iterdir()] == ['2']


def test_bad_input_is_refused(tmp_path):
  state = {'x': jnp.zeros([])}
  checkpoint.save(tmp_path, 5, state, {}, keep=1)
  good = {'step': 6, 'state': state, 'meta': {}, 'keep': 1}
  deleted = jnp.zeros([])
  deleted.delete()
  for bad, message in [
    ({'keep': 0}, '`keep` must be at least 1, got 0'),
    ({'step': 5}, '`step` must be at least 6, got 5'),
    ({'step': -1}, '`step` must be at least 6, got -1'),
    ({'state': {'x': 1.0}}, r"`state`.*\['x'\]: float"),
    ({'state': {'x': np.zeros(2)}}, r"`state`.*\['x'\]: ndarray"),
    ({'state': {'x': jax.random.key(0)}}, r"`state`.*\['x'\]"),
    ({'state': {'x': deleted}}, '`state`.*donated'),
    ({'meta': {'a': (1, 2)}}, '`meta`'),
    ({'meta': {1: 2}}, '`meta`'),
    ({'meta': {'a': np.float32(1)}}, '`meta`'),
    ({'meta': [1]}, '`meta`'),
  ]:
    with pytest.raises(ValueError, match=message):
      checkpoint.save(tmp_path, **{**good, **bad})
  assert checkpoint.steps(tmp_path) == [5]
  (tmp_path / 'file').write_text('')
  with pytest.raises(ValueError, match='`folder` .*file.*write'):
    checkpoint.save(tmp_path / 'file' / 'below', **good)
  for read in (checkpoint.read_meta, lambda *a: checkpoint.restore(*a, state)):
    with pytest.raises(ValueError, match=r'`step`.*\[5\], got 7'):
      read(tmp_path, 7)


def test_paths_that_collide_are_refused(tmp_path):
  @jax.tree_util.register_pytree_with_keys_class
  class Twins:
    def __init__(self, values):
      self.values = values

    def tree_flatten_with_keys(self):
      key = jax.tree_util.DictKey('same')
      return [(key, value) for value in self.values], None

    @classmethod
    def tree_unflatten(cls, _, values):
      return cls(values)

  state = Twins([jnp.zeros([]), jnp.ones([])])
  with pytest.raises(ValueError, match='`state` must have a path of its own'):
    checkpoint.save(tmp_path, 0, state, {}, keep=1)


def replica_step(num_replicas):
  """One inner step of all replicas on one device, jitted."""
  tx = optimizer()
  axes = (0, dx.replica_axes(jax.eval_shape(tx.init, PARAMS)))

  def one(params, opt_state, target):
    pull = lambda p: (target * (p.astype(jnp.float32) - target)).astype(p.dtype)
    grads = jax.tree.map(pull, params)
    updates, opt_state = tx.update(grads, opt_state, params)
    return dx.apply_updates(params, updates, opt_state), opt_state

  step = jax.vmap(one, (*axes, 0), axes, axis_name='replica')
  targets = jnp.linspace(0.5, 1.5, num_replicas)
  return jax.jit(lambda state: step(*state, targets))


def initial(num_replicas):
  start = lambda leaf: jnp.linspace(-1, 1, leaf.size, dtype=leaf.dtype)
  params = jax.tree.map(lambda p: start(p).reshape(p.shape), PARAMS)
  opt_state = optimizer().init(params)
  copies = lambda leaf: jnp.broadcast_to(leaf, (num_replicas, *leaf.shape))
  spread = lambda axis, part: (
    part if axis is None else jax.tree.map(copies, part)
  )
  state = jax.tree.map(
    spread,
    (0, dx.replica_axes(opt_state)),
    (params, opt_state),
    is_leaf=lambda axis: axis is None,
  )
  # Committed, like a restored state: one program for both.
  return jax.device_put(state, jax.devices()[0])


def test_goes_on_bitwise_from_every_offset_of_a_round(tmp_path):
  # known_faults 35, 42, 45.
  step = replica_step(2)
  states = [initial(2)]
  for _ in range(2 * EVERY):
    states.append(step(states[-1]))
  like = specs(states[0])
  for t in range(EVERY + 1):
    checkpoint.save(tmp_path, t, states[t], {}, keep=1)
    state, _ = checkpoint.restore(tmp_path, t, like)
    for _ in range(EVERY):
      state = step(state)
    assert bits(state) == bits(states[t + EVERY])


def private(state):
  axes = (0, dx.replica_axes(state[1]))
  pick = lambda axis, part: [] if axis is None else jax.tree.leaves(part)
  return jax.tree.leaves(
    jax.tree.map(pick, axes, state, is_leaf=lambda axis: axis is None)
  )


def shared(state):
  axes = (0, dx.replica_axes(state[1]))
  pick = lambda axis, part: jax.tree.leaves(part) if axis is None else []
  return jax.tree.leaves(
    jax.tree.map(pick, axes, state, is_leaf=lambda axis: axis is None)
  )


def test_resizes():
  rng = np.random.default_rng(0)
  draw = lambda leaf: jnp.array(10 * rng.normal(size=leaf.shape), leaf.dtype)
  state = jax.tree.map(draw, abstract(num_replicas=2))
  link = state[1][-1]

  fewer = checkpoint.resize(*state, 1)
  assert bits(private(fewer)) == bits([leaf[:1] for leaf in private(state)])
  assert bits(shared(fewer)) == bits(shared(state))
  assert bits(checkpoint.resize(*state, 2)) == bits(state)

  more = checkpoint.resize(*state, 5)
  assert bits(shared(more)) == bits(shared(state))
  assert bits([leaf[:2] for leaf in private(more)]) == bits(private(state))
  anchor = jax.tree.map(lambda a, p: a.astype(p.dtype), link.anchor, state[0])
  for k in (2, 3, 4):
    of = lambda tree, k=k: jax.tree.map(lambda leaf: leaf[k], tree)
    assert bits(of(more[0])) == bits(anchor)
    assert bits(of(more[1][-1].launched)) == bits(anchor)
    inner = jax.tree.map(lambda leaf, k=k: leaf[k % 2], state[1][:-1])
    assert bits(of(more[1][:-1])) == bits(inner)


def test_new_replicas_do_not_push_the_anchor():
  # They have not moved: of 5 replicas, the 2 old ones move the anchor alone.
  tx = dx.synchronize(optax.sgd(1.0), every=1, reduce=dx.mean_over('replica'))
  anchor = jnp.array([1.0, -2.0])
  opt_state = tx.init(anchor)
  old = jnp.array([[6.0, -1.0], [11.0, 0.0]])
  params, opt_state = checkpoint.resize(old, opt_state, 5)
  axes = dx.replica_axes(opt_state)
  update = jax.vmap(tx.update, (0, axes, 0), (0, axes), axis_name='replica')
  _, opt_state = update(jnp.zeros([5, 2]), opt_state, params)
  expected = anchor + jnp.array([15.0, 3.0]) / 5
  np.testing.assert_allclose(opt_state.anchor, expected, rtol=1e-6)


def test_resize_keeps_the_mean_of_what_is_held_back():
  tx = dx.synchronize(
    optax.sgd(1.0),
    every=2,
    reduce=dx.mean_over('replica'),
    send=optax.ema(0.5, debias=False),
  )
  opt_state = tx.init(jnp.zeros(3))
  held = jax.random.normal(jax.random.key(0), (2, 3))
  send = opt_state.send._replace(ema=held, count=jnp.zeros(2, jnp.int32))
  opt_state = opt_state._replace(send=send)
  params, grown = checkpoint.resize(jnp.ones((2, 3)), opt_state, 6)
  np.testing.assert_allclose(grown.send.ema.mean(0), held.mean(0), rtol=1e-6)
  assert bits(params[2:]) == bits(jnp.zeros((4, 3)))


def test_resize_without_an_anchor_starts_at_the_mean():
  tx = optax.adam(1e-3)
  params = jnp.array([[1.0, 2.0], [2.0, 4.0]], jnp.bfloat16)
  opt_state = jax.vmap(tx.init)(params)
  params, _ = checkpoint.resize(params, opt_state, 3)
  assert params.tolist() == [[1.0, 2.0], [2.0, 4.0], [1.5, 3.0]]
  assert params.dtype == jnp.bfloat16


def test_resize_refuses_bad_input():
  params, opt_state = initial(2)
  with pytest.raises(ValueError, match='`num_replicas` must be at least 1'):
    checkpoint.resize(params, opt_state, 0)
  params['scale'] = params['scale'][:1]
  with pytest.raises(ValueError, match=r"one length.*\['scale'\]"):
    checkpoint.resize(params, opt_state, 3)
  with pytest.raises(ValueError, match='leading axis'):
    checkpoint.resize(jnp.zeros([]), optax.EmptyState(), 3)
  levels = optax.chain(
    *(
      dx.synchronize(optax.sgd(1.0), every=2, reduce=dx.mean_over(name))
      for name in ('host', 'region')
    )
  )
  with pytest.raises(ValueError, match='hierarchy'):
    checkpoint.resize(jnp.zeros(2), levels.init(jnp.zeros([])), 3)


PREAMBLE = """
import logging, sys
import jax
jax.config.update('jax_platforms', 'cpu')
import jax.numpy as jnp
from dilojax import checkpoint
folder = sys.argv[1]
make = lambda step: {'x': jnp.full(50_000, step), 'y': [jnp.arange(step)]}
"""
QUIET = """
import absl.logging
absl.logging.set_verbosity(absl.logging.INFO)
checkpoint.save(folder, 3, make(3), {}, keep=1)
checkpoint.restore(folder, 3, make(3))
assert absl.logging.get_verbosity() == absl.logging.INFO
assert logging.getLogger('absl').isEnabledFor(logging.INFO)
"""
FOREVER = """
step = (checkpoint.steps(folder) or [0])[-1]
while True:
  step += 1
  checkpoint.save(folder, step, make(step), {'n': step}, keep=2)
  print(step, flush=True)
"""


def script(code, folder):
  root = pathlib.Path(__file__).parents[1]
  return subprocess.Popen(
    [sys.executable, '-W', 'error', '-c', PREAMBLE + code, str(folder)],
    stdout=subprocess.PIPE,
    stderr=subprocess.PIPE,
    text=True,
    cwd=root,
  )


def test_says_nothing_and_ends(tmp_path):
  out, err = (process := script(QUIET, tmp_path)).communicate(timeout=60)
  assert (process.returncode, out, err) == (0, '', '')


@pytest.mark.slow
def test_survives_being_killed(tmp_path):
  rng = random.Random(0)
  newest = 0
  for _ in range(4):
    with script(FOREVER, tmp_path) as process:
      assert process.stdout is not None
      said = int(process.stdout.readline())
      assert said == newest + 1
      time.sleep(rng.uniform(0.0, 0.6))
      process.send_signal(signal.SIGKILL)
      said = max([said, *map(int, process.stdout.read().split())])
    newest = checkpoint.steps(tmp_path)[-1]
    assert newest >= said
    for step in checkpoint.steps(tmp_path):
      state = {'x': jnp.full(50_000, step), 'y': [jnp.arange(step)]}
      restored, meta = checkpoint.restore(tmp_path, step, state)
      assert bits(restored) == bits(state)
      assert meta == {'n': step}
  assert len(checkpoint.steps(tmp_path)) <= 3


def test_a_mean_half_way_has_as_many_owners_as_it_had():
  tx = dx.synchronize(
    optax.sgd(1.0),
    every=6,
    offset=1,
    delay=4,
    send=dx.encode(dx.wire.bfloat16()),
    reduce=dx.mean_over('replica'),
  )
  params, axes = jnp.zeros((2, 8)), dx.replica_axes(tx.init(jnp.zeros(8)))
  state = training.copies(tx.init(jnp.zeros(8)), axes, 2)
  for step in range(1, 6):
    move = jax.vmap(
      lambda updates, state, params, step=step: tx.update(
        updates, state, params, step=step
      ),
      (0, axes, 0),
      (0, axes),
      axis_name='replica',
    )
    _, state = move(jnp.ones((2, 8)), state, params)
    if step in (1, 2):  # The relay is two steps after the launch.
      assert checkpoint.resize(params, state, 2)
      with pytest.raises(ValueError, match='`num_replicas` must stay 2'):
        checkpoint.resize(params, state, 3)
    else:
      assert checkpoint.resize(params, state, 3)[0].shape == (3, 8)
