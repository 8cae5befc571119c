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
    ExpertFigures,
    ExpertTokens,
    GroupedFigures,
    InSteps,
    ProductFigures,
    StreamFigures,
    attention_seconds,
    check_fused,
    dtype_class,
    family,
    grouped_seconds,
    kernel_figures,
    product_seconds,
    stream_seconds,
)
from alpa_dejavu.costs.latency import AnalyticLatency, KernelLatency
from alpa_dejavu.problem import FusedAttention, Operator, Operators
from alpa_dejavu.testing import check_latency_model, example_cluster
from published._experts import experts_seconds, tokens_of_fullest

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
    # With a window of 256 the first two of the eight tiles look at one and two tiles of keys, the others at three.
    windowed = attention_seconds(SHEET, ATTENDING, size, FusedAttention(causal=True, window=256))
    assert windowed[0] == pytest.approx(whole[0] * (1 + 2 + 6 * 3) / 64, rel=0.01)


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


STREAMING = StreamFigures(0.5, 0.25, 1e9, 1e-9)


MEASURED = ("A100-SXM-80GB", "H100-SXM-80GB", "B200-SXM-180GB", "L40S")


def expert_figures(gpu):
    figures = kernel_figures()
    return ExpertFigures(figures.grouped["half"].of(gpu), figures.products["half"].of(gpu), figures.streams.of(gpu))


def test_one_tile_is_split_along_what_it_adds_up():
    whole = product_seconds(SHEET, "bfloat16", IDEAL, np.array([[1, 64, 32, 1e6]]))
    assert whole[0] == pytest.approx(2 * 64 * 32 * 1e6 / 4e12, rel=0.3)


def test_a_thin_product_takes_as_long_as_its_bytes():
    rows, inner = 2.0**20, 512.0
    figures = dataclasses.replace(IDEAL, memory_share=0.5)
    slow = dataclasses.replace(SHEET, memory_bytes_per_s=1e10)
    taken = product_seconds(slow, "bfloat16", figures, np.array([[1, rows, 8, inner]]))
    assert taken[0] == pytest.approx(2 * (rows * inner + 8 * inner + 8 * rows) / 5e9, rel=0.01)


@pytest.mark.parametrize("gpu", MEASURED)
def test_no_product_takes_less_than_a_launch(gpu):
    figures = kernel_figures().products["half"].of(gpu_of(gpu))
    floor_s = figures.floor_clocks / gpu_of(gpu).clock_hz
    assert 1.5e-6 < floor_s < 4e-6
    assert floor_s < products((1, 1, 1, 1), gpu=gpu)[0] < 1.5 * floor_s


def test_casting_is_priced_apart():
    row, figures = (1, 8192, 4096, 4096), kernel_figures().products["float8"].of(gpu_of("H100-SXM-80GB"))
    cast, fused = (products(row, dtype="float8", cast=cast)[0] for cast in (True, False))
    assert cast - fused > figures.cast_clocks / gpu_of("H100-SXM-80GB").clock_hz
    assert products(row, dtype="bfloat16", cast=False)[0] == products(row, dtype="bfloat16")[0] > fused


def test_attention_by_mask_pass_and_library():
    assert passes("cudnn", tokens=32768) == pytest.approx(2 * passes(tokens=32768), rel=0.05)
    assert 2.5 < passes("cudnn causal backward", tokens=32768) / passes(tokens=32768) < 3.2
    assert passes("flash2 causal", tokens=32768) == pytest.approx(1.6 * passes(tokens=32768), rel=0.02)
    assert passes("flash2 causal", gpu="L40S") == passes(gpu="L40S")
    assert passes(prepare=True) > passes() == passes(prepare=False)
    assert passes("cudnn", prepare=True) == passes("cudnn")
    longest = passes("cudnn causal", tokens=131072)
    assert longest * 9 / 512.5 < passes("cudnn causal window=1024", tokens=131072) < 1.5 * longest * 9 / 512.5
    assert passes("cudnn causal window=131072", tokens=131072) == longest
    assert longest < passes("cudnn causal capped", tokens=131072) < 1.8 * longest


def test_odd_heads_are_slow_on_blackwell():
    def slower(gpu):
        odd, even = (passes("cudnn", gpu=gpu, tokens=16384, head=head) for head in (72, 80))
        return odd / even

    assert slower("B200-SXM-180GB") > 3
    assert slower("H100-SXM-80GB") < 1.3


def test_few_heads_leave_multiprocessors_idle():
    few, more = (passes(heads=heads, kv_heads=1, tokens=2048) for heads in (1, 4))
    assert more < 1.5 * few
    few, more = (passes(heads=8 * groups, kv_heads=groups, tokens=8192) for groups in (4, 8))
    assert more == pytest.approx(2 * few, rel=0.1)


def test_one_expert_is_a_product():
    figures = ExpertFigures(GroupedFigures(1.0, 0.0, 0.0, 0.0, 0.0, 0.0), IDEAL, STREAMING)
    tokens = ExpertTokens.balanced(np.array([4096.0]), np.array([1.0]))
    inner, columns = np.array([1024.0]), np.array([2048.0])
    taken = grouped_seconds(SHEET, "bfloat16", figures, tokens, inner, columns)
    product = product_seconds(SHEET, "bfloat16", IDEAL, np.array([[1, 4096, 2048, 1024]]))
    assert taken == pytest.approx(product, rel=0.05)


@given(st.sampled_from(MEASURED), st.integers(1, 65536), st.integers(1, 256), st.floats(1, 8))
def test_more_tokens_of_experts_take_no_less(name, tokens, experts, factor):
    gpu = gpu_of(name)
    dealt = ExpertTokens.balanced(np.array([tokens, tokens * factor]), np.full(2, float(experts)))
    ones = np.ones(2)
    taken = experts_seconds(gpu, "bfloat16", expert_figures(gpu), dealt, ones * tokens, 4096 * ones, 1536 * ones)
    assert np.isfinite(taken).all()
    assert 0 < taken[0] <= taken[1] * (1 + 1e-12)


def test_tokens_of_the_most_loaded_device():
    even = tokens_of_fullest(4096, 8, 128, 16, 0.0)
    assert (float(even.tokens[0]), float(even.experts[0])) == (2048, 8)
    loaded = [float(tokens_of_fullest(4096, 8, 128, ways, 1.2).tokens[0]) for ways in (1, 16, 128)]
    assert loaded[0] == pytest.approx(4096 * 8, rel=0.01)
    # A device with one of 128 experts has far more than a 128th, but no more than each token once.
    assert 4 * 4096 * 8 / 128 < loaded[2] <= 4096
    assert loaded[0] > loaded[1] > loaded[2]
    milder = float(tokens_of_fullest(4096, 8, 128, 128, 1.01).tokens[0])
    assert 256 < milder < loaded[2]


def test_streams_reach_a_share_of_the_memory_unless_the_cache_holds_them():
    assert stream_seconds(SHEET, STREAMING, np.array([1e9]))[0] == pytest.approx(1e9 / 5e11)
    assert stream_seconds(SHEET, STREAMING, np.array([1e9]), rows=True)[0] == pytest.approx(1e9 / 2.5e11)
    held = dataclasses.replace(STREAMING, cache_held=1.0)
    assert stream_seconds(SHEET, held, np.array([1e5]))[0] < 0.02 * 1e5 / 5e11


@pytest.mark.parametrize("name", known_gpus())
def test_the_generation_of_every_sheet_is_a_word_that_kernels_know(name):
    assert family(gpu_of(name).generation) in ("synchronous", "asynchronous")


def test_spread_is_wider_the_less_was_measured():
    fitted = kernel_figures().products["half"]
    names = "H100-SXM-80GB", "H200-SXM-141GB", "T4"
    own, sibling, other = (math.hypot(*fitted.spread(gpu_of(name))) for name in names)
    assert own < sibling < other


@pytest.mark.parametrize(
    ("few", "many"),
    [
        (dot(256, 4096, 2048), dot(4096, 4096, 2048)),
        (dot(64, 128, 64, batch=12), dot(64, 128, 64, batch=192)),
        (dataclasses.replace(dot(2048, 4096, 256), by_weight=True), dot(2048, 4096, 4096)),
        (attention(batch=1), attention(batch=16)),
        (grouped(tokens=1024), grouped(tokens=16384)),
    ],
)
def test_more_samples_take_as_long_as_such_a_kernel(few, many):
    assert seconds_of(few, ways=1 / 16) == pytest.approx(seconds_of(many), rel=1e-6)
    assert seconds_of(few, ways=1 / 2) == pytest.approx(seconds_of(many, ways=8), rel=0.15)


def test_an_unknown_gpu_goes_by_the_roofline():
    device, operators = example_cluster().hosts[0].device, Operators.of([dot(64, 64, 64), ADD])
    predicted = KernelLatency().predict(operators, device)
    assert (predicted.mean_s == AnalyticLatency().predict(operators, device).mean_s).all()
    assert (predicted.spread_s > 0).all()
    assert (KernelLatency().common_share(operators, device) == 1).all()


def test_a_slower_device_takes_so_much_longer_for_everything():
    operators = Operators.of([dot(4096, 4096, 4096), attention(), grouped(), CONV, ADD, dot(64, 64, 64, "float32")])
    for name in ("H100-SXM-80GB", "V100-SXM2-16GB"):
        device = gpu_of(name).device()
        whole, slower = (KernelLatency().predict(operators, each) for each in (device, device.slower(1.5)))
        assert slower.mean_s == pytest.approx(1.5 * whole.mean_s)


def test_rates_are_the_devices():
    device = gpu_of("H100-SXM-80GB").device()
    half = dataclasses.replace(device, memory_bytes_per_s=device.memory_bytes_per_s / 2)
    large = dataclasses.replace(ADD, read_bytes=2.0**33, written_bytes=2.0**32)
    whole, slower = (KernelLatency().predict(Operators.of([large]), each).mean_s for each in (device, half))
    assert slower[0] == pytest.approx(2 * whole[0], rel=0.01)


def test_launches_are_added_where_the_floor_has_none():
    operators = Operators.of([dot(64, 64, 64, "float16"), attention(tokens=64), ADD])
    for name, dtype_has_floor in (("H100-SXM-80GB", True), ("V100-SXM2-16GB", False)):
        device = gpu_of(name).device()
        more = dataclasses.replace(device, kernel_s=device.kernel_s + 1e-3)
        added = KernelLatency().predict(operators, more).mean_s - KernelLatency().predict(operators, device).mean_s
        assert added == pytest.approx([0, 0, 1e-3])
        single = Operators.of([dot(64, 64, 64, "float32")])
        added = KernelLatency().predict(single, more).mean_s - KernelLatency().predict(single, device).mean_s
        assert added == pytest.approx([0 if dtype_has_floor else 1e-3])


def test_what_writes_nothing_costs_nothing_and_loops_count():
    fused = dataclasses.replace(ADD, written_bytes=0.0)
    looped = dataclasses.replace(ADD, count=7)
    alone, nothing, many = seconds_of(ADD, fused, looped)
    assert nothing == 0
    assert many == pytest.approx(7 * alone)


@given(st.sampled_from(MEASURED), st.sampled_from([dot(4096, 5120, 1000), dot(100, 100, 100, batch=12), attention(),
       attention(heads=2, kv_heads=1, tokens=512), grouped(), CONV, ADD]), st.integers(1, 4096))  # fmt: skip
def test_a_part_takes_no_longer_than_the_whole(name, record, ways):
    whole, part = seconds_of(record, gpu=name)[0], seconds_of(record, gpu=name, ways=ways)[0]
    assert 0 < part <= whole * (1 + 1e-12)


def test_a_step_keeps_the_gpu_at_its_power_limit():
    model = KernelLatency(in_steps=InSteps(1.5))
    for gpu in ("A100-SXM-80GB", "B200-SXM-180GB"):
        alone, hot = (products((1, 4096, 4096, 4096), gpu=gpu, hot=hot) for hot in (False, True))
        assert alone < hot < 1.5 * alone
        assert seconds_of(dot(4096, 4096, 4096), gpu=gpu, model=model) == pytest.approx(1.5 * hot)
        assert seconds_of(attention(), gpu=gpu, model=model)[0] == pytest.approx(1.5 * passes(gpu=gpu))
