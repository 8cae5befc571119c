"""The benchmark of OptEx: its rows by hand, its aims, and the functions and the pole that it trains."""

import jax.numpy as jnp
import numpy as np
import pytest

from ahead._plan import JUDGED, default_of, ways
from ahead._problems import Problem, _pole, ackley, rosenbrock, sphere
from ahead._report import figures, tables


def problem(name, kind):
    return Problem(name, kind, *[None] * 5, 0.1, 100)


def run(seed, reached):
    return {"rate": 1.0, "seed": seed, "losses": [4.0, 3.0, 2.0] + [1.0] * 20, "gradients": 200, "steps": 50,
            "reached": reached, "seconds": 1.0, "error": None, "cosine": 0.5}  # fmt: skip


def found(reached):
    """Results of one problem: the plain optimizer takes 60 steps, the default as many as are given for each seed."""
    one = problem("one", "function")
    rows = {f"one, plain, {seed}": run(seed, 60) for seed in JUDGED}
    rows |= {f"one, {default_of(one)}, {seed}": run(seed, steps) for seed, steps in zip(JUDGED, reached, strict=True)}
    return {"runs": rows, "targets": {"one": {"target": 1.5}}}, {"one": one}


def test_a_row_by_hand():
    table, *_ = tables(*found([30, 30, 30, 30, None]))
    assert table.title == "one: 100 steps at most, target 1.5"
    row = dict(zip(table.columns, table.rows[1], strict=True))
    ratio = np.exp(np.mean(np.log([0.5] * 4 + [150 / 60])))
    assert row["over plain"].startswith(f"{ratio:.2f} (")
    assert (row["way"], row["a step"], row["unreached"]) == ("optex, N = 5", "4.0", "1")
    assert (row["error"], row["cosine"], row["loss early"]) == ("", "0.50", "1")


@pytest.mark.parametrize(("steps", "held"), [(39, True), (41, False)])
def test_functions_have_an_aim_of_one_and_a_half(steps, held):
    (figure,) = figures(*found([steps] * 5))
    assert figure.held is held


def test_networks_have_aims_once_all_four_are_there():
    problems = {name: problem(name, "network") for name in "abcd"}
    rows = {}
    for name, steps in zip("abcd", (30, 50, 60, 64), strict=True):
        for seed in JUDGED:
            rows[f"{name}, plain, {seed}"] = run(seed, 60)
            rows[f"{name}, {default_of(problems[name])}, {seed}"] = run(seed, steps + seed % 2)
    faster, worst = figures({"runs": rows}, problems)
    assert (faster.measured, faster.held) == ("2 of 4", True)
    assert (worst.measured, worst.held) == ("1.07", False)
    assert len(figures({"runs": {k: v for k, v in rows.items() if not k.startswith("d")}}, problems)) == 0


def test_every_way_has_a_name_of_its_own():
    for kind in ("function", "network", "control"):
        names = [way.name for way in ways(problem("one", kind))]
        assert len(set(names)) == len(names)


def test_functions_are_least_where_they_should_be_and_the_pole_falls():
    for function, middle in ((ackley, 0.0), (sphere, 0.0), (rosenbrock, 1.0)):
        lowest = float(function(jnp.full(7, middle)))
        assert lowest == pytest.approx(0, abs=1e-4)
        assert float(function(jnp.full(7, middle + 0.3))) > 0.05
    # The first step of a pole at rest that is pushed: by hand, from the published equations.
    common = 10 / 1.1
    turned = -common / (0.5 * (4 / 3 - 0.1 / 1.1))
    after = _pole((0.0, 0.0, 0.0, 0.0), 1)
    assert [float(value) for value in after] == pytest.approx(
        [0, 0.02 * (common - 0.05 * turned / 1.1), 0, 0.02 * turned], rel=1e-5
    )
