"""Bundled calibrations: they load, say what they are, predict, and change plans where they should."""

import dataclasses

import numpy as np
import pytest

from alpa_dejavu.calibration import bundled, bundled_names, chosen_calibration
from alpa_dejavu.calibration._bundled import FOLDER
from alpa_dejavu.calibration.default import bundled_for
from alpa_dejavu.clusters import known_machines, named_cluster
from alpa_dejavu.clusters.machine_file import read_machine
from alpa_dejavu.costs.communication import Group
from alpa_dejavu.costs.latency.learned import Kernels
from alpa_dejavu.costs.memory_margin import MemoryResiduals
from alpa_dejavu.planning import estimate, given_stages, plan_model
from alpa_dejavu.planning.plan_estimate import PlanEstimator
from alpa_dejavu.problem import Cluster, Link, Operator, Operators
from alpa_dejavu.testing import check_communication_model, check_latency_model

NAMES = ["a100", "gh200", "h100", "l4", "p100", "p4", "rtx", "t4", "v100"]
PRODUCTS = Operators.of(
    [
        Operator("dot", "dot_general", ((512, n), (n, 512)), ((512, 512),), "float16", 2.0 * n * 512**2)
        for n in (64, 4096)
    ]
)
BY_SHEET = {"gh200", "h100", "l4", "rtx"}


def test_there_are_those_of_all_devices_that_were_promised():
    assert bundled_names() == NAMES
    assert sum(path.stat().st_size for path in FOLDER.iterdir()) < 2e6


@pytest.mark.parametrize("name", NAMES)
def test_each_says_what_it_is_and_predicts(name):
    found = bundled(name)
    assert found.name == name
    fit = found.fits[0]
    assert (fit.part, fit.left_out) == ("kernels", "GPU")
    assert 0 < fit.held_out["median_ape"] < fit.held_out["mape"] < 0.3
    assert (fit.rows == 0) == (name in BY_SHEET)
    assert any(sentence.startswith("kernels: none") for sentence in found.missing) == (name in BY_SHEET)
    check_latency_model(found.latency())
    check_communication_model(found.communication())
    for device in found.sheets:
        columns = {"op": ["linear", "relu"], "gpu": [device] * 2, "batch": [1, 4096], "n": [4096, 4096]}
        product = {"m": [4096, 1], "k": [4096, 1]}
        rows = Kernels.of({**columns, **product}, found.sheets)
        seconds = found.kernels.predict(rows)
        least = np.maximum(rows.compute_s, rows.traffic_s)
        assert (seconds.mean > least).all()
        assert (seconds.mean < 4 * least).all()


def test_peaks_of_memory_are_known_where_they_were_measured():
    known = {name: bundled(name).memory for name in NAMES if bundled(name).memory is not None}
    assert list(known) == ["gh200"], "elsewhere none was measured; Alpa's cost model measures nothing"
    memory = known["gh200"]
    assert (memory.framework, memory.num_groups) == ("Sailor's pipelines", 12)
    assert "Sailor" in memory.origin
    assert len(memory.log_ratios["peak"]) == 26
    assert abs(np.mean(memory.log_ratios["peak"])) < 0.02
    fit = bundled("gh200").fits[-1]
    assert (fit.part, fit.rows) == ("peaks of memory of Sailor's pipelines", 26)
    assert fit.held_out["mape"] < 0.03
    assert fit.figures["context_bytes"] > 1e9, "what the framework keeps stays out of the residuals"


def test_the_planner_takes_residuals_of_memory_from_it_and_says_whose():
    host = dataclasses.replace(named_cluster("dgx-h100").hosts[0], num_devices=4)
    device = dataclasses.replace(host.device, name="GH200-96GB")
    host, link = dataclasses.replace(host, device=device), Link(2e-5, 1e11)
    cluster = Cluster("GH200", (host,), ((link,),))
    asked = {"batch": 64, "micro_batches": 4, "layers": 4}
    plan = plan_model(model, cluster, calibration="gh200", **asked).plan
    note = plan.notes[-1]
    assert "26 residuals in 12 groups (Sailor, SOSP 2025" in note
    assert "too few to know a risk that small (100 are needed)" in note
    assert "of Sailor's pipelines, which says nothing of what Alpa itself keeps" in note
    assert "Student's t with 2 degrees of freedom; this plan's fullest stage has one of" in note
    own = MemoryResiduals({"peak": (0.01, -0.01) * 60}, 40)
    note = plan_model(model, cluster, calibration="gh200", memory=own, **asked).plan.notes[-1]
    assert "Sailor" not in note
    # Under the residuals' margin there is no room for what the count alone would take.
    limit = 1.1 * max(stage.memory_bytes for stage in plan.stages)
    narrow = dataclasses.replace(host, device=dataclasses.replace(device, memory_bytes=limit))
    cluster = dataclasses.replace(cluster, hosts=(narrow,))
    counted = plan_model(model, cluster, calibration="none", **asked).plan
    careful = plan_model(model, cluster, **asked).plan
    most = [max(stage.memory_bytes for stage in each.stages) for each in (counted, careful)]
    assert most[1] * 1.3 < limit
    assert "is unknown" in counted.notes[-1]


def test_each_machine_with_gpus_has_one():
    known = {device for name in NAMES for device in bundled(name).sheets}
    devices = {read_machine(name)["device"]["name"] for name in known_machines() if name != "local-cpu"}
    assert devices <= known


def test_collectives_of_v100_hosts_are_what_was_measured_there():
    """256 MiB summed among the 8 devices of a host go at some hundred GB/s; between two hosts there are 25 Gbit/s."""
    cluster = named_cluster("p3.16xlarge", 2)
    model = bundled("v100").communication()
    near, far = Group(cluster, (0,) * 8), Group(cluster, (0,) * 8 + (1,) * 8)
    within, across = (float(model.seconds("all_reduce", 2.0**28, group)) for group in (near, far))
    assert 2e-3 < within < 1e-2
    assert 0.05 < across < 1


@pytest.mark.parametrize("asked", ["V100", "v1000", "nothing/here.json"])
def test_what_there_is_not_is_named_with_what_there_is(asked):
    with pytest.raises(ValueError, match=r"no calibration .*a100, gh200.*give the path"):
        chosen_calibration(asked)
    with pytest.raises(ValueError, match="no bundled calibration"):
        bundled(asked)


def model(batch_size):
    import jax
    import jax.numpy as jnp

    def predict(weights, x):
        for weight in weights:
            x = jnp.tanh(x @ weight)
        return x

    def step(state, x):
        gradients = jax.grad(lambda w: (predict(w, x) ** 2).mean())(state)
        return jax.tree.map(lambda w, g: w - 0.1 * g, state, gradients)

    weights = [jax.ShapeDtypeStruct((1024, 1024), jnp.float32) for _ in range(4)]
    return step, (weights, jax.ShapeDtypeStruct((batch_size, 1024), jnp.float32))


@pytest.mark.parametrize(("dtype", "least", "most"), [("float16", 100e12, 120e12), ("float32", 14e12, 16e12)])
def test_large_products_reach_on_v100_what_was_measured_there(dtype, least, most):
    side, width = 8192, 2 if dtype == "float16" else 4
    shape, num_bytes = (side, side), width * side**2
    flop = 2.0 * side**3
    square = Operator("dot", "dot_general", (shape, shape), (shape,), dtype, flop, 0, 2.0 * num_bytes, num_bytes)
    device = named_cluster("p3.16xlarge").hosts[0].device
    seconds = bundled("v100").latency().predict(Operators.of([square]), device).mean_s[0]
    assert least < flop / seconds < most


def test_the_planner_goes_by_it():
    asked = {"batch": 64, "micro_batches": 4, "layers": 4}
    plain = plan_model(model, "p3.16xlarge", calibration="none", **asked).plan
    calibrated = plan_model(model, "p3.16xlarge", **asked).plan
    # Small products don't reach peaks, and small messages cost what they were measured to cost.
    assert calibrated.step_s > 1.03 * plain.step_s
    assert plan_model(model, "p3.16xlarge", calibration=bundled("v100"), **asked).plan.step_s == calibrated.step_s
    assert (plain.priced_by.calibration, calibrated.priced_by.calibration) == ("", "v100")
    # A model of one's own is asked for in place of a calibration's.
    own = plan_model(model, "p3.16xlarge", latency="analytic", **asked).plan
    assert (own.step_s, own.priced_by) == (plain.step_s, plain.priced_by)


def test_each_door_prices_a_plan_alike_with_a_calibration_and_without():
    for calibration, known in ((None, "v100"), ("none", "")):
        planned = plan_model(model, "p3.16xlarge", batch=64, micro_batches=4, layers=4, calibration=calibration)
        named = dataclasses.replace(planned.plan, model="")
        again = PlanEstimator(named, model).estimate(named)
        stages = given_stages(planned.plan)
        direct = estimate(planned.model, planned.cluster, planned.run, stages, batch=64, calibration=calibration)
        for made in (planned, again, direct):
            assert made.plan.step_s == pytest.approx(planned.plan.step_s, rel=1e-9)
            assert made.plan.priced_by.calibration == known
        low, high = direct.plan.confidence.interval_s
        assert low < direct.plan.step_s < high
        assert direct.plan.confidence.summary.startswith("expected step ")


def test_unlike_devices_are_known_by_their_calibrations_together():
    p3, g4dn = (named_cluster(name).hosts[0] for name in ("p3.16xlarge", "g4dn.12xlarge"))
    link = Link(3e-5, 1e9)
    cluster = Cluster("both", (p3, g4dn), ((link, link), (link, link)))
    joined = bundled_for(cluster)
    assert joined.name == "t4+v100"
    assert joined.latency().sheets.keys() >= {"T4", "V100-SXM2-16GB"}
    assert bundled("v100+t4").identity == joined.identity
    for host, name in ((p3, "v100"), (g4dn, "t4")):
        parts = [bundled(each).latency().predict(PRODUCTS, host.device).mean_s for each in (name, "v100+t4")]
        assert parts[0].tolist() == parts[1].tolist()
    strange = dataclasses.replace(g4dn, device=dataclasses.replace(g4dn.device, name="mine"))
    assert bundled_for(dataclasses.replace(cluster, hosts=(p3, strange))) is None
    assert plan_model(model, cluster, batch=16, layers=2).plan.priced_by.calibration == "t4+v100"


def test_the_planner_refuses_another_devices():
    with pytest.raises(ValueError, match="has 'V100-SXM2-16GB', but the calibration t4 knows 'T4' only"):
        plan_model(model, "p3.16xlarge", batch=64, calibration="t4")
    with pytest.raises(ValueError, match="both a calibration and communication='free'"):
        plan_model(model, "p3.16xlarge", batch=64, calibration="v100", communication="free")
