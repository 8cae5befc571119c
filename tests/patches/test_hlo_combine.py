"""Collectives done together give what they give one by one, in fewer calls."""

import pytest

from alpa_stock_jax.hlo_combine import combine_all_gathers, combine_all_reduces, combine_reduce_scatters
from hlo_tools import ADD, ALL, check_equal, from_text, opcodes

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
