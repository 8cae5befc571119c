"""Latency models: the conformance suite, the roofline by hand, and the measurement of this machine."""

import pytest

from alpa_dejavu.latency import AnalyticLatency, latency_model, measured_cpu
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
