"""Variants of a scenario and its question: what they may say, and the answer that runs give."""

import dataclasses
import math

import numpy as np
import pytest
from click.testing import CliRunner
from scipy import stats

import playground_gallery
from alpa_dejavu.cli.main import main
from alpa_dejavu.playground import Until
from alpa_dejavu.playground.scenarios import (
    Question,
    Runs,
    RunTarget,
    ScenarioRun,
    answer,
    read_runs,
    read_scenario,
    run_scenario,
    write_runs,
)
from scenario_texts import check_refused, read

GALLERY = sorted(playground_gallery.GALLERY.glob("*.yaml"))
ASKED = """\
version: 1
question: {text: 'Does moving help?', better: moves, than: stays, by: loss}
problem: sparse-least-squares
cluster: {name: p3.8xlarge}
compute_s: 0.01
data: sorted
exchanges: [local-sgd]
variants:
  moves: {moves: {random-share: {share: 0.5}}}
  stays: {}
until: {steps: 20}
seeds: [0, 1]
"""


@pytest.fixture(scope="module")
def asked(tmp_path_factory):
    return read(tmp_path_factory.mktemp("asked"), ASKED)


@pytest.fixture(scope="module")
def runs(asked):
    return run_scenario(asked)


def test_a_variant_is_the_scenario_with_other_keys(asked, runs, tmp_path):
    assert asked.names == ("moves", "stays")
    assert [run.exchange for run in runs.runs] == ["moves", "moves", "stays", "stays"]
    alone = ASKED[: ASKED.index("variants")] + ASKED[ASKED.index("until") :]
    alone = alone.replace("question:", "#")
    for text, first in ((alone, 2), (f"{alone}moves: {{random-share: {{share: 0.5}}}}\n", 0)):
        for run, other in zip(run_scenario(read(tmp_path, text)).runs, runs.runs[first:][:2], strict=True):
            assert run.history.same(other.history)


def test_the_question_goes_through_the_file(runs, tmp_path):
    path = tmp_path / "runs.json"
    write_runs(runs, path)
    again = read_runs(path)
    assert again.question == runs.question
    assert answer(again) == answer(runs)
    path.write_text(path.read_text().replace('"better": "moves"', '"better": "flies"'))
    with pytest.raises(ValueError, match="better is 'flies', but must be an exchange of the runs"):
        read_runs(path)


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("better: moves", "better: movse", "line 2: better is 'movse', but must be one of 'moves', 'stays'"),
        ("than: stays", "than: moves", "better and than are both 'moves'; ask of two"),
        ("by: loss", "by: seconds", "by is 'seconds', the seconds to a target, but there is none; add a target"),
        ("by: loss", "by: accuracy", "by is 'accuracy', which these runs haven't"),
        ("by: loss", "by: luck", 'question.by is "luck", but must be "seconds", "steps" or "bytes"'),
        ("share: 0.5", "share: 2", "share is 2"),
        ("stays: {}", "stays: {seeds: [1]}", "seeds is an unknown key"),
        ("data: sorted", "data: sorte", "line 6: there is no split 'sorte'"),
    ],
)
def test_what_is_wrong_is_said_with_its_line(old, new, said, tmp_path):
    check_refused(tmp_path, ASKED, old, new, said)


def made(runs, losses, by="loss", target=None):
    """Runs with these losses at the end, or at the looks: of "a", and of "b"."""
    histories = []
    for name, each in zip("ab", losses, strict=True):
        for seed, loss in enumerate(each):
            path = np.atleast_1d(np.asarray(loss, float))
            count = len(path)
            history = dataclasses.replace(
                runs.runs[0].history, loss=path, accuracy=1 - path, time_s=np.arange(count, dtype=float),
                steps=np.arange(count), sent_bytes=np.arange(count, dtype=float),
            )  # fmt: skip
            histories.append(ScenarioRun(name, seed, history))
    return Runs("made", "made", ("h",), (), target, Question("Is it?", "a", "b", by), tuple(histories))


@pytest.mark.parametrize(
    ("ours", "theirs", "verdict"),
    [
        ((0.1, 0.11, 0.12), (0.2, 0.21, 0.25), "yes"),
        ((0.2, 0.21, 0.25), (0.1, 0.11, 0.12), "no"),
        ((0.1, 0.3, 0.2), (0.2, 0.21, 0.25), "not sure"),
        ((0.1,), (0.2,), "not sure"),
    ],
)
def test_the_answer_is_what_the_interval_of_the_ratio_says(runs, ours, theirs, verdict):
    found = answer(made(runs, (ours, theirs)))
    logs = np.log(np.divide(ours, theirs))
    assert found.verdict == verdict
    assert found.ratio.mean == pytest.approx(math.exp(logs.mean()))
    if len(logs) > 1:
        low, high = stats.t.interval(0.9, len(logs) - 1, logs.mean(), stats.sem(logs))
        assert (found.ratio.low, found.ratio.high) == pytest.approx((math.exp(low), math.exp(high)))
    more = answer(made(runs, (ours, theirs), by="accuracy"))
    assert more.verdict == verdict, "a higher accuracy is a lower loss here"


def test_time_to_the_target_counts_where_it_is_reached_and_reaching_it_where_it_is_not(runs):
    slow, fast = np.linspace(1, 0, 11), np.concatenate([np.linspace(1, 0, 6), np.zeros(5)])
    target = RunTarget("loss", 0.5)
    found = answer(made(runs, ([fast, fast], [slow, slow]), "seconds", target))
    assert found.verdict == "yes"
    assert found.ratio.mean == pytest.approx(3 / 5)
    assert "Until 5 s its loss is the lower one in 100% of the time." in found.text
    never = np.ones(11)
    reached = answer(made(runs, ([fast, fast], [never, never]), "seconds", target))
    assert (reached.verdict, reached.ratio) == ("yes", None)
    assert "2 of 2 runs of a reach the target, and 0 of 2 runs of b" in reached.text
    assert answer(made(runs, ([never, never], [fast, fast]), "seconds", target)).verdict == "no"
    assert answer(made(runs, ([fast, fast], [never, slow]), "seconds", target)).verdict == "not sure"


def test_the_command_prints_question_and_answer(tmp_path):
    path = tmp_path / "asked.yaml"
    path.write_text(ASKED)
    done = CliRunner().invoke(main, ["playground", "run", str(path), "--json", str(tmp_path / "runs.json")])
    assert done.exit_code == 0
    assert "Does moving help?" in done.output
    again = CliRunner().invoke(main, ["playground", "compare", str(tmp_path / "runs.json")])
    assert "Does moving help?" in again.output


@pytest.mark.parametrize("path", GALLERY, ids=lambda path: path.stem)
def test_the_gallery_can_be_run(path):
    scenario = read_scenario(path)
    assert scenario.question is not None
    short = {"until": Until(steps=1), "seeds": scenario.seeds[:1]}
    variants = tuple(dataclasses.replace(each, **short) for each in scenario.variants)
    found = run_scenario(dataclasses.replace(scenario, variants=variants, **short))
    assert {run.exchange for run in found.runs} == set(scenario.names)
    assert answer(found).verdict in ("yes", "no", "not sure")
