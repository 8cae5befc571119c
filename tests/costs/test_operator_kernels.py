"""Operators as kernels: what of a product a device gets, and what the dtype changes."""

import dataclasses

import pytest

from alpa_dejavu.calibration import prices
from alpa_dejavu.clusters import named_cluster
from alpa_dejavu.costs.latency._operator_kernels import OperatorKernels
from alpa_dejavu.costs.latency.learned import DataSheet
from alpa_dejavu.problem import Operator, Operators
from alpa_dejavu.testing import example_cluster

SHEET = DataSheet(1e12, 1e11, 16, 2e6, power_w=1.0, process_nm=12.0)
DEVICE = dataclasses.replace(example_cluster().hosts[0].device, flop_per_s={"float32": 1e12, "float16": 8e12})
BATCHED = Operator(
    "dot", "dot_general", ((16, 128, 64), (16, 64, 96)), ((16, 128, 96),), "float32", 2.0 * 16 * 128 * 96 * 64
)
PLAIN = Operator("dot", "dot_general", ((256, 64), (64, 96)), ((256, 96),), "float32", 2.0 * 256 * 96 * 64)
ADD = Operator("elementwise", "add", ((64,),) * 2, ((64,),), "float32", 64.0, 0, 512.0, 256.0)


def kernels_of(operators, device=DEVICE, known=None):
    """What each operator runs, and what it would run undivided."""
    found = (known or OperatorKernels()).of(operators, device, SHEET)
    return found.divided.take(found.of_operators), found.whole.take(found.of_operators)


def sizes(record, ways):
    divided, whole = kernels_of(Operators.of([record]).split(ways))
    assert whole.flop[0] == pytest.approx(ways * divided.flop[0])
    return divided.op[0], *(float(getattr(divided, name)[0]) for name in ("batch", "m", "n", "k"))


def test_of_products_in_a_batch_a_device_takes_whole_ones_and_of_others_parts_of_the_longest_sides():
    assert sizes(BATCHED, 4) == ("bmm", 4, 128, 96, 64)
    # A batch of one is an ordinary product.
    assert sizes(BATCHED, 32) == ("linear", 1, pytest.approx(6144**0.5), pytest.approx(6144**0.5), 64)
    assert sizes(PLAIN, 2) == ("linear", 1, 128, 96, 64)
    # The gradient of a weight adds up over all samples, of which each of 32 devices has its own.
    rows, inner, outer = 65536.0, 4096.0, 4096.0
    gradient = Operator(
        "dot", "dot_general", ((65536, 4096), (65536, 4096)), ((4096, 4096),), "float32", 2 * rows * inner * outer
    )
    assert sizes(gradient, 16) == ("linear", 1, 4096, 4096, 4096)
    assert sizes(gradient, 128) == ("linear", 1, *(pytest.approx(2048),) * 3)


@pytest.mark.parametrize("name", ["T4", "V100-SXM2-16GB", "A100-SXM-80GB", "H100-SXM-80GB"])
def test_a_slower_device_takes_so_much_longer_for_everything(name):
    machines = ("g4dn.12xlarge", "p3.16xlarge", "dgx-a100", "dgx-h100")
    cluster = next(each for each in map(named_cluster, machines) if each.hosts[0].device.name == name)
    model, device = prices(cluster, None, "auto", "auto").models.latency, cluster.hosts[0].device
    operators = Operators.of([PLAIN, BATCHED, ADD, dataclasses.replace(PLAIN, dtype="float16")])
    own = model.predict(operators, device).mean_s
    for factor in (0.5, 1.3, 4.0):
        assert model.predict(operators, device.slower(factor)).mean_s == pytest.approx(factor * own)


def test_others_stream_what_a_device_moves():
    divided, _ = kernels_of(Operators.of([ADD, PLAIN]).split(2))
    assert divided.kind.tolist() == ["map", "product"]
    assert divided.moved_bytes[0] == pytest.approx(384.0)


def test_narrow_numbers_go_by_their_rate_and_take_less_room_and_power():
    halves = dataclasses.replace(PLAIN, dtype="float16")
    kernels, _ = kernels_of(Operators.of([PLAIN, halves]))
    assert kernels.rate.tolist() == [1e12, 8e12]
    assert kernels.bandwidth.tolist() == [1e11, 2e11]
    assert kernels.l2_bytes.tolist() == [2e6, 4e6]
    assert kernels.sustained[0] < 0.1e12
    assert kernels.sustained[1] == 8e12


def test_what_is_known_of_records_is_not_told_of_others():
    known = OperatorKernels()
    first, _ = kernels_of(Operators.of([PLAIN]), DEVICE, known)
    other = dataclasses.replace(DEVICE, flop_per_s={"float32": 2e12})
    assert kernels_of(Operators.of([PLAIN]), other, known)[0].rate.tolist() == [2e12]
    assert kernels_of(Operators.of([BATCHED]), DEVICE, known)[0].n.tolist() == [96.0]
    assert first.m.tolist() == [256.0]


def test_a_kernel_is_there_once_however_many_operators_run_it():
    again = dataclasses.replace(PLAIN)
    renamed = dataclasses.replace(ADD, primitive="mul")
    operators = Operators.joined([Operators.of([PLAIN, ADD, BATCHED]).split(2), Operators.of([again, PLAIN, renamed])])
    found = OperatorKernels().of(operators, DEVICE, SHEET)
    assert len(found.divided) == len(found.whole) == 5
    assert found.of_operators[3] == found.of_operators[4]
    assert sorted(found.of_operators.tolist().count(place) for place in range(5)) == [1, 1, 1, 1, 2]
    assert (found.of_operators[found.first] == range(5)).all()
    for place, ways, record in [(0, 2, PLAIN), (1, 2, ADD), (2, 2, BATCHED), (4, 1, PLAIN), (5, 1, ADD)]:
        alone = OperatorKernels().of(Operators.of([record]).split(ways), DEVICE, SHEET)
        one = found.divided.take(found.of_operators[[place]])
        assert all(getattr(one, field.name) == getattr(alone.divided, field.name) for field in dataclasses.fields(one))
