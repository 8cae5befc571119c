"""Published steps with offload: the table's figures, and what is judged."""

import pytest

import published_offload
from alpa_dejavu.problem import Offload
from published_offload import GPT_10B, Job, dgx_2, figures, row


def test_only_rows_of_published_settings_are_judged():
    near, far = row("near", 1.0, 1.2, ""), row("far", 1.0, 3.0, "", judged=False)
    (figure,) = figures([near, far])
    assert figure.held
    assert "1.20: near" in figure.measured
    (figure,) = figures([near, row("fast", 1.0, 0.5, "")])
    assert not figure.held


def test_a_gpu_that_updates_on_its_host_waits_for_it():
    small = published_offload.GPT(256, 2, 4)
    jobs = [Job(small, dgx_2(), 0, 1, offload) for offload in (Offload(), Offload(1.0, 1.0))]
    alone, there = (job.estimated().plan for job in jobs)
    (stage,) = there.stages
    added = stage.offload.forward_s + stage.offload.backward_s + stage.offload.step_s
    assert alone.step_s < there.step_s < alone.step_s + added + 1e-9
    assert stage.resident_bytes < alone.stages[0].resident_bytes


def test_ten_billion_parameters():
    parameters = 12 * GPT_10B.hidden**2 * GPT_10B.num_blocks + GPT_10B.vocabulary * GPT_10B.hidden
    assert parameters == pytest.approx(10e9, rel=0.05)
