"""What the problem's dataclasses refuse, and the little they compute."""

import numpy as np
import pytest

from alpa_dejavu.problem import (
    Cluster,
    Device,
    Host,
    Link,
    MeshConfig,
    Model,
    Operator,
    Operators,
    Run,
    SearchSpace,
    Submesh,
    Tensor,
)
from alpa_dejavu.testing import example_cluster


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: Device("d", -1, {"float32": 1}, 1, 1), "memory_bytes is -1"),
        (lambda: Device("d", 1, {"float16": 1}, 1, 1), "needs 'float32'"),
        (lambda: Device("d", 1, {"float32": float("nan")}, 1, 1), "nan"),
        (lambda: Link(-1, 1), "latency_s is -1"),
        (lambda: Link(0, 0), "bytes_per_s is 0"),
        (lambda: Link(0, 1, cached_bytes=1), "cached_bytes_per_s and cached_bytes belong together"),
        (lambda: Link(0, 1, cached_bytes_per_s=0, cached_bytes=1), "cached_bytes_per_s is 0"),
        (lambda: Host("h", example_cluster().hosts[0].device, 0), "num_devices is 0"),
        (lambda: Cluster("c", (), ()), "no hosts"),
        (lambda: Cluster("c", example_cluster().hosts, ((Link(0, 1),),)), "2 hosts"),
        (lambda: Submesh(0, 1), "num_hosts is 0"),
        (lambda: MeshConfig((2, 2), 2, 1), "aren't the 4"),
        (lambda: SearchSpace((), ()), "no submesh"),
        (lambda: SearchSpace((Submesh(1, 1),), ((), ())), "1 rows"),
        (lambda: SearchSpace((Submesh(1, 1),), ((None,),), -1.0), "-1.0"),
        (lambda: Operator("magic", "add", (), (), "float32", 1.0), "'magic'"),
        (lambda: Operator("dot", "dot", (), (), "float32", -1.0), "flop is -1"),
        (lambda: Tensor(1, "parameter", -1, (1, 0)), "ascending"),
        (lambda: Model((), ()), "zero layers"),
        (lambda: Run(0), "num_micro_batches is 0"),
        (lambda: Run(1, "chimera"), "'chimera'"),
    ],
)
def test_nonsense_is_refused_by_name(make, said):
    with pytest.raises(ValueError, match=said):
        make()


def test_slowest_link_joins_hosts_where_there_are_several():
    cluster = example_cluster(num_hosts=3)
    assert cluster.num_devices == 12
    assert cluster.slowest_link((1, 1)).bytes_per_s == 1e10
    assert cluster.slowest_link((1, 2)).bytes_per_s == 1e9
    with pytest.raises(ValueError, match="no hosts"):
        cluster.slowest_link(())


def test_columns_split_evenly_and_sum_with_trips():
    product = Operator("dot", "dot_general", (), (), "float32", 10.0, count=3)
    add = Operator("elementwise", "add", (), (), "float32", 4.0)
    operators = Operators.of([product, add])
    assert operators.total_flop == 34
    assert operators.product_flop == 30
    assert operators.split(2).total_flop == 17
    with pytest.raises(ValueError, match="data_parallel is 0"):
        operators.split(0)


@pytest.mark.parametrize("successors", range(6))
def test_micro_batches_in_flight_never_exceed_those_there_are(successors):
    for schedule in ("1f1b", "1f1b_overlap_friendly", "gpipe"):
        assert 1 <= Run(3, schedule).in_flight(successors) <= 3
    assert Run(3, "inference").in_flight(successors) == 0


def test_in_flight_grows_towards_the_front():
    run = Run(8, "1f1b_overlap_friendly")
    assert np.diff([run.in_flight(n) for n in range(5)]).min() >= 0


@pytest.mark.parametrize(
    ("expert", "same", "text"),
    [
        (1, 3, "expert_tensor is 3, but must divide the 4 tensor-parallel devices, or be a multiple of them"),
        (16, 1, "expert_parallel is 16 and expert_tensor 1, but their product must divide the 8 devices"),
        (4, 0, "expert_parallel is 4, but must divide the 2 data-parallel devices"),
    ],
)
def test_devices_that_experts_cant_be_divided_among(expert, same, text):
    with pytest.raises(ValueError, match=text):
        MeshConfig((2, 4), 2, 4, expert_parallel=expert, expert_tensor=same)
