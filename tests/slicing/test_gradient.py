"""The slicer that goes down a gradient: what it owes, how near it comes, and what it takes that a recurrence can't."""

from __future__ import annotations

import dataclasses
import functools
import math
import subprocess
import sys

import jax
import numpy as np
import pytest

from alpa_dejavu.problem import Sites, SlicingProblem
from alpa_dejavu.simulation.step import StageTimes, simulate
from alpa_dejavu.slicing import Dynamic, Exhaustive, Gradient, slicer
from alpa_dejavu.slicing.makespan import Makespan, least_makespan_floor
from alpa_dejavu.slicing.relaxation import RelaxedPlan
from alpa_dejavu.slicing.relaxation._chain import anneal
from alpa_dejavu.slicing.relaxation._lattice import Lattice
from alpa_dejavu.slicing.relaxation._recombine import recombined
from alpa_dejavu.slicing.relaxation.pipeline import many, pipeline_s, recurrence_s
from alpa_dejavu.testing import check_slicer, random_problem

# One shape of arrays for all of them: what is compiled once takes longer than all the rest.


def test_it_conforms():
    assert slicer("gradient") == Gradient()
    check_slicer(Gradient(), problems=20)


def test_more_kinds_of_hosts_than_can_be_numbered():
    kinds = 20
    costs_s = np.full((2, 2, kinds, 1), np.inf)
    costs_s[np.triu_indices(2)] = 1.0
    ones = np.ones(kinds, dtype=np.int64)
    sites = Sites(np.diag(ones), 8 * ones, np.zeros((kinds, kinds), dtype=np.int64), np.zeros((2, 1)))
    problem = SlicingProblem(costs_s, ones, 8 * kinds, 2, devices="at most", sites=sites)
    assert recombined(Lattice(problem), np.array([[0, 1]]), np.ones(1)) is None


@pytest.fixture
def no_exact_slicer(monkeypatch):
    def called(*_):
        raise AssertionError("an exact slicer was asked")

    with monkeypatch.context() as patched:
        for exact in (Dynamic, Exhaustive):
            patched.setattr(exact, "slice", called)
        yield patched


def test_near_the_optimum_from_random_starts(no_exact_slicer):
    rng = np.random.default_rng(3)
    problems = [random_problem(rng, int(rng.integers(5, 9)), 8, limited=bool(n % 2)) for n in range(30)]
    polished = [Gradient().slice(problem) for problem in problems]
    recovered = [Gradient(polish=False).slice(problem) for problem in problems]
    no_exact_slicer.undo()
    optima = np.array([Dynamic().slice(problem).cost_s for problem in problems])
    gaps, before = (np.array([each.cost_s for each in found]) / optima - 1 for found in (polished, recovered))
    assert (gaps <= 0.01).mean() >= 0.95
    assert (gaps <= 0.05).all()
    assert (before <= 0.05).mean() >= 0.8
    assert all(each.lower_bound_s <= optimum * (1 + 1e-9) for each, optimum in zip(polished, optima, strict=True))
    assert np.mean([each.lower_bound_s for each in polished] / optima) > 0.7


def _with_links(seed):
    """Two kinds of hosts, and links between them that take long; by the simulated step."""
    problem = random_problem(np.random.default_rng(seed), 8, 6, 1, limited=False, num_kinds=2)
    rng = np.random.default_rng(seed)
    ends = np.concatenate([[0.0], np.cumsum(rng.uniform(0.5, 1.5, 8))])
    work = np.maximum(ends[None, 1:] - ends[:-1, None], 0.0)[:, :, None, None]
    costs = work / problem.submesh_sizes[:, None] * rng.uniform(1, 1.3, problem.costs_s.shape)
    sites = dataclasses.replace(problem.sites, crossing_s=problem.sites.crossing_s / 5)
    return dataclasses.replace(
        problem, costs_s=costs, sites=sites, num_micro_batches=8, devices="at most", objective=Makespan(costs / 3)
    )


def test_by_the_simulated_step_it_beats_the_recurrence():
    better = 0
    for seed in range(5):
        problem = _with_links(seed)
        planned = Dynamic().slice(dataclasses.replace(problem, objective="training"))
        planned_s = problem.total_s(planned.stages)
        alone = Gradient().slice(problem)
        assert Gradient(plans=(planned.stages,)).slice(problem).cost_s <= planned_s
        assert alone.lower_bound_s == pytest.approx(least_makespan_floor(problem))
        better += alone.cost_s < planned_s * (1 - 1e-9)
    assert better >= 2


def few_devices(plan):
    """Seconds, and as much again for devices that are used, and for memory that is overrun."""
    return recurrence_s(plan) * (1 + plan.devices.sum()) + 5 * plan.risk.sum()


def test_any_differentiable_cost_is_taken():
    problem = random_problem(np.random.default_rng(8), 4, 4, limited=False)
    problem = dataclasses.replace(problem, devices="at most")
    found = Gradient(cost=few_devices).slice(problem)
    used = sum(int(problem.submesh_sizes[stage.submesh]) for stage in found.stages)
    ours = found.cost_s * (1 + used / problem.num_devices)
    least = math.inf
    for num_devices in (1, 2, 3, 4):
        exactly = dataclasses.replace(problem, num_devices=num_devices, devices="exactly")
        least = min(least, Exhaustive().slice(exactly).cost_s * (1 + num_devices / problem.num_devices))
    assert ours == pytest.approx(least, rel=1e-5)
    assert used < problem.num_devices


def test_what_cannot_be_has_no_plan():
    costs = np.full((3, 3, 1, 1), 1.0)
    costs[:, 1:2], costs[:2, 2:] = np.inf, np.inf
    problem = SlicingProblem(costs, [1], 3, 4)
    found = Gradient().slice(problem)
    assert not found.found
    assert math.isinf(found.lower_bound_s)
    assert Gradient().traced(problem)[1] is None
    nowhere = SlicingProblem(np.ones((2, 2, 1, 1)), [1], 2, 4, sites=Sites([[0, 1]], [2, 0], [[0]], np.zeros((2, 1))))
    assert not Gradient().slice(nowhere).found


@pytest.mark.parametrize("field", ["starts", "rounds"])
@pytest.mark.parametrize("value", [0, -1, 1.5, math.nan])
def test_bad_numbers_are_named(field, value):
    with pytest.raises(ValueError, match=f"gradient: {field} is {value}"):
        Gradient(**{field: value})


def test_jax_is_imported_only_where_it_is_used():
    said = "import sys, alpa_dejavu.slicing; print('jax' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", said], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"


PLACES, PLANS, MICRO_BATCHES = 8, 64, 8
step_s = functools.partial(pipeline_s, most_micro_batches=MICRO_BATCHES)


def _plans(seed):
    """Of one to eight stages, with transfers that take time and some that take none."""
    rng = np.random.default_rng(seed)
    count, size = rng.integers(1, PLACES + 1, PLANS), rng.integers(1, MICRO_BATCHES + 1, PLANS)
    there = np.arange(PLACES) < count[:, None]
    forward, backward, once, crossing, *rest = (rng.random((6, PLANS, PLACES)) * there).astype(np.float32)
    crossing *= rng.random(crossing.shape) < rng.choice([0.0, 0.6, 1.0], (PLANS, 1))
    crossing[:, 0] = 0.0
    return RelaxedPlan(forward, backward, once, crossing, *rest, count.astype(np.int32), size.astype(np.int32))


def test_it_is_the_simulated_step():
    plans = _plans(0)
    found = np.asarray(many(step_s, plans))
    for n, step in enumerate(found):
        count = int(plans.num_stages[n])
        half = [*(plans.crossing_s[n, :count] / 2).tolist(), 0.0]
        stages = [
            StageTimes(
                float(plans.forward_s[n, k]), float(plans.backward_s[n, k]), float(plans.once_s[n, k]),
                forward_send_s=half[k + 1], backward_send_s=half[k],
            )
            for k in range(count)
        ]  # fmt: skip
        assert step == pytest.approx(simulate(stages, int(plans.num_micro_batches[n])).step_s, rel=1e-5)


def test_its_gradient_says_what_is_waited_for():
    """One step more or less in a stage's forward moves the whole by as many as are on the longest way."""
    plan = jax.tree_util.tree_map(lambda part: part[5], _plans(1))
    gradients = jax.jit(jax.grad(lambda forward: step_s(plan._replace(forward_s=forward))))
    gradient = np.asarray(gradients(plan.forward_s))
    assert (gradient[int(plan.num_stages) :] == 0).all()
    assert gradient.max() >= 1
    slower = plan._replace(forward_s=plan.forward_s + 1e-3 * (np.arange(PLACES) == gradient.argmax()))
    steps = np.asarray(many(step_s, jax.tree_util.tree_map(lambda *parts: np.stack(parts * 32), slower, plan)))
    assert steps[0] - steps[1] == pytest.approx(1e-3 * gradient.max(), rel=0.05)


def test_the_anneal_is_what_finds_them():
    """Without it, what is drawn from random bounds and prices is worse."""
    rng = np.random.default_rng(5)
    problems = [random_problem(rng, 8, 8, limited=False) for _ in range(6)]
    for problem in problems:
        values = anneal(Lattice(problem), 16, 24, 0).values
        first, last = values[0], values[-1]
        assert np.abs(last - np.median(last)).mean() < np.abs(first - np.median(first)).mean()


@pytest.mark.parametrize(
    ("costs_s", "rooms", "once_s", "configs"),
    [
        # The one in between is needed.
        ((1.0, 1.1, 2.0), (1, 3, 8), (0.0, 0.0, 0.0), [1, 1, 0, 0]),
        # The last one has no more room than the one before, and weighs more than the first, but no other has both.
        ((1.0, 1.1, 1.2), (1, 3, 3), (0.0, 3.9, 0.8), [2, 2, 0, 0]),
    ],
)
def test_segments_get_the_config_that_memory_asks_for(costs_s, rooms, once_s, configs):
    costs = np.full((8, 8, 1, 3), np.inf)
    costs[np.triu_indices(8)] = np.array(costs_s)
    room, once = (np.broadcast_to(np.array(values), costs.shape) for values in (rooms, once_s))
    lattice = Lattice(SlicingProblem(costs, [1], 4, 8, room, once))
    segments = np.array([(n, n + 1) for n in range(0, 8, 2)])
    found = recombined(lattice, segments, np.array([max(costs_s[config] for config in configs) / lattice.unit_s]))
    assert [stage.config for stage in found.stages(0)] == configs


@pytest.mark.parametrize(("schedule", "sends"), [("gpipe", "overlapped"), ("1f1b", "buffered")])
def test_plans_are_compared_by_the_schedule_that_is_asked_for(schedule, sends):
    problem = _with_links(1)
    problem = dataclasses.replace(problem, objective=Makespan(problem.objective.forward_s, schedule, sends))
    found = Gradient().slice(problem)
    assert found.cost_s == problem.total_s(found.stages)


def test_the_anneal_can_be_told():
    problem = random_problem(np.random.default_rng(2), 7, 8, limited=False)
    found, trace = Gradient().traced(problem)
    by_layer = trace.assignment.sum(axis=2)
    assert trace.assignment.shape[:2] == (Gradient().rounds, 7)
    np.testing.assert_allclose(by_layer, 1.0, atol=0.02)
    first, last = (np.sort(trace.assignment[n], axis=1)[:, -1].mean() for n in (0, -1))
    assert last > max(first, 0.9)
    assert (np.diff(trace.temperature_s) < 0).all()
    assert found.cost_s > 0
    _, trace = Gradient().traced(_with_links(2))
    np.testing.assert_allclose(trace.assignment.sum(axis=2), 1.0, atol=0.02)
