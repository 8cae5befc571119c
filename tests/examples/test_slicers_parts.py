"""The parts of 004_slicers.py that need no model: programs, their answers, and the pictures of them."""

from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest
from matplotlib.figure import Figure

from alpa_dejavu.testing import random_problem
from demo import slicers
from demo.pictures import curves, save, strip
from demo.slicers import Answer, costs_over_time, runtimes


def drawn(figure: Figure) -> dict[str, list[tuple[float, float]]]:
    return {line.get_label(): [tuple(point) for point in line.get_xydata()] for line in figure.axes[0].lines}


def test_costs_stand_next_to_the_least_and_plans_that_are_none_are_left_out() -> None:
    problem = random_problem(np.random.default_rng(0))
    efforts = [lambda _: Answer(1.0, (), 2.0), lambda _: Answer(2.0, (), 3.0)]
    programs = {"a": efforts, "b": [lambda _: Answer(1.0, (), np.inf)]}
    assert drawn(costs_over_time(problem, programs)) == {"a": [(1.0, 0.0), (2.0, 50.0)]}


def test_programs_that_would_take_for_ever_are_not_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slicers, "MOST_LAYERS", {"slow": 3})
    problems = [random_problem(np.random.default_rng(0), num_layers=number) for number in (2, 3, 4)]
    programs = {name: lambda problem: Answer(problem.num_layers / 10, (), 1.0) for name in ("slow", "quick")}
    points = [(n, n / 10) for n in (2, 3, 4)]
    assert drawn(runtimes(problems, programs)) == {"slow": points[:2], "quick": points}


def test_a_picture_is_the_same_file_whenever_it_shows_the_same(tmp_path: Path) -> None:
    def written(folder: str) -> list[bytes]:
        (tmp_path / folder).mkdir()
        frame = np.array([[1.0, 0.0, 0.5], [0.0, 1.0, 0.01]])
        made = {
            "curves.svg": curves("Time & cost", "layers", "seconds", {"a <fast> one": [(1, 1e-3), (100, 1e-1)]}),
            "strip.svg": strip("anneal", "layers", "stages", [("T = 1", frame), ("T = 0", frame)]),
        }
        for name, figure in made.items():
            save(figure, tmp_path / folder / name)
        return [(tmp_path / folder / name).read_bytes() for name in made]

    first = written("first")
    assert written("second") == first
    words = [each.text for each in ElementTree.fromstring(first[0]).iter("{http://www.w3.org/2000/svg}text")]
    assert {"Time & cost", "layers", "seconds", "a <fast> one", "0.001", "100"} <= set(words)
