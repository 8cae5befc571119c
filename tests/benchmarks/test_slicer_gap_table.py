"""The slicers' table: its problems, the sketch's program, whose fault a difference is, and what is written."""

import dataclasses
import itertools
import json

import numpy as np
import pytest

import test_slicer_gap
from alpa_dejavu.slicing import AmpPipe, Dynamic, Exhaustive
from harness import Figure, timed
from slicers import _alpa, _makespans, _relaxed, _same_optimum, _sketch
from slicers._figure import QUICK, Part, Scale
from slicers._makespans import by_the_formula, with_transfers
from slicers._pipe_dp import as_slicing, cost, drawn, on_unlike_hosts, pipe_dp, pipe_dp_within, starts_of
from slicers._problems import SIZED, by_work, powers, sized


def test_the_sketchs_program_finds_the_least_of_all_cuts():
    for seed, (num_layers, num_stages) in enumerate([(6, 3), (7, 2), (5, 5), (4, 1), (8, 4)]):
        layers_s, cuts_s = drawn(num_layers, num_stages, seed)
        cuts = itertools.combinations(range(1, num_layers), num_stages - 1)
        least = min(cost(layers_s, cuts_s, starts) for starts in cuts)
        assert cost(layers_s, cuts_s, pipe_dp(layers_s.tolist(), cuts_s.tolist(), num_stages)) == least


def test_the_sketchs_problem_as_a_slicing_problem_costs_what_all_layers_cost_more():
    for seed in range(4):
        layers_s, cuts_s = drawn(5, 3, seed)
        problem = as_slicing(layers_s, cuts_s, 3)
        truth, found = Exhaustive().slice(problem), Dynamic().slice(problem)
        amps = AmpPipe().slice(on_unlike_hosts(layers_s, cuts_s, 3))
        starts = pipe_dp(layers_s.tolist(), cuts_s.tolist(), 3)
        assert truth.cost_s == found.cost_s == cost(layers_s, cuts_s, starts) + layers_s.sum()
        assert [stage.submesh for stage in found.stages] == [0, 1, 2]
        for stages in (found.stages, amps.stages):
            assert cost(layers_s, cuts_s, starts_of(stages)) == cost(layers_s, cuts_s, starts)


def test_the_sketchs_program_is_stopped_and_its_time_is_a_bound(monkeypatch):
    layers_s, cuts_s = drawn(40, 16)
    assert pipe_dp_within(0.0, layers_s, cuts_s, 16) is None
    monkeypatch.setattr(_sketch, "pipe_dp_within", lambda *_: None)
    part = _sketch.measured(dataclasses.replace(QUICK, sketch=((12, 4),), sketch_patience_s=1e6))
    assert part.details["sizes"][0]["pipe_dp_cost"] is None
    assert part.figures[0].held
    assert "stopped" in part.figures[0].measured
    monkeypatch.setattr(_sketch, "pipe_dp_within", lambda *_: (1e6, (1, 2, 3)))
    part = _sketch.measured(dataclasses.replace(QUICK, sketch=((12, 4),)))
    assert not part.figures[0].held


def test_sized_problems_are_what_they_are_called():
    for name, size in SIZED.items():
        if size.layers > 64:
            continue
        problem = sized(name)
        assert (problem.num_layers, problem.num_devices) == tuple(map(int, name.split()[0].split("/")))
        assert problem.costs_s.shape[3] == size.configs
        below = np.tril_indices(problem.num_layers, -1)
        assert np.isinf(problem.costs_s[below]).all()
        ranges = size.layers * (size.layers + 1) // 2
        assert np.isfinite(problem.costs_s).sum() == size.configs * len(size.submeshes) * ranges
        assert problem.room.min() >= -1
    assert len(SIZED["64/512"].submeshes) == len(SIZED["256/4096"].submeshes) == 14
    assert (sized("8/8").costs_s == sized("8/8").costs_s).all()


def test_our_optimum_on_small_tables_is_that_of_all_slicings():
    figures, details = _same_optimum._against_all(8)
    assert figures[0].held
    assert details["exhaustive_worst"] <= 1e-9


@pytest.mark.parametrize(
    ("far_off", "cause"),
    [(lambda scale: 1.01, "float32"), (lambda scale: 1.01 if scale == 1 else 1.0, "steps of 1e-6 s")],
)
def test_why_alpas_program_is_dearer(monkeypatch, far_off, cause):
    problem = by_work(np.random.default_rng(0), 4, 4, powers(4), 8)
    optimum = Dynamic().slice(problem).cost_s

    def solve(peer, asked):
        factor = asked.costs_s[0, 0, 0, 0] / problem.costs_s[0, 0, 0, 0]
        return _alpa.Solved(0.0, (), optimum * factor * far_off(factor), 0.0)

    monkeypatch.setattr(_same_optimum, "solve", solve)
    rows = list(_same_optimum._against_peers("it", problem))
    assert [row["cause"] for row in rows] == [cause, cause]
    assert rows[0]["excess"] == pytest.approx(0.01)
    assert _same_optimum._never_costlier("random", "training_dp", rows[:1]).held


def test_a_cheaper_plan_of_alpas_is_a_miss(monkeypatch):
    problem = by_work(np.random.default_rng(0), 4, 4, powers(4), 8)
    optimum = Dynamic().slice(problem).cost_s
    monkeypatch.setattr(_same_optimum, "solve", lambda *_: _alpa.Solved(0.0, (), 0.99 * optimum, 0.0))
    rows = list(_same_optimum._against_peers("it", problem))
    assert not _same_optimum._never_costlier("random", "training_dp", rows[:1]).held


def test_it_ends_with_1_where_a_figure_is_missed_and_writes_all(monkeypatch, tmp_path, capsys):
    held, missed = Figure("dynamic", "a", "1 s", "0.5 s", True), Figure("gradient", "b", "1 %", "2 %", False)
    scales: list[Scale] = []

    def part(*figures):
        return lambda scale: scales.append(scale) or Part(figures, {"rows": [1.0]})

    monkeypatch.setattr(test_slicer_gap, "PARTS", {"good": part(held), "bad": part(held, missed)})
    out = tmp_path / "out.json"
    assert test_slicer_gap.main(["--only", "good"]) == 0
    assert test_slicer_gap.main(["--quick", "--json", str(out)]) == 1
    assert scales == [Scale(), QUICK, QUICK]
    written = json.loads(out.read_text())
    assert [figure["held"] for figure in written["figures"]] == [True, True, False]
    assert written["parts"]["bad"]["rows"] == [1.0]
    assert "2 of 3 figures are held" in capsys.readouterr().out


def test_the_median_of_short_runs_and_one_long_one(monkeypatch):
    clock = iter([0.0, 1.0, 1.0, 4.0, 4.0, 6.0])
    monkeypatch.setattr("time.perf_counter", lambda: next(clock))
    assert timed(lambda: "it", repeats=9) == (2.0, "it")
    assert next(clock) == 4.0


def test_problems_with_transfers_have_a_step_that_is_not_the_formulas():
    off = []
    for seed in range(6):
        problem = with_transfers(seed)
        found = Dynamic().slice(by_the_formula(problem))
        off.append(problem.total_s(found.stages) / found.cost_s - 1)
        assert problem.sites is not None
        assert len(np.unique(problem.sites.links)) > 1
    assert np.isfinite(off).all()
    assert sum(abs(each) > _makespans.DIFFERENT for each in off) >= 3


def test_makespans_are_held_by_who_is_better_where_plans_differ():
    row = {"dp_said_s": 1.0, "dp_s": 2.0, "gradient_s": 1.9, "gradient_alone_s": 1.9, "mcmc_s": 1.95}
    better = row | {"mcmc_alone_s": 1.95}
    worse = better | {"gradient_s": 2.0, "gradient_alone_s": 2.5, "mcmc_s": 1.8}
    assert _makespans._better([better, worse]).held
    assert not _makespans._better([better, worse, worse]).held
    assert _makespans._never_worse([better, worse]).held
    assert not _makespans._never_worse([worse | {"gradient_s": 2.1}]).held
    assert _makespans._than_mcmc([better, better, worse]).held is False
    assert _makespans._than_mcmc([better]).held
    assert "better on 1, worse on 0, 2.6 % less" in _makespans._than_mcmc([better]).measured


def test_gaps_are_held_by_their_shares():
    rows = [{"before": 0.04, "after": 0.0}] * 19 + [{"before": 0.06, "after": 0.04}]
    shown = list(_relaxed._gaps([row | {"unannealed": 0.1} for row in rows]))
    assert [figure.held for figure in shown] == [True, True, True]
    assert "after a single round 10 %" in shown[1].measured
    rows = [{"before": 0.06, "after": 0.02}] * 2 + [{"before": 0.04, "after": 0.051}] * 6
    shown = list(_relaxed._gaps([row | {"unannealed": 0.0} for row in rows]))
    assert [figure.held for figure in shown] == [False, False, False]


def test_relaxed_problems_are_of_few_shapes_and_can_be_solved():
    found = list(_relaxed.problems(8))
    assert len({problem.costs_s.shape for _, problem in found}) == len(_relaxed.SHAPES)
    assert all(Dynamic().slice(problem).found for _, problem in found)
