"""Passes over HLO: what they combine, scatter, put off and shield computes what it did."""

import numpy as np
import pytest

from alpa_stock_jax.hlo_combine import combine_all_gathers, combine_all_reduces, combine_reduce_scatters
from alpa_stock_jax.hlo_gradients import gradient_channels, rewrite_gradient_accumulation, without_all_reduces
from alpa_stock_jax.hlo_scatter import all_reduce_to_reduce_scatter, drop_redundant_slices, reassociate_all_reduces
from hlo_tools import ADD, ALL, check_equal, from_text, opcodes, run_partitions

PAIRS = "replica_groups={{0,1},{2,3}}, use_global_device_ids=true"


def _all_reduces(second=ALL):
    return from_text(f"""HloModule m
{ADD}
ENTRY e {{ a = f32[4,6] parameter(0)
  b = f32[5] parameter(1)
  c = f32[] parameter(2)
  x = f32[4,6] all-reduce(a), channel_id=1, {ALL}, to_apply=add
  y = f32[5] all-reduce(b), channel_id=2, {second}, to_apply=add
  z = f32[] all-reduce(c), channel_id=3, {ALL}, to_apply=add
  ROOT t = (f32[4,6], f32[5], f32[]) tuple(x, y, z) }}""")


def test_all_reduces_of_all_shapes_are_one():
    module = _all_reduces()
    combined = combine_all_reduces(module, 1 << 60)
    assert opcodes(combined).count("all-reduce") == 1
    assert "concatenate" not in opcodes(combined), "XLA would fuse it with all that makes its parts"
    check_equal(module, combined, (4, 6), (5,), ())


def test_other_groups_stay_apart():
    module = _all_reduces(PAIRS)
    combined = combine_all_reduces(module, 1 << 60)
    assert opcodes(combined).count("all-reduce") == 2
    check_equal(module, combined, (4, 6), (5,), ())


@pytest.mark.parametrize(("threshold", "left"), [(0, 3), (24, 2), (100, 2), (120, 1), (119, 2)])
def test_no_more_bytes_than_allowed(threshold, left):
    combined = combine_all_reduces(_all_reduces(), threshold)
    assert opcodes(combined).count("all-reduce") == left


def test_what_depends_on_another_is_not_combined_with_it():
    module = from_text(f"""HloModule m
{ADD}
ENTRY e {{ a = f32[8] parameter(0)
  b = f32[8] parameter(1)
  x = f32[8] all-reduce(a), channel_id=1, {ALL}, to_apply=add
  s = f32[8] add(x, b)
  y = f32[8] all-reduce(s), channel_id=2, {ALL}, to_apply=add
  z = f32[8] all-reduce(b), channel_id=3, {ALL}, to_apply=add
  ROOT t = (f32[8], f32[8], f32[8]) tuple(x, y, z) }}""")
    combined = combine_all_reduces(module, 1 << 60)
    assert opcodes(combined).count("all-reduce") == 2
    check_equal(module, combined, (8,), (8,))


def test_all_gathers_of_different_dimensions_are_one():
    module = from_text(f"""HloModule m
ENTRY e {{ a = f32[2,3] parameter(0)
  b = f32[2,3,2] parameter(1)
  c = f32[4] parameter(2)
  x = f32[8,3] all-gather(a), channel_id=1, {ALL}, dimensions={{0}}
  y = f32[2,12,2] all-gather(b), channel_id=2, {ALL}, dimensions={{1}}
  z = f32[8] all-gather(c), channel_id=3, {PAIRS}, dimensions={{0}}
  ROOT t = (f32[8,3], f32[2,12,2], f32[8]) tuple(x, y, z) }}""")
    combined = combine_all_gathers(module, 1 << 60)
    assert opcodes(combined).count("all-gather") == 2
    check_equal(module, combined, (2, 3), (2, 3, 2), (4,))


def test_reduce_scatters_are_one_for_each_dimension():
    module = from_text(f"""HloModule m
{ADD}
ENTRY e {{ a = f32[8,3] parameter(0)
  b = f32[4,2] parameter(1)
  c = f32[2,12] parameter(2)
  x = f32[2,3] reduce-scatter(a), channel_id=1, {ALL}, dimensions={{0}}, to_apply=add
  y = f32[1,2] reduce-scatter(b), channel_id=2, {ALL}, dimensions={{0}}, to_apply=add
  z = f32[2,3] reduce-scatter(c), channel_id=3, {ALL}, dimensions={{1}}, to_apply=add
  ROOT t = (f32[2,3], f32[1,2], f32[2,3]) tuple(x, y, z) }}""")
    combined = combine_reduce_scatters(module, 1 << 60)
    assert opcodes(combined).count("reduce-scatter") == 2
    check_equal(module, combined, (8, 3), (4, 2), (2, 12))


def _sliced(table, groups, size=2, extra=""):
    return from_text(f"""HloModule m
{ADD}
ENTRY e {{ a = f32[8,3] parameter(0)
  i = u32[] partition-id()
  table = s32[4] constant({{{table}}})
  looked = s32[1] dynamic-slice(table, i), dynamic_slice_sizes={{1}}
  start = s32[] reshape(looked)
  zero = s32[] constant(0)
  x = f32[8,3] all-reduce(a), channel_id=1, {groups}, to_apply=add
  piece = f32[{size},3] dynamic-slice(x, start, zero), dynamic_slice_sizes={{{size},3}}
  {extra or f"ROOT t = (f32[{size},3]) tuple(piece)"} }}""")


@pytest.mark.parametrize(
    ("table", "groups", "size"),
    [
        ("0,2,4,6", "replica_groups={{0,1,2,3}}, use_global_device_ids=true", 2),
        ("6,4,2,0", "replica_groups={{0,1,2,3}}, use_global_device_ids=true", 2),
        ("0,4,4,0", "replica_groups={{0,1},{2,3}}, use_global_device_ids=true", 4),
        ("0,0,4,4", "replica_groups={{0,2},{1,3}}, use_global_device_ids=true", 4),
    ],
)
def test_pieces_for_each_partition_become_a_reduce_scatter(table, groups, size):
    module = _sliced(table, groups, size)
    scattered = all_reduce_to_reduce_scatter(module, 4)
    assert opcodes(scattered).count("reduce-scatter") == 1
    assert "all-reduce" not in opcodes(scattered)
    check_equal(module, scattered, (8, 3))


@pytest.mark.parametrize(
    ("table", "groups", "extra"),
    [
        ("0,2,2,6", ALL, ""),
        ("0,2,4,6", "replica_groups={{0,1},{2,3}}, use_global_device_ids=true", ""),
        ("0,2,4,6", ALL, "ROOT t = (f32[2,3], f32[8,3]) tuple(piece, x)"),
    ],
)
def test_other_pieces_and_other_users_keep_the_all_reduce(table, groups, extra):
    module = _sliced(table, groups, extra=extra)
    assert "reduce-scatter" not in opcodes(all_reduce_to_reduce_scatter(module, 4))


def test_sums_of_all_reduces_are_reduced_once():
    module = from_text(f"""HloModule m
{ADD}
ENTRY e {{ a = f32[8] parameter(0)
  b = f32[8] parameter(1)
  c = f32[8] parameter(2)
  x = f32[8] all-reduce(a), channel_id=1, {ALL}, to_apply=add
  y = f32[8] all-reduce(b), channel_id=2, {ALL}, to_apply=add
  z = f32[8] all-reduce(c), channel_id=3, {ALL}, to_apply=add
  s = f32[8] add(x, y)
  r = f32[8] add(s, z)
  ROOT t = (f32[8]) tuple(r) }}""")
    once = reassociate_all_reduces(module)
    assert opcodes(once).count("all-reduce") == 1
    check_equal(module, once, (8,), (8,), (8,))


def test_an_all_reduce_with_other_users_is_not_moved():
    module = from_text(f"""HloModule m
{ADD}
ENTRY e {{ a = f32[8] parameter(0)
  x = f32[8] all-reduce(a), channel_id=1, {ALL}, to_apply=add
  y = f32[8] all-reduce(a), channel_id=2, {ALL}, to_apply=add
  s = f32[8] add(x, y)
  ROOT t = (f32[8], f32[8]) tuple(s, x) }}""")
    assert opcodes(reassociate_all_reduces(module)).count("all-reduce") == 2


@pytest.mark.parametrize(("dimension", "left"), [(1, 0), (0, 1)])
def test_pieces_of_broadcasts_are_broadcast_small(dimension, left):
    module = from_text(f"""HloModule m
ENTRY e {{ a = f32[8] parameter(0)
  i = u32[] partition-id()
  zero = u32[] constant(0)
  wide = f32[8,8] broadcast(a), dimensions={{{dimension}}}
  piece = f32[2,8] dynamic-slice(wide, i, zero), dynamic_slice_sizes={{2,8}}
  ROOT t = (f32[2,8]) tuple(piece) }}""")
    small = drop_redundant_slices(module)
    assert opcodes(small).count("dynamic-slice") == left
    check_equal(module, small, (8,))


EVERY = "replica_groups={{0,1,2,3}}, use_global_device_ids=true"
MODULE = f"""HloModule m
add {{ a = f32[] parameter(0)
  b = f32[] parameter(1)
  ROOT c = f32[] add(a, b) }}
ENTRY e {{ old = f32[3] parameter(0)
  new = f32[3] parameter(1)
  sum = f32[] parameter(2)
  loss = f32[] parameter(3)
  act = f32[5] parameter(4)
  r = f32[3] all-reduce(new), channel_id=1, {EVERY}, to_apply=add
  total = f32[3] add(old, r)
  l = f32[] all-reduce(loss), channel_id=2, {EVERY}, to_apply=add
  many = f32[] constant(8)
  mean = f32[] divide(l, many)
  losses = f32[] add(sum, mean)
  other = f32[5] all-reduce(act), channel_id=3, {EVERY}, to_apply=add
  ROOT t = (f32[3], f32[], f32[5]) tuple(total, losses, other) }}"""


def _batches(count):
    draw = np.random.default_rng(0).standard_normal
    return [[[np.float32(draw(s)) for _ in range(4)] for s in ((3,), (), (5,))] for _ in range(count)]


def _accumulate(runs, batches):
    """Sums over the batches by the given modules, one for each."""
    total, losses = [np.zeros(3, np.float32)] * 4, [np.float32(0)] * 4
    for module, (new, loss, act) in zip(runs, batches, strict=True):
        total, losses, other = run_partitions(module, 4, total, new, losses, loss, act)
    return total, losses, other


def test_all_reducing_the_sum_once_gives_the_sum_of_all_reduces():
    module = from_text(MODULE)
    late = combine_all_reduces(rewrite_gradient_accumulation(module), 1 << 60)
    channels = gradient_channels(late)
    local = without_all_reduces(late, channels)
    assert len(channels) == 1
    assert opcodes(late).count("all-reduce") == 2
    assert opcodes(local).count("all-reduce") == 1
    batches = _batches(3)
    expected = _accumulate([module] * 3, batches)
    found = _accumulate([local, local, late], batches)
    for first, second in zip(expected, found, strict=True):
        for a, b in zip(first, second, strict=True):
            np.testing.assert_allclose(b, a, rtol=1e-5, atol=1e-6)


def test_only_the_named_results_are_rewritten():
    late = rewrite_gradient_accumulation(from_text(MODULE), [0])
    assert len(gradient_channels(late)) == 1
    assert gradient_channels(rewrite_gradient_accumulation(from_text(MODULE), [2])) == []


def test_a_gradient_that_somebody_else_takes_is_not_rewritten():
    module = from_text(
        MODULE.replace("tuple(total, losses, other)", "tuple(total, losses, other, r)").replace(
            "(f32[3], f32[], f32[5])", "(f32[3], f32[], f32[5], f32[3])"
        )
    )
    assert len(gradient_channels(rewrite_gradient_accumulation(module))) == 1


def test_crossed_dependencies_make_no_cycle():
    module = from_text(f"""HloModule m
{ADD}
ENTRY e {{ a = f32[8] parameter(0)
  b = f32[8] parameter(1)
  x = f32[8] all-reduce(a), channel_id=1, {ALL}, to_apply=add
  y = f32[8] all-reduce(x), channel_id=2, {PAIRS}, to_apply=add
  u = f32[8] all-reduce(b), channel_id=3, {PAIRS}, to_apply=add
  v = f32[8] all-reduce(u), channel_id=4, {ALL}, to_apply=add
  ROOT t = (f32[8], f32[8]) tuple(y, v) }}""")
    check_equal(module, combine_all_reduces(module, 1 << 60), (8,), (8,))
