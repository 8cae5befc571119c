"""What one other setting would make of a plan: each answer is that of planning with it by hand, and it fits."""

import dataclasses

import pytest

from alpa_dejavu._util import units
from alpa_dejavu.clusters import named_cluster
from alpa_dejavu.layers.models import transformer_size
from alpa_dejavu.planning import plan_model
from alpa_dejavu.planning.given.fitting import fits, what_fits
from alpa_dejavu.planning.given.other_settings import other_settings
from alpa_dejavu.planning.given.plan_estimate import PlanEstimator
from alpa_dejavu.plans.outline import Outline
from alpa_dejavu.plans.table import lacking
from alpa_dejavu.problem import PricedBy
from alpa_dejavu.report.explanation import explain

MODEL = "transformer:hidden=1024,blocks=8,heads=16,vocabulary=32000,sequence=1024"
ASKED = {"batch": 64, "micro_batches": 8, "zero": (2,), "runtime": "megatron", "schedule": "1f1b"}


def slow(**choices):
    asked = ASKED | {"remat": ("layer",), "tensor": 2, "overlap": "none", "runs_on": "megatron"} | choices
    return plan_model(MODEL, "dgx-h100", **asked).plan


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


def test_nothing_is_said_that_does_not_fit_with_the_margin_of_the_plan():
    plan = slow()
    everything = {setting.what: setting for setting in other_settings(plan)}
    least, most = max(stage.memory_bytes for stage in plan.stages), everything["recompute"].memory_bytes
    usable = (least + most) / 2
    assert least < usable < most
    margin = 1 - usable / plan.stages[0].memory_limit_bytes
    narrow = dataclasses.replace(plan, priced_by=dataclasses.replace(plan.priced_by, margin=margin))
    fitting = {setting.what: setting for setting in other_settings(narrow)}
    assert all(setting.memory_bytes <= usable for setting in fitting.values())
    assert fitting["recompute"].value != "none"
    assert everything["recompute"].plan.step_s < fitting["recompute"].plan.step_s < plan.step_s


@pytest.mark.parametrize(("framework", "before", "after"), [
    ("megatron", "gradients", "tensor"), ("megatron", "none", "tensor"), ("torchtitan", "none", "the runtime's"),
])  # fmt: skip
def test_what_overlaps_is_a_setting_where_the_framework_can_say_it(framework, before, after):
    plan = slow(runs_on=framework, runtime=framework, overlap=before, remat=("none",))
    overlap = next(setting for setting in other_settings(plan) if setting.what == "overlap")
    assert overlap.value == after
    by_hand = PlanEstimator(plan, runtime=f"{framework}+tensor" if after == "tensor" else framework).estimate(plan).plan
    assert overlap.plan.step_s == pytest.approx(by_hand.step_s, rel=1e-9)
    assert "overlap" not in {setting.what for setting in other_settings(overlap.plan)}


def test_settings_are_priced_without_sequence_parallelism_where_the_plan_has_none():
    plan = slow()
    by = dataclasses.replace(plan.priced_by, sequence_parallel=False)
    asked = dataclasses.replace(plan, priced_by=by)
    whole = PlanEstimator(asked).estimate(asked).plan
    settings, shared = ({other.what: other for other in other_settings(either)} for either in (whole, plan))
    assert settings["recompute"].plan.priced_by == by
    assert settings["recompute"].memory_bytes > shared["recompute"].memory_bytes
    assert settings["tensor"].plan.step_s == pytest.approx(shared["tensor"].plan.step_s)  # nothing is divided any more
    assert settings["overlap"].value == "the runtime's"
    assert "sequence parallel" not in shared


def test_a_plan_says_what_its_step_would_take_with_products_in_pieces():
    def notes(**choices):
        return [note for note in slow(remat=("none",), **choices).notes if "--overlap tensor would take" in note]

    (note,) = notes(overlap="gradients")
    plan = slow(remat=("none",), overlap="gradients")
    tensor = PlanEstimator(plan, overlap="tensor").estimate(plan).plan
    assert note.startswith(f"--overlap tensor would take {units.seconds(tensor.step_s)}, ")
    assert tensor.step_s < plan.step_s
    assert not notes(overlap="tensor")
    assert not notes(overlap="gradients", tensor=1)
    assert not notes(overlap="gradients", runs_on="torchtitan", runtime="torchtitan")


def test_plans_whose_settings_are_not_known_have_none():
    plan = slow()
    assert other_settings(dataclasses.replace(plan, priced_by=None)) == []
    assert other_settings(dataclasses.replace(plan, layer_option="auto")) == []


def too_large(margin):
    """A plan of 8 billion parameters that doesn't fit, as its framework's user set it, with the estimator of its like.

    Half its micro-batch takes 77.60 of 78.51 GiB.
    """
    outline = Outline(128, 8, "1f1b", 4, 2, (32,), ("none",), 2)
    plan = outline.plan(named_cluster("dgx-h100", 1), transformer_size("llama-3-8b"))
    by = PricedBy(runtime="megatron", runs_on="megatron", margin=margin)
    plan = dataclasses.replace(plan, priced_by=by, step_s=1.0)
    estimator = PlanEstimator(plan)
    return estimator.estimate(plan).plan, estimator


def test_a_plan_that_does_not_fit_is_explained_with_what_would():
    plan, estimator = too_large(0.0)
    assert lacking(plan)
    explained = explain(plan)
    assert explained.would_fit == what_fits(plan, estimator)
    assert explained.would_fit == "tried, and enough: recompute full or micro-batch 2 x 16 x data 4"
    settings = {setting.what: setting for setting in explained.settings}
    by_hand = estimator.estimate(dataclasses.replace(plan, num_micro_batches=16)).plan
    assert settings["micro-batch"].plan.step_s == pytest.approx(by_hand.step_s)
    assert by_hand.step_s > plan.step_s
    assert explain(by_hand).would_fit == ""


def test_what_would_fit_leaves_the_margin_of_the_plan_free():
    plan, estimator = too_large(0.02)
    assert what_fits(plan, estimator) == "tried, and enough: recompute full or micro-batch 1 x 32 x data 4"
    halved = estimator.estimate(dataclasses.replace(plan, num_micro_batches=16)).plan
    assert not lacking(halved)
    assert not fits(halved, estimator.cluster)
    assert "micro-batch" not in {setting.what for setting in other_settings(plan)}


@pytest.mark.parametrize(
    ("framework", "said"),
    [("megatron", "recompute full or micro-batch 1"), ("torchtitan", "recompute selective or ZeRO-3 or micro-batch 1")],
)
def test_what_would_fit_is_what_the_framework_can_run(framework, said):
    outline = Outline(32, 4, "1f1b", 4, 1, (16, 16), ("none",) * 2, 2)
    plan = outline.plan(named_cluster("dgx-h100", 1), transformer_size("llama-3-8b"))
    by = PricedBy(runtime=framework, runs_on=framework, margin=0.0)
    plan = dataclasses.replace(plan, priced_by=by, step_s=1.0)
    assert what_fits(plan, PlanEstimator(plan)) == f"tried, and enough: {said} x 8 x data 4"
