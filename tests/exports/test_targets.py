"""Targets: their files are written whole, and a plan that they can't run is refused with its stage, rule and remedy."""

from __future__ import annotations

import dataclasses
import functools

import pytest

from alpa_dejavu.exports import TARGETS, Target, Writer, export, named_target
from alpa_dejavu.exports._target import CostedWriter
from alpa_dejavu.exports.chakra import chakra_files
from alpa_dejavu.exports.testing import check_target
from alpa_dejavu.layers.models import Transformer
from alpa_dejavu.planning import plan_model
from alpa_dejavu.planning.search.runtimes import RUNTIMES, runtimes_of
from alpa_dejavu.plans.outline import Outline
from alpa_dejavu.schedules import SCHEDULES
from alpa_dejavu.simulation import simulate
from alpa_dejavu.simulation.plan_times import plan_times
from alpa_dejavu.testing import example_cluster
from chakra_replay import COMPUTE, read_traces, replay
from plans import example_plan, hardware
from target_rules import RULES


def test_every_runtime_is_a_target_with_schedules_and_rules_of_its_own():
    assert {name: target.runtime for name, target in TARGETS.items() if target.runtime is not None} == RUNTIMES
    assert set(RULES) == set(RUNTIMES)
    for limits in RUNTIMES.values():
        assert set(limits.schedules_alone) <= set(limits.schedules) <= set(SCHEDULES)
        assert limits.schedules


def test_the_conformance_suite_sees_what_is_wrong():
    class Random(Writer):
        def write(self, plan, model):
            self.count = getattr(self, "count", 0) + 1
            return {"file": str(self.count)}

    class Outside(Writer):
        def write(self, plan, model):
            return {"../file": "text"}

    plan = example_plan(hardware=hardware(devices=4))
    with pytest.raises(AssertionError, match="written again"):
        check_target(Target("alpa", "1", Random(), RUNTIMES["alpa"]), [(plan, None)])
    with pytest.raises(AssertionError, match="leads out of the folder"):
        check_target(Target("alpa", "1", Outside(), RUNTIMES["alpa"]), [(plan, None)])
    with pytest.raises(AssertionError, match="none of the plans"):
        check_target(TARGETS["alpa"], [(dataclasses.replace(plan, schedule="zb_h1"), None)])


def test_an_unknown_target_is_refused(tmp_path):
    with pytest.raises(ValueError, match=r"to is 'alpaca', but must be one of alpa.*did you mean 'alpa'"):
        named_target("alpaca")
    with pytest.raises(ValueError, match="alpa can't run the plan: no zb_h1 there; plan with one of 1f1b"):
        export(dataclasses.replace(example_plan(), schedule="zb_h1"), "alpa", tmp_path / "new")
    assert not (tmp_path / "new").exists()


def test_torchtitan_compiles_so_that_a_plan_whose_backward_passes_are_split_is_refused_with_a_remedy(tmp_path):
    outline = Outline(16, 8, "zb_v", 2, 1, (1, 1, 1, 1), ("none",) * 4)
    plan = outline.plan(example_cluster(1, 4), Transformer(64, 4, 4, 256, 32, feed_forward=128))
    assert runtimes_of(plan)["torchtitan"] == "no zb_v there, as torch.compile goes with no split backward passes"
    why = "torchtitan can't run the plan: no zb_v there, as torch.compile .* plan with one of 1f1b, gpipe, interleaved"
    with pytest.raises(ValueError, match=why):
        export(plan, "torchtitan", tmp_path)


SIZES = Transformer(64, 4, 4, 256, 32, feed_forward=128, train_last=1)
SAID = "its files can't say that only the last 1 of 4 blocks train"
RESTRICTED = [name for name, target in TARGETS.items() if target.runtime is not None and name != "alpa"]


@functools.cache
def planned():
    return plan_model(SIZES.text, "p3.8xlarge", batch=16, micro_batches=4, cache=False, runs_on="alpa")


@pytest.mark.parametrize("name", RESTRICTED)
def test_a_runtime_whose_files_have_no_frozen_blocks_is_refused(name, tmp_path):
    with pytest.raises(ValueError, match=f"{name} can't run the plan: .*{SAID}; plan without --train-last"):
        export(planned().plan, name, tmp_path)
    with pytest.raises(ValueError, match=f"{name} can't train .*{SAID}"):
        plan_model(SIZES.text, "p3.8xlarge", batch=16, cache=False, runs_on=name)
    assert list(tmp_path.iterdir()) == []


def test_sizes_with_frozen_blocks_are_refused_beside_a_plan_without(tmp_path):
    whole = dataclasses.replace(SIZES, train_last=0)
    plan = plan_model(whole.text, "p3.8xlarge", batch=16, micro_batches=4, cache=False, runs_on="megatron").plan
    export(plan, "megatron", tmp_path / "whole", model=whole)
    with pytest.raises(ValueError, match=f"megatron can't train the model: {SAID}"):
        export(plan, "megatron", tmp_path / "frozen", model=SIZES)


def test_alpa_is_a_target():
    plan = example_plan(hardware=hardware(devices=4))
    check_target(TARGETS["alpa"], [(plan, None), (dataclasses.replace(plan, schedule="zb_h1"), None)])


def test_a_trace_computes_nothing_backward_in_frozen_blocks_and_takes_as_long_as_the_step(tmp_path):
    made = planned()
    target = dataclasses.replace(named_target("chakra"), writer=CostedWriter(chakra_files, made.table.stage_costs))
    export(made.plan, target, tmp_path)
    ranks, groups = read_traces(tmp_path)
    start = round(1e6 * made.cluster.hosts[0].device.dispatch_s)  # of the backward pass's program
    for stage in made.plan.stages:
        layers = range(stage.layers[0], stage.layers[1] + 1)
        names = {f"backward layer {n}, micro-batch 0" for n in layers}
        (first, *_) = [rank for rank in ranks if any(node.name in names for node in rank)]
        spent = sum(node.micros for node in first if node.kind == COMPUTE and node.name in names)
        if layers[-1] <= SIZES.num_blocks - SIZES.train_last:  # embeddings are layer 0
            assert spent == pytest.approx(start, abs=len(layers))
        else:
            assert spent > 1.2 * start
    simulated = simulate(plan_times(made.plan), made.plan.num_micro_batches, made.plan.schedule)
    assert replay(ranks, groups).step_s == pytest.approx(simulated.step_s, rel=0.05)
