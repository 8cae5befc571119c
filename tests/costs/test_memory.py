"""Memory of stages: what they keep, by hand, and peaks that were measured."""

import dataclasses

import numpy as np
import pytest

from alpa_dejavu.costs._megatron_division import EvenDivision
from alpa_dejavu.costs.measured_memory import StageMeasurement, log_ratio, margin_with, with_peaks
from alpa_dejavu.costs.memory import MemoryLimits, ModelMemory, StageMemory, stage_memory, successors_that_fit
from alpa_dejavu.costs.memory_margin import UNMEASURED, MemoryMargin, MemoryResiduals
from alpa_dejavu.problem import Layer, MeshConfig, Model, NoPlanError, Operators, Run, Tensor
from alpa_dejavu.problem.slicing_problem import NO_LIMIT
from alpa_dejavu.testing import example_cluster
from measured_peaks import NARROW, RUN, SPACE, STAGE, counted_bytes, decided, measuring, table_of
from models import chain


def kept_by(model, config):
    """Of a model divided evenly."""
    whole = ModelMemory.of(model)
    division = EvenDivision(model, whole, config.data_parallel, config.tensor_parallel, config.zero)
    return stage_memory(whole, division.memory(), config.remat == "layer")


def test_each_kind_by_hand():
    memory = ModelMemory.of(chain(3, parameter_bytes=1000.0, activation_bytes=100.0))
    assert memory.parameters[0, 2] == memory.gradients[0, 2] == 3000
    assert memory.optimizer[1, 1] == 2000
    assert memory.activations[0, 2] == 300
    assert memory.activations[2, 2] == 100
    assert memory.activations[2, 1] == 0


def test_sharding_divides_what_it_divides():
    model = chain(1)
    across = kept_by(model, MeshConfig((4, 1), 4, 1, zero=2))
    along = kept_by(model, MeshConfig((1, 4), 1, 4))
    whole = kept_by(model, MeshConfig((4, 1), 4, 1))
    assert across.resident[0, 0] == 1000 + 1000 + 2000 / 4
    assert whole.resident[0, 0] == 1000 + 1000 + 2000
    assert along.resident[0, 0] == 4000 / 4
    assert across.per_micro_batch[0, 0] == pytest.approx(100 / 4)
    assert 100 / 4 < along.per_micro_batch[0, 0] < 100


@pytest.mark.parametrize(
    ("schedule", "limit", "successors"),
    [
        ("1f1b", 999, -1),
        ("1f1b", 1099, -1),
        ("1f1b", 1100, 0),
        ("1f1b", 1350, 2),
        ("1f1b", 1800, NO_LIMIT),
        ("1f1b_overlap_friendly", 1299, 0),
        ("1f1b_overlap_friendly", 1300, 1),
        ("1f1b_overlap_friendly", 1800, NO_LIMIT),
        ("gpipe", 1799, -1),
        ("gpipe", 1800, NO_LIMIT),
        ("inference", 999, -1),
        ("inference", 1000, NO_LIMIT),
    ],
)
def test_successors_by_hand(schedule, limit, successors):
    stage = StageMemory(np.full((1, 1), 900.0), np.full((1, 1), 100.0), np.full((1, 1), 100.0))
    assert successors_that_fit(stage, MemoryLimits(limit), Run(8, schedule))[0, 0] == successors


def test_remat_keeps_the_layers_inputs_and_computes_the_rest_again():
    nothing = Operators.of([])
    layers = tuple(Layer(str(n), nothing, nothing, nothing, 5.0, 7.0) for n in range(2))
    tensors = (
        Tensor(10.0, "input", -1, (0, 3)),
        Tensor(20.0, "activation", 0, (1, 2)),  # what layer 1 takes in
        Tensor(300.0, "activation", 0, (3,)),  # what layer 0 keeps for its own backward
    )
    model = Model(layers, tensors)
    plain, again = (kept_by(model, MeshConfig((1, 1), 1, 1, remat=remat)) for remat in ("none", "layer"))
    assert plain.per_micro_batch[0, 1] == 330
    assert again.per_micro_batch[0, 1] == 30
    assert plain.temporary[0, 1] == 7
    assert again.temporary[0, 1] == 7 + 310


FOREIGN = MemoryResiduals({"peak": (0.03, -0.05, 0.04) * 8}, 8, "peaks elsewhere", "another framework")


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
    number = len(set(asked))
    assert f"{number} measured peaks in {number} groups (stages measured while planning)" in plan.notes[-1]


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


@pytest.mark.parametrize("figures", [(0.0, None), (float("nan"), None), (1.0, -1.0), (1.0, float("inf"))])
def test_a_measurement_that_cannot_be_is_refused(figures):
    with pytest.raises(ValueError, match="must be a finite number above 0"):
        StageMeasurement(*figures)


ALONE = MeshConfig((1, 1), 1, 1)


def test_a_tied_parameter_is_kept_once():
    nothing = Operators.of([])
    layers = tuple(Layer(str(n), nothing, nothing, nothing) for n in range(3))
    memory = ModelMemory.of(Model(layers, (Tensor(10.0, "parameter", -1, (0, 2, 3, 5)),)))
    assert memory.parameters[0, 2] == memory.parameters[0, 0] == memory.parameters[2, 2] == 10
    assert memory.parameters[1, 1] == 0


def test_gradients_are_counted_where_nothing_accumulates():
    nothing = Operators.of([])
    layers = (Layer("a", nothing, nothing, nothing),)
    tensors = (Tensor(10.0, "parameter", -1, (0, 1)), Tensor(7.0, "parameter", -1, (0,)))
    assert ModelMemory.of(Model(layers, tensors)).gradients[0, 0] == 10


@pytest.mark.parametrize("schedule", ["1f1b", "1f1b_overlap_friendly", "gpipe"])
@pytest.mark.parametrize("limit", [1000, 1250, 1500, 2000])
def test_successors_agree_with_the_peak(schedule, limit):
    stage, run = StageMemory(*(np.full((1, 1), x) for x in (800.0, 110.0, 100.0))), Run(6, schedule)
    most = successors_that_fit(stage, MemoryLimits(limit), run)[0, 0]
    for successors in range(8):
        fits = stage.peak(run.in_flight(successors))[0, 0] <= limit
        assert fits == (successors <= most)


def test_no_activations_set_no_limit():
    stage = StageMemory(np.full((1, 1), 10.0), np.zeros((1, 1)), np.zeros((1, 1)))
    assert successors_that_fit(stage, MemoryLimits(10.0), Run(4))[0, 0] == NO_LIMIT
    assert successors_that_fit(stage, MemoryLimits(9.0), Run(4))[0, 0] == -1


def test_one_device_keeps_all():
    model = chain(2)
    assert kept_by(model, ALONE).peak(3)[0, 1] == 2 * 4000 + 3 * 200


def test_zero_shares_more_with_each_level():
    model = chain(1)
    kept = [kept_by(model, MeshConfig((4, 1), 4, 1, zero=zero)).resident[0, 0] for zero in (0, 2, 3)]
    assert kept == [4000, 2000 + 2000 / 4, 4000 / 4]


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
    assert "runs out of memory with a probability of at most 49.00%" in plan.notes[-1]
    # Where a risk was chosen for residuals that are there, none is taken that is larger.
    with pytest.raises(NoPlanError, match="doesn't fit into memory"):
        decided(unsure(), cluster, MemoryMargin(residuals=MemoryResiduals({"peak": (-1e-3, 1e-3) * 2}, 2)))


def test_when_measured_peaks_say_that_nothing_fits_there_is_no_plan():
    cluster = example_cluster(1, memory_bytes=NARROW)
    with pytest.raises(NoPlanError, match="doesn't fit into memory"):
        decided(measuring(50.0, cluster, collectives=9.0)[0], cluster)
