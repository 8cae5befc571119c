"""Kernel models: known cases by hand, invariants of sizes, and a sound latency model of operators."""

import dataclasses
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from alpa_dejavu.clusters.gpus import Gpu, gpu_of, known_gpus
from alpa_dejavu.costs.kernels import (
    AttentionFigures,
    AttentionSizes,
    ProductFigures,
    attention_seconds,
    check_fused,
    dtype_class,
    family,
    kernel_figures,
    product_seconds,
)
from alpa_dejavu.costs.latency import KernelLatency
from alpa_dejavu.problem import FusedAttention, Operator, Operators
from alpa_dejavu.testing import check_latency_model, example_cluster

SHEET = Gpu("made up", "hopper", 4, 1e9, 1e6, 1e9, 1e12, {"float32": 1e12, "bfloat16": 4e12, "float8": 8e12}, 1e12, 1e6,
            1e9, "")  # fmt: skip
"""A GPU of four multiprocessors, each with 1e12 operations a second in 16 bits, that never reaches its power limit."""
IDEAL = ProductFigures(
    peak_share=1.0, tile_loss=0.0, prologue=0.0, tail=1.0, floor_clocks=0.0, cast_clocks=0.0, cast_bytes=0.0,
    memory_share=1.0, cache_bytes=1e9, cache_held=1.0, write_weight=1.0, energy_j=1e-30,
)  # fmt: skip
ATTENDING = AttentionFigures(1.0, 0.0, 1e-9, 0.0, 0.0, 0.0, 0.0, 1.0, 0.0, 0.0)
sizes = st.integers(1, 20_000)


def dot(rows, columns, inner, dtype="bfloat16", batch=1):
    shapes = ((rows, inner), (inner, columns), (rows, columns))
    left, right, result = shapes if batch == 1 else ((batch, *shape) for shape in shapes)
    flop, width = 2.0 * batch * rows * columns * inner, 2 if dtype == "bfloat16" else 4
    read, written = width * batch * inner * (rows + columns), width * batch * rows * columns
    return Operator("dot", "dot_general", (left, right), (result,), dtype, flop, 0, read, written)


def attention(batch=1, tokens=4096, heads=16, kv_heads=4, head=128, kernel="cudnn causal"):
    queries, keys = (batch, tokens, heads, head), (batch, tokens, kv_heads, head)
    flop = 2.0 * batch * heads * tokens**2 * head * (2.5 if "backward" in kernel else 1)
    moved = 2.0 * batch * tokens * heads * head
    return Operator(
        "attention", "attention", (queries, keys, keys), (queries,), "bfloat16", flop, 0, moved, moved, kernel=kernel
    )


def grouped(tokens=8192, experts=8, inner=1024, columns=2048):
    shapes = (tokens, inner), (experts, inner, columns)
    flop, moved = 2.0 * tokens * inner * columns, 2.0 * experts * inner * columns
    return Operator("grouped", "grouped", shapes, ((tokens, columns),), "bfloat16", flop, 0, moved, 2.0 * tokens)


ADD = Operator("elementwise", "add", ((1 << 20,),) * 2, ((1 << 20,),), "float32", 2.0**20, 0, 2.0**23, 2.0**22)
CONV = Operator(
    "conv", "conv", ((32, 56, 56, 64), (3, 3, 64, 64)), ((32, 56, 56, 64),), "bfloat16", 2.0 * 32 * 56**2 * 64 * 576,
    0, 1e7, 1e7,
)  # fmt: skip


def seconds_of(*records, gpu="H100-SXM-80GB", ways=1, model=None):
    operators = Operators.of(records)
    return (model or KernelLatency()).predict(operators.split(ways), gpu_of(gpu).device()).mean_s


def products(*rows, gpu="H100-SXM-80GB", dtype="bfloat16", **options):
    figures = kernel_figures().products["float8" if dtype == "float8" else "half"].of(gpu_of(gpu))
    return product_seconds(gpu_of(gpu), dtype, figures, np.array(rows, dtype=float), **options)


def passes(kernel="cudnn causal", gpu="H100-SXM-80GB", batch=1, tokens=4096, heads=16, kv_heads=4, head=128, **options):
    given_sizes = AttentionSizes(*(np.array([float(each)]) for each in (batch, tokens, tokens, heads, kv_heads, head)))
    figures = kernel_figures().attention.of(gpu_of(gpu))
    (seconds,) = attention_seconds(gpu_of(gpu), figures, given_sizes, FusedAttention.of_text(kernel), **options)
    return float(seconds)


def test_tiles_come_in_waves():
    def ideal(batch, rows, columns, inner):
        return float(product_seconds(SHEET, "bfloat16", IDEAL, np.array([[batch, rows, columns, inner]]))[0])

    # Four tiles of 256 by 128 fill four multiprocessors: 2 * 256 * 128 * 8192 operations of 1e12 a second each.
    wave = 2 * 256 * 128 * 8192 / 1e12
    assert ideal(1, 512, 256, 8192) == pytest.approx(wave, rel=0.01)
    # A row more takes another wave, of small tiles.
    assert 1.05 * wave < ideal(1, 513, 256, 8192) < 1.3 * wave
    assert ideal(4, 256, 128, 8192) == pytest.approx(wave, rel=0.01)
    assert ideal(8, 256, 128, 8192) == pytest.approx(2 * wave, rel=0.01)


def test_the_power_limit_slows_long_products_down():
    figures = dataclasses.replace(IDEAL, energy_j=1e-10 * (1.83e9 / 1e9) ** 2)
    limited = dataclasses.replace(SHEET, power_w=0.8 * 4 + 4e12 * 1e-10 / 4)
    short, long = np.array([[1, 512, 256, 8192]]), np.array([[1, 51200, 25600, 8192]])

    def slower(sizes):
        ideal = product_seconds(SHEET, "bfloat16", IDEAL, sizes)
        return float((product_seconds(limited, "bfloat16", figures, sizes) / ideal)[0])

    # Four times as much power as there is: the clock falls to half, and the energy of an operation to a quarter.
    assert slower(long) == pytest.approx(2.0, rel=0.05)
    assert 1.4 < slower(short) < 1.6


@given(st.sampled_from(known_gpus()), st.sampled_from(["bfloat16", "float32", "float8"]), st.tuples(*[sizes] * 4),
       st.integers(0, 3), st.floats(1, 8))  # fmt: skip
def test_more_of_a_product_takes_no_less(name, dtype, size, side, factor):
    figures, gpu = kernel_figures(), gpu_of(name)
    larger = list(map(float, size))
    larger[side] *= factor
    known = figures.products[dtype_class(gpu, dtype)].of(gpu)
    taken = product_seconds(gpu, dtype, known, np.array([size, larger], dtype=float))
    assert np.isfinite(taken).all()
    assert 0 < taken[0] <= taken[1] * (1 + 1e-12)


def test_attention_known_by_hand():
    # Eight tiles of 128 queries on four multiprocessors, of which each looks at all 1024 keys.
    size = AttentionSizes(*(np.array([float(each)]) for each in (1, 1024, 1024, 1, 1, 64)))
    whole = attention_seconds(SHEET, ATTENDING, size, FusedAttention(causal=False))
    assert whole[0] == pytest.approx(4 * 1024**2 * 64 / 4e12, rel=0.01)
    # Under a causal mask a tile looks at nine sixteenths of them, and the last one at all.
    masked = attention_seconds(SHEET, ATTENDING, size, FusedAttention(causal=True))
    assert masked[0] == pytest.approx(whole[0] * 9 / 16, rel=0.01)
    # One tile of queries keeps one multiprocessor of four busy.
    alone = dataclasses.replace(size, tokens=np.array([128.0]))
    single = attention_seconds(SHEET, ATTENDING, alone, FusedAttention(causal=False))
    assert single[0] == pytest.approx(whole[0] / 2, rel=0.01)


@given(st.sampled_from(known_gpus()), st.integers(1, 64), st.integers(1, 65536), st.integers(1, 64), st.booleans(),
       st.booleans(), st.integers(0, 2))  # fmt: skip
def test_more_attention_takes_no_less(name, batch, tokens, heads, causal, backward, side):
    kernel = FusedAttention(causal=causal, backward=backward).text
    size = {"batch": batch, "tokens": tokens, "heads": heads}
    larger = dict(size)
    larger[("batch", "tokens", "heads")[side]] *= 2
    fewer, more = (passes(kernel, gpu=name, kv_heads=1, **each) for each in (size, larger))
    assert 0 < fewer <= more * (1 + 1e-12) < math.inf


def test_the_file_has_figures_of_both_families_and_of_measured_generations():
    figures = kernel_figures()
    assert set(figures.products) == {"half", "float8", "float32"}
    fitted = [*figures.products.values(), figures.attention, *figures.grouped.values(), figures.streams]
    for each in fitted:
        assert {"synchronous", "asynchronous"} < set(each.figures)
        assert each.shapes.median_error <= each.gpu.median_error < 0.5
        for one in each.figures.values():
            assert all(math.isfinite(value) and value >= 0 for value in dataclasses.asdict(one).values())
    assert {"ampere", "hopper", "blackwell", "ada", "volta"} < set(figures.products["half"].figures)


def test_an_unknown_generation_is_refused():
    with pytest.raises(ValueError, match=r"generation is 'rubin', but must be one of pascal, .*_classes\.py"):
        family("rubin")


def test_it_is_sound_as_a_latency_model():
    check_latency_model(KernelLatency())


def test_operators_of_all_kinds():
    records = dot(4096, 4096, 4096), attention(), grouped(), CONV, ADD
    for name in known_gpus():
        operators, device = Operators.of(records), gpu_of(name).device()
        predicted = KernelLatency().predict(operators, device)
        assert (np.isfinite(predicted.mean_s) & (predicted.mean_s > 0)).all()
        assert (np.isfinite(predicted.spread_s) & (predicted.spread_s > 0)).all()
        share = KernelLatency().common_share(operators, device)
        assert ((share >= 0) & (share <= 1)).all()
        assert predicted.spread_s[3] / predicted.mean_s[3] > predicted.spread_s[0] / predicted.mean_s[0]


def test_footing_says_what_was_measured():
    operators = Operators.of([dot(4096, 4096, 4096, "float16"), attention(), CONV])
    model, common = KernelLatency(), "fitted to other generations"
    h200 = model.footing(operators, gpu_of("H200-SXM-141GB").device()).tolist()
    assert h200 == ["measured on its generation", "measured on its generation", "fitted to matrix products"]
    assert model.footing(operators, gpu_of("T4").device()).tolist() == [common, common, "fitted to matrix products"]
    assert model.footing(operators, example_cluster().hosts[0].device).tolist() == ["data sheet"] * 3
    assert model.footing(Operators.of([]), gpu_of("T4").device()).shape == (0,)


def test_devices_take_whole_products_heads_and_experts():
    model = KernelLatency()
    many, few = dot(512, 512, 512, batch=64), dot(512, 512, 512, batch=16)
    assert seconds_of(many, ways=4, model=model) == pytest.approx(seconds_of(few, model=model))
    assert seconds_of(attention(batch=8), ways=4) == pytest.approx(seconds_of(attention(batch=2)))
    assert seconds_of(attention(batch=2), ways=8) == pytest.approx(seconds_of(attention(heads=4, kv_heads=1)))
    assert seconds_of(grouped(), ways=4) == pytest.approx(seconds_of(grouped(tokens=2048, experts=2)))
    assert seconds_of(dot(8192, 1024, 1024), ways=4) == pytest.approx(seconds_of(dot(2048, 1024, 1024)))


def test_heads_that_no_library_computes_are_told():
    check_fused(gpu_of("B200-SXM-180GB"), 512)
    check_fused(gpu_of("H100-SXM-80GB"), 256)
    said = "a head has 512 elements, but libraries fuse attention of at most 256 on H100-SXM-80GB; give attention="
    with pytest.raises(ValueError, match=said):
        check_fused(gpu_of("H100-SXM-80GB"), 512)
    with pytest.raises(ValueError, match=r"libraries fuse it on GPUs since Ampere, and T4 is of the Turing generation"):
        check_fused(gpu_of("T4"), 64)


def test_attention_by_mask_pass_and_library():
    assert passes("cudnn", tokens=32768) == pytest.approx(2 * passes(tokens=32768), rel=0.05)
    assert 2.5 < passes("cudnn causal backward", tokens=32768) / passes(tokens=32768) < 3.2
    assert passes("flash2 causal", tokens=32768) == pytest.approx(1.6 * passes(tokens=32768), rel=0.02)
    assert passes("flash2 causal", gpu="L40S") == passes(gpu="L40S")
    assert passes(prepare=True) > passes() == passes(prepare=False)
    assert passes("cudnn", prepare=True) == passes("cudnn")
