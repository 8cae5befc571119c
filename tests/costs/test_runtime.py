"""What stages cost under a runtime."""

import dataclasses
import itertools
import json

import numpy as np
import pytest

from alpa_dejavu._util.range_sums import stage_sum
from alpa_dejavu.clusters import named_cluster
from alpa_dejavu.clusters.space import search_space
from alpa_dejavu.costs import _batched_predictions, _hidden
from alpa_dejavu.costs._batched_predictions import PredictedOperators
from alpa_dejavu.costs.communication import CommunicationModel, Nccl
from alpa_dejavu.costs.latency import AnalyticLatency, KernelLatency, LatencyModel
from alpa_dejavu.costs.memory import ModelMemory
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
from alpa_dejavu.costs.stage_devices import StagePlaces
from alpa_dejavu.layers.micro_batch import with_micro_batch
from alpa_dejavu.planning import GivenStage, estimate
from alpa_dejavu.planning.rivals import Megatron
from alpa_dejavu.problem import MeshConfig, Operator, Operators, Run, Submesh
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
    with pytest.raises(ValueError, match=r"runtime is 'galvatron', but must be one of 'alpa', .*'megatron'"):
        runtime_profile("galvatron")


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


def prices(model, config, devices=4):
    cluster = example_cluster(num_hosts=1)
    costs = StageCostModel(model, cluster, CostModels.named())
    return dict(zip(COST_KINDS, costs.seconds(costs.places.on_submesh(Submesh(1, devices)), config), strict=True))


def test_remat_computes_forward_again_and_exchanges_again():
    plain = prices(chain(2, flop=1e9), MeshConfig((2, 2), 2, 2))
    again = prices(chain(2, flop=1e9), MeshConfig((2, 2), 2, 2, remat="layer"))
    extra = again["compute_backward_s"] - plain["compute_backward_s"]
    assert extra[0, 1] == pytest.approx(2 * 1e9 / 4 / 1e12)
    assert again["collective_backward_s"][0, 1] == pytest.approx(2 * plain["collective_backward_s"][0, 1])
    assert np.array_equal(again["compute_forward_s"], plain["compute_forward_s"])


@pytest.mark.parametrize(("cores", "apart"), [(None, False), (2, True)])
@pytest.mark.parametrize(("submesh", "axis"), [(Submesh(2, 2), 1), (Submesh(2, 2), 0), (Submesh(1, 2), 1)])
def test_on_several_nodes_of_a_cpu_all_devices_exchange_as_processes(cores, apart, submesh, axis):
    cluster = dataclasses.replace(example_cluster(2, 2), cores=cores)
    places = StagePlaces(chain(1), cluster)
    config = MeshConfig((submesh.num_devices // 2, 2), submesh.num_devices // 2, 2)
    (group,) = places.groups(places.on_submesh(submesh, range(submesh.num_hosts)), config, axis)
    across = axis == 0 or (apart and submesh.num_hosts > 1)
    assert group.size == 2
    assert group.cluster.slowest_link(group.hosts) == cluster.links[0][1 if across else 0]


def test_zero_3_gathers_for_each_micro_batch_instead_of_once_a_step():
    model = chain(1, parameter_bytes=1e6, exchanged=())
    whole, shared = (prices(model, MeshConfig((4, 1), 4, 1, zero=zero)) for zero in (0, 3))
    gathered = 3 * (1e-5 + 1e6 / 4 / 1e10)
    assert whole["collective_forward_s"][0, 0] == 0
    assert shared["collective_forward_s"][0, 0] == pytest.approx(gathered)
    assert shared["collective_backward_s"][0, 0] == pytest.approx(2 * gathered)
    assert whole["synchronisation_s"][0, 0] - shared["synchronisation_s"][0, 0] == pytest.approx(2 * gathered)


def test_a_larger_micro_batch_grows_what_has_a_batch_dimension():
    model = chain(2)
    grown = with_micro_batch(model, 4.0)
    one, four = ModelMemory.of(model), ModelMemory.of(grown)
    assert four.activations[0, 1] == 4 * one.activations[0, 1]
    assert four.parameters[0, 1] == one.parameters[0, 1]
    assert grown.flop == pytest.approx(4 * model.flop)
    assert grown.layers[0].exchanged_bytes == (4 * model.layers[0].exchanged_bytes[0],)


def test_a_micro_batch_of_nothing_is_refused():
    with pytest.raises(ValueError, match="positive ratio"):
        with_micro_batch(chain(1), 0.0)


def test_sums_over_stages_are_those_of_a_loop():
    rng = np.random.default_rng(0)
    of_stages = rng.integers(0, 9, (5, 5, 5))
    values = rng.random((2, 3, 9))
    sums = stage_sum(values, of_stages)
    assert sums.shape == (2, 3, 5, 5)
    for i, j in itertools.product(range(5), repeat=2):
        whole = values[..., of_stages[i, j, i : j + 1]].sum(axis=-1)
        np.testing.assert_allclose(sums[..., i, j], whole)
        np.testing.assert_allclose(stage_sum(values[..., :5])[..., i, j], values[..., i : max(j + 1, i)].sum(axis=-1))


def test_stages_of_alike_layers_hide_what_each_layer_by_layer_does(monkeypatch):
    model, config = chain(6, flop=2e9, parameter_bytes=1.2e7), MeshConfig((4, 1), 4, 1, zero=3)
    model = dataclasses.replace(model, layers=(*model.layers[:2], *chain(1, flop=5e9).layers, *model.layers[3:]))
    seconds = []
    for many in (32, 0):
        monkeypatch.setattr(_hidden, "_MANY", many)
        costs = StageCostModel(model, example_cluster(1), CostModels.named(runtime="megatron"))
        seconds.append(costs.hidden_s(costs.places.on_submesh(Submesh(1, 4)), config))
    np.testing.assert_allclose(*seconds, rtol=1e-12)
    assert seconds[0].any()


def test_operators_between_products_take_the_runtimes_factor():
    latency = AnalyticLatency().predict(MODEL.layers[0].forward, CLUSTER.hosts[0].device)
    slow = RuntimeProfile("slow", elementwise=2.0)
    dot, add = (
        Operators.of([dataclasses.replace(record, kind=kind) for record in MODEL.layers[0].forward.records])
        for kind in ("dot", "elementwise")
    )
    assert slow.latency(latency, dot).total_s == pytest.approx(latency.total_s)
    assert slow.latency(latency, add).total_s == pytest.approx(2 * latency.total_s)


def test_launches_that_take_less_than_the_device_cost_next_to_nothing():
    plain, launched = seconds(), seconds(RuntimeProfile("quick", launch_s=1e-7))
    assert launched["compute_backward_s"] == pytest.approx(plain["compute_backward_s"], rel=1e-3)


def test_transfers_between_stages_take_the_runtimes_factor():
    one, two, three = (
        estimate(MODEL, CLUSTER, Run(1), STAGES, runtime=RuntimeProfile("own", sends=sends)).plan.step_s
        for sends in (1.0, 2.0, 3.0)
    )
    assert three - two == pytest.approx(two - one)
    assert two > one


def test_what_a_step_takes_besides_is_added_once():
    assert step_s(RuntimeProfile("late", step_s=0.5)) == pytest.approx(step_s() + 0.5)


def test_the_default_changes_nothing():
    assert step_s("alpa") == step_s(ALPA) == step_s(RuntimeProfile("plain"))
    assert seconds() == seconds(RuntimeProfile("plain"))


def test_no_runtime_has_more_than_eight_figures():
    names = [field.name for field in dataclasses.fields(RuntimeProfile)]
    assert names == ["name", *BOUNDS, "compiled", "overlap"]
    assert len(BOUNDS) <= 8


def test_zero_2_sends_what_an_all_reduce_sends():
    model = chain(1, parameter_bytes=1e6)
    whole, shared = (prices(model, MeshConfig((4, 1), 4, 1, zero=zero))["synchronisation_s"] for zero in (0, 2))
    assert shared[0, 0] == pytest.approx(whole[0, 0])


class Counted(LatencyModel, CommunicationModel):
    """The models of GPUs, and how often each was asked."""

    def __init__(self):
        self._models, self.asked = (KernelLatency(), Nccl()), [0, 0]

    def predict(self, operators, device):
        self.asked[0] += 1
        return self._models[0].predict(operators, device)

    def seconds(self, collective, num_bytes, group):
        self.asked[1] += 1
        return self._models[1].seconds(collective, num_bytes, group)


def block(n):
    """Operators of a layer, a little larger in each."""
    rows, wide = 2048 + 128 * n, 5120
    product = Operator(
        "dot", "dot_general", ((rows, wide), (wide, wide)), ((rows, wide),), "float16", 2.0 * rows * wide**2,
        0, 2e8, 4e7,
    )  # fmt: skip
    heads = Operator(
        "dot", "dot_general", ((40, rows, 128), (40, 128, rows)), ((40, rows, rows),), "float16", 256.0 * 40 * rows**2,
        0, 4e7, 80.0 * rows**2,
    )  # fmt: skip
    shape = rows, wide
    add = Operator("elementwise", "add", (shape, shape), (shape,), "float32", 1.0 * rows * wide, 9, 4e7, 2e7)
    fused = dataclasses.replace(add, written_bytes=0.0)
    return Operators.of([product, heads, add, fused])


def blocks(num_layers):
    model = chain(num_layers, parameter_bytes=3e7, activation_bytes=2e7, exchanged=(2e7, 3e7))
    layers = [
        dataclasses.replace(layer, forward=block(n % 3), backward=block(n % 3).split(0.5), update=block(3))
        for n, layer in enumerate(model.layers)
    ]
    return dataclasses.replace(model, layers=tuple(layers))


def test_prices_that_are_asked_for_together_are_those_asked_for_one_by_one():
    cluster = named_cluster("p3.16xlarge", 2)
    space = search_space(cluster, 16, remat=("none", "layer"), zero=(0, 2, 3))
    choices = [(s, c) for s, row in zip(space.submeshes, space.configs, strict=True) for c in row if c is not None]
    together, apart = Counted(), Counted()
    prepared, unprepared = (StageCostModel(blocks(5), cluster, CostModels(m, m)) for m in (together, apart))
    prepared.prepare((prepared.places.on_submesh(submesh), config) for submesh, config in choices)
    assert together.asked[0] == 1
    for submesh, config in choices:
        here, there = (costs.seconds(costs.places.on_submesh(submesh), config) for costs in (prepared, unprepared))
        np.testing.assert_allclose(here, there, rtol=1e-12)
    assert (together.asked[0], apart.asked[0] > 30) == (1, True)
    assert len(choices) > 60


def test_a_model_keeps_what_it_said_of_kernels_for_other_micro_batches():
    latency, device = KernelLatency(), named_cluster("p3.16xlarge").hosts[0].device
    model = blocks(3)
    for ratio in (1.0, 0.5, 0.25):
        of_layers = [layer.forward.split(2) for layer in with_micro_batch(model, ratio).layers]
        predicted = PredictedOperators(CostModels(latency, Nccl()), device)
        totals_s = predicted.totals_s([*of_layers, *of_layers])
        for operators, total_s in zip([*of_layers, *of_layers], totals_s, strict=True):
            warm, cold = predicted.latency(operators), KernelLatency().predict(operators, device)
            np.testing.assert_allclose(warm.mean_s, cold.mean_s, rtol=1e-12)
            np.testing.assert_allclose(warm.spread_s, cold.spread_s, rtol=1e-12)
            assert total_s == pytest.approx(cold.total_s, rel=1e-12)


@pytest.mark.parametrize("runtime", ["alpa", "megatron"])
def test_many_operators_come_in_several_calls(runtime, monkeypatch):
    model, device = Counted(), named_cluster("p3.16xlarge").hosts[0].device
    models, many = CostModels.named(model, model, runtime), [block(n) for n in range(5)]
    monkeypatch.setattr(_batched_predictions, "_AT_A_TIME", 5)
    predicted = PredictedOperators(models, device)
    predicted.ask(many)
    assert model.asked[0] == 3
    for operators in [*many, Operators.of([])]:
        alone = models.runtime.latency(model.predict(operators, device), operators)
        np.testing.assert_allclose(predicted.latency(operators).mean_s, alone.mean_s, rtol=1e-12)
    assert len(predicted.totals_s([])) == 0
