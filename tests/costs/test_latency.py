"""Latency models: the conformance suite, and the roofline by hand."""

import dataclasses

import pytest

from alpa_dejavu.costs.latency import AnalyticLatency, latency_model
from alpa_dejavu.problem import Device, Operator, Operators, SmallProducts, StridedReads
from alpa_dejavu.testing import check_latency_model

DEVICE = Device("d", 1e9, {"float32": 100.0, "float16": 200.0}, 50.0, 10.0, kernel_s=1.0)


def test_analytic_conforms():
    check_latency_model(latency_model("analytic"))


@pytest.mark.parametrize(
    ("operator", "seconds"),
    [
        (Operator("dot", "dot_general", (), (), "float32", 1000.0), 10.0),
        (Operator("dot", "dot_general", (), (), "float16", 1000.0), 5.0),
        (Operator("dot", "dot_general", (), (), "float32", 1000.0, written_bytes=5.0), 11.0),
        (Operator("elementwise", "add", (), (), "float32", 100.0), 2.0),
        (Operator("elementwise", "exp", (), (), "float32", 0.0, transcendental=50.0), 16.0),
        (Operator("elementwise", "add", (), (), "float32", 1.0, read_bytes=60.0, written_bytes=40.0), 11.0),
        (Operator("dot", "dot_general", (), (), "float32", 1000.0, count=3), 30.0),
    ],
)
def test_roofline_by_hand(operator, seconds):
    assert AnalyticLatency().predict(Operators.of([operator]), DEVICE).total_s == pytest.approx(seconds)


def test_small_products_reach_their_share_of_the_rate_and_batched_ones_all_of_it() -> None:
    device = dataclasses.replace(DEVICE, kernel_s=0.0, small_products=SmallProducts(200.0, 0.5))
    small = Operator("dot", "dot_general", ((4, 5), (5, 4)), ((4, 4),), "float32", 160.0)
    large = Operator("dot", "dot_general", ((4, 10), (10, 4)), ((4, 4),), "float32", 320.0)
    batched = Operator("dot", "dot_general", ((2, 4, 5), (2, 5, 2)), ((2, 4, 2),), "float32", 160.0)
    seconds = AnalyticLatency().predict(Operators.of([small, large, batched]), device).mean_s
    assert seconds == pytest.approx([3.2, 3.2, 1.6])
    # The library that the large one is given to takes a second and a half to start, on a device half as fast three.
    library = dataclasses.replace(device, small_products=SmallProducts(200.0, 0.5, 1.5))
    operators = Operators.of([small, large, batched])
    assert AnalyticLatency().predict(operators, library).mean_s == pytest.approx([3.2, 4.7, 1.6])
    assert AnalyticLatency().predict(operators, library.slower(2.0)).mean_s == pytest.approx([6.4, 9.4, 3.2])


def test_what_is_read_against_its_order_takes_longer_and_less_so_in_the_cache() -> None:
    device = dataclasses.replace(DEVICE, kernel_s=0.0, strided=StridedReads(2.0, 16.0, 16.0, 32.0))
    read = Operator("dot", "dot_general", (), (), "float32", 100.0, strided_bytes=64.0)
    seconds = {200.0: 32.0, 128.0: 32.0, 32.0: 8.0, 16.0: 4.0, 2.0: 2.0, 0.0: 2.0}
    operators = Operators.of([dataclasses.replace(read, strided_cache_bytes=taken) for taken in seconds])
    found = AnalyticLatency().predict(operators, device).mean_s
    assert found == pytest.approx([1.0 + taken_s for taken_s in seconds.values()])
    # A device that has a tenth of the bytes has a tenth of the lines, too.
    large = dataclasses.replace(read, strided_cache_bytes=160.0)
    assert AnalyticLatency().predict(Operators.of([large]).split(2, 5), device).total_s == pytest.approx(0.1 + 6.4 / 16)


def test_what_another_computation_left_comes_from_memory_as_weights_do() -> None:
    device = dataclasses.replace(DEVICE, kernel_s=0.0, uncached_bytes_per_s=2.0)
    traffic = DEVICE.memory_bytes_per_s
    left = Operator("elementwise", "add", (), (), "float32", 0.0, read_bytes=traffic + 8.0, passed_bytes=8.0)
    assert AnalyticLatency().predict(Operators.of([left]), device).total_s == pytest.approx(1.0 + 4.0)
    assert AnalyticLatency().predict(Operators.of([left]).split(2, 2), device).total_s == pytest.approx(0.25 + 1.0)


def test_maxima_have_a_rate_of_their_own() -> None:
    device = dataclasses.replace(DEVICE, kernel_s=0.0, extreme_flop_per_s=2.0)
    largest = Operator("reduce", "reduce_max", ((8,),), ((),), "float32", 8.0)
    total = dataclasses.replace(largest, primitive="reduce_sum")
    seconds = AnalyticLatency().predict(Operators.of([largest, total]), device).mean_s
    assert seconds == pytest.approx([4.0, 8.0 / DEVICE.vector_flop_per_s])


def test_weights_and_their_gradients_come_from_memory_besides_what_is_computed() -> None:
    device = dataclasses.replace(DEVICE, kernel_s=0.0, uncached_bytes_per_s=2.0)
    work, traffic = DEVICE.rate("float32"), DEVICE.memory_bytes_per_s
    product = Operator(
        "dot", "dot_general", (), (), "float32", 2 * work, read_bytes=traffic + 8.0, unbatched_read_bytes=8.0
    )
    add = Operator(
        "elementwise", "add", (), (), "float32", 0.0, read_bytes=3 * traffic + 8.0, written_bytes=4.0,
        unbatched_read_bytes=8.0, unbatched_written_bytes=4.0,
    )  # fmt: skip
    both = Operators.of([product, add])
    assert AnalyticLatency().predict(both, device).mean_s == pytest.approx([2.0 + 4.0, 3.0 + 6.0])
    # Data parallelism divides all but the weights, tensor parallelism these, too.
    assert AnalyticLatency().predict(both.split(2), device).mean_s == pytest.approx([1.0 + 4.0, 1.5 + 6.0])
    assert AnalyticLatency().predict(both.split(1, 2), device).mean_s == pytest.approx([1.0 + 2.0, 1.5 + 3.0])


def test_convolutions_over_holes_have_a_rate_of_their_own() -> None:
    device = dataclasses.replace(DEVICE, kernel_s=0.0, dilated_flop_per_s=20.0)
    dense = Operator("conv", "conv_general_dilated", (), (), "float32", 100.0)
    both = [dense, dataclasses.replace(dense, dilated=True)]
    assert AnalyticLatency().predict(Operators.of(both), device).mean_s == pytest.approx([1.0, 5.0])
