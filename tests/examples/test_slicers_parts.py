"""The parts of 004_slicers.py that need no model: programs, their answers, and the pictures of them."""

from xml.etree import ElementTree

import numpy as np
import pytest

from alpa_dejavu.testing import random_problem
from demo import slicers
from demo.slicers import Answer, answers, costs_over_time, ours, runtimes

SVG = "{http://www.w3.org/2000/svg}"


def said(svg: str) -> list[str]:
    return [each.text or "" for each in ElementTree.fromstring(svg).iter(f"{SVG}title")]


def test_the_first_call_does_not_count() -> None:
    seconds = iter([9.0, 1.0])
    problem = random_problem(np.random.default_rng(1), limited=False)
    found = answers(problem, {"it": lambda asked: Answer(next(seconds), (), float(asked.num_layers))})
    assert found["it"].seconds == 1.0
    exact = answers(problem, {"dynamic": ours("dynamic"), "exhaustive": ours("exhaustive")})
    assert exact["dynamic"].cost_s == pytest.approx(exact["exhaustive"].cost_s)
    assert exact["dynamic"].lower_bound_s == exact["dynamic"].cost_s


def test_costs_stand_next_to_the_least_and_plans_that_are_none_are_left_out() -> None:
    problem = random_problem(np.random.default_rng(0))
    efforts = [lambda _: Answer(1.0, (), 2.0), lambda _: Answer(2.0, (), 3.0)]
    programs = {"a": efforts, "b": [lambda _: Answer(1.0, (), np.inf)]}
    assert said(costs_over_time(problem, programs)) == ["a: 1, 0", "a: 2, 50"]


def test_programs_that_would_take_for_ever_are_not_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slicers, "MOST_LAYERS", {"slow": 3})
    problems = [random_problem(np.random.default_rng(0), num_layers=number) for number in (2, 3, 4)]
    programs = {name: lambda problem: Answer(problem.num_layers / 10, (), 1.0) for name in ("slow", "quick")}
    expected = [f"slow: {n}, {n / 10}" for n in (2, 3)] + [f"quick: {n}, {n / 10}" for n in (2, 3, 4)]
    assert said(runtimes(problems, programs)) == expected
