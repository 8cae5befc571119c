"""Traces of steps are read as far as they go, and each instant of a step is of one kind of work."""

import gzip
import json
import math
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from alpa_dejavu.calibration.traces import measured_steps, median_step, read_trace, waiting_s
from alpa_dejavu.calibration.traces.measured_step import flop_of

RECORDED = Path(__file__).parent / "traces"
NEWER = "jax_two_devices.trace.json.gz"


def event(name, start, lasts, cat="cpu_op", thread=1, **args):
    return {"ph": "X", "name": name, "cat": cat, "ts": start, "dur": lasts, "pid": 0, "tid": thread, "args": args}


def trace_of(tmp_path, events, name="rank0.json", **more):
    path = tmp_path / name
    path.write_text(json.dumps({"schemaVersion": 1, "traceEvents": events, **more}))
    return path


def step_of(path):
    (step,), _ = measured_steps(read_trace(path))
    return step


def on_gpu():
    """100 us: a product and an attention on one stream, an all-reduce beside them and after, then nothing."""
    return [
        event("ProfilerStep#4", 0, 100, "user_annotation"),
        event("aten::mm", 0, 5, **{"External id": 7, "Input Dims": [[64, 32], [32, 16]],
                                   "Input type": ["c10::BFloat16", "c10::BFloat16"]}),
        event("nvjet_tst_128x256_64x4_TNT", 5, 30, "kernel", 7, **{"External id": 7}),
        event("splitKreduce_kernel", 35, 5, "kernel", 7, **{"External id": 7}),
        event("flash_fwd_kernel", 40, 20, "kernel", 7),
        event("ncclDevKernel_AllReduce_Sum_bf16_RING_LL", 20, 60, "kernel", 20, **{
            "In msg nelems": 1000, "Out msg nelems": 1000, "dtype": "BFloat16", "Group size": 8}),
    ]  # fmt: skip


def test_what_runs_beside_computing_is_hidden_and_the_kinds_add_up_to_the_step(tmp_path):
    step = step_of(trace_of(tmp_path, on_gpu()))
    assert step.number == 4
    assert step.seconds == pytest.approx(100e-6)
    assert step.times["products"].exposed_s == pytest.approx(30e-6)
    assert step.times["norms and softmax"].exposed_s == pytest.approx(5e-6)
    assert step.times["attention"].exposed_s == pytest.approx(20e-6)
    reduced = step.times["exchanges: all_reduce"]
    assert (reduced.busy_s, reduced.exposed_s) == (pytest.approx(60e-6), pytest.approx(20e-6))
    assert step.gaps_s == pytest.approx(25e-6)
    assert step.longest_gap_s == pytest.approx(20e-6)
    (exchange,) = step.exchanges
    assert (exchange.kind, exchange.num_bytes, exchange.group_size) == ("all_reduce", 2000.0, 8)


def test_kernels_have_the_shapes_and_the_type_of_what_launched_them(tmp_path):
    products = [own for own in step_of(trace_of(tmp_path, on_gpu())).operators if own.name == "aten::mm"]
    assert {own.shapes for own in products} == {((64, 32), (32, 16))}
    assert {own.dtype for own in products} == {"c10::BFloat16"}
    assert max(own.flop for own in products) == 2 * 64 * 32 * 16


def test_on_a_processor_the_outermost_operator_that_tells_its_kind_has_the_time(tmp_path):
    step = step_of(trace_of(tmp_path, [
        event("ProfilerStep#0", 0, 100, "user_annotation"),
        event("aten::linear", 0, 40),
        event("aten::addmm", 5, 30),
        event("aten::copy_", 6, 10),
        event("Optimizer.step#AdamW.step", 50, 40, "user_annotation"),
        event("aten::mul_", 60, 20),
        event("gloo:all_reduce", 30, 30, "user_annotation", 2),
    ]))  # fmt: skip
    times = {name: round(time.exposed_s * 1e6) for name, time in step.times.items()}
    assert times == {"products": 30, "dispatch": 10, "optimizer": 20, "exchanges: all_reduce": 20}


KINDS = ("aten::mm", "aten::native_layer_norm", "aten::add", "gloo:all_reduce")


@given(st.lists(st.tuples(st.sampled_from(KINDS), st.integers(0, 40), st.integers(1, 12)), min_size=1, max_size=12))
def test_exposed_seconds_are_those_of_a_count_by_instants(tmp_path_factory, drawn):
    # Each event has a thread of its own, so none is within another.
    events = [event("ProfilerStep#0", 0, 60, "user_annotation", 0)]
    events += [event(name, start, lasts, thread=n + 1) for n, (name, start, lasts) in enumerate(drawn)]
    step = step_of(trace_of(tmp_path_factory.mktemp("drawn"), events))
    order = {"aten::mm": "products", "aten::native_layer_norm": "norms and softmax", "aten::add": "element-wise",
             "gloo:all_reduce": "exchanges: all_reduce"}  # fmt: skip
    counted = dict.fromkeys(order.values(), 0)
    for instant in range(60):
        going_on = {name for name, start, lasts in drawn if start <= instant < start + lasts}
        first = next((kind for name, kind in order.items() if name in going_on), None)
        if first is not None:
            counted[first] += 1
    exposed = {name: round(time.exposed_s * 1e6) for name, time in step.times.items()}
    assert exposed == {kind: counted[kind] for kind in exposed}
    assert round(step.gaps_s * 1e6) == 60 - sum(counted.values())


def test_recorded_torch_steps_are_told_apart_but_for_little():
    steps = [step for n in (0, 1) for step in measured_steps(read_trace(RECORDED / f"torch_rank{n}.json.gz"))[0]]
    assert {(step.rank, step.number) for step in steps} == {(0, 1), (0, 2), (1, 1), (1, 2)}
    for step in steps:
        kinds = sum(time.exposed_s for time in step.times.values())
        assert kinds + step.gaps_s == pytest.approx(step.seconds)
        assert step.exposed_s("untold") < 0.05 * step.seconds
        assert {"products", "attention", "norms and softmax", "element-wise", "optimizer"} <= set(step.times)
        # DDP's gradients of all parameters in single precision: counted by hand from the program's sizes.
        assert sum(exchange.num_bytes for exchange in step.exchanges) == 4 * parameters(64, 2, 2048, 64)


def parameters(hidden, blocks, vocabulary, length):
    block = 12 * hidden**2 + 4 * hidden + 9 * hidden
    return 2 * vocabulary * hidden + length * hidden + blocks * block + 2 * hidden


def test_recorded_products_have_the_operations_of_the_model():
    steps, _ = measured_steps(read_trace(RECORDED / "torch_rank0.json.gz"))
    samples, length, hidden, blocks, vocabulary = 2, 64, 64, 2, 2048
    forward = 2 * samples * length * (12 * hidden**2 * blocks + hidden * vocabulary)
    assert sum(own.flop * own.count for own in steps[0].operators) == 3 * forward


def test_devices_of_one_process_are_ranks_of_their_own():
    steps, notes = measured_steps(read_trace(RECORDED / NEWER))
    assert {(step.rank, step.number) for step in steps} == {(0, 0), (0, 1), (1, 0), (1, 1)}
    assert not notes
    for step in steps:
        assert step.times["exchanges: all_reduce"].events >= 1
        assert step.exposed_s("untold") < 0.05 * step.seconds


def test_a_trace_without_operators_says_so():
    _, notes = measured_steps(read_trace(RECORDED / "jax_0_4_30.trace.json.gz"))
    assert "no operators" in notes[0]


def test_an_xplane_says_the_same_as_the_json_beside_it(tmp_path):
    profiler = pytest.importorskip("jax.profiler")
    if not hasattr(profiler, "ProfileData"):
        (tmp_path / "vm.xplane.pb").write_bytes(b"")
        with pytest.raises(ValueError, match="needs a newer jax"):
            read_trace(tmp_path / "vm.xplane.pb")
        return
    import jax
    import jax.numpy as jnp

    with jax.profiler.trace(str(tmp_path)), jax.profiler.StepTraceAnnotation("train", step_num=0):
        jax.block_until_ready(jax.jit(lambda x: jnp.tanh(x @ x))(jnp.ones((256, 256))))
    by_file = {}
    for suffix in ("*.trace.json.gz", "*.xplane.pb"):
        (path,) = tmp_path.rglob(suffix)
        steps, _ = measured_steps(read_trace(path))
        by_file[suffix] = steps[0].exposed_s("products")
    assert by_file["*.xplane.pb"] == pytest.approx(by_file["*.trace.json.gz"], rel=0.01)


@pytest.mark.parametrize("packed", [False, True])
def test_a_trace_that_is_cut_off_is_read_as_far_as_it_goes(tmp_path, packed):
    text = json.dumps({"schemaVersion": 1, "traceEvents": on_gpu() * 50}).encode()
    path = tmp_path / "rank0.json.gz"
    path.write_bytes(gzip.compress(text)[:-40] if packed else text[:-40])
    trace = read_trace(path)
    assert len(trace.events) > 100
    assert any("cut off" in note for note in trace.notes)


@pytest.mark.parametrize(("content", "why"), [
    (b"", "is larger than 2.00 GiB or empty"),
    (b"[1, 2]", "is no trace"),
    (b"{}", "is no trace"),
    (b"not json", "is no trace"),
    (b"\x1f\x8bbroken", "is no gzipped file"),
    (b'{"traceEvents": [{"ph": "X", "name": 3}]}', "is no trace"),
    (b'{"traceEvents": []}', "no event that lasts"),
])  # fmt: skip
def test_what_is_no_trace_is_refused_by_name(tmp_path, content, why):
    path = tmp_path / "some.json"
    path.write_bytes(content)
    with pytest.raises(ValueError, match=why) as raised:
        read_trace(path)
    assert str(path) in str(raised.value)


def test_steps_that_are_not_marked_and_shapes_that_are_missing_are_told(tmp_path):
    _, notes = measured_steps(read_trace(trace_of(tmp_path, [event("aten::mm", 0, 10)], schemaVersion=2)))
    assert [text for text in ("version 2", "marks no steps", "no shapes") if any(text in note for note in notes)] == [
        "version 2", "marks no steps", "no shapes",
    ]  # fmt: skip


def test_a_rank_waits_in_exchanges_for_the_one_that_comes_last(tmp_path):
    steps = []
    for rank, lasts in ((0, 50), (1, 10)):
        path = trace_of(tmp_path, [
            event("ProfilerStep#0", 0, 100, "user_annotation"),
            event("gloo:all_reduce", 90 - lasts, lasts, "user_annotation", 2,
                  **{"Input Dims": [[8]], "Input type": ["float"]}),
        ], f"rank{rank}.json", distributedInfo={"rank": rank, "world_size": 2})  # fmt: skip
        steps.append(step_of(path))
    assert waiting_s(steps) == pytest.approx([40e-6, 0.0])


def test_the_step_that_is_told_is_the_median_one_that_all_ranks_have(tmp_path):
    lasts = {0: 10, 1: 30, 2: 20}
    events, start = [], 0
    for number, us in lasts.items():
        events += [event(f"ProfilerStep#{number}", start, us, "user_annotation"), event("aten::mm", start, us)]
        start += us
    steps, _ = measured_steps(read_trace(trace_of(tmp_path, events)))
    assert [step.number for step in median_step(steps)] == [2]


def test_ranks_without_a_step_in_common_are_refused(tmp_path):
    steps = []
    for rank in (0, 1):
        events = [event(f"ProfilerStep#{rank}", 0, 10, "user_annotation"), event("aten::mm", 0, 10)]
        path = trace_of(tmp_path, events, f"rank{rank}.json", distributedInfo={"rank": rank, "world_size": 2})
        steps.append(step_of(path))
    with pytest.raises(ValueError, match="ranks 0, 1 have no step in common"):
        median_step(steps)


@pytest.mark.parametrize(("name", "shapes", "flop"), [
    ("aten::mm", [(2, 3), (3, 5)], 60),
    ("aten::bmm", [(7, 2, 3), (7, 3, 5)], 420),
    ("aten::baddbmm", [(7, 2, 5), (7, 2, 3), (7, 3, 5)], 420),
    ("aten::mm", [], 0),
    ("aten::add", [(2, 3), (3, 5)], 0),
])  # fmt: skip
def test_operations_of_products_follow_from_their_shapes(name, shapes, flop):
    assert math.isclose(flop_of(name, shapes), flop)
