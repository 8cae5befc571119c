"""Planning again for a cluster that has changed: from what was kept, as from scratch, and nothing is traced."""

import dataclasses
import gzip
import json
import re

import numpy as np
import pytest
from click.testing import CliRunner

import models
from alpa_dejavu import layers
from alpa_dejavu.calibration.history import Origin, PastRun, Store
from alpa_dejavu.cli.main import main
from alpa_dejavu.clusters import named_cluster, write_cluster
from alpa_dejavu.clusters.changed_cluster import with_more_memory, without
from alpa_dejavu.costs.memory_margin import MemoryMargin
from alpa_dejavu.layers.models import Transformer
from alpa_dejavu.planning import plan_model
from alpa_dejavu.planning.changed.kept import Kept, kept_path, read_kept, write_with_kept
from alpa_dejavu.planning.changed.replanning import fallback, prepared, replan
from alpa_dejavu.planning.given.plan_estimate import PlanEstimator
from alpa_dejavu.planning.task import SpaceRules
from alpa_dejavu.plans.plan_file import read_plan, write_plan
from alpa_dejavu.problem import Link, NoPlanError, Operators, PricedBy, Run, SmallProducts, StridedReads
from alpa_dejavu.report.explanation import explain
from alpa_dejavu.report.upgrades import upgrades
from alpa_dejavu.testing import example_cluster
from jax_models import trained
from models import chain

CLUSTER = named_cluster("p3.16xlarge", 4)
COLUMNS = [field.name for field in dataclasses.fields(Operators) if field.name != "records"]
"""Of kept operators, where they aren't their records' own figures."""


def wide(batch_size):
    """A model that makes use of all hosts: stages of it compute for longer than they send."""
    return trained(batch_size, size=16384, depth=12)


def asked(cluster, micro_batches=32):
    return plan_model(wide, cluster, batch=8192, micro_batches=micro_batches, layers=12, contingencies=True)


@pytest.fixture(scope="module")
def planned():
    return asked(CLUSTER)


@pytest.fixture(scope="module")
def plan_path(planned, tmp_path_factory):
    path = tmp_path_factory.mktemp("plans") / "plan.json"
    write_with_kept(planned.plan, Kept.of(planned), path)
    return path


@pytest.fixture
def kept(plan_path):
    return read_kept(plan_path)


@pytest.fixture
def untraced(monkeypatch):
    def fails(*_, **__):
        pytest.fail("nothing is traced again")

    monkeypatch.setattr(layers, "trace", fails)


def test_hosts_that_are_lost_are_planned_around_as_from_scratch(planned, kept, untraced):
    lost = ["p3.16xlarge-1", "p3.16xlarge-3"]
    made = replan(planned.plan, kept, without=lost)
    assert {host for stage in made.plan.stages for host in stage.hosts} == {"p3.16xlarge-0", "p3.16xlarge-2"}
    assert made.plan.cluster == "2 x p3.16xlarge"
    assert not made.plan.contingencies
    assert set(prepared(made.plan, made.kept).contingencies) == {"p3.16xlarge-0", "p3.16xlarge-2"}
    assert made.plan.hardware == planned.plan.hardware.without(lost)
    assert made.plan.priced_by == planned.plan.priced_by
    # The number of micro-batches may change, and the plan says so.
    changed = made.plan.num_micro_batches != 32
    assert changed == any("micro-batches instead of 32" in note for note in made.plan.notes)


def test_it_gives_what_the_contingencies_promise(planned, plan_path, kept, untraced):
    for host, promised in planned.plan.contingencies.items():
        made = replan(planned.plan, kept, without=[host])
        assert made.plan.step_s == pytest.approx(promised.step_s)
        if [stage.hosts for stage in made.plan.stages] == [stage.hosts for stage in promised.stages]:
            assert made.moves == promised.moves
        assert made.moves.checkpoint_bytes == pytest.approx(promised.moves.checkpoint_bytes)
        asked_for = ["replan", str(plan_path), "--without", host, "--checkpoint-rate", "2"]
        told = " ".join(CliRunner().invoke(main, asked_for).output.split())
        assert (made.moves.read_at(2e9).text in told) == ("rate is unknown" not in told)
    assert promised.moves.text in fallback(planned.plan, host).moves.text


def test_a_lost_device_leaves_its_host_the_others(planned, plan_path, kept, untraced):
    made = replan(planned.plan, kept, without=["p3.16xlarge-1/3"])
    whole = replan(planned.plan, kept, without=["p3.16xlarge-1"])
    assert made.plan.devices_of_hosts.get("p3.16xlarge-1", 0) <= 7
    assert planned.plan.step_s <= made.plan.step_s <= whole.plan.step_s * (1 + 1e-9)
    assert made.kept is not None
    assert [host.num_devices for host in made.kept.cluster.hosts] == [8, 7, 8, 8]
    done = CliRunner().invoke(main, ["replan", str(plan_path), "--without", "p3.16xlarge-1/9"])
    assert done.exit_code == 1
    assert "has no device '9', but devices 0..7" in " ".join(done.output.split())


def test_a_cluster_with_less_memory_is_planned_for_with_the_margin_of_before(planned, kept, untraced):
    made = replan(planned.plan, kept, cluster=with_more_memory(CLUSTER, 0.8)).plan
    most = 0.8 * CLUSTER.hosts[0].device.memory_bytes
    assert [host.memory_bytes for host in made.hardware.hosts] == pytest.approx([most] * 4)
    assert all(stage.memory_bytes < most for stage in made.stages)


def test_the_margin_of_memory_is_kept_until_another_is_asked_for(planned, plan_path, kept, tmp_path):
    free = dataclasses.replace(planned, table=dataclasses.replace(planned.table, margin=MemoryMargin(free_share=0.02)))
    path = tmp_path / "plan.json"
    write_with_kept(free.plan, Kept.of(free), path)
    again = read_kept(path)
    assert (kept.memory_margin, again.memory_margin) == (None, 0.02)
    lost = ["p3.16xlarge-1"]
    for one, asked_for, said in ((kept, None, "5 %"), (again, None, "2 %"), (again, 0.07, "7 %")):
        note = replan(planned.plan, one, without=lost, memory_margin=asked_for).plan.notes[-1]
        assert f"{said} of each device's is left free" in note
    with pytest.raises(ValueError, match=r"memory_margin is -1\.0, but must be at least 0 and below 1"):
        replan(planned.plan, kept, without=lost, memory_margin=-1.0)
    for share, said, code in (("0.2", "20 % of each device's is left", 0), ("2", "memory_margin is 2.0", 1)):
        done = CliRunner().invoke(main, ["replan", str(plan_path), "--without", lost[0], "--memory-margin", share])
        assert (done.exit_code, said in " ".join(done.output.split())) == (code, True)


def test_links_that_have_changed_change_the_plan(planned, kept, untraced):
    slow = Link(1e-2, 1e6)
    links = tuple(tuple(slow if a != b else link for b, link in enumerate(row)) for a, row in enumerate(CLUSTER.links))
    made = replan(planned.plan, kept, cluster=dataclasses.replace(CLUSTER, links=links))
    assert made.plan.step_s > planned.plan.step_s


def test_the_same_cluster_moves_nothing(planned, kept, untraced):
    made = replan(planned.plan, kept, cluster=CLUSTER)
    assert made.plan.step_s == pytest.approx(planned.plan.step_s, rel=1e-9)
    assert made.moves.layers == ()
    assert made.moves.num_bytes == made.moves.seconds == 0.0
    assert made.kept_layers == tuple(range(12))


def test_the_communication_model_is_the_plan_s(planned, kept):
    def again(model, **asked):
        record = dataclasses.replace(kept, models=("AnalyticLatency", model))
        plan = dataclasses.replace(planned.plan, priced_by=PricedBy(latency="analytic"))
        return replan(plan, record, without=["p3.16xlarge-0"], **asked).plan.step_s

    assert again("Free") == again("Free", communication="free") < again("AlphaBeta")


def test_a_plan_goes_on_by_the_models_of_the_gpus_that_it_moves_to(planned, kept, untraced):
    assert planned.plan.priced_by.latency == "kernels"
    made = replan(planned.plan, kept, cluster=named_cluster("g4dn.12xlarge", 4))
    sheets = replan(planned.plan, dataclasses.replace(kept, models=("AnalyticLatency", "AlphaBeta")),
                    cluster=named_cluster("g4dn.12xlarge", 4), calibration="none")  # fmt: skip
    assert made.plan.priced_by.latency == "kernels"
    assert made.plan.step_s != sheets.plan.step_s


def test_where_memory_is_short_micro_batches_become_smaller():
    # What waits for the backward of a micro-batch fills 6 of the 8 GiB; half of the devices have half of them.
    model, cluster = chain(8, flop=1e12, activation_bytes=0.75 * 2.0**30), example_cluster(num_hosts=2)
    plan = models.planned(model, cluster, 16, Run(2)).plan
    assert plan.contingencies == {}
    short = replan(plan, Kept(model, cluster, Run(2), 32, SpaceRules(remat=("none",), zero=(0,))), without=["host-1"])
    assert short.plan.num_micro_batches in (4, 8)
    said = f"{short.plan.num_micro_batches} micro-batches instead of 2, whose seconds are scaled to these"
    assert said in short.plan.notes
    assert short.kept.differences(short.plan) == []
    much = chain(8, flop=1e12, parameter_bytes=2.0**29, activation_bytes=0.75 * 2.0**30)
    with pytest.raises(NoPlanError, match="doesn't fit into memory"):
        replan(plan, Kept(much, cluster, Run(2), 32, SpaceRules(remat=("none",), zero=(0,))), without=["host-1"])


def test_from_the_new_plan_it_goes_on(planned, kept, untraced, tmp_path):
    first = replan(planned.plan, kept, without=["p3.16xlarge-0"])
    write_with_kept(first.plan, first.kept, tmp_path / "next.json")
    second = replan(first.plan, read_kept(tmp_path / "next.json"), without=["p3.16xlarge-2"])
    both = replan(planned.plan, kept, without=["p3.16xlarge-0", "p3.16xlarge-2"])
    assert second.plan.step_s == pytest.approx(both.plan.step_s, rel=1e-9)


def test_a_contingency_becomes_the_plan(planned):
    made = fallback(planned.plan, "p3.16xlarge-2")
    ready = planned.plan.contingencies["p3.16xlarge-2"]
    assert (made.plan.stages, made.plan.step_s, made.moves) == (ready.stages, ready.step_s, ready.moves)
    assert made.plan.cluster == "3 x p3.16xlarge"
    assert [host.name for host in made.plan.hardware.hosts] == [f"p3.16xlarge-{n}" for n in (0, 1, 3)]
    assert made.plan.num_layers == 12
    old = dataclasses.replace(planned.plan, hardware=None)
    assert fallback(old, "p3.16xlarge-2").plan == dataclasses.replace(made.plan, hardware=None)
    with pytest.raises(ValueError, match=r"has no contingency for the loss of p3.16xlarge-2"):
        fallback(dataclasses.replace(planned.plan, contingencies={}), "p3.16xlarge-2")


def test_what_cannot_be_is_refused(planned, kept):
    plan = planned.plan
    with pytest.raises(ValueError, match=r"has no host 'p3.16xlarge-9'; did you mean 'p3.16xlarge-\d'"):
        replan(plan, kept, without=["p3.16xlarge-9"])
    with pytest.raises(ValueError, match=r"has no host 'elsewhere'; it has p3.16xlarge-0, p3.16xlarge-1"):
        fallback(plan, "elsewhere")
    with pytest.raises(ValueError, match="nothing has changed"):
        replan(plan, kept)
    with pytest.raises(ValueError, match=r"another plan: batch is 8192, not 32"):
        replan(dataclasses.replace(plan, batch=32), kept, without=["p3.16xlarge-0"])
    said = "priced by KernelLatency and Nccl, not by KernelLatency and Free; give those models"
    with pytest.raises(ValueError, match=said):
        replan(plan, kept, without=["p3.16xlarge-0"], communication="free")
    with pytest.raises(ValueError, match="nothing is left"):
        replan(plan, kept, without=[host.name for host in CLUSTER.hosts])


def run(*args):
    return CliRunner().invoke(main, [str(arg) for arg in args])


def test_the_command_says_what_moves_and_writes_what_follows(plan_path, planned, tmp_path, untraced):
    path = tmp_path / "next.json"
    result = run("replan", plan_path, "--without", "p3.16xlarge-0", "--json", path, "--python", tmp_path / "next.py")
    assert result.exit_code == 0, result.output
    assert "on 3 x p3.16xlarge, 24 devices" in result.stdout
    assert "moves                   " in result.stdout
    assert "\nbefore  " in result.stdout
    lost = r"if a host is lost       \S+ m?s a step without p3\.16xlarge-\d; first its state moves: \S+ GiB over links"
    assert re.search(lost, run("explain", path).stdout)
    assert read_plan(path).num_devices == 24
    assert "ManualStageOption" in (tmp_path / "next.py").read_text()
    again = run("replan", path, "--without", "p3.16xlarge-1")
    assert again.exit_code == 0, again.output
    assert "2 x p3.16xlarge, 16 devices" in again.stdout
    other = run("replan", plan_path, "--cluster", "p4d.24xlarge", "--hosts", 2)
    assert other.exit_code == 0, other.output
    assert "2 x p4d.24xlarge, 16 devices" in other.stdout
    assert "0 of 12 layers stay" in other.stdout
    write_cluster(dataclasses.replace(without(CLUSTER, ["p3.16xlarge-1"]), name="ours"), tmp_path / "ours.json")
    ours = run("replan", plan_path, "--cluster", tmp_path / "ours.json")
    assert ours.exit_code == 0, ours.output
    assert "on ours, 24 devices" in ours.stdout
    slower = run("replan", plan_path, "--slow", "p3.16xlarge-0=3")
    assert slower.exit_code == 0, slower.output


def places(stage):
    return stage.layers, stage.submesh, stage.logical_mesh, stage.hosts, stage.remat, stage.zero


def test_the_command_searches_with_the_slicer_that_is_asked_for(plan_path, planned, kept, tmp_path, untraced):
    path = tmp_path / "next.json"
    result = run("replan", plan_path, "--slow", "p3.16xlarge-0=6", "--slicer", "uniform", "--json", path)
    assert result.exit_code == 0, result.output
    slow = {"p3.16xlarge-0": 6.0}
    found, best = (replan(planned.plan, kept, slow=slow, slicing=name).plan for name in ("uniform", "dynamic"))
    written, searched, others = ([places(stage) for stage in plan.stages] for plan in (read_plan(path), found, best))
    assert written == searched != others
    assert found.step_s > best.step_s
    assert run("replan", plan_path, "--slow", "p3.16xlarge-0=6", "--slicer", "fastest").exit_code == 2


def test_without_what_is_kept_one_host_may_be_lost(planned, tmp_path):
    path = write_plan(planned.plan, tmp_path / "alone.json")
    result = run("replan", path, "--without", "p3.16xlarge-3")
    assert result.exit_code == 0, result.output
    assert "has ready for the loss of p3.16xlarge-3" in result.stdout
    lost = ["--without", "p3.16xlarge-3"]
    for options in ([*lost, "--without", "p3.16xlarge-2"], [*lost, "--slicer", "mcmc"], ["--cluster", "p3.16xlarge"]):
        result = run("replan", path, *options)
        assert result.exit_code == 1
        assert "alone.json.kept.json.gz, which is kept for planning again, can't be read" in result.stderr
    result = run("replan", path, "--without", "p3.16xlarge-7")
    assert result.exit_code == 1
    assert "has no host 'p3.16xlarge-7'" in result.stderr
    assert run("replan", path).exit_code == 2
    assert run("replan", path, "--slow", "p3.16xlarge-3").exit_code == 2


def test_all_that_a_device_says_is_kept(planned, tmp_path):
    device = dataclasses.replace(
        CLUSTER.hosts[0].device, strided=StridedReads(4.0, 8.0, 9.0), small_products=SmallProducts(2.0, 0.5)
    )
    hosts = tuple(dataclasses.replace(host, device=device, price_per_hour=3.0) for host in CLUSTER.hosts)
    links = tuple(
        tuple(dataclasses.replace(link, shares=(f"from {a}", f"to {b}")) for b, link in enumerate(row))
        for a, row in enumerate(CLUSTER.links)
    )
    cluster = dataclasses.replace(CLUSTER, hosts=hosts, links=links, cores=7, media={"from 0": 5.0})
    write_with_kept(planned.plan, dataclasses.replace(Kept.of(planned), cluster=cluster), tmp_path / "plan.json")
    assert read_kept(tmp_path / "plan.json").cluster == cluster


def test_the_same_operators_come_back(planned, kept):
    for ours, theirs in zip(planned.model.layers, kept.model.layers, strict=True):
        for part in ("forward", "backward", "update"):
            one, other = getattr(ours, part), getattr(theirs, part)
            assert one.records == other.records
            for field in dataclasses.fields(one)[1:]:
                a, b = getattr(one, field.name), getattr(other, field.name)
                assert a.dtype == b.dtype
                np.testing.assert_array_equal(a, b)
    assert planned.model.tensors == kept.model.tensors


def rewritten(path, change):
    data = json.loads(gzip.decompress(kept_path(path).read_bytes()))
    change(data)
    kept_path(path).write_bytes(gzip.compress(json.dumps(data).encode()))


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda data: data.update(version=2), "version is 2, but must be 1"),
        (lambda data: data.pop("cluster"), "KeyError.*cluster"),
        (lambda data: data["model"]["operators"][0].update(records=99), "IndexError"),
        (lambda data: data["model"]["operators"][0].update(dict.fromkeys(COLUMNS, [1.0] * 99)), "but columns of"),
        (lambda data: data.update(batch=1e999), "OverflowError"),
        (lambda data: data["model"].update(layers=1000 * data["model"]["layers"]), r"its 12000 layers .*FILE_MIB"),
        (lambda data: data["cluster"]["links"][0].update(bytes_per_s=-1.0), "bytes_per_s is -1.0"),
        (lambda data: data["sharding"]["layers"][0].update(memory_parts=[1.0]), "ValueError"),
        (lambda data: data["sharding"]["stages"][0]["numbers"].append("x"), "TypeError"),
        (lambda data: data["sharding"]["stages"][0]["numbers"].append(12), "but the model has 12"),
        (lambda data: data["sharding"]["stages"][0]["numbers"].append(0), r"there are \d+ variants, but numbers for"),
        (lambda data: data["sharding"]["meshes"][0]["levels"].pop(), "has 2 ZeRO levels, not 3"),
        (lambda data: data["sharding"]["meshes"].clear(), "one device alone isn't among the meshes"),
    ],
)
def test_a_broken_file_is_named(planned, tmp_path, change, said):
    path = tmp_path / "plan.json"
    write_with_kept(planned.plan, Kept.of(planned), path)
    rewritten(path, change)
    with pytest.raises(ValueError, match=rf"plan\.json\.kept\.json\.gz.*{said}.*plan once more"):
        read_kept(path)


NO_JSON, CUT = gzip.compress(b"no json", mtime=0), gzip.compress(b"[]", mtime=0)[:-4]


@pytest.mark.parametrize("content", [b"", b"no gzip", NO_JSON, CUT])
def test_what_is_no_such_file_is_refused(tmp_path, content):
    kept_path(tmp_path / "plan.json").write_bytes(content)
    with pytest.raises(ValueError, match=r"plan\.json\.kept\.json\.gz.*plan once more"):
        read_kept(tmp_path / "plan.json")


def test_what_is_left_after_a_loss_and_a_slower_host_is_estimated_as_it_was_planned(planned, kept):
    """On exactly the hosts that are left, the slow one among them, though their machine type knows nothing of it."""
    made = replan(planned.plan, kept, without=["p3.16xlarge-0"], slow={"p3.16xlarge-2": 3.0}).plan
    assert [host.slowdown for host in made.hardware.hosts] == [1, 3, 1]
    again = PlanEstimator(made, wide).estimate(made).plan
    assert again.step_s == pytest.approx(made.step_s, rel=1e-9)
    assert [stage.hosts for stage in again.stages] == [stage.hosts for stage in made.stages]
    assert again.notes == ()


def test_a_plan_that_does_not_fit_what_is_kept_is_refused(planned, kept):
    first, *others = planned.plan.stages
    for change, said in (
        ({"hosts": ("elsewhere",)}, "stage 0 is on host 'elsewhere', but 4 x p3"),
        (
            {"options": {"allow_everything": True}},
            "stage 0 has the auto-sharding option 'allow_everything', which Alpa",
        ),
    ):
        plan = dataclasses.replace(planned.plan, stages=(dataclasses.replace(first, **change), *others))
        with pytest.raises(ValueError, match=said):
            replan(plan, kept, without=["p3.16xlarge-1"])
        with pytest.raises(ValueError, match=said):
            explain(plan, kept)


def test_what_was_kept_says_what_is_run_without_a_host(planned, kept, untraced):
    ready = prepared(dataclasses.replace(planned.plan, contingencies={}), kept)
    assert ready.contingencies.keys() == planned.plan.contingencies.keys()
    for host, contingency in ready.contingencies.items():
        assert contingency.step_s == pytest.approx(planned.plan.contingencies[host].step_s)
        assert host not in {name for stage in contingency.stages for name in stage.hosts}
    assert prepared(planned.plan, kept) is planned.plan


def test_it_is_the_plan_from_scratch_of_as_many_micro_batches(planned, kept):
    lost = ["p3.16xlarge-1", "p3.16xlarge-3"]
    made, left = replan(planned.plan, kept, without=lost).plan, without(CLUSTER, lost)
    scratch = asked(left, made.num_micro_batches).plan
    # A traced model scales to other micro-batches but for a few scalars.
    assert made.step_s == pytest.approx(scratch.step_s, rel=1e-4)
    assert made.layer_ids == scratch.layer_ids
    assert [(s.submesh, s.logical_mesh, s.remat, s.zero, s.options) for s in made.stages] == [
        (s.submesh, s.logical_mesh, s.remat, s.zero, s.options) for s in scratch.stages
    ]
    assert made.step_s <= asked(left).plan.step_s * (1 + 1e-9), "other numbers of micro-batches are looked at, too"


def test_a_slower_host_gets_less_to_do(planned, kept, untraced, tmp_path):
    made = replan(planned.plan, kept, slow={"p3.16xlarge-2": 4.0})
    assert made.plan.step_s < 4.0 * planned.plan.step_s
    write_with_kept(made.plan, made.kept, tmp_path / "slow.json")
    again = read_kept(tmp_path / "slow.json")
    assert again.cluster == made.kept.cluster
    assert replan(made.plan, again, without=["p3.16xlarge-2"]).plan.num_devices == 24


def test_a_larger_cluster_is_used_as_far_as_that_makes_steps_shorter(planned, kept, untraced):
    made = replan(planned.plan, kept, cluster=named_cluster("p3.16xlarge", 8))
    assert made.plan.num_devices > planned.plan.num_devices
    assert made.plan.step_s < planned.plan.step_s
    assert made.plan.num_devices == 64 or any("left unused" in note for note in made.plan.notes)


def test_a_history_keeps_plans_without_their_contingencies(planned, tmp_path):
    assert planned.plan.contingencies
    run = PastRun(planned.plan, Origin("model", "cluster", "devices", "predictor"), 1.0, (1.0,))
    store = Store(tmp_path / "history.sqlite")
    store.append(run)
    (back,) = store.runs()
    assert back.plan == dataclasses.replace(planned.plan, contingencies={})


def test_a_mesh_of_which_nothing_is_kept_is_named(planned, kept):
    first, *others = planned.plan.stages
    across = dataclasses.replace(first, logical_mesh=(1, first.submesh.num_devices), options={})
    with pytest.raises(ValueError, match=r"stage 0 has the logical mesh 1x\d+, of which nothing is kept"):
        explain(dataclasses.replace(planned.plan, stages=(across, *others)), kept)


def test_upgrades_look_whether_the_hosts_of_a_plan_are_there(planned, kept):
    # Where none of the names is there, alike hosts are named otherwise, and any will do; here some are.
    first, *others = planned.plan.stages
    stages = (dataclasses.replace(first, hosts=("elsewhere",)), *others)
    with pytest.raises(ValueError, match=r"stage 0 is on host 'elsewhere', but 4 x p3\.16xlarge has"):
        upgrades(dataclasses.replace(planned.plan, stages=stages), kept)


@pytest.mark.parametrize(("degrees", "fits"), [({"experts": 4, "tensor": 2}, True), ({"context": 16}, False)])
def test_degrees_that_were_asked_for_stay_where_they_fit(degrees, fits, tmp_path):
    size = Transformer(512, 2, 8, 1024, 256, feed_forward=1024, num_experts=4, experts_per_token=2)
    asked_for = {"batch": 16, "micro_batches": 1, "runtime": "megatron", "cache": False}
    before = plan_model(size.text, named_cluster("dgx-h100", 2), **asked_for, **degrees)
    write_with_kept(before.plan, Kept.of(before), tmp_path / "plan.json")
    following = replan(before.plan, read_kept(tmp_path / "plan.json"), without=["dgx-h100-1"]).plan
    scratch = plan_model(size.text, "dgx-h100", **asked_for, **(degrees if fits else {})).plan
    assert following.step_s == pytest.approx(scratch.step_s, rel=1e-6)
    assert any("asked for are chosen anew" in note for note in following.notes) == (not fits)
