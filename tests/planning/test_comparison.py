"""Comparisons of clusters: cells are what `plan` finds, orders are those of brute force, and changes are sure."""

import dataclasses
import functools
import itertools
import json
import math
import statistics

import numpy as np
import pytest

from alpa_dejavu._util.json_file import read_checked
from alpa_dejavu.calibration import Calibration
from alpa_dejavu.clusters import named_cluster
from alpa_dejavu.planning import plan_model
from alpa_dejavu.planning.given._orders import changes
from alpa_dejavu.planning.given.comparison import (
    MEASURES,
    SAVINGS,
    Order,
    Saving,
    compare,
    comparison_format,
    comparison_text,
)
from alpa_dejavu.planning.given.whole_run import whole_run
from alpa_dejavu.problem import NoPlanError
from jax_models import trained
from models import chain

ASKED = {"batch": 64, "micro_batches": 1, "layers": 4, "cache": False}


def made_up(name, memory_bytes, price=1.0, hosts=1):
    """Hosts of two V100s with so much memory, and nothing known of their own."""
    given = named_cluster("p3.16xlarge", hosts, 2)
    small = [
        dataclasses.replace(
            host, device=dataclasses.replace(host.device, memory_bytes=memory_bytes), memory=None, price_per_hour=price
        )
        for host in given.hosts
    ]
    return dataclasses.replace(given, name=name, hosts=tuple(small))


CLUSTERS = [made_up("tight", 2e5, 0.5), made_up("roomy", 1e6), made_up("unpriced", 1e6, None, hosts=2)]


@functools.cache
def compared():
    return compare(trained, CLUSTERS, savings=SAVINGS, steps=100, **ASKED)


def alone(cluster, saving):
    """The plan for a cluster with a saving, or the error."""
    try:
        return plan_model(trained, cluster, remat=saving.remat, zero=saving.zero, offload=saving.offload, **ASKED)
    except (NoPlanError, ValueError) as error:
        return error


@pytest.mark.parametrize("cluster", CLUSTERS, ids=lambda one: one.name)
def test_each_cell_is_what_plan_model_finds_alone(cluster):
    for saving in SAVINGS:
        cell, planned = compared().cell(cluster.name, saving.name), alone(cluster, saving)
        if isinstance(planned, Exception):
            assert (cell.figures, cell.why_not) == (None, str(planned))
            assert cell.fits == isinstance(planned, ValueError)
            assert cell.remedies == getattr(planned, "remedies", ())
            continue
        found, plan = cell.figures, planned.plan
        assert (found.step_s, found.price) == (plan.step_s, planned.price_per_step)
        assert found.interval_s == plan.confidence.interval_s
        assert found.memory_bytes == max(stage.memory_bytes for stage in plan.stages)
        assert found.training == whole_run(planned, 100)


def test_what_does_not_fit_is_told_with_what_would_do_and_the_others_go_on():
    tight = {saving.name: compared().cell("tight", saving.name) for saving in SAVINGS}
    assert not tight["none"].fits
    assert "--remat auto" in tight["none"].remedies
    assert tight["remat"].figures.uses == ("remat",)
    assert tight["offload"].fits
    assert "must be without host_memory" in tight["offload"].why_not
    assert compared().cell("roomy", "none").figures.uses == ()


def test_orders_are_those_of_brute_force():
    for saving, measure in itertools.product(SAVINGS, MEASURES):
        order, figures = compared().order(saving.name, measure), {}
        for cluster in CLUSTERS:
            found = compared().cell(cluster.name, saving.name).figures
            figure = found and (found.expected_step_s if measure == "seconds" else found.price)
            if figure is not None:
                figures[cluster.name] = figure
        assert len(order.clusters) == len(figures)
        assert min(itertools.permutations(figures), key=lambda one: [figures[name] for name in one]) == order.clusters
        rows = np.array(order.before)
        assert np.allclose(rows + rows.T, 1.0)
    assert compared().order("remat", "price").clusters == ("tight", "roomy")
    assert compared().order("none").unfit == ("tight",)


def test_the_same_devices_err_together():
    """A lower price for the same step is lower however far off its seconds are, and no step is sooner for sure."""
    found = compare(trained, [made_up("a", 1e6, 1.0), made_up("b", 1e6, 0.99)], savings=SAVINGS[:1], **ASKED)
    assert found.order("none", "price").is_before("b", "a") is True
    assert found.order("none").is_before("a", "b") is None
    assert found.order("none").before[0][1] == 0.5


def order(saving, share, clusters=("a", "b"), unfit=()):
    rows = ((0.5, share), (1 - share, 0.5)) if len(clusters) == 2 else ((0.5,),)
    return Order(saving, "seconds", clusters, rows, unfit)


def test_a_change_is_claimed_only_where_both_orders_are_sure():
    sure, reversed_, perhaps = order("x", 0.95), order("y", 0.95, ("b", "a")), order("z", 0.8, ("b", "a"))
    assert list(changes([sure, order("v", 0.8)], "ab")) == []
    (one,) = changes([sure, perhaps], "ab")
    assert (one.before, one.behind, one.sure) == (("x",), ("z",), False)
    (one,) = changes([sure, perhaps, reversed_], "ab")
    assert (one.one, one.other, one.before, one.behind, one.sure) == ("a", "b", ("x",), ("y",), True)
    (one,) = changes([sure, order("w", 0.5, ("b",), ("a",))], "ab")
    assert (one.before, one.behind, one.sure) == (("x",), ("w",), True)
    assert list(changes([sure, order("w", 0.5, ("b",))], "ab")) == [], "of a figure that isn't known nothing is said"


def test_the_text_keeps_to_its_schema(tmp_path):
    path = tmp_path / "compared.json"
    path.write_text(comparison_text(compared()))
    data = read_checked(path, comparison_format(), "").data
    assert data == json.loads(path.read_text())
    cell = next(one for one in data["cells"] if one["cluster"] == "roomy" and one["saving"] == "remat")
    assert cell["figures"]["training"]["seconds"] == 100 * cell["figures"]["expected_step_s"]


@pytest.mark.parametrize(
    ("model", "clusters", "named", "said"),
    [
        (trained, [], {}, "clusters is empty, but must name at least one"),
        (trained, ["p3.8xlarge", "1 x p3.8xlarge"], {}, "cluster is '1 x p3.8xlarge' twice, but must be another"),
        (trained, ["p3.8xlarge", "p3.9xlarge"], {}, "p3.9xlarge"),
        (trained, ["p3.8xlarge", "0 x p3.8xlarge"], {}, "hosts is 0"),
        (trained, CLUSTERS[:2], {"objective": "pareto"}, "objective is 'pareto'"),
        (trained, CLUSTERS[:2], {"calibration": "nobody"}, "nobody"),
        (trained, CLUSTERS[:2], {"micro_batches": 3}, "3 micro-batches don't divide a batch of 64"),
        ("gpt-1", CLUSTERS[:2], {}, "there is no model named 'gpt-1'"),
    ],
)
def test_what_cannot_be_compared_is_refused(model, clusters, named, said):
    with pytest.raises(ValueError, match=said):
        compare(model, clusters, **{**ASKED, **named})


def test_cells_are_planned_for_the_runtime_that_is_asked_for():
    asked, saving = {"runtime": "megatron", "overlap": "streams"}, SAVINGS[0]
    found = compare(trained, CLUSTERS[1:], savings=[saving], **asked, **ASKED)
    for cell, cluster in zip(found.cells, CLUSTERS[1:], strict=True):
        plan = plan_model(trained, cluster, remat=saving.remat, zero=saving.zero, **asked, **ASKED).plan
        assert cell.figures.step_s == plan.step_s
        assert cell.figures.step_s != compared().cell(cluster.name, saving.name).figures.step_s


def test_unlike_devices_are_drawn_independently():
    found = compare(trained, [made_up("v100", 1e6), "g4dn.12xlarge"], savings=SAVINGS[:1], **ASKED)
    cells = [found.cell(name, "none").figures for name in found.clusters]
    spreads = [np.log(high / low) / (2 * 1.645) for low, high in (cell.interval_s for cell in cells)]
    apart = abs(np.log(cells[0].expected_step_s / cells[1].expected_step_s))
    assert apart < 0.5 * np.hypot(*spreads)
    share = max(found.order("none").before[0])
    assert 0.5 < share < 0.7  # half a standard deviation apart would be 0.69
    assert found.order("none").is_before(*found.clusters) is None


def renamed(cluster, name, factor=1.0):
    """The same hosts, with devices of a name that isn't known, so many times as fast by their data sheet."""
    device = cluster.hosts[0].device
    rates = {dtype: factor * rate for dtype, rate in device.flop_per_s.items()}
    own = dataclasses.replace(
        device, name=name, flop_per_s=rates, vector_flop_per_s=factor * device.vector_flop_per_s,
        memory_bytes_per_s=factor * device.memory_bytes_per_s, kernel_s=device.kernel_s / factor,
    )  # fmt: skip
    hosts = tuple(dataclasses.replace(host, device=own) for host in cluster.hosts)
    return dataclasses.replace(cluster, name=name, hosts=hosts, machine="")


KNOWN = named_cluster("p4d.24xlarge")
GPT = {"model": "gpt-350m", "batch": 64, "micro_batches": 1, "runtime": "megatron"}


def told(other, known=KNOWN, **asked):
    """A known machine beside another, and how probably that one is the sooner by their own grounds, and by sheets."""
    found = compare(clusters=[known, other], **{**GPT, **asked})
    first, second = (found.cell(name, "remat+ZeRO").figures for name in found.clusters)
    shares = []
    for one_s in (first.expected_step_s, first.common_s or first.expected_step_s):
        sigma = [math.log(high / low) / (2 * 1.645) for low, high in (first.interval_s, second.interval_s)]
        away = math.log(one_s / second.expected_step_s) / math.hypot(*sigma)
        shares.append(statistics.NormalDist().cdf(away))
    order = found.order("remat+ZeRO")
    return found, order.before[order.clusters.index(other.name)][order.clusters.index(known.name)], shares


def test_the_same_hardware_under_another_name_is_neither_sooner_nor_later():
    """By data sheets a step is shorter than kernels make it; as if alike, the unknown name would win."""
    found, before, (as_if_alike, _) = told(renamed(KNOWN, "ours"))
    known, ours = (found.cell(name, "remat+ZeRO").figures for name in found.clusters)
    assert (known.ground, ours.ground) == ("models of GPUs' kernels", "data sheets")
    assert known.common_s == pytest.approx(ours.expected_step_s, rel=1e-6)
    assert ours.common_s is None
    assert ours.expected_step_s < known.expected_step_s
    assert as_if_alike > 0.65
    assert before == pytest.approx(0.5, abs=0.05)
    assert found.order("remat+ZeRO").is_before(*found.clusters) is None


@pytest.mark.parametrize("factor", [0.2, 0.5, 2.0, 6.0])
def test_unlike_grounds_are_as_sure_as_the_less_sure_of_two_reckonings(factor):
    """By hand: normal logarithms with each side's interval, on either ground; what frameworks are off is in common."""
    _, before, shares = told(renamed(KNOWN, "ours", factor))
    hand = sorted((*shares, 0.5))[1]
    assert before == pytest.approx(hand, abs=0.12)
    assert (before > 0.5) == (factor > 1)
    assert (max(before, 1 - before) >= 0.9) == (factor in (0.2, 6.0))


def test_a_calibration_beside_none_is_compared_without_it_as_well():
    """Of two machines alike but for their name in Ray, one is calibrated, as a fifth slower than is known."""
    device = KNOWN.hosts[0].device
    slow = dataclasses.replace(device, memory_bytes_per_s=device.memory_bytes_per_s / 1.2)
    calibration = Calibration("ours", "made up", "2026-05-01", devices={device.name: slow})
    other = named_cluster("p4de.24xlarge")
    found = compare(clusters=[KNOWN, other], calibration=calibration, **GPT)
    calibrated, fitted = (found.cell(name, "remat+ZeRO").figures for name in found.clusters)
    assert (calibrated.ground, fitted.ground) == ("the calibration ours", "models of GPUs' kernels")
    alone = [compare(clusters=[KNOWN, other], **GPT).cell(name, "remat+ZeRO").figures for name in found.clusters]
    assert fitted.expected_step_s == alone[1].expected_step_s
    assert calibrated.common_s == pytest.approx(alone[0].expected_step_s, rel=1e-6)
    nobody = dataclasses.replace(calibration, devices={"nobody": dataclasses.replace(slow, name="nobody")})
    with pytest.raises(ValueError, match="the calibration ours knows 'nobody' only"):
        compare(clusters=[KNOWN, other], calibration=nobody, **GPT)


@pytest.mark.parametrize("cluster", ["dgx-b200", "dgx-h100"])
def test_grounds_that_are_alike_are_told_as_they_are(cluster):
    """A V100 is measured, and these are fitted to other generations, all by one kind of models."""
    found = compare(clusters=["p3.16xlarge", cluster], **GPT)
    assert {cell.figures.common_s for cell in found.cells} == {None}
    assert found.order("remat+ZeRO").is_before(f"1 x {cluster}", "1 x p3.16xlarge") is True


def test_a_cpu_is_measured_and_far_behind():
    found = compare("gpt-125m", ["local-cpu", "p3.16xlarge"], batch=8, micro_batches=1, layers=2)
    assert found.cell("1 x local-cpu", "remat+ZeRO").figures.ground == "measurements of this machine"
    assert found.order("remat+ZeRO").is_before("1 x p3.16xlarge", "1 x local-cpu") is True


def test_one_unknown_machine_among_known_ones_leaves_their_order_as_it_is():
    """It is ranked as if its data sheet were as far off as theirs."""
    found = compare(clusters=["p3.16xlarge", KNOWN, renamed(KNOWN, "ours", 1.01)], **GPT)
    own = {name: found.cell(name, "remat+ZeRO").figures for name in found.clusters}
    ratios = [figures.expected_step_s / figures.common_s for figures in own.values() if figures.common_s]
    figures = {name: figures.expected_step_s for name, figures in own.items()}
    figures["ours"] *= math.sqrt(math.prod(ratios))
    assert len(ratios) == 2
    assert found.order("remat+ZeRO").clusters == tuple(sorted(figures, key=figures.get))


def test_layers_that_are_given_are_compared_as_they_are():
    given = {"batch": 8, "micro_batches": 2, "savings": SAVINGS[:1], "communication": "alpha-beta"}
    found = compare(chain(4), CLUSTERS[1:], **given)
    planned = plan_model(chain(4), CLUSTERS[1], batch=8, micro_batches=2, remat=("none",), zero=(0,),
                         communication="alpha-beta")  # fmt: skip
    assert found.cell("roomy", "none").figures.step_s == planned.plan.step_s


def test_flags_say_the_options():
    assert [one.flags for one in SAVINGS] == [
        "--remat none --zero 0", "--zero 0", "--remat none", "--remat none --zero 0 --offload auto", "",
    ]  # fmt: skip
    assert Saving("all", ("layer",), (3,)).flags == "--remat layer --zero 3"
