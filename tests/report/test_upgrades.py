"""What would make a plan faster, and what bounds it."""

import dataclasses

import pytest

from alpa_dejavu._util import units
from alpa_dejavu.calibration import Calibration, Prices
from alpa_dejavu.clusters import named_cluster
from alpa_dejavu.clusters.changed_cluster import faster_devices, faster_links
from alpa_dejavu.costs.communication import AlphaBeta
from alpa_dejavu.costs.latency import AnalyticLatency, LatencyModel
from alpa_dejavu.costs.runtime import CostModels
from alpa_dejavu.planning import GivenStage, estimate, given_stages
from alpa_dejavu.planning import plan as best_plan
from alpa_dejavu.planning.changed.kept import Kept
from alpa_dejavu.planning.changed.kept_task import kept_prices, kept_task
from alpa_dejavu.planning.task import SpaceRules
from alpa_dejavu.problem import Host, MeshConfig, PricedBy, Run, Submesh
from alpa_dejavu.report.explanation import explain
from alpa_dejavu.report.upgrades import resources, upgrades
from alpa_dejavu.simulation.breakdown import breakdown
from alpa_dejavu.testing import example_cluster
from models import chain, planned, product
from plans import example_plan, stage
from unlike import cluster, device, host

SMALL = 1e-5
UNLIKE = cluster([host("a"), Host("b", device(0.6e12, name="slower"), 2)])
FLOPS = (4e9, 1e9, 2e9, 3e9)


def model(scale=()):
    """Layers that differ; of some the cost is scaled."""
    made = chain(len(FLOPS), parameter_bytes=1e6, activation_bytes=1e6)
    costs = [flop * dict(scale).get(n, 1.0) for n, flop in enumerate(FLOPS)]
    layers = [
        dataclasses.replace(layer, forward=product(flop), backward=product(2 * flop))
        for layer, flop in zip(made.layers, costs, strict=True)
    ]
    return dataclasses.replace(made, layers=tuple(layers))


def kept_plan(on, **prices):
    plan = planned(model(), on, 4, Run(8), **prices).plan
    return dataclasses.replace(plan, batch=32), Kept(model(), on, Run(8), 32, SpaceRules(remat=("none",), zero=(0,)))


@pytest.fixture(scope="module", params=["alike", "unlike"])
def case(request):
    plan, kept = kept_plan(example_cluster(2) if request.param == "alike" else UNLIKE)
    return plan, kept, {one.what: one for one in upgrades(plan, kept).by_figure}


def again_s(plan, kept, on):
    """Seconds of a step of the best plan on a cluster with as many micro-batches: `replan` may choose others."""
    return best_plan(kept_task(plan, kept, kept_prices(plan, kept, on)), annotations=()).plan.step_s


def step_s(case, of=None, cluster=None):
    plan, kept, _ = case
    return estimate(of or kept.model, cluster or kept.cluster, kept.run, given_stages(plan)).plan.step_s


def ends_of(what):
    """The pairs of hosts that a figure of the two clusters is about."""
    pairs = {
        "within hosts": [(0, 0), (1, 1)], "between hosts": [(0, 1), (1, 0)], "within a": [(0, 0)], "within b": [(1, 1)],
        "between a and b": [(0, 1), (1, 0)],
    }  # fmt: skip
    return pairs[what.removeprefix("bandwidth ")]


def changed(case, figure, factor):
    """The model and the cluster in which what a figure is about is so many times as fast."""
    _, kept, _ = case
    if figure.part == "layers":
        return model({int(figure.what.split()[-1]): 1 / factor}), kept.cluster
    if figure.what.startswith("bandwidth"):
        return kept.model, faster_links(kept.cluster, ends_of(figure.what), factor)
    names = {host.device.name for host in kept.cluster.hosts}
    name = next(iter(names)) if figure.what == "all devices" else figure.what.removeprefix("devices of type ")
    return kept.model, faster_devices(kept.cluster, name, factor)[0]


def test_derivatives_are_differences_of_estimates(case):
    plan, _, slopes = case
    assert {figure.part for figure in slopes.values()} == {"devices", "links", "layers"}
    for figure in slopes.values():
        better, worse = (step_s(case, *changed(case, figure, factor)) for factor in (1 + SMALL, 1 - SMALL))
        assert figure.saved_s == pytest.approx((plan.step_s - better) / SMALL, rel=1e-3, abs=1e-5 * plan.step_s)
        assert figure.cost_s == pytest.approx((worse - plan.step_s) / SMALL, rel=1e-3, abs=1e-5 * plan.step_s)
        assert figure.twice_s == pytest.approx(step_s(case, *changed(case, figure, 2.0)))
    links = [figure for figure in slopes.values() if figure.part == "links"]
    assert len(links) == (2 if "bandwidth between hosts" in slopes else 3)
    assert max(figure.saved_s for figure in links) > 1e-3 * plan.step_s


def test_the_best_plan_at_twice_a_figure_is_planned_again(case):
    plan, kept, slopes = case
    asked = [figure for figure in slopes.values() if figure.best_s is not None]
    assert len(asked) >= 4
    assert 1 <= sum(figure.part == "layers" for figure in asked) <= 2
    for figure in asked:
        assert figure.best_s <= figure.twice_s
        assert (figure.best is None) == (figure.best_s == figure.twice_s)
        assert figure.gained_s == pytest.approx(plan.step_s - figure.best_s)
        of, on = changed(case, figure, 2.0)
        again = again_s(plan, dataclasses.replace(kept, model=of), on)
        assert figure.best_s == pytest.approx(min(again, figure.twice_s), rel=1e-3)


def test_a_model_that_knows_nothing_of_data_sheets_is_asked_for_what_it_knows():
    class Own(LatencyModel):
        def predict(self, operators, device):
            found = AnalyticLatency().predict(operators, example_cluster().hosts[0].device)
            return dataclasses.replace(found, mean_s=3 * found.mean_s)

    on, operators = example_cluster(2), product(1e9)
    devices = next(resources(Prices(on, CostModels(Own(), AlphaBeta()))))
    fast = devices.at(2.0)
    seconds = fast.models.latency.predict(operators, fast.cluster.hosts[0].device).mean_s
    assert 2 * seconds == pytest.approx(Own().predict(operators, on.hosts[0].device).mean_s)


def test_a_plan_that_is_not_the_best_is_said_to_be():
    plan, kept = kept_plan(example_cluster(2))
    assert upgrades(plan, kept).now is None
    whole = MeshConfig((4, 2), 4, 2, {"force_batch_dim_to_mesh_dim": 0})
    given = [GivenStage(0, len(FLOPS) - 1, Submesh(2, 4), whole)]
    worse = estimate(model(), kept.cluster, Run(8), given, batch=32).plan
    assert worse.step_s > plan.step_s
    note = explain(worse, kept).notes[-1]
    assert note.startswith(f"the best plan as things are takes {units.seconds(plan.step_s)}: ")


def test_alike_hosts_may_have_stages_that_are_cut_otherwise():
    on = cluster([host("a"), host("b"), Host("c", device(0.6e12, name="slower"), 2)])
    meshes = [(2, 1), (1, 2), (2, 1)]
    stages = [
        GivenStage(*layers, Submesh(1, 2), MeshConfig(mesh, *mesh), (name,))
        for layers, mesh, name in zip([(0, 1), (2, 2), (3, 3)], meshes, "abc", strict=True)
    ]
    plan = estimate(model(), on, Run(8), stages, batch=32).plan
    kept = Kept(model(), on, Run(8), 32, SpaceRules(remat=("none",), zero=(0,)))
    found = {one.what: one for one in upgrades(plan, kept).by_figure}
    cheaper = estimate(model({2: 0.5}), on, Run(8), stages).plan.step_s
    assert found["cost of layer 2"].twice_s == pytest.approx(cheaper)


def test_what_is_kept_of_another_plan_or_priced_otherwise_is_refused(case):
    plan, kept, _ = case
    with pytest.raises(ValueError, match="what is kept is of another plan: batch is 64, not 32"):
        explain(plan, dataclasses.replace(kept, batch=64))
    with pytest.raises(ValueError, match="the plan was priced by LearnedLatency and AlphaBeta"):
        explain(plan, dataclasses.replace(kept, models=("LearnedLatency", "AlphaBeta")))


def calibrated(name, rate=1e12):
    """A calibration of the example cluster's device, which it measured to be of another rate."""
    own = example_cluster(1).hosts[0].device
    devices = {own.name: dataclasses.replace(own, flop_per_s={"float32": rate})}
    return Calibration(name=name, date="2026-01-01", origin="made up", devices=devices)


def test_by_another_calibration_a_plan_is_priced_anew_and_that_is_said():
    plan, kept = kept_plan(example_cluster(2))
    plan = dataclasses.replace(plan, priced_by=PricedBy("analytic", "alpha-beta"))
    slow = calibrated("slow", 2e11)
    found = explain(plan, kept, calibration=slow)
    given = given_stages(plan)
    assert found.plan.step_s == estimate(model(), slow.applied_to(kept.cluster), Run(8), given, batch=32).plan.step_s
    assert found.plan.step_s > plan.step_s
    assert found.parts == breakdown(found.plan)
    assert found.plan.notes == (
        "the plan was priced by analytic, alpha-beta, no calibration; here it is priced by analytic, alpha-beta, slow",
    )
    whole = next(one for one in found.sensitivities if one.what == "all devices")
    assert whole.step_s == found.plan.step_s
    then = explain(found.plan, dataclasses.replace(kept, cluster=slow.applied_to(kept.cluster)), calibration=slow)
    assert then.plan == found.plan
    assert then.plan.notes == found.plan.notes


def test_a_plan_goes_by_the_models_of_its_names_and_a_calibrations_is_asked_for():
    plan, kept = kept_plan(named_cluster("p3.16xlarge"), latency="kernels", communication="nccl")
    plan = dataclasses.replace(plan, priced_by=PricedBy("kernels", "nccl"))
    assert explain(plan, kept).plan == plan
    kept = dataclasses.replace(kept, models=("MeasuredRoofline", "MeasuredAlphaBeta"))
    plan = dataclasses.replace(plan, priced_by=PricedBy("MeasuredRoofline", "MeasuredAlphaBeta", "mine"))
    with pytest.raises(ValueError, match="not by KernelLatency and Nccl; give its calibration, mine, or plan"):
        upgrades(plan, kept)


NONE = ("collective_s", "boundary_s", "per_step_s", "forward_collective_s", "forward_boundary_s", "synchronisation_s")
TIMES = {"compute_s": 0.03, "forward_s": 0.01, "backward_s": 0.02, **dict.fromkeys(NONE, 0.0)}


def quick(layers, **figures):
    return stage(layers, **(TIMES | figures))


def plan_of(*stages, step_s, **changes):
    return example_plan(stages=stages, step_s=step_s, **changes)


def saved(explanation, start):
    (found,) = [option.step_s for option in explanation.what_if if option.change.startswith(start)]
    return found


def test_one_stage_that_computes_alone_is_bound_by_computing():
    found = explain(plan_of(quick((0, 3)), step_s=4 * 0.03))
    assert found.bound == "100 % of the step is the devices' computing"
    assert [option.change for option in found.what_if] == ["devices that compute twice as fast"]
    assert found.what_if[0].step_s == pytest.approx(0.06)
    assert found.parts["idle"] == pytest.approx(0)


def test_a_deep_pipeline_of_few_micro_batches_is_bound_by_waiting_and_helped_by_more():
    stages = [quick((n, n)) for n in range(8)]
    plan = plan_of(*stages, step_s=11 * 0.03)
    found = explain(plan)
    assert found.bound.startswith("64 % of the step is waiting")
    # (S + B - 1) c with S = 8: B = 4 and c = 0.03 becomes B = 8 and c = 0.015.
    assert saved(found, "8 micro-batches") == pytest.approx(15 * 0.015)
    assert not any(option.change.startswith("stages that all") for option in found.what_if)


def test_the_slowest_stage_is_named_and_evening_helps():
    plan = plan_of(quick((0, 0)), quick((1, 1), compute_s=0.06, forward_s=0.02, backward_s=0.04), step_s=0.27)
    found = explain(plan)
    assert any(note.startswith("stage 1 is the slowest: 60 ms") and "33 %" in note for note in found.notes)
    stages = (quick((n, n), compute_s=0.03 + 0.03 * (n % 2)) for n in range(4))
    chunks = plan_of(*stages, schedule="interleaved", step_s=1.0)
    words = "stages 1 and 3 (chunks of the same devices) are the slowest"
    assert any(note.startswith(words) and note.endswith("wait for them") for note in explain(chunks).notes)
    # Evened out both take 0.045 s: (2 + 4 - 1) times that.
    assert saved(found, "stages that all take equally long") == pytest.approx(5 * 0.045)


@pytest.mark.parametrize(
    ("num_bytes", "notes"),
    [
        (1e9, ()),
        (15.5e9, ("stage 0 nearly fills its memory; faster choices may be ruled out by that",)),
        (17e9, ()),  # what is missing stands among the figures that are read first
    ],
)
def test_memory_that_may_rule_out_faster_choices_is_noted(num_bytes, notes):
    assert explain(plan_of(quick((0, 3), memory_bytes=num_bytes), step_s=0.12)).notes == notes
