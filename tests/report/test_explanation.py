"""What bounds a plan, and what would help."""

import pytest

from alpa_dejavu.report.explanation import explain
from plans import example_plan, hardware, stage

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
    # Evened out both take 0.045 s: (2 + 4 - 1) times that.
    assert saved(found, "stages that all take equally long") == pytest.approx(5 * 0.045)


@pytest.mark.parametrize(
    ("figures", "said"),
    [
        ({"memory_bytes": 1e9}, "memory sets no limit: the fullest, stage 0"),
        ({"memory_bytes": 15.5e9}, "stage 0 nearly fills its memory"),
        ({"memory_bytes": 17e9}, "0.93 GiB are missing; remat, a ZeRO level of 2 or 3, more micro-batches"),
        ({"memory_bytes": 17e9, "remat": "layer", "zero": 3}, "are missing; more micro-batches, more devices"),
    ],
)
def test_memory_is_looked_at(figures, said):
    assert said in explain(plan_of(quick((0, 3), **figures), step_s=0.12)).notes[-1]


def test_where_devices_share_a_cpu_only_less_work_helps():
    stages = [quick((n, n)) for n in range(4)]
    found = explain(plan_of(*stages, step_s=0.2, hardware=hardware(cores=8)))
    assert [option.change for option in found.what_if] == ["devices that compute twice as fast"]
    assert found.what_if[0].step_s == pytest.approx(0.2 - 0.06)
