"""Targets: their files are written whole, and a plan that they can't run is refused with its stage, rule and remedy."""

from __future__ import annotations

import dataclasses
import functools

import pytest

from alpa_dejavu.exports import TARGETS, Target, Writer, export, named_target
from alpa_dejavu.exports.testing import check_target
from alpa_dejavu.layers.models import Transformer
from alpa_dejavu.planning import plan_model
from alpa_dejavu.planning.search.runtimes import RUNTIMES
from alpa_dejavu.schedules import SCHEDULES
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
