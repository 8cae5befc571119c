"""Steps off their prediction: the stage that causes it is named, and the next plan knows what its run has taught."""

import dataclasses
import itertools

import numpy as np
import pytest

from alpa_dejavu.calibration.history import PastRun, Store
from alpa_dejavu.calibration.measurement import MeasuredPlan, Note, StageNotes, StepNotes, measured
from alpa_dejavu.planning import Decisive, GivenStage, GivenStages, estimate, given_stages, plan
from alpa_dejavu.planning.changed.deviation import deviation, is_off, learned_correction, measured_run
from alpa_dejavu.planning.search._stage_times import stage_times, timeline_of
from alpa_dejavu.problem import Run, StageChoice
from alpa_dejavu.testing import example_cluster
from models import chain, costs_of, product, space, task_of

CLUSTER = dataclasses.replace(example_cluster(1, memory_bytes=2.0**36), cores=4)
SPACE, RUN = space(), Run(32)
MODEL = chain(8, flop=1e10, activation_bytes=1e4, parameter_bytes=1e6, exchanged=(1e4,) * 4)
TASK = task_of(MODEL, CLUSTER, SPACE, RUN)
COSTS = costs_of(MODEL, CLUSTER, SPACE, RUN)


def true_costs(slow):
    """The table of a machine on which stages of some numbers of devices take so many times what is predicted."""
    sizes = [submesh.num_devices for submesh in SPACE.submeshes]
    factors = np.array([slow.get(size, 1.0) for size in sizes])[:, None]
    names = ("compute_forward_s", "compute_backward_s", "collective_forward_s", "collective_backward_s")
    table = dataclasses.replace(COSTS.table, **{name: getattr(COSTS.table, name) * factors for name in names})
    return dataclasses.replace(COSTS, table=table)


def choices(made):
    found = []
    for given in given_stages(made):
        s = SPACE.submeshes.index(given.submesh)
        shapes = [config and config.shape for config in SPACE.configs[s]]
        found.append(StageChoice(given.first, given.last, s, shapes.index(given.config.shape)))
    return tuple(found)


def timeline(made, costs, factors=None):
    """The step of a plan by the true costs, its stages taking further factors."""
    times = stage_times(costs.table, choices(made), SPACE)
    if factors is not None:
        names = ("forward_s", "backward_s", "forward_collective_s", "backward_collective_s")
        times = [
            dataclasses.replace(of, **{name: getattr(of, name) * factor for name in names})
            for of, factor in zip(times, factors, strict=True)
        ]
    return timeline_of(times, CLUSTER, RUN)


def notes_of(line):
    """The notes that workers would take of a simulated step."""
    size, stages = line.num_stages, []
    for n in range(size):
        spans = [(span, n) for span in line.forward_s[n]] + [(span, 2 * size - 1 - n) for span in line.backward_s[n]]
        runs = [Note("run", task, float(a), float(b)) for (a, b), task in sorted(spans, key=lambda each: each[0][0])]
        stages.append(StageNotes(0.0, line.step_s, tuple(runs)))
    return StepNotes(0.0, line.step_s, tuple(stages))


def trained(made, line) -> MeasuredPlan:
    devices = [stage.submesh.num_devices for stage in made.stages]
    return measured([line.step_s] * 3, [notes_of(line)] * 3, RUN.num_micro_batches, RUN.schedule, devices)


def two_stages():
    """A plan of two stages, on two devices each."""
    found = COSTS.sliced(TASK.slicer, 2)
    stages = []
    for stage in found.stages:
        config = SPACE.configs[stage.submesh][stage.config]
        stages.append((stage.first, stage.last, SPACE.submeshes[stage.submesh], config))
    return plan(dataclasses.replace(TASK, chooser=GivenStages(tuple(GivenStage(*each) for each in stages)))).plan


@pytest.mark.parametrize("slow", [0, 1])
@pytest.mark.parametrize("factor", [2.0, 0.4])
def test_the_stage_that_is_off_is_named(slow, factor):
    made = two_stages()
    # A stage that is faster shortens a step only if the other one isn't the slower one anyway.
    factors = [factor if n == slow or factor < 1 else 1.0 for n in range(2)]
    line = timeline(made, COSTS, factors)
    found = deviation(TASK, made, trained(made, line))
    if factor > 1:
        assert found.stage == slow
    assert found.factor == pytest.approx(factor, rel=1e-6)
    said = str(found)
    assert f"stage {found.stage} (" in said
    assert f"computes {factor:.2f} times as long as predicted" in said
    of_stage = measured_run(TASK, made, trained(made, line)).stages[slow]
    assert of_stage.computing_s == pytest.approx(factor * of_stage.predicted_computing_s, rel=1e-6)


def test_what_no_stage_computes_is_no_stages_fault():
    made = two_stages()
    found = trained(made, timeline(made, COSTS))
    late = dataclasses.replace(found, steps_s=(3 * made.step_s,))
    told = deviation(TASK, made, late)
    assert told.stage is None
    assert told.factor == 1.0
    assert "transfers, waiting or what comes once a step" in str(told)


def test_a_step_inside_its_interval_is_not_off():
    made = two_stages()
    low, high = made.confidence.interval_s
    assert low < made.step_s < high
    assert not is_off(made, [low, made.step_s, high])
    assert not is_off(made, [99 * high, made.step_s, low]), "one hiccup isn't the median"
    assert is_off(made, [1.01 * high] * 3)
    assert is_off(made, [0.99 * low] * 3)
    assert not is_off(dataclasses.replace(made, confidence=None), [99 * high] * 3)


def regret(made, costs):
    """The true step of a plan over that of the best one of all plans, each of whose stages is tried."""
    best = min(one.step_s for one in every_plan(costs))
    return timeline(made, costs).step_s / best


def every_plan(costs):
    """Every cut of the layers into stages that take all four devices, by brute force over the true costs."""
    for count in range(1, 5):
        for cuts in itertools.combinations(range(1, 8), count - 1):
            ends = (0, *cuts, 8)
            for where in itertools.product(range(len(SPACE.submeshes)), repeat=count):
                if sum(SPACE.submeshes[s].num_devices for s in where) != 4:
                    continue
                for configs in itertools.product(range(3), repeat=count):
                    if any(SPACE.configs[s][c] is None for s, c in zip(where, configs, strict=True)):
                        continue
                    spans = zip(ends, ends[1:], where, configs, strict=False)
                    stages = [StageChoice(a, b - 1, s, c) for a, b, s, c in spans]
                    yield timeline_of(stage_times(costs.table, stages, SPACE), CLUSTER, RUN)


def test_the_next_start_of_a_job_plans_right(tmp_path):
    """The first plan is one stage on four devices, which really takes 3.5 times as long; after its run another one is
    planned, and what was learned is as good as knowing the true costs.
    """
    true, store = true_costs({4: 3.5}), Store(tmp_path / "history.sqlite")
    first = plan(TASK).plan
    assert [stage.submesh.num_devices for stage in first.stages] == [4]
    line = timeline(first, true)
    assert is_off(first, [line.step_s])
    assert regret(first, true) > 1.5
    told = deviation(TASK, first, trained(first, line))
    assert (told.stage, told.factor) == (0, pytest.approx(3.5))
    store.append(measured_run(TASK, first, trained(first, line)))
    next_task = dataclasses.replace(TASK, learned=store.runs())
    second = plan(next_task).plan
    assert [stage.submesh.num_devices for stage in second.stages] != [4]
    assert given_stages(told.now) == given_stages(second)
    assert "would be chosen" in str(told)
    assert told.matters
    assert told.stays_s == pytest.approx(line.step_s, rel=0.05)
    barely = dataclasses.replace(told.now, step_s=0.97 * told.stays_s)
    assert not dataclasses.replace(told, now=barely).matters
    assert not dataclasses.replace(told, now=first).matters
    assert regret(second, true) < 1.1
    # What the first plan would take is known, too.
    again = plan(dataclasses.replace(next_task, chooser=GivenStages(tuple(given_stages(first))))).plan
    assert again.step_s == pytest.approx(line.step_s, rel=0.05)
    assert not is_off(again, [line.step_s])
    # And once the second plan's run is known, too, both are predicted about as they were measured.
    later = timeline(second, true)
    store.append(measured_run(next_task, second, trained(second, later)))
    both = dataclasses.replace(TASK, learned=store.runs())
    assert regret(plan(both).plan, true) < 1.1
    for made, seen in ((first, line), (second, later)):
        known = plan(dataclasses.replace(both, chooser=GivenStages(tuple(given_stages(made))))).plan
        assert known.step_s == pytest.approx(seen.step_s, rel=0.3)
        assert not is_off(known, [seen.step_s])


def test_a_run_keeps_what_was_predicted_without_past_runs():
    first = plan(TASK).plan
    line = timeline(first, true_costs({4: 3.5}))
    run = measured_run(TASK, first, trained(first, line))
    learned = dataclasses.replace(TASK, learned=(run,))
    again = plan(dataclasses.replace(learned, chooser=GivenStages(tuple(given_stages(first))))).plan
    second = measured_run(learned, again, trained(again, line))
    assert learned_correction(learned, again).factor == pytest.approx(again.step_s / first.step_s)
    assert second.predicted_s == run.predicted_s
    assert second.stages == run.stages


def test_runs_of_another_shape_and_runs_without_stages_change_nothing():
    first = plan(TASK).plan
    run = measured_run(TASK, first, trained(first, timeline(first, true_costs({4: 3.5}))))
    other = task_of(chain(6, flop=1e10, exchanged=(1e4,) * 4), CLUSTER, SPACE, RUN)
    alone = plan(other).plan
    assert plan(dataclasses.replace(other, learned=(run,))).plan.step_s == alone.step_s
    unseen = PastRun(run.plan, run.origin, run.predicted_s, run.steps_s)
    assert plan(dataclasses.replace(TASK, learned=(unseen,))).plan.step_s == first.step_s


def with_layers(factors):
    """Eight layers that are alike but for so many times the products of the first ones."""
    layers = chain(8, parameter_bytes=2e8, activation_bytes=1e4)
    return dataclasses.replace(
        layers,
        layers=tuple(
            dataclasses.replace(layer, forward=product(1e10 * factor), backward=product(2e10 * factor))
            for layer, factor in zip(layers.layers, factors, strict=True)
        ),
    )


@pytest.mark.parametrize("true", [(4.0,) * 4 + (1.0,) * 4, (1.0,) * 5 + (6.0,) * 3])
def test_alike_layers_that_take_unlike_times_move_to_other_stages_where_that_pays(true):
    """While a plan trains, each look learns from its run; three looks tell as much as knowing the truth."""
    cluster, run = example_cluster(2, 1, memory_bytes=1e10), Run(8)
    task = task_of(with_layers((1.0,) * 8), cluster, space(1, 1), run)

    def taken(made):
        return estimate(with_layers(true), cluster, run, given_stages(made))

    first = running = plan(task).plan
    assert first.layer_ids == [[0, 1, 2, 3], [4, 5, 6, 7]]
    for _ in range(3):
        line = taken(running).timeline
        found = measured([line.step_s] * 3, [notes_of(line)] * 3, run.num_micro_batches, run.schedule, [1, 1])
        told = deviation(task, running, found)
        gained_s = told.saved_s(10_000, restart_s=0.0) + told.moves.seconds
        assert gained_s == pytest.approx(10_000 * (told.stays_s - told.now.step_s))
        assert told.saved_s(0, restart_s=5.0) == -told.moves.seconds - 5.0
        task = dataclasses.replace(task, learned=(*task.learned, measured_run(task, running, found)))
        running = told.now
    assert told.stays_s == pytest.approx(line.step_s, rel=0.2)
    best = plan(task_of(with_layers(true), cluster, space(1, 1), run)).plan
    assert taken(running).plan.step_s == pytest.approx(taken(best).plan.step_s, rel=0.02)
    assert taken(running).plan.step_s < 0.85 * taken(first).plan.step_s


def test_stages_that_past_runs_know_are_not_measured_again():
    """A chooser that measures what decides begins with what past runs have shown."""
    first = plan(TASK).plan
    run = measured_run(TASK, first, trained(first, timeline(first, true_costs({4: 3.5}))))
    told = dataclasses.replace(TASK, learned=(run,), chooser=Decisive(lambda stage: None, 0.0))
    assert [stage.submesh.num_devices for stage in plan(told).plan.stages] != [4]
    assert [stage.submesh.num_devices for stage in plan(dataclasses.replace(told, learned=())).plan.stages] == [4]
