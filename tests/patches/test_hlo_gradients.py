"""Sums of gradients are all-reduced once, by the last run; the runs before leave it out."""
from alpa_stock_jax.hlo_gradients import gradient_channels
from hlo_tools import from_text

ALL = "replica_groups={{0,1,2,3}}, use_global_device_ids=true"


MODULE = f"""HloModule m
add {{ a = f32[] parameter(0)
  b = f32[] parameter(1)
  ROOT c = f32[] add(a, b) }}
ENTRY e {{ old = f32[3] parameter(0)
  new = f32[3] parameter(1)
  sum = f32[] parameter(2)
  loss = f32[] parameter(3)
  act = f32[5] parameter(4)
  r = f32[3] all-reduce(new), channel_id=1, {ALL}, to_apply=add
  total = f32[3] add(old, r)
  l = f32[] all-reduce(loss), channel_id=2, {ALL}, to_apply=add
  many = f32[] constant(8)
  mean = f32[] divide(l, many)
  losses = f32[] add(sum, mean)
  other = f32[5] all-reduce(act), channel_id=3, {ALL}, to_apply=add
  ROOT t = (f32[3], f32[], f32[5]) tuple(total, losses, other) }}"""


def test_a_module_without_rewriting_has_no_gradient_channels():
    assert gradient_channels(from_text(MODULE)) == []
