"""Runtime profiles: their effect on the costs of stages, reckoned by hand, and what they must not be."""

import dataclasses
import itertools
import json

import pytest

from alpa_dejavu.clusters import named_cluster
from alpa_dejavu.costs.runtime import (
    ALPA,
    BOUNDS,
    FILE,
    CostModels,
    RuntimeProfile,
    launches,
    runtime_names,
    runtime_profile,
)
from alpa_dejavu.costs.stage_costs import COST_KINDS, StageCostModel
from alpa_dejavu.planning import GivenStage, estimate
from alpa_dejavu.planning.rivals import Megatron
from alpa_dejavu.problem import MeshConfig, Operators, Run, Submesh
from alpa_dejavu.testing import example_cluster
from models import chain


def _written(operators):
    """Operators that write what they compute, so that they are launched."""
    return Operators.of([dataclasses.replace(one, written_bytes=8.0) for one in operators.records])


def _launched(layer):
    parts = _written(layer.forward), _written(layer.backward), _written(layer.backward)
    return dataclasses.replace(layer, forward=parts[0], backward=parts[1], update=parts[2])


CLUSTER, _CHAIN = example_cluster(2), chain(4, flop=1e9, activation_bytes=1e6, parameter_bytes=1e6)
MODEL = dataclasses.replace(_CHAIN, layers=tuple(map(_launched, _CHAIN.layers)))
STAGES = [
    GivenStage(0, 1, Submesh(1, 4), MeshConfig((2, 2), 2, 2)),
    GivenStage(2, 3, Submesh(1, 4), MeshConfig((2, 2), 2, 2)),
]


def seconds(runtime=ALPA, last=1):
    costs = StageCostModel(MODEL, CLUSTER, CostModels.named(runtime=runtime))
    devices = costs.places.on_submesh(Submesh(1, 4), (0,))
    found = costs.seconds(devices, MeshConfig((2, 2), 2, 2))
    return dict(zip(COST_KINDS, found[:, 0, last].tolist(), strict=True))


def step_s(runtime=ALPA):
    return estimate(MODEL, CLUSTER, Run(4), STAGES, runtime=runtime).plan.step_s


@pytest.mark.parametrize(
    ("figure", "kinds"),
    [
        ("collectives", ("collective_forward_s", "collective_backward_s")),
    ],
)
def test_a_factor_multiplies_its_own_kind_of_cost_alone(figure, kinds):
    plain, slow = seconds(), seconds(RuntimeProfile("slow", **{figure: 2.0}))
    device = CLUSTER.hosts[0].device
    fixed = dict.fromkeys(("compute_forward_s", "compute_backward_s"), device.dispatch_s) | {"update_s": device.step_s}
    for kind in COST_KINDS:
        extra = plain[kind] - fixed.get(kind, 0.0) if kind in kinds else 0.0
        assert slow[kind] == pytest.approx(plain[kind] + extra)


def test_a_layer_takes_as_long_as_its_launches_where_the_device_would_be_done_before():
    assert [launches(layer.forward).sum() for layer in (_CHAIN.layers[0], MODEL.layers[0])] == [0, 1]
    slow = seconds(RuntimeProfile("slow", launch_s=1e-3))
    assert slow["compute_forward_s"] == pytest.approx(2 * 1e-3 + CLUSTER.hosts[0].device.dispatch_s, rel=5e-3)


@pytest.mark.parametrize(("figure", "end"), [*itertools.product(BOUNDS, (0, 1))])
def test_a_figure_outside_of_its_bounds_is_refused(figure, end):
    value = BOUNDS[figure][end] + (-1.0, 1.0)[end]
    with pytest.raises(ValueError, match=f"{figure} is {value!r}, but must be from .* profile 'mine'"):
        RuntimeProfile("mine", **{figure: value})


def test_bundled_profiles_are_found_by_name_and_others_are_refused():
    assert runtime_names()[0] == "alpa"
    assert all(runtime_profile(name).name == name for name in runtime_names())
    with pytest.raises(ValueError, match=r"runtime is 'jaxpp', but must be one of 'alpa', .*'megatron'"):
        runtime_profile("jaxpp")


def test_bundled_profiles_have_figures_that_mean_something_and_an_error():
    content = json.loads(FILE.read_text())
    assert all(set(entry["figures"]) <= set(BOUNDS) for entry in content["runtimes"].values())
    assert content["origin"]
    assert content["left_out"]["sources"] >= 3
    assert 0 < content["left_out"]["median_error"] < 0.1


def test_a_strategy_is_priced_under_the_runtime():
    slow = RuntimeProfile("slow", step_s=3.0)
    plain, priced = (
        Megatron().plan(MODEL, named_cluster("p3.16xlarge"), 16, runtime=runtime) for runtime in (ALPA, slow)
    )
    assert priced.step_s > plain.step_s


def test_a_runtime_leaves_what_the_data_sheet_has_but_no_more_than_a_lower_figure_of_the_machine():
    cluster, own_bytes = named_cluster("dgx-h100", 1), 2e9
    (host,) = cluster.hosts
    runtime = RuntimeProfile("own", own_bytes=own_bytes)
    assert runtime.hosts(cluster.hosts)[0].device.memory_bytes == 80 * 2**30 - own_bytes
    little = dataclasses.replace(host.device, memory_bytes=20 * 2.0**30)
    shared = dataclasses.replace(cluster, hosts=(dataclasses.replace(host, device=little),))
    assert runtime.hosts(shared.hosts)[0].device.memory_bytes == 20 * 2**30
