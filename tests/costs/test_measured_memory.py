"""Measured peaks of stages in the place of the count: what they change, and what they say of other stages."""

import dataclasses

import numpy as np
import pytest

from alpa_dejavu.costs.measured_memory import StageMeasurement, log_ratio, margin_with, with_peaks
from alpa_dejavu.costs.memory_margin import UNMEASURED, MemoryMargin, MemoryResiduals
from alpa_dejavu.problem import NoPlanError, Run
from alpa_dejavu.testing import example_cluster
from measured_peaks import NARROW, RUN, SPACE, STAGE, counted_bytes, decided, measuring, table_of
from models import chain

FOREIGN = MemoryResiduals({"peak": (0.03, -0.05, 0.04) * 8}, 8, "peaks elsewhere", "another framework")


def test_a_ratio_is_of_a_stage_with_one_micro_batch_in_flight():
    for schedule in ("1f1b", "gpipe", "1f1b_overlap_friendly"):
        run = Run(8, schedule)
        table = table_of(run=run)
        assert log_ratio(table, run, STAGE, 1.5 * counted_bytes(table, STAGE)) == pytest.approx(np.log(1.5))
    run = Run(8, "inference")
    table = table_of(run=run, model=dataclasses.replace(chain(6, training=False)))
    assert log_ratio(table, run, STAGE, 2 * counted_bytes(table, STAGE, 0)) == pytest.approx(np.log(2))


def test_a_measured_peak_takes_the_place_of_its_entry_alone():
    table = table_of()
    peak = 1.25 * counted_bytes(table, STAGE)
    margin = MemoryMargin(residuals=FOREIGN)
    found = with_peaks(table, RUN, {STAGE: log_ratio(table, RUN, STAGE, peak)}, margin)
    assert counted_bytes(found, STAGE) == pytest.approx(peak)
    before, after = (each.memory[STAGE.submesh][STAGE.config].peak(1) for each in (table, found))
    others = np.ones_like(before, dtype=bool)
    others[STAGE.first, STAGE.last] = False
    assert (before[others] == after[others]).all()
    assert found.margin is margin
    entry = STAGE.first, STAGE.last, STAGE.submesh, STAGE.config
    # Just as much as is there: the measured stage fits, without a margin, and one byte less is too little.
    for limit, fits in ((peak * (1 + 1e-9), True), (peak * (1 - 1e-6), False)):
        narrow = table_of(example_cluster(1, memory_bytes=limit))
        room = with_peaks(narrow, RUN, {STAGE: np.log(1.25)}, margin).max_n_succ_stages
        assert (room[entry] >= 0) == fits
        by_margin = np.array(table_of(example_cluster(1, memory_bytes=limit), margin=margin).max_n_succ_stages)
        assert (
            np.delete(room.reshape(-1), np.ravel_multi_index(entry, room.shape))
            == np.delete(by_margin.reshape(-1), np.ravel_multi_index(entry, room.shape))
        ).all()


def test_a_measured_peak_needs_no_share_free_and_the_others_do():
    table = table_of()
    counted = counted_bytes(table, STAGE)
    narrow = table_of(example_cluster(1, memory_bytes=1.01 * counted), margin=UNMEASURED)
    entry = STAGE.first, STAGE.last, STAGE.submesh, STAGE.config
    assert narrow.max_n_succ_stages[entry] == -1
    found = with_peaks(narrow, RUN, {STAGE: 0.0}, UNMEASURED).max_n_succ_stages
    assert found[entry] >= 0
    assert (
        np.delete(found.ravel(), np.ravel_multi_index(entry, found.shape))
        == np.delete(np.asarray(narrow.max_n_succ_stages).ravel(), np.ravel_multi_index(entry, found.shape))
    ).all()
    # Three peaks tell how far the others are off: what they tell takes the share's place.
    told = margin_with(UNMEASURED, [0.0, 1e-6, -1e-6])
    whole = with_peaks(narrow, RUN, {STAGE: 0.0}, told)
    assert (whole.usable_bytes == narrow.memory_limit_bytes).all()
    assert whole.max_n_succ_stages[STAGE.first + 1, STAGE.last + 1, STAGE.submesh, STAGE.config] >= 0


def test_residuals_of_a_run_join_those_that_are_given():
    alone = margin_with(MemoryMargin(), [0.1, 0.2, 0.3]).residuals
    assert (alone.log_ratios, alone.num_groups, alone.is_ours) == ({"peak": (0.1, 0.2, 0.3)}, 3, True)
    assert margin_with(MemoryMargin(), [0.1, 0.2]).residuals is None
    given = MemoryMargin(0.02, FOREIGN)
    assert margin_with(given, []) is given
    both = margin_with(given, [0.5])
    assert (both.risk, both.residuals.num_groups) == (0.02, 9)
    assert both.residuals.log_ratios["peak"] == (*FOREIGN.log_ratios["peak"], 0.5)
    assert both.residuals.framework == "another framework and Alpa"
    kinds = {"resident": (0.1, 0.2), "per_micro_batch": (0.0, 0.1), "temporary": (0.3, 0.4)}
    ours = margin_with(MemoryMargin(residuals=MemoryResiduals(kinds, 2, "mine")), [0.5]).residuals
    assert ours.is_ours
    assert all(ours.log_ratios[kind] == (*ratios, 0.5) for kind, ratios in kinds.items())
    assert ours.origin == "mine, and stages measured while planning"


def test_the_plan_has_the_measured_peaks_and_says_so():
    measure, asked = measuring(1.1, collectives=9.0)
    plan = decided(measure)
    without = decided(lambda stage: measure(stage).seconds)
    assert [stage.layers for stage in plan.stages] == [stage.layers for stage in without.stages]
    assert f"{len(set(asked))} of their peaks of memory were measured: 1.10 to 1.10 of the count" in plan.notes[1]
    own = [
        (new, old)
        for new, old in zip(plan.stages, without.stages, strict=True)
        if new.memory_bytes == pytest.approx(1.1 * old.memory_bytes)
    ]
    assert own, "else no measured stage was chosen"
    assert f"the peaks of {len(own)} of this plan's {len(plan.stages)} stages were measured" in plan.notes[-1]
    assert len(asked) > 2
    assert f"{len(set(asked))} residuals in {len(set(asked))} groups (stages measured while planning)" in plan.notes[-1]


def test_a_stage_whose_measured_peak_is_too_large_is_not_taken():
    free = decided(measuring(1.0)[0])
    limit = 1.05 * max(stage.memory_bytes for stage in free.stages)
    cluster = example_cluster(1, memory_bytes=limit)
    measure, asked = measuring(lambda count: 1.5 if count == 1 else 0.9, cluster)
    plan = decided(measure, cluster)
    table = table_of(cluster)
    first = asked[0]
    assert 1.5 * counted_bytes(table, first) > limit, "else nothing was refused"
    taken = {(stage.layers, stage.submesh, stage.logical_mesh) for stage in plan.stages}
    config = SPACE.configs[first.submesh][first.config]
    assert ((first.first, first.last), SPACE.submeshes[first.submesh], config.shape) not in taken
    assert all(stage.memory_bytes <= limit for stage in plan.stages)


def test_where_nothing_fits_under_the_margin_of_peaks_that_disagree_a_larger_risk_is_said():
    cluster = example_cluster(1, memory_bytes=NARROW)

    def unsure():
        return measuring(lambda count: 2.0 if count % 2 == 0 else 0.3, cluster, collectives=9.0)[0]

    plan = decided(unsure(), cluster)
    assert plan.notes[1].endswith("nothing fits under a risk of 1.00% by them, so a larger one is taken")
    assert "under a risk of 49.00% of running out of memory" in plan.notes[-1]
    # Where a risk was chosen for residuals that are there, none is taken that is larger.
    with pytest.raises(NoPlanError, match="doesn't fit into memory"):
        decided(unsure(), cluster, MemoryMargin(residuals=MemoryResiduals({"peak": (-1e-3, 1e-3) * 2}, 2)))


def test_when_measured_peaks_say_that_nothing_fits_there_is_no_plan():
    cluster = example_cluster(1, memory_bytes=NARROW)
    with pytest.raises(NoPlanError, match="doesn't fit into memory"):
        decided(measuring(50.0, cluster, collectives=9.0)[0], cluster)


@pytest.mark.parametrize("figures", [(0.0, None), (float("nan"), None), (1.0, -1.0), (1.0, float("inf"))])
def test_a_measurement_that_cannot_be_is_refused(figures):
    with pytest.raises(ValueError, match="must be a finite number above 0"):
        StageMeasurement(*figures)
