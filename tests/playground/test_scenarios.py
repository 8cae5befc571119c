"""Scenario files: what they may say, what is refused with its line, and what runs of them say and write."""

import dataclasses
import json
import pathlib
import re

import numpy as np
import pytest

from alpa_dejavu._util.interval import Interval
from alpa_dejavu.playground import Until, simulate
from alpa_dejavu.playground.exchanges import Gossip, SynchronousServer
from alpa_dejavu.playground.fault import LinkRate, SlowDown
from alpa_dejavu.playground.scenarios import (
    RunTarget,
    compared,
    read_runs,
    read_scenario,
    run_scenario,
    runs_page,
    runs_text,
    tables,
    write_runs,
)
from alpa_dejavu.playground.topology import RandomPeers
from pages import WIDTHS, Page, browsed, browser, laid_out, own_text, page_data
from scenario_texts import check_refused, read

ROOT = pathlib.Path(__file__).parents[2]
EXAMPLES = sorted((ROOT / "examples" / "playground").glob("*.yaml"))
GUIDE = (ROOT / "docs" / "guides" / "playground-scenarios.md").read_text(encoding="utf-8")
ALONE = """\
version: 1
num_bytes: 1e6
cluster: {name: p3.8xlarge, hosts: 2}
compute_s: 0.5
exchanges:
  - all-reduce
  - gossip:
      topology: one-peer
faults:
  - slow-down: {worker: 7, factor: 2}
until: {steps: 3}
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("scenarios")


@pytest.fixture(scope="module")
def guide(folder):
    """The scenario of the guide."""
    path = folder / "guide.yaml"
    path.write_text(re.search(r"```yaml\n(.*?)```", GUIDE, re.DOTALL)[1])
    return read_scenario(path)


@pytest.fixture(scope="module")
def runs(guide):
    return run_scenario(guide)


def test_the_guides_scenario_is_read_as_it_says(guide):
    assert guide.exchanges["server (backups 1)"] == SynchronousServer(backups=1)
    assert guide.exchanges["gossip (topology random (peers 3))"] == Gossip(RandomPeers(3))
    assert guide.faults == (SlowDown(3, 4), LinkRate((0, 1), 0.5, 0.1, 0.3))
    assert (guide.until, guide.seeds, guide.looks) == (Until(1.5), (0, 1, 2), 50)
    assert guide.target == RunTarget("accuracy", 0.8)
    assert (guide.job.batch, guide.job.spread, guide.job.compute_s) == (16, 0.1, 0.01)
    assert len(guide.job.worker_hosts(guide.cluster)) == 8


def test_a_run_is_what_simulate_gives(guide, runs):
    run = runs.runs[4]
    assert (run.exchange, run.seed) == ("server (backups 1)", 1)
    way = guide.exchanges[run.exchange]
    again = simulate(guide.job, guide.cluster, way, faults=guide.faults, until=guide.until, seed=1, looks=guide.looks)
    assert again.same(run.history)
    assert [len(run.history.timeline) > 0 for run in runs.runs] == [True, False, False] * 3


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_examples_can_be_run(path):
    scenario = read_scenario(path)
    short = dataclasses.replace(scenario, until=Until(steps=1), seeds=scenario.seeds[:1])
    assert {run.history.end for run in run_scenario(short).runs} == {"steps"}


def test_compute_seconds_are_predicted_and_a_machine_may_lie_beside(tmp_path):
    machine = json.loads((ROOT / "alpa_dejavu" / "clusters" / "p3.8xlarge.json").read_text())
    (tmp_path / "ours.json").write_text(json.dumps(machine | {"name": "ours"}))
    text = ALONE.replace("num_bytes: 1e6", "problem: sparse-least-squares").replace("p3.8xlarge", "ours.json")
    scenario = read(tmp_path, text.replace("compute_s: 0.5", "compute_s: predicted"))
    assert {host.name for host in scenario.cluster.hosts} == {"ours-0", "ours-1"}
    assert len(scenario.job.compute_s) == 8
    assert 1e-6 < min(scenario.job.compute_s) == max(scenario.job.compute_s) < 1


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("compute_s: 0.5", "compute_s: -1", 'compute_s is -1, but must be "predicted", "planned", or seconds of a'),
        ("compute_s: 0.5", "compute_s: predicted", 'compute_s is "predicted", but must be seconds where no problem is'),
        ("compute_s: 0.5", "compute_s: 1\nspreads: 1", "spreads is an unknown key; did you mean 'spread'"),
        ("num_bytes: 1e6", "problem: mnist", "there is no problem named 'mnist'"),
        ("p3.8xlarge", "p3.9xlarge", "there is no machine 'p3.9xlarge'; did you mean 'p3.8xlarge'"),
        ("  - all-reduce", "  - all-reduces", "there is no exchange 'all-reduces'; did you mean 'all-reduce'"),
        ("  - all-reduce", "  - {server: {server: 8}}", "server is 8, but must be one of 0..7"),
        ("  - all-reduce", "  - {server: {backup: 1}}", "'backup' is no setting of 'server'; did you mean 'backups'?"),
        ("  - all-reduce", "  - {ad-psgd: {peers: 1}}", "'peers' is no setting of 'ad-psgd' (it has none)"),
        ("  - all-reduce", "  - {stale-server: {bound: 1.5}}", "bound is 1.5, but must be a whole number;"),
        ("  - all-reduce", "  - {server: {}, gossip: {}}", "exchanges[0] is"),
        ("  - all-reduce", "  - gossip: {topology: one-peer}", "'gossip (topology one-peer)' is there twice"),
        ("topology: one-peer", "topology: rink", "there is no topology 'rink'; did you mean 'ring'"),
        ("topology: one-peer", "topology: {ring: {}, star: {}}", "but must be one name with settings"),
        ("topology: one-peer", "topology: graph", "'graph' lacks the setting 'pairs'"),
        ("  - all-reduce", "  - gossip: {topology: {graph: {pairs: [[0, 8]]}}}", "pairs has worker 8, but must"),
        ("topology: one-peer", "topology: {graph: {pairs: [[0, 1, 2]]}}", "must be a list of lists of 2 whole numbers"),
        ("  - all-reduce", "  - push-sum: {topology: {graph: {pairs: []}}}", "none lead from worker 0 to 1"),
        ("worker: 7", "worker: 8", "worker is 8, but must be one of 0..7"),
        (", factor: 2", "", "'slow-down' lacks the setting 'factor'"),
        ("worker: 7, factor: 2", "worker: 7, factor: fast", 'factor is "fast", but must be a number;'),
        ("topology: one-peer", "topology: 3", "topology is 3, but must be text, or"),
        ("until: {steps: 3}", "until: {steps: 0}", "until.steps is 0, but must be a whole number of at least 1"),
        ("until: {steps: 3}", "until: {steps: 3}\nseeds: [1, 1]", "the seed 1 is there twice"),
        ("until: {steps: 3}", "until: {steps: 3}\ntarget: {loss: 1}", "there is no loss to reach: time alone is simul"),
        ("until: {steps: 3}", "until: {steps: 3}\ntarget: {}", "target has both or neither of loss and accuracy"),
        ("num_bytes: 1e6\n", "", "there is neither a problem nor num_bytes"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_said_with_its_line_before_anything_runs(tmp_path, old, new, said):
    check_refused(tmp_path, ALONE, old, new, said)


def test_a_target_that_a_problem_has_not_and_momentum_of_adam_are_refused(tmp_path):
    text = ALONE.replace("num_bytes: 1e6", "problem: sparse-least-squares")
    with pytest.raises(ValueError, match="line 12: there is no accuracy to reach: sparse-least-squares has no classes"):
        read(tmp_path, text + "target: {accuracy: 0.5}\n")
    with pytest.raises(ValueError, match="line 12: momentum is one of sgd, not of adam"):
        read(tmp_path, text + "optimizer: {name: adam, rate: 0.1, momentum: 0.5}\n")
    with pytest.raises(ValueError, match=r"line 12: optimizer\.rate is -0\.1, but must be a number above 0"):
        read(tmp_path, text + "optimizer: {name: adam, rate: -0.1}\n")


def test_what_an_exchange_cannot_do_is_refused_before_anything_runs(tmp_path):
    text = ALONE.replace("num_bytes: 1e6", "problem: sparse-least-squares").replace("topology: one-peer", "{}")
    text = text.replace("gossip:\n      {}", "cyclades")
    read(tmp_path, text)
    for optimizer in ("{name: adam, rate: 0.1}", "{name: sgd, rate: 0.1, momentum: 0.5}"):
        with pytest.raises(ValueError, match="line 7: cyclades: the job's optimizer keeps moments"):
            read(tmp_path, text + f"optimizer: {optimizer}\n")
    for name in ("all-reduce", "local-sgd"):
        two_levels = ALONE.replace("  - all-reduce", f"  - {name}: {{algorithm: hierarchical}}")
        assert {run.history.end for run in run_scenario(read(tmp_path, two_levels)).runs} == {"steps"}
        for fault in ("crash: {worker: 7, at_s: 1}", "join: {worker: 7, at_s: 1}", "drawn-crashes: {per_s: 0}"):
            with pytest.raises(ValueError, match="line 6: algorithm is hierarchical, but must be ring or tree where f"):
                read(tmp_path, two_levels.replace("slow-down: {worker: 7, factor: 2}", fault))


def test_curves_and_times_to_the_target_are_those_by_hand(runs):
    found = {one.name: one for one in compared([runs])}["all-reduce"]
    histories = [run.history for run in runs.runs if run.exchange == "all-reduce"]
    curve = found.curves["accuracy", "bytes"]
    assert curve.x[-1] == min(history.sent_bytes[-1] for history in histories)
    for n in (0, 70, 199):
        values = [np.interp(curve.x[n], history.sent_bytes, history.accuracy) for history in histories]
        assert (curve.mean[n], curve.high[n]) == pytest.approx((np.mean(values), Interval.of(values).high))
    reached_s = [
        next((s for s, accuracy in zip(h.time_s, h.accuracy, strict=True) if accuracy >= 0.8), None) for h in histories
    ]
    assert found.reached == sum(one is not None for one in reached_s) > 0
    assert found.to_target["seconds"] == Interval.of([one for one in reached_s if one is not None])
    for history in histories:
        assert history.sent_bytes[-1] == pytest.approx(history.num_bytes, rel=1e-12)
        assert (np.diff(history.sent_bytes) >= 0).all()


def test_what_is_written_is_read_again(runs, tmp_path):
    write_runs(runs, tmp_path / "runs.json")
    again = read_runs(tmp_path / "runs.json")
    assert runs_text(again) == runs_text(runs)
    assert (again.name, again.problem, again.hosts, again.target) == (runs.name, runs.problem, runs.hosts, runs.target)
    for mine, theirs in zip(runs.runs, again.runs, strict=True):
        assert dataclasses.replace(mine.history, params=theirs.history.params).same(theirs.history)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda run: run["loss"].pop(), r"loss has \d+ elements, but must have \d+"),
        (lambda run: run["busy_s"].pop(), "busy_s has 7 elements, but must have 8"),
        (lambda run: run["link_bytes"].append(1.0), r"link_bytes has \d elements"),
        (lambda run: run["timeline"]["kind"].append(3), r"kind\[\d+\] is 3, but must be 0, 1 or 2"),
        (lambda run: run["timeline"]["kind"].append(1), "kind has"),
        (lambda run: run["timeline"]["worker"].__setitem__(0, 8), "worker has the worker 8, but there are 8"),
        (lambda run: run["time_s"].__setitem__(1, 1e9), r"time_s\[2\] is .*, but must be at least 10{9}\.0"),
        (lambda run: run["steps"].__setitem__(0, 10**9), r"steps\[1\] is \d+, but must be at least 1000000000"),
        (lambda run: run["timeline"]["start_s"].__setitem__(0, 1e9), r"end_s\[0\] is .*, but must be at least 1000"),
        (lambda run: run.update(params="x"), r"params is an unknown key"),
    ],
)
def test_a_file_of_runs_that_is_wrong_is_said_with_its_line(runs, tmp_path, change, said):
    data = json.loads(runs_text(runs))
    change(data["runs"][0])
    (tmp_path / "runs.json").write_text(json.dumps(data, indent=0))
    with pytest.raises(ValueError, match=rf"runs\.json, line \d+: .*{said}.*; schemas/runs-1\.json"):
        read_runs(tmp_path / "runs.json")


@pytest.fixture(scope="module")
def page(runs):
    return runs_page(runs)


def test_the_page_needs_nothing_else_and_has_the_tables(page, runs):
    own, parsed = own_text(page), Page(page)
    assert len(own) < len(page) - 1e6
    assert "http://" not in own
    assert "https://" not in own
    assert all(not attributes.get("src") for _, attributes in parsed.tags)
    for table in tables(compared([runs])):
        assert list(table.heads) in parsed.rows
        assert all([cell for cell in row if cell] in parsed.rows for row in table.rows)
    # All that can be operated has a label.
    ids = {attributes.get("id") for _, attributes in parsed.tags}
    assert {attributes["for"] for tag, attributes in parsed.tags if tag == "label" and "for" in attributes} <= ids
    assert all("aria-label" in attributes for tag, attributes in parsed.tags if attributes.get("role") == "img")


@browser
def test_a_browser_draws_the_curves_and_the_slider_without_a_word_of_complaint(page, tmp_path):
    drawn, complaints = browsed(tmp_path, page)
    assert complaints == []
    assert drawn.count('class="chart js-plotly-plot"') == 6
    assert "0 s: 8 compute, 0 send, 0 wait, 0 have failed" in drawn


@browser
def test_nothing_is_wider_than_the_page_nor_lies_on_something_else(page, tmp_path):
    layouts = laid_out(tmp_path, {"runs": page})
    assert {key: row["faults"] for key, row in layouts.items()} == {("runs", width): [] for width in WIDTHS}


def test_several_are_told_apart_and_what_users_named_is_escaped(runs):
    evil = "<script>alert(1)</script>"
    other = dataclasses.replace(
        runs, name=evil, hosts=(evil,) * 8, runs=tuple(dataclasses.replace(run, exchange=evil) for run in runs.runs[:3])
    )
    page = runs_page(runs, other)
    assert evil not in page
    # The plots' library, what unpacks it, the data, and the page's own.
    assert sum(tag == "script" for tag, _ in Page(page).tags) == 4
    assert [one.name for one in compared([runs, other])][-2:] == [
        "guide: gossip (topology random (peers 3))", f"{evil}: {evil}",
    ]  # fmt: skip
    assert all("<script" not in trace["name"] for trace in page_data(page)["charts"]["loss-bytes"]["data"])
