"""What is scheduled between the start of a collective and its end."""

import jax
import pytest

from dilojax import audit

PARTS = """HloModule jit_f, is_scheduled=true, num_partitions=4

%product (a: f32[8,8]) -> f32[8,8] {
  %a = f32[8,8]{1,0} parameter(0)
  ROOT %dot = f32[8,8]{1,0} dot(%a, %a), lhs_contracting_dims={1}
}

%few (n: s32[]) -> pred[] {
  %n = s32[] parameter(0)
  %three = s32[] constant(3)
  ROOT %lt = pred[] compare(%n, %three), direction=LT
}

%few_body (n: s32[]) -> s32[] {
  %n.1 = f32[8]{0} parameter(0)
  %inner = f32[8,8]{1,0} fusion(%n.1), kind=kLoop, calls=%product
  ROOT %next = s32[] add(%n.1, %n.1)
}

%less (carry: (s32[], s32[])) -> pred[] {
  %carry = (s32[], s32[]) parameter(0)
  %i = s32[] get-tuple-element(%carry), index=0
  %end = s32[] get-tuple-element(%carry), index=1
  ROOT %lt.1 = pred[] compare(%i, %end), direction=LT
}

"""
STEP = """%NAME (carry: (s32[], s32[])) -> (s32[], s32[]) {
  %carry.1 = (s32[], s32[]) parameter(0)
  %work = f32[8]{0} fusion(%carry.1), kind=kOutput, calls=%product
  %parts = s32[] while(%work), condition=%few, body=%few_body
  ROOT %more = (s32[], s32[]) tuple(%parts, %parts)
}

"""
WRAPPED = """%wrapped (x: f32[8]) -> f32[8] {
  %x = f32[8]{0} parameter(0)
  ROOT %exchange = f32[8]{0} all-to-all(%x), channel_id=3, dimensions={0}
}

"""
ENTRY = """ENTRY %main (p: f32[8]) -> f32[8] {
  %p = f32[8]{0} parameter(0)
  %first = (s32[], s32[]) while(%p), condition=%less, body=%step
"""

START = '  %start = f32[8]{0} all-reduce-start(%p), to_apply=%sum'
DONE = '  %done = f32[8]{0} all-reduce-done(%start)'
LOOP = '  %delayed = (s32[], s32[]) while(%first), condition=%less, body=%step2'
FUSION = '  %fused = f32[8,8]{1,0} fusion(%p), kind=kLoop, calls=%product'
DOT = '  %lone = f32[8,8]{1,0} dot(%p, %p), lhs_contracting_dims={1}'


def program(*lines):
  """Returns a program of a loop of steps, and more."""
  steps = [STEP.replace('NAME', name) for name in ('step', 'step2')]
  wrapped = WRAPPED * any('%wrapped' in line for line in lines)
  return '\n'.join([PARTS, *steps, wrapped, ENTRY, *lines, '}'])


def find(*lines, lengths=(24, 4)):
  return audit.collectives(program(*lines), lengths)


def test_a_blocking_operation_hides_nothing():
  line = START.replace('all-reduce-start', 'all-reduce')
  [one] = find(line, LOOP, FUSION)
  assert one.between == audit.Between()


def test_what_is_before_and_after_does_not_count():
  [one] = find(FUSION, START, DONE, DOT, LOOP)
  assert one.between == audit.Between()


def test_delayed_steps_are_counted_through_their_loops():
  [one] = find(START, FUSION, LOOP, DOT, DONE)
  # A step has one fusion with a product, and three in an inner loop.
  assert one.between == audit.Between(
    loops=(1,), steps=4, fusions=1 + 4 * (1 + 3), products=1 + 4 * (1 + 3) + 1
  )
  assert (one.loop, one.trips, one.times((24, 4))) == (None, 1, 1)


def test_an_end_out_of_sight_is_not_invented():
  [one] = find(START, LOOP)
  assert one.between is None


def test_a_wrapped_operation_lasts_as_long_as_its_wrapper():
  start = '  %start = ((f32[8]{0}), f32[8]{0}) async-start(%p), calls=%wrapped'
  update = '  %same = ((f32[8]{0}), f32[8]{0}) async-update(%start)'
  [one] = find(
    start, LOOP, update, DOT, '  %done = f32[8]{0} async-done(%same)'
  )
  assert (one.op, one.between.steps, one.between.products) == (
    'all-to-all',
    4,
    17,
  )


def test_loops_must_be_those_that_are_known():
  with pytest.raises(ValueError, match=r'`lengths` must .* \(2\), got 1'):
    find(START, LOOP, DONE, lengths=(24,))


@pytest.mark.parametrize(
  ('after', 'trips'), [('  %work = f32[8]{0} fusion', 1), ('  %inner', 3)]
)
def test_operations_run_as_often_as_their_loops(after, trips):
  """In a loop of steps, and in a shorter loop within each of them."""
  before, _, rest = program().partition(after)
  line, _, rest = rest.partition('\n')
  name = '%work' if trips == 1 else '%n.1'
  inside = f'  %sum.1 = f32[8]{{0}} all-reduce({name}), to_apply=%sum'
  text = '\n'.join([before + after + line, inside, rest])
  [one] = audit.collectives(text, (24,))
  assert (one.loop, one.trips) == (0, trips)
  assert one.times((24,)) == 24 * trips


def test_loops_of_this_compiler_are_counted():
  """A scan has a length of its own; a loop over an argument has not."""
  mesh = jax.make_mesh((4,), ('a',), (jax.sharding.AxisType.Auto,))

  def run(x, length):
    mean = lambda x: jax.lax.psum(jax.numpy.sin(x), 'a')
    scanned = lambda x: jax.lax.scan(lambda x, _: (mean(x), None), x, length=5)
    return jax.lax.fori_loop(0, length, lambda _, x: scanned(x)[0], mean(x))

  mapped = jax.shard_map(
    run,
    mesh=mesh,
    in_specs=(jax.P('a'), jax.P()),
    out_specs=jax.P('a'),
    check_vma=False,
  )
  program = jax.jit(mapped).lower(jax.numpy.ones((4, 3)), 7).compile()
  found = audit.collectives(program, [7])
  assert sorted(one.times([7]) for one in found) == [1, 35]
  assert sorted(one.times([2]) for one in found) == [1, 10]
  assert {one.between for one in found} == {audit.Between()}


# From the program of delayed DiLoCo that libtpu 0.0.42 compiled for four v5e
# slices of 2x2: types of loops and what lies between cut short.
SLICES = """HloModule jit_placed, is_scheduled=true, entry_computation_layout={()->()}, num_partitions=4

%less (carry: (s32[], s32[])) -> pred[] {
  %carry = (s32[]{:T(128)}, s32[]{:T(128)}) parameter(0)
  %i = s32[]{:T(128)} get-tuple-element(%carry), index=0
  %end = s32[]{:T(128)} get-tuple-element(%carry), index=1
  ROOT %lt.1 = pred[]{:T(512)} compare(%i, %end), direction=LT
}

%wide.region_0.63 (carry: (s32[], s32[])) -> (s32[], s32[]) {
  %carry.1 = (s32[]{:T(128)}, s32[]{:T(128)}) parameter(0)
  %convolution.1 = bf16[64,64]{1,0:T(8,128)(2,1)} convolution(%carry.1, %carry.1), dim_labels=bf_io->bf
  ROOT %tuple.1 = (s32[]{:T(128)}, s32[]{:T(128)}) tuple(%carry.1)
}

%wide.region_124.188 (carry: (s32[], s32[])) -> (s32[], s32[]) {
  %carry.2 = (s32[]{:T(128)}, s32[]{:T(128)}) parameter(0)
  %convolution.2 = bf16[64,64]{1,0:T(8,128)(2,1)} convolution(%carry.2, %carry.2), dim_labels=bf_io->bf
  ROOT %tuple.2 = (s32[]{:T(128)}, s32[]{:T(128)}) tuple(%carry.2)
}

ENTRY %main.65_spmd (param.149: f32[1,64,64]) -> f32[28768] {
  %concatenate.211 = f32[28768]{0:T(1024)S(1)} concatenate(%param.149)
  %while.934 = (s32[]{:T(128)}, s32[]{:T(128)}) while(%tuple.1188), condition=%less, body=%wide.region_0.63
  %after-all = token[] after-all()
  %copy.1074 = f32[28768]{0:T(1024)} copy(%concatenate.211), backend_config={"flag_configs":[]}
  %custom-call.13 = f32[29696]{0:T(1024)} custom-call(%copy.1074), custom_call_target="ZeroCrop", output_to_operand_aliasing={{}: (0, {})}, frontend_attributes={xla_skip_custom_call_alias_shape_check="1"}
  %bitcast.6 = f32[29,8,128]{2,1,0:T(8,128)} bitcast(%custom-call.13)
  %send = (f32[29,8,128]{2,1,0:T(8,128)}, u32[], token[]) send(%bitcast.6, %after-all), channel_id=2, is_host_transfer=true, frontend_attributes={_xla_host_transfer_handler_name="xla_megascale_runtime",_xla_host_transfer_rendezvous="all-reduce.390_0",_xla_megascale_reduce_operation="SUM",_xla_megascale_target="{1,2,3,4}x{0:3}",_xla_megascale_transfer_type="ALL_REDUCE"}, backend_config={"flag_configs":[]}
  %recv = (f32[29,8,128]{2,1,0:T(8,128)}, u32[], token[]) recv(%after-all), channel_id=1, is_host_transfer=true, frontend_attributes={_xla_host_transfer_handler_name="xla_megascale_runtime",_xla_host_transfer_rendezvous="all-reduce.390_0",_xla_megascale_reduce_operation="SUM",_xla_megascale_target="{1,2,3,4}x{0:3}",_xla_megascale_transfer_type="ALL_REDUCE"}, backend_config={"flag_configs":[]}
  %while.933 = (s32[]{:T(128)}, s32[]{:T(128)}) while(%tuple.1161), condition=%less, body=%wide.region_124.188
  %send-done = token[] send-done(%send), channel_id=2, is_host_transfer=true, frontend_attributes={_xla_host_transfer_handler_name="xla_megascale_runtime"}
  %convolution.3 = bf16[64,64]{1,0:T(8,128)(2,1)} convolution(%while.933, %while.933), dim_labels=bf_io->bf
  %recv-done = (f32[29,8,128]{2,1,0:T(8,128)}, token[]) recv-done(%recv), channel_id=1, is_host_transfer=true, frontend_attributes={_xla_host_transfer_handler_name="xla_megascale_runtime"}
  ROOT %get-tuple-element.9 = f32[29,8,128]{2,1,0:T(8,128)} get-tuple-element(%recv-done), index=0
}
"""  # noqa: E501


def test_a_message_between_slices_is_in_flight_until_it_is_received():
  [one] = audit.collectives(SLICES, (24, 4))
  assert (one.op, one.carries) == ('send', 'all-reduce')
  assert one.between == audit.Between((1,), steps=4, fusions=0, products=4 + 1)
  # Tiles of 1024 values are filled up, which is no message.
  assert (one.nbytes, one.padding) == (4 * 28768, 4 * (29696 - 28768))
  assert one.result_nbytes == 4 * 29696


def test_the_wait_for_a_message_is_the_later_half():
  text = SLICES.replace('recv-done(%recv)', 'recv-done(%elsewhere)')
  [one] = audit.collectives(text, (24, 4))
  assert one.between is None


TARGETS = [
  ('"{1,2,3,4}x{0:3}"', [(100000, 200000, 300000, 400000), 4]),
  ('"{1,2}x{0,2}"', [(100000, 200000), 2]),
  ('{{100000,300000},{200000,400000}}', [(100000, 300000), 2]),
  ('{{100000->200000},{200000->100000}}', [(100000, 200000), 2]),
]


@pytest.mark.parametrize(('target', 'expected'), TARGETS)
def test_devices_of_other_slices_are_read_in_every_form(target, expected):
  text = SLICES.replace('"{1,2,3,4}x{0:3}"', target)
  [one] = audit.collectives(text)
  assert [one.groups[0], len(one.groups)] == expected


# A fused operation of one v5e slice: its parts stand in three fusions.
CHAIN = """HloModule jit_f, is_scheduled=true, num_partitions=4

%begin (x: bf16[64,64]) -> bf16[64,256] {
  %x = bf16[64,64]{0,1} parameter(0)
  ROOT %all-gather.1 = bf16[64,256]{0,1:T(8,128)} all-gather(%x), channel_id=19, replica_groups={{0,1,2,3}}, dimensions={1}, use_global_device_ids=true, frontend_attributes={chain_id="25"}
}

%middle (x: bf16[64,64]) -> bf16[64,256] {
  %x.1 = bf16[64,64]{0,1} parameter(0)
  %product = bf16[64,64]{0,1} convolution(%x.1, %x.1), dim_labels=bf_io->bf
  ROOT %all-gather.2 = bf16[64,256]{0,1:T(8,128)S(1)} all-gather(%x.1), channel_id=19, replica_groups={{0,1,2,3}}, dimensions={1}, use_global_device_ids=true, frontend_attributes={chain_id="25"}
}

%finish (x: bf16[64,64]) -> bf16[64,256] {
  %x.2 = bf16[64,64]{0,1} parameter(0)
  ROOT %all-gather.3 = bf16[64,256]{0,1:T(8,128)} all-gather(%x.2), channel_id=19, replica_groups={{0,1,2,3}}, dimensions={1}, use_global_device_ids=true, frontend_attributes={chain_id="25"}
}

ENTRY %main (p: bf16[64,64]) -> bf16[64,256] {
  %p = bf16[64,64]{0,1} parameter(0)
  %async-collective-start = bf16[64,256]{0,1} fusion(%p), kind=kCustom, calls=%begin
  %fusion.2 = bf16[64,256]{0,1} fusion(%async-collective-start), kind=kOutput, calls=%middle
  ROOT %async-collective-done = bf16[64,256]{0,1} fusion(%fusion.2), kind=kCustom, calls=%finish
}
"""  # noqa: E501


def test_an_operation_in_several_fusions_counts_once():
  [one] = audit.collectives(CHAIN)
  assert (one.op, one.nbytes) == ('all-gather', 2 * 64 * 64)
  assert one.between == audit.Between(fusions=1, products=1)
