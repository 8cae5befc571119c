"""All-reduces of which only pieces are used become reduce-scatters, and give the same pieces."""

import pytest

from alpa_stock_jax.hlo_scatter import (
    all_reduce_to_reduce_scatter,
    drop_redundant_slices,
    reassociate_all_reduces,
)
from hlo_tools import ADD, ALL, check_equal, from_text, opcodes


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
