"""Latency models: the conformance suite, the roofline by hand, and the measurement of this machine."""

import pytest

from alpa_dejavu.latency import AnalyticLatency, latency_model, measured_cpu
from alpa_dejavu.latency._probe import fit, probes
from alpa_dejavu.problem import Device, Operator, Operators
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


def test_a_fit_to_two_probes_gives_back_the_factor_and_the_kernels_time() -> None:
    fitted = fit(DEVICE, predicted_s=[1.0, 4.0], kernels=[10.0, 10.0], measured_s=[2 * 1.0 + 30, 2 * 4.0 + 30])
    assert fitted.rate("float32") == pytest.approx(50)
    assert fitted.rate("float16") == pytest.approx(100)
    assert fitted.vector_flop_per_s == pytest.approx(25)
    assert fitted.memory_bytes_per_s == pytest.approx(5)
    assert fitted.kernel_s == pytest.approx(3)


def test_a_fit_never_raises_the_peaks() -> None:
    fitted = fit(DEVICE, predicted_s=[1.0, 4.0], kernels=[10.0, 10.0], measured_s=[0.5, 1.0])
    assert fitted == DEVICE


def test_a_fit_needs_a_smaller_and_a_larger_probe() -> None:
    with pytest.raises(ValueError, match=r"larger is predicted at 1.0 s, the smaller at 4.0 s"):
        fit(DEVICE, predicted_s=[4.0, 1.0], kernels=[1.0, 1.0], measured_s=[1.0, 1.0])


def test_the_larger_probe_has_more_to_compute_and_as_many_kernels() -> None:
    small, large = probes()
    assert large.operators.total_flop > 4 * small.operators.total_flop
    assert (large.operators.written_bytes > 0).sum() == (small.operators.written_bytes > 0).sum()
    small.run()
