"""Latency models: the conformance suite, the roofline by hand, and the measurement of this machine."""

import dataclasses

import pytest

from alpa_dejavu.latency import AnalyticLatency, latency_model, measured_cpu
from alpa_dejavu.latency._probe import fit, probes
from alpa_dejavu.problem import Device, Operator, Operators, SmallProducts
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


def test_devices_of_this_machine_share_it():
    one, four = measured_cpu(1, memory_bytes=4e9), measured_cpu(4, memory_bytes=4e9)
    assert one.rate("float32") == pytest.approx(4 * four.rate("float32"))
    assert one.memory_bytes == 4 * four.memory_bytes == 4e9
    assert 1e8 < one.rate("float32") < 1e14
    assert 1e8 < one.memory_bytes_per_s < 1e13
    assert measured_cpu(2).memory_bytes > 1e7


def _program(flop: float, transcendental: float) -> Operators:
    """A product and a loop, ten kernels together."""
    return Operators.of(
        [
            Operator("dot", "dot_general", (), (), "float32", flop / 10, written_bytes=1e-9, count=10),
            Operator("elementwise", "exp", (), (), "float32", 0.0, transcendental / 10, count=10),
        ]
    )


def test_a_fit_to_two_probes_gives_back_the_cost_of_a_transcendental_and_the_kernels_time() -> None:
    programs = [_program(100.0, 10.0), _program(500.0, 40.0)]  # 1 s and 5 s of products
    fitted = fit(DEVICE, programs, [1 + 2.0 * 10 + 30, 5 + 2.0 * 40 + 30])
    assert (fitted.transcendental_flop, fitted.kernel_s) == (pytest.approx(2.0 * 50), pytest.approx(3))
    assert fitted.flop_per_s == DEVICE.flop_per_s
    assert [AnalyticLatency().predict(one, fitted).total_s for one in programs] == pytest.approx([51, 115])


def test_a_fit_is_never_faster_than_the_roofline() -> None:
    assert fit(DEVICE, [_program(100.0, 10.0), _program(500.0, 40.0)], [0.5, 1.0]) == DEVICE


def test_a_fit_needs_a_smaller_and_a_larger_probe() -> None:
    with pytest.raises(ValueError, match=r"larger one evaluates 10.0 transcendentals, the smaller 40.0"):
        fit(DEVICE, [_program(500.0, 40.0), _program(100.0, 10.0)], [1.0, 1.0])


def test_small_products_reach_their_share_of_the_rate_and_batched_ones_all_of_it() -> None:
    device = dataclasses.replace(DEVICE, kernel_s=0.0, small_products=SmallProducts(200.0, 0.5))
    small = Operator("dot", "dot_general", ((4, 5), (5, 4)), ((4, 4),), "float32", 160.0)
    large = Operator("dot", "dot_general", ((4, 10), (10, 4)), ((4, 4),), "float32", 320.0)
    batched = Operator("dot", "dot_general", ((2, 4, 5), (2, 5, 2)), ((2, 4, 2),), "float32", 160.0)
    seconds = AnalyticLatency().predict(Operators.of([small, large, batched]), device).mean_s
    assert seconds == pytest.approx([3.2, 3.2, 1.6])


def test_the_larger_probe_has_more_to_compute_and_as_many_kernels() -> None:
    small, large = probes()
    assert large.operators.total_flop > 4 * small.operators.total_flop
    assert (large.operators.written_bytes > 0).sum() == (small.operators.written_bytes > 0).sum()
    small.run()
