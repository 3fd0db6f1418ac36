"""What is read from the text of compiled programs, in every form of it."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dilojax import audit

AUTO = jax.sharding.AxisType.Auto


def make_mesh(**sizes):
  return jax.make_mesh(
    tuple(sizes.values()),
    tuple(sizes),
    len(sizes) * (AUTO,),
    devices=jax.devices()[: np.prod(list(sizes.values()))],
  )


MESH = {'a': 2, 'b': 4}


def compiled(fn, *shapes, out=None, dtype=jnp.float32, sizes=None):
  """Compiles a function of shards under a `shard_map`."""
  mesh = make_mesh(**(sizes or MESH))
  spec = jax.P(tuple(mesh.axis_names))
  mapped = jax.shard_map(
    fn,
    mesh=mesh,
    in_specs=spec,
    out_specs=spec if out is None else out,
    check_vma=False,
  )
  args = [jnp.ones((mesh.size * rows, *rest), dtype) for rows, *rest in shapes]
  return jax.jit(mapped).lower(*args).compile(), mesh


def single(fn, *args, **kwargs):
  program, mesh = compiled(fn, *args, **kwargs)
  [one] = audit.collectives(program)
  return one, audit.axes(one, mesh)


@pytest.mark.parametrize(
  ('axis', 'groups'),
  [
    ('a', ((0, 4), (1, 5), (2, 6), (3, 7))),
    ('b', ((0, 1, 2, 3), (4, 5, 6, 7))),
    (('a', 'b'), ((0, 1, 2, 3, 4, 5, 6, 7),)),
  ],
)
def test_an_all_reduce_crosses_its_axis(axis, groups):
  one, axes = single(lambda x: jax.lax.psum(x, axis), (1, 3))
  assert (one.op, one.nbytes, one.dtypes) == ('all-reduce', 12, ('f32',))
  assert sorted(sorted(group) for group in one.groups) == sorted(
    map(list, groups)
  )
  assert axes == ((axis,) if isinstance(axis, str) else axis)
  assert not one.in_branch
  assert not one.in_loop


@pytest.mark.parametrize(
  ('op', 'fn', 'nbytes'),
  [
    ('all-gather', lambda x: jax.lax.all_gather(x, 'b'), 4 * 12),
    (
      'reduce-scatter',
      lambda x: jax.lax.psum_scatter(x, 'b', tiled=True),
      4 * 12,
    ),
    (
      'all-to-all',
      lambda x: jax.lax.all_to_all(x, 'b', 0, 0, tiled=True),
      4 * 12,
    ),
    (
      'collective-permute',
      lambda x: jax.lax.ppermute(x, 'b', [(0, 1), (1, 2), (2, 3), (3, 0)]),
      4 * 12,
    ),
  ],
)
def test_payload_is_what_goes_in(op, fn, nbytes):
  one, axes = single(fn, (4, 3))
  assert (one.op, one.nbytes, axes) == (op, nbytes, ('b',))


def test_narrow_payloads_are_counted_narrow():
  one, _ = single(lambda x: jax.lax.all_gather(x, 'a'), (2, 5), dtype=jnp.uint8)
  assert (one.nbytes, one.dtypes) == (10, ('u8',))


def test_several_operands_are_summed():
  fn = lambda x, y: jax.lax.psum((x, y), 'a')
  program, _ = compiled(fn, (1, 3), (1, 5))
  found = audit.collectives(program)
  assert sum(one.nbytes for one in found) == 4 * 8


def test_devices_are_counted_through_the_mesh():
  """A mesh with its devices in another order crosses the same axes."""
  devices = np.array(jax.devices()).reshape(2, 4)[:, ::-1][::-1]
  mesh = jax.sharding.Mesh(devices, ('a', 'b'), axis_types=(AUTO, AUTO))
  fn = jax.shard_map(
    lambda x: jax.lax.psum(x, 'b'),
    mesh=mesh,
    in_specs=jax.P(('a', 'b')),
    out_specs=jax.P('a'),
  )
  [one] = audit.collectives(jax.jit(fn).lower(jnp.ones(8)).compile())
  assert audit.axes(one, mesh) == ('b',)


# Where it stands.


def where(fn):
  program, _ = compiled(fn, (1, 3))
  return [(one.in_branch, one.in_loop) for one in audit.collectives(program)]


mean = functools.partial(jax.lax.pmean, axis_name='a')


def maybe(x):
  return jax.lax.cond(
    jax.lax.psum(x.sum(), ('a', 'b')) > 0, mean, lambda x: x, x
  )


def test_loops_and_branches_are_told_apart():
  repeated = lambda fn: (
    lambda x: jax.lax.scan(lambda x, _: (fn(x), None), x, length=5)[0]
  )
  chosen = lambda fn: (
    lambda x: jax.lax.cond(jnp.sin(x.sum()) > 0, fn, lambda x: 2 * x, x)
  )
  several = lambda fn: (
    lambda x: jax.lax.switch(jnp.int32(x.sum()), [fn, jnp.sin, jnp.cos], x)
  )
  assert where(mean) == [(False, False)]
  assert where(repeated(mean)) == [(False, True)]
  assert where(chosen(mean)) == [(True, False)]
  assert where(several(mean)) == [(True, False)]
  assert where(repeated(chosen(mean))) == [(True, True)]
  assert where(chosen(repeated(mean))) == [(True, True)]


def test_a_predicate_is_not_within_its_branch():
  assert sorted(where(maybe)) == [(False, False), (True, False)]


def test_computations_are_named():
  program, _ = compiled(maybe, (1, 3))
  text = program.as_text()
  for one in audit.collectives(text):
    assert f'%{one.computation} (' in text
  assert audit.collectives(text) == audit.collectives(program)


# Other writers' forms, in a program of eight devices.

PROGRAM = """HloModule jit_f, is_scheduled=true, num_partitions=8

%sum (x: f32[], y: f32[]) -> f32[] {{
  %x = f32[] parameter(0)
  %y = f32[] parameter(1)
  ROOT %add = f32[] add(%x, %y)
}}

ENTRY %main.1_spmd (param: bf16[4,8]) -> bf16[4,8] {{
  %param = bf16[4,8]{{1,0:T(8,128)(2,1)}} parameter(0), sharding={{replicated}}
  {line}
}}
"""


def read(line):
  [one] = audit.collectives(PROGRAM.format(line=line))
  return one


def reduce(groups):
  return (
    '%one = bf16[4,8]{1,0} all-reduce(%param), channel_id=1,'
    f' replica_groups={groups}, use_global_device_ids=true, to_apply=%sum,'
    ' metadata={op_name="jit(f)/psum"}'
  )


IN_A = ((0, 4), (1, 5), (2, 6), (3, 7))
IN_B = ((0, 1, 2, 3), (4, 5, 6, 7))


@pytest.mark.parametrize(
  ('written', 'groups', 'axes'),
  [
    ('{{0,4},{1,5},{2,6},{3,7}}', IN_A, ('a',)),
    ('{}', (tuple(range(8)),), ('a', 'b')),
    ('[2,4]<=[8]', IN_B, ('b',)),
    ('[4,2]<=[2,4]T(1,0)', IN_A, ('a',)),
    (
      '[4,2]<=[2,2,2]T(0,2,1)',
      ((0, 2), (1, 3), (4, 6), (5, 7)),
      ('b',),
    ),
    ('[8,1]<=[8]', tuple((one,) for one in range(8)), ()),
    ("mesh['a'=2,'b'=4] {'a'}", IN_A, ('a',)),
    ("mesh['a'=2,'b'=4] {'b'}", IN_B, ('b',)),
    ("mesh['a'=2,'b'=4] {'a','b'}", (tuple(range(8)),), ('a', 'b')),
    ("mesh['replica'=8] {'replica':(1)2}", IN_A, ('a',)),
    ("mesh['replica'=8] {'replica':(2)4}", IN_B, ('b',)),
    (
      "mesh['replica'=8] {'replica':(2)2}",
      ((0, 2), (1, 3), (4, 6), (5, 7)),
      ('b',),
    ),
    (
      "mesh['x'=4,'y'=2], device_ids=(0,4,1,5,2,6,3,7) {'y'}",
      IN_A,
      ('a',),
    ),
  ],
)
def test_groups_are_read_in_every_form(written, groups, axes):
  one = read(reduce(written))
  assert one.groups == groups
  assert audit.axes(one, make_mesh(**MESH)) == axes
  assert (one.nbytes, one.dtypes) == (64, ('bf16',))


@pytest.mark.parametrize(
  ('line', 'op', 'nbytes'),
  [
    (
      '%s = bf16[4,8]{1,0} all-reduce-start(%param),'
      ' replica_groups={{0,1}}, to_apply=%sum',
      'all-reduce',
      64,
    ),
    (
      '%s = (bf16[4,8]{1,0}, bf16[32,8]{1,0}) all-gather-start(%param),'
      ' channel_id=2, replica_groups=[1,8]<=[8], dimensions={0}',
      'all-gather',
      64,
    ),
    (
      '%s = (bf16[4,8]{1,0}, bf16[4,8]{1,0}, u32[], u32[])'
      ' collective-permute-start(%param), channel_id=3,'
      ' source_target_pairs={{0,1},{1,0}}',
      'collective-permute',
      64,
    ),
  ],
)
def test_halves_of_an_operation_count_once(line, op, nbytes):
  done = f'\n  %done = bf16[4,8]{{1,0}} {op}-done(%s)'
  one = read(line + done)
  assert (one.op, one.nbytes) == (op, nbytes)


def test_wrapped_operations_are_found_where_they_are():
  text = """HloModule jit_f, num_partitions=8

%wrapped (x: f32[16]) -> f32[2] {
  %x = f32[16]{0} parameter(0)
  ROOT %rs = f32[2]{0} reduce-scatter(%x), channel_id=1, replica_groups=[1,8]<=[8], use_global_device_ids=true, dimensions={0}, to_apply=%sum
}

%body (carry: f32[16]) -> f32[16] {
  %carry = f32[16]{0} parameter(0)
  %start = ((f32[16]{0}), f32[2]{0}) async-start(%carry), calls=%wrapped
  %done = f32[2]{0} async-done(%start)
  ROOT %all = f32[16]{0} broadcast(%done), dimensions={0}
}

ENTRY %main (p: f32[16]) -> f32[16] {
  %p = f32[16]{0} parameter(0)
  ROOT %loop = f32[16]{0} while(%p), condition=%less, body=%body
}
"""  # noqa: E501
  [one] = audit.collectives(text)
  assert one.op == 'reduce-scatter'
  assert one.computation == 'wrapped'
  assert (one.in_loop, one.in_branch, one.nbytes) == (True, False, 64)


def test_a_message_counts_where_it_is_sent():
  one = read(
    '%token = token[] after-all()\n'
    '  %out = (bf16[4,8]{1,0}, u32[], token[]) send(%param, %token),'
    ' channel_id=7, is_host_transfer=true\n'
    '  %in = (bf16[4,8]{1,0}, u32[], token[]) recv(%token), channel_id=8'
  )
  assert (one.op, one.nbytes, one.groups) == ('send', 64, ())
  with pytest.raises(ValueError, match='does not say which devices this send'):
    audit.axes(one, make_mesh(**MESH))


def test_numbers_of_replicas_stand_for_all_their_partitions():
  one = read(
    '%one = bf16[4,8]{1,0} all-reduce(%param), channel_id=1,'
    ' replica_groups={{0}}, to_apply=%sum'
  )
  assert one.groups == (tuple(range(8)),)


@pytest.mark.parametrize(
  ('dtype', 'nbytes'),
  [('pred', 32), ('s4', 16), ('u8', 32), ('f8e4m3fn', 32), ('c64', 256)],
)
def test_bytes_of_every_type(dtype, nbytes):
  text = PROGRAM.format(line=reduce('{}')).replace('bf16[', f'{dtype}[')
  [one] = audit.collectives(text)
  assert (one.nbytes, one.dtypes) == (nbytes, (dtype,))


def test_another_mesh_is_refused():
  one = read(reduce('{{0,1,2,3,4,5,6,7}}'))
  with pytest.raises(ValueError, match='`mesh` has 2 devices'):
    audit.axes(one, make_mesh(a=2))
