"""What the example of parallel initialization draws and says."""

import importlib.util
import sys
from pathlib import Path

import numpy as np
import pytest

from alpa_dejavu.training.initialization import Curve, Initialized
from digits.plots import smoothed, steps_to, write_plots


def made():
    generator = np.random.default_rng(0)
    curves = []
    for number, steps in enumerate((50, 10, 0)):
        weights = generator.standard_normal((2, 30))
        why = "chosen" if number == 0 else "place 2 of 3"
        losses, dropped = 3.0 / np.arange(1, steps + 1), None if number == 0 else steps
        curves.append(Curve(number, losses, losses, dropped, why, (), weights[0], weights[1]))
    return Initialized({}, 0, 50, tuple(curves), (10,), 60, 0, 1, 0, 0, 1.0, 0)


def test_smoothed_losses_are_means_of_what_came_before():
    losses = np.arange(30, dtype=float)
    assert smoothed(losses)[3] == 1.5
    assert smoothed(losses)[29] == pytest.approx(np.mean(losses[10:]))
    assert steps_to(losses[::-1], 20.0) == 19
    assert steps_to(losses, -1.0) is None


def test_plots_show_where_candidates_were_dropped(tmp_path):
    paths = write_plots(made(), {1: 50, 2: None}, tmp_path / "plots")
    assert [path.name for path in paths] == ["curves.html", "workers.html", "weights.html"]
    curves = paths[0].read_text(encoding="utf-8")
    assert "candidate 1: place 2 of 3" in curves
    assert "candidate 2" not in curves, "it has no step"
    assert "candidate 2" in paths[2].read_text(encoding="utf-8")


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
    (tmp_path / "a_file").write_text("", encoding="utf-8")
    for option, path, said in [
        ("--json", tmp_path / "no" / "out.json", f"there is no folder {tmp_path / 'no'}; make it first"),
        ("--json", tmp_path, "it is a folder; name a file in it"),
        ("--plots", tmp_path / "a_file" / "plots", "can't be made: Not a directory; give another folder"),
    ]:
        monkeypatch.setattr(sys, "argv", ["006", option, str(path)])
        with pytest.raises(SystemExit):
            example.main()
        assert said in capsys.readouterr().err
