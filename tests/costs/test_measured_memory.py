"""Measured peaks of stages in the place of the count: what they change, and what they say of other stages."""
import dataclasses

import numpy as np
import pytest

from alpa_dejavu.costs.measured_memory import log_ratio, margin_with
from alpa_dejavu.costs.memory_margin import MemoryMargin, MemoryResiduals
from alpa_dejavu.problem import NoPlanError, Run
from alpa_dejavu.testing import example_cluster
from measured_peaks import NARROW, STAGE, counted_bytes, decided, measuring, table_of
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
