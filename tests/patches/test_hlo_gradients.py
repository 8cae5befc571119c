"""Sums of gradients are all-reduced once, by the last run; the runs before leave it out."""

import numpy as np

from alpa_stock_jax.hlo_combine import combine_all_reduces
from alpa_stock_jax.hlo_gradients import gradient_channels, rewrite_gradient_accumulation, without_all_reduces
from hlo_tools import from_text, opcodes, run_partitions

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
