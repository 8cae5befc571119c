"""Conditions and the places of workers in scenario files, and what runs, tables and files say of them."""

import dataclasses
import json

import pytest

from alpa_dejavu.playground import simulate
from alpa_dejavu.playground.condition import Connected, SamplesSeen, StalenessAtMost
from alpa_dejavu.playground.scenarios import compared, read_runs, read_scenario, run_scenario, tables, write_runs

SCENARIO = """\
version: 1
problem: sparse-least-squares
cluster: {name: p3.8xlarge, hosts: 2}
workers: {hosts: [0, 1, 1]}
compute_s: 0.5
exchanges: [all-reduce, async-server]
conditions:
  - staleness-at-most: {versions: 0}
  - connected: {window_s: 2}
  - samples-seen: {window_steps: 1000000}
until: {steps: 5}
seeds: [0, 1]
looks: 2
"""
NAMES = ("staleness-at-most (versions 0)", "connected (window_s 2)", "samples-seen (window_steps 1000000)")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    made = tmp_path_factory.mktemp("conditions")
    (made / "small.yaml").write_text(SCENARIO)
    return made


@pytest.fixture(scope="module")
def scenario(folder):
    return read_scenario(folder / "small.yaml")


@pytest.fixture(scope="module")
def runs(scenario):
    return run_scenario(scenario)


def test_a_file_names_conditions_and_the_hosts_of_workers(scenario):
    expected = StalenessAtMost(0), Connected(2.0), SamplesSeen(window_steps=1_000_000)
    assert scenario.conditions == dict(zip(NAMES, expected, strict=True))
    assert scenario.job.worker_hosts(scenario.cluster) == (0, 1, 1)


def test_runs_say_when_conditions_were_violated(scenario, runs):
    assert runs.conditions == NAMES
    assert len(runs.hosts) == 3
    for run in runs.runs:
        alone = simulate(scenario.job, scenario.cluster, scenario.exchanges[run.exchange], until=scenario.until,
                         conditions=tuple(scenario.conditions.values()), seed=run.seed, looks=2)  # fmt: skip
        assert run.history.violated_s == alone.violated_s
    synchronous, asynchronous = runs.runs[0].history, runs.runs[-1].history
    assert synchronous.violated_s == (None, None, None)
    assert asynchronous.violated_s[0] > 0.5
    assert asynchronous.violated_s[1:] == (None, None)


def test_a_table_says_which_were_violated(runs):
    _, heads, rows = tables(compared([runs]))[-1]
    assert heads[0] == "exchange"
    assert [row[:2] for row in rows] == [[name, one] for name in ("all-reduce", "async-server") for one in NAMES]
    assert [row[2:] for row in rows[:3]] == [["0 of 2", "held"]] * 3
    assert rows[3][2] == "2 of 2"
    assert rows[3][3] != "held"
    without = dataclasses.replace(runs, conditions=(), runs=tuple(
        dataclasses.replace(run, history=dataclasses.replace(run.history, violated_s=())) for run in runs.runs
    ))  # fmt: skip
    assert len(tables(compared([without]))) == len(tables(compared([runs]))) - 1


def test_a_file_of_runs_keeps_them(runs, folder):
    write_runs(runs, folder / "runs.json")
    read = read_runs(folder / "runs.json")
    assert read.conditions == NAMES
    assert [run.history.violated_s for run in read.runs] == [run.history.violated_s for run in runs.runs]
    data = json.loads((folder / "runs.json").read_text())
    data["runs"][1]["violated_s"].append(1.0)
    (folder / "wrong.json").write_text(json.dumps(data))
    with pytest.raises(ValueError, match=r"violated_s has 4 elements, but must have 3, one for each condition"):
        read_runs(folder / "wrong.json")


@pytest.mark.parametrize(
    ("old", "new", "line", "said"),
    [
        ("connected: {window_s: 2}", "conected: {window_s: 2}", 9, "there is no condition 'conected'"),
        ("window_s: 2", "window_s: 0", 9, "window_s is 0"),
        ("window_steps: 1000000", "window_step: 9", 10, "'window_step' is no setting"),
        ("versions: 0}", "versions: 0}\n  - staleness-at-most: {versions: 0}", 9, "is there twice"),
        ("problem: sparse-least-squares", "num_bytes: 8", 10, "the job's problem is None"),
        ("[0, 1, 1]", "[0, 1, 2]", 4, r"hosts is \(0, 1, 2\), but must be indices of 0..1"),
        ("{hosts: [0, 1, 1]}", "{hosts: []}", 4, "a list of the index of each worker's host"),
        ("compute_s: 0.5", "compute_s: [0.5, 0.5]", 5, "compute_s is given for 2 workers, but must be for 3"),
    ],
)
def test_what_cannot_be_is_said_with_its_line(old, new, line, said, folder):
    path = folder / "wrong.yaml"
    path.write_text(SCENARIO.replace(old, new))
    with pytest.raises(ValueError, match=rf"line {line}\b.*{said}"):
        read_scenario(path)


def test_seconds_are_predicted_for_each_worker(folder):
    path = folder / "predicted.yaml"
    path.write_text(SCENARIO.replace("compute_s: 0.5", "compute_s: predicted"))
    compute_s = read_scenario(path).job.compute_s
    assert len(compute_s) == 3
    assert len(set(compute_s)) == 1
