"""What one other setting would make of a plan: each answer is that of planning with it by hand, and it fits."""

import dataclasses

import pytest

from alpa_dejavu.costs.memory_margin import MemoryMargin
from alpa_dejavu.planning import plan_model
from alpa_dejavu.planning.given import other_settings as module
from alpa_dejavu.planning.given.other_settings import other_settings
from alpa_dejavu.plans.outline import Outline

MODEL = "transformer:hidden=1024,blocks=8,heads=16,vocabulary=32000,sequence=1024"
ASKED = {"batch": 64, "micro_batches": 8, "zero": (2,), "runtime": "megatron", "schedule": "1f1b"}


def slow(**choices):
    asked = ASKED | {"remat": ("layer",), "tensor": 2, "overlap": "none"} | choices
    return plan_model(MODEL, "dgx-h100", runs_on="megatron", **asked).plan


def test_each_setting_alone_is_what_a_plan_with_it_takes():
    plan = slow()
    outline, settings = Outline.of(plan), {setting.what: setting for setting in other_settings(plan)}
    assert settings["recompute"].value == "none"
    assert settings["tensor"].value == "1"
    steps = [setting.plan.step_s for setting in settings.values()]
    assert steps == sorted(steps)
    assert max(steps) < plan.step_s
    by_hand = slow(remat=("none",))
    assert Outline.of(by_hand) == outline.with_choices({"recompute": (("none",) * len(outline.blocks), 1.0)})
    assert settings["recompute"].plan.step_s == pytest.approx(by_hand.step_s)
    assert settings["recompute"].memory_bytes == pytest.approx(max(stage.memory_bytes for stage in by_hand.stages))


def test_nothing_is_said_that_does_not_fit(monkeypatch):
    plan = slow()
    everything = {setting.what: setting for setting in other_settings(plan)}
    least, most = max(stage.memory_bytes for stage in plan.stages), everything["recompute"].memory_bytes
    usable = (least + most) / 2
    assert least < usable < most
    margin = MemoryMargin(free_share=1 - usable / plan.stages[0].memory_limit_bytes)
    monkeypatch.setattr(module, "UNMEASURED", margin)
    fitting = {setting.what: setting for setting in other_settings(plan)}
    assert all(setting.memory_bytes <= usable for setting in fitting.values())
    assert fitting["recompute"].value != "none"
    assert everything["recompute"].plan.step_s < fitting["recompute"].plan.step_s < plan.step_s


def test_plans_whose_settings_are_not_known_have_none():
    plan = slow()
    assert other_settings(dataclasses.replace(plan, priced_by=None)) == []
    assert other_settings(dataclasses.replace(plan, layer_option="auto")) == []
