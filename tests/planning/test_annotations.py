"""What is said of a chosen plan, and what its seconds rest on."""

import dataclasses
import math

import numpy as np
import pytest

import unlike
from alpa_dejavu._util import units
from alpa_dejavu.cli.tables import footing_table
from alpa_dejavu.clusters import named_cluster
from alpa_dejavu.costs.latency._kernels import UNFOLDED_SPREAD
from alpa_dejavu.layers.models._sizes import WideResNet
from alpa_dejavu.layers.models._wresnet import wresnet_step
from alpa_dejavu.planning import estimate, given_stages, plan, plan_model
from alpa_dejavu.planning.given._annotations import (
    Chosen,
    with_confidence,
    with_unhandy_batch,
    with_unknown_devices,
    with_unrated_dtypes,
    with_unused_hosts,
)
from alpa_dejavu.planning.given.footing import footings
from alpa_dejavu.planning.search._candidate import host_names
from alpa_dejavu.planning.search._shapes import micro_batch_counts
from alpa_dejavu.planning.search.uncertainty import assumed_spread
from alpa_dejavu.planning.task import Clock, Found
from alpa_dejavu.plans.stage_rows import plan_text
from alpa_dejavu.problem import Link, Run
from alpa_dejavu.testing import example_cluster
from jax_models import trained
from models import chain, planned, task_of

MODEL, RUN = chain(4, flop=1e9, parameter_bytes=1e7, activation_bytes=1e6, exchanged=(1e6,)), Run(8)


def slowly_linked(hosts):
    """Hosts that are so far from each other that one of them alone is as good as all."""
    cluster = example_cluster(hosts)
    slow = Link(1e-3, 1e7)
    links = tuple(tuple(slow if a != b else link for b, link in enumerate(row)) for a, row in enumerate(cluster.links))
    return dataclasses.replace(cluster, links=links)


def annotated(annotation, cluster, **how):
    return plan(task_of(MODEL, cluster, 8, RUN, **how), annotations=[annotation]).plan


def test_a_plan_says_which_hosts_it_leaves_unused_and_what_all_would_take():
    made = annotated(with_unused_hosts, slowly_linked(3))
    (note,) = made.notes
    (used,) = {host for stage in made.stages for host in stage.hosts}
    unused = [f"host-{n}" for n in range(3) if f"host-{n}" != used]
    assert note.startswith(f"{', '.join(unused)} are left unused: the best plan found that uses all devices takes ")
    assert note.endswith(f"s, this one {units.seconds(made.step_s)}")
    whole_s = float(note.split("takes ")[1].split()[0])
    assert whole_s > made.step_s


@pytest.mark.parametrize("cluster", [example_cluster(2), unlike.islands()], ids=["alike", "unlike"])
def test_a_plan_is_as_sure_as_the_plans_say_that_it_was_compared_with(cluster):
    result = plan(task_of(MODEL, cluster, 8, RUN), annotations=[with_confidence])
    sure = result.confidence
    assert sure.candidates > len(result.runners_up) >= 1
    assert 0 < sure.probability <= 1
    assert sure.interval_s[0] < result.plan.step_s < sure.interval_s[1]
    assert plan(task_of(MODEL, cluster, 8, RUN), annotations=()).confidence is None


def test_of_unlike_hosts_the_plan_with_the_shortest_expected_step_is_chosen():
    """With a fifth, slower device an iteration is shorter, but waits for whichever of both kinds takes longer."""
    model = chain(8, flop=1e9, parameter_bytes=1e6, activation_bytes=1e6, exchanged=(3e7,))
    hosts = unlike.host("a", devices=4), unlike.host("b", 0.6e12, devices=1)
    result = plan(task_of(model, unlike.cluster(hosts), 4, Run(16)), annotations=[with_confidence])
    alone = plan(task_of(model, unlike.cluster(hosts[:1]), 4, Run(16)), annotations=[with_confidence]).plan
    (both,) = [other for other in result.runners_up if other.plan.step_s < result.plan.step_s]
    assert {host for stage in both.plan.stages for host in stage.hosts} == {"a", "b"}
    assert result.plan.step_s == pytest.approx(alone.step_s, rel=1e-9)
    assert result.plan.expected_s == pytest.approx(alone.expected_s, rel=1e-9)
    (note,) = result.plan.notes
    own, its = units.seconds(result.plan.expected_s), units.seconds(both.plan.step_s)
    assert note.startswith(
        f"plans on unlike hosts are chosen by their expected step, here {own}; another plan (2 stages, "
    )
    assert f") has a shorter iteration time, {its}, but an expected step of " in note
    stages = given_stages(both.plan)
    its_s = estimate(model, unlike.cluster(hosts), Run(16), stages, latency="analytic", communication="alpha-beta").plan
    assert its_s.expected_s > alone.expected_s
    assert both.why.endswith("% faster, but its expected step is longer")


def test_of_unlike_hosts_those_of_each_kind_alone_are_planned_for_too(tmp_path):
    """The plan of the faster host alone isn't among those that the search over both looks at."""
    file = tmp_path / "unlike.yaml"
    file.write_text(
        "version: 1\nname: unlike\nhosts: [{name: a, machine: dgx-h100}, {name: b, machine: dgx-a100, devices: 4}]\n"
        "links: [{from: '*', to: '*', shares: ['{from} sends', '{to} receives'], "
        "latency_s: {value: 50, unit: us, source: made up}, bytes_per_s: {value: 10, unit: Gbit/s, source: made up}}]"
    )
    both = named_cluster(str(file))
    made, alone = (plan_model("llama-3-8b", where, batch=128).plan for where in (both, both.part([0])))
    assert made.expected_s == pytest.approx(alone.expected_s, rel=1e-9)
    assert [stage.layers for stage in made.stages] == [stage.layers for stage in alone.stages]
    (note,) = [note for note in made.notes if note.startswith("b is left unused: the best plan found that uses all")]
    assert note.endswith(f" by its expected step, this one {units.seconds(made.expected_s)}")
    assert float(note.split("takes ")[1].split(" s by")[0]) > made.expected_s


def test_so_they_are_after_the_loss_of_a_host():
    model = chain(8, flop=1e9, parameter_bytes=1e6, activation_bytes=1e6, exchanged=(3e7,))
    hosts = unlike.host("a", devices=4), unlike.host("b", 0.6e12, devices=1), unlike.host("c", 0.7e12, devices=1)
    three, two = (task_of(model, unlike.cluster(some), 4, Run(16)) for some in (hosts, hosts[:2]))
    before = three.chooser.choose(three, Clock()).candidates
    again = [host_names(candidate) for candidate in three.chooser.again(two, before, Clock())]
    assert {host for on in again[0] for host in on} == {"a", "b"}
    assert any({host for on in names for host in on} == {"a"} for names in again)


def test_no_two_of_the_next_best_read_alike():
    result = plan(task_of(MODEL, example_cluster(2), 8, RUN), annotations=[])
    texts = [plan_text(each.plan) for each in (result, *result.runners_up)]
    assert len(texts) == len(set(texts)) == 4


def in_dtype(model, dtype):
    """The model, with all its operators in another dtype."""

    def cast(operators):
        return dataclasses.replace(operators, dtype=np.full(len(operators), dtype))

    layers = [
        dataclasses.replace(layer, forward=cast(layer.forward), backward=cast(layer.backward)) for layer in model.layers
    ]
    return dataclasses.replace(model, layers=tuple(layers))


def test_products_in_a_dtype_that_the_devices_have_no_rate_for_are_named():
    def notes(dtype, cluster):
        return plan(task_of(in_dtype(MODEL, dtype), cluster, 8, RUN), annotations=[with_unrated_dtypes]).plan.notes

    v100 = named_cluster("p3.16xlarge", 1)
    assert notes("float16", v100) == notes("float32", v100) == ()
    assert notes("bfloat16", v100) == (
        "V100-SXM2-16GB has no rate for products in bfloat16 (100% of the model's), so "
        "they are priced as float32, at 15.7 TFLOP/s; it reaches 114 TFLOP/s in float16; "
        "give the model in float16 (of a transformer's sizes: --precision fp16)",
    )
    assert notes("bfloat16", named_cluster("p4d.24xlarge", 1)) == ()


def test_devices_that_are_nearly_or_beside_known_gpus_are_named():
    def notes(*names, latency="analytic"):
        h100 = named_cluster("dgx-h100", len(names))
        hosts = [
            dataclasses.replace(host, device=dataclasses.replace(host.device, name=name))
            for host, name in zip(h100.hosts, names, strict=True)
        ]
        cluster = dataclasses.replace(h100, hosts=tuple(hosts))
        return plan(task_of(MODEL, cluster, 8, RUN, latency=latency), annotations=[with_unknown_devices]).plan.notes

    assert notes("H100-SXM-80GB") == notes("X1") == ()
    (near,) = notes("h100-sxm-80g")
    assert near.startswith("h100-sxm-80g is no GPU with a data sheet here, so its seconds go by the peak rates of its")
    assert "did you mean 'H100-SXM-80GB'" in near
    assert len(notes("H100-SXM-80GB", "X1", latency="kernels")) == 1


def test_a_batch_that_few_numbers_of_micro_batches_make_is_named_with_one_that_more_do():
    task = task_of(MODEL, example_cluster(1), 8, RUN)
    made = plan(task, annotations=[]).plan

    def notes(batch, counts):
        asked = dataclasses.replace(task, batch=batch, micro_batches=counts)
        return with_unhandy_batch(made, Chosen(asked, Found([]), [], [], Clock())).notes

    assert notes(512, micro_batch_counts(512)) == notes(509, (509,)) == notes(5, micro_batch_counts(5)) == ()
    (note,) = notes(509, micro_batch_counts(509))
    assert note.startswith("only 1 or 509 micro-batches of a power of two samples make a batch of 509; ")
    assert "one such as 512 leaves more" in note
    for batch in range(16, 1024):
        for note in notes(batch, micro_batch_counts(batch)):
            named = int(note.split("such as ")[1].split()[0])
            assert abs(named / batch - 1) <= 1 / 8
            assert len(micro_batch_counts(named)) > len(micro_batch_counts(batch))


def of_plan(planned):
    return footings(planned.table, planned.space, planned.choices, planned.run)


def images(batch_size):
    return wresnet_step(WideResNet(32, 1, (1, 1), classes=8, image=64), batch_size)


@pytest.mark.parametrize("remat", ["none", "layer"])
def test_all_seconds_of_the_stages_are_told_of(remat):
    asked = {"batch": 64, "micro_batches": 4, "layers": 4, "remat": (remat,)}
    planned = plan_model(trained, "g4dn.12xlarge", **asked)
    found, device = of_plan(planned), planned.cluster.hosts[0].device
    assert sum(one.share for one in found) == pytest.approx(1.0)
    seconds = 0.0
    for stage in planned.plan.stages:
        # Starts of programs, two a micro-batch and one a step, rest on the machine's file alone.
        seconds += 4 * (stage.compute_s + stage.collective_s - 2 * device.dispatch_s)
        seconds += stage.per_step_s - device.step_s
    sent = sum(4 * stage.collective_s + stage.synchronisation_s for stage in planned.plan.stages)
    share = sum(one.share for one in found if one.work.startswith("collectives"))
    assert share == pytest.approx(sent / seconds, rel=1e-3)


def test_convolutions_are_named_and_data_sheets_are_called_so():
    asked = {"batch": 64, "micro_batches": 1, "layers": 2}
    fitted, sheets = (plan_model(images, "p3.16xlarge", calibration=one, **asked) for one in (None, "none"))
    by_work = {one.work: one for one in of_plan(fitted)}
    convolutions = by_work["convolutions"]
    assert convolutions.rests_on == "fitted to matrix products"
    assert convolutions.spread == pytest.approx(math.hypot(*UNFOLDED_SPREAD), rel=0.01)
    assert {by_work[work].rests_on for work in ("products", "other operators")} <= {
        "measured", "measured on its generation",
    }  # fmt: skip
    assert {one.rests_on for one in of_plan(sheets)} == {"data sheet"}
    spread = {one.work: one.spread for one in of_plan(sheets)}
    assert spread["convolutions"] == pytest.approx(assumed_spread("products"))
    assert spread["other operators"] == pytest.approx(assumed_spread("other operators"))
    assert fitted.plan.step_s != sheets.plan.step_s


def test_a_generation_that_was_not_measured_is_named():
    t4 = dataclasses.replace(named_cluster("g4dn.12xlarge").hosts[0], num_devices=1)
    cluster = dataclasses.replace(named_cluster("g4dn.12xlarge"), hosts=(t4,))
    planned = plan_model("gpt-125m", cluster, batch=2, micro_batches=1, layers=2)
    assert ("products", "fitted to other generations") in {(one.work, one.rests_on) for one in of_plan(planned)}
    shown = footing_table(of_plan(planned))
    assert shown.row_count == len(of_plan(planned))


def test_one_host_is_left_unused_in_the_singular_and_many_are_counted():
    (one,) = annotated(with_unused_hosts, slowly_linked(2)).notes
    assert " is left unused: " in one
    (many,) = annotated(with_unused_hosts, slowly_linked(12)).notes
    assert "... (11 hosts) are left unused: " in many


def test_nothing_is_said_where_all_hosts_are_used():
    cluster = example_cluster(2)
    made = annotated(with_unused_hosts, cluster, communication="free")
    assert {host for stage in made.stages for host in stage.hosts} == {host.name for host in cluster.hosts}
    assert made.notes == ()


def test_the_seconds_that_are_said_are_those_of_unlike_hosts_too():
    where = unlike.cluster([unlike.host("a", devices=1), unlike.host("b", devices=1), unlike.host("c", 1e8, devices=1)])
    (note,) = annotated(with_unused_hosts, where).notes
    assert note.startswith("c is left unused: the best plan found that uses all devices takes ")


def test_plans_that_cost_more_are_no_rivals_of_the_cheapest():
    hosts = [*(unlike.host(name, price=8.0) for name in "ab"), *(unlike.host(name, 0.5e12, price=1.0) for name in "cd")]
    where = unlike.cluster(hosts)
    fast, cheap = (planned(MODEL, where, 8, RUN, objective=objective) for objective in ("time", "price"))
    assert cheap.price_per_step <= fast.price_per_step
    assert cheap.confidence.candidates < fast.confidence.candidates


def test_what_is_measured_of_this_machine_is_called_so():
    planned = plan_model(trained, "local-cpu", batch=64, micro_batches=4, layers=2)
    assert {one.rests_on for one in of_plan(planned)} == {"measured"}
