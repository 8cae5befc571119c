"""The parts of the examples."""

import importlib.util
import json
import sys
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest
from matplotlib.figure import Figure

from alpa_dejavu.testing import random_problem
from alpa_dejavu.training.initialization import Curve, Initialized
from demo import slicers
from demo.pictures import curves, save, strip
from demo.slicers import Answer, costs_over_time, runtimes
from demo.text import batches, standard_library
from demo.training import Job, create_state, largest_relative_difference, train_on_one_device
from digits.plots import plots_page, smoothed, steps_to
from pages import page_data


def test_the_difference_is_that_of_the_worst_tensor() -> None:
    expected = {"a": np.ones(4), "b": np.full(4, 10.0)}
    actual = {"a": np.ones(4), "b": np.array([10.0, 10.0, 10.0, 14.0])}
    assert largest_relative_difference(actual, expected) == 0.2


def test_one_device_learns() -> None:
    job = Job(batch_size=4)
    data = batches(standard_library(), job.batch_size, job.config.length, job.seed)
    first = next(data)
    _, losses = train_on_one_device(create_state(job), [first] * 4)
    assert losses[-1] < losses[0]


def made():
    generator = np.random.default_rng(0)
    curves = []
    for number, steps in enumerate((50, 10, 0)):
        weights = generator.standard_normal((2, 30))
        why = "chosen" if number == 0 else "place 2 of 3"
        losses, dropped = 3.0 / np.arange(1, steps + 1), None if number == 0 else steps
        curves.append(Curve(number=number, dropped_step=dropped, why=why, losses=losses, relative_gradients=losses,
                            started=weights[0], ended=weights[1]))  # fmt: skip
    return Initialized(state={}, chosen=0, steps=50, total_steps=60, padded_steps=0, diverged=1, lost=0, restarts=0,
                       seconds=1.0, seed=0, rungs=(10,), curves=tuple(curves))  # fmt: skip


def test_smoothed_losses_are_means_of_what_came_before():
    losses = np.arange(30, dtype=float)
    assert smoothed(losses)[3] == 1.5
    assert smoothed(losses)[29] == pytest.approx(np.mean(losses[10:]))
    assert steps_to(losses[::-1], 20.0) == 19
    assert steps_to(losses, -1.0) is None


def test_plots_show_where_candidates_were_dropped():
    curves, workers, weights = map(json.dumps, page_data(plots_page(made(), {1: 50, 2: None}))["charts"].values())
    assert "candidate 1: place 2 of 3" in curves
    assert "candidate 2" not in curves, "it has no step"
    assert '"x": ["1", "2"]' in workers
    assert "candidate 2" in weights


@pytest.fixture
def example():
    file = Path(__file__).parents[2] / "examples" / "006_parallel_initialization.py"
    spec = importlib.util.spec_from_file_location("example_006", file)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize(("said", "is_demo"), [
    (["--to_demo", "False"], False), (["--to_demo", "True"], True), (["--to_demo"], True), (["--to-demo"], True),
    ([], False),
])  # fmt: skip
def test_the_command_line_says_whether_it_is_the_demo(example, monkeypatch, said, is_demo):
    monkeypatch.setattr(sys, "argv", ["006", "--num_workers", "2", "--epochs", "3", "--demo_epochs", "1", *said])
    given = example._arguments()
    assert (given.num_workers, given.epochs, given.demo_epochs, given.to_demo) == (2, 3, 1, is_demo)


def test_the_first_command_line_trains_with_one_worker_and_with_two(example, monkeypatch, capsys):
    sizes = []

    def few(most):
        sizes.append(most)
        return example_digits(40)

    example_digits = example.digits
    monkeypatch.setattr(example, "digits", few)
    line = ["--num_workers", "2", "--epochs", "16", "--demo_epochs", "1", "--to_demo", "False", "--no-ray"]
    monkeypatch.setattr(sys, "argv", ["006", *line, "--init", "xavier", "sobol"])
    example.main()
    said = capsys.readouterr().out
    assert sizes == [None]
    assert "1 worker : target after 16 steps" in said
    assert "begun by" in said


def test_what_cannot_be_written_is_refused_before_anything_is_trained(example, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(example, "digits", lambda most: pytest.fail("something is trained"))
    for option, path, said in [
        ("--json", tmp_path / "no" / "out.json", f"there is no folder {tmp_path / 'no'}; make it first"),
        ("--json", tmp_path, "it is a folder; name a file in it"),
        ("--html", tmp_path, "it is a folder; name a file in it"),
    ]:
        monkeypatch.setattr(sys, "argv", ["006", option, str(path)])
        with pytest.raises(SystemExit):
            example.main()
        assert said in capsys.readouterr().err


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
