"""Collectives done together give what they give one by one, in fewer calls."""
from alpa_stock_jax.hlo_combine import combine_all_reduces
from hlo_tools import ADD, ALL, check_equal, from_text

PAIRS = "replica_groups={{0,1},{2,3}}, use_global_device_ids=true"


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
