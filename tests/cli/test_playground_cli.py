"""`alpa-dejavu playground`: what it prints, writes and refuses."""

import json

import pytest
from click.testing import CliRunner

from alpa_dejavu.cli.main import main
from alpa_dejavu.playground import simulate
from alpa_dejavu.playground._journal import Journal
from alpa_dejavu.playground.condition import CONDITIONS
from alpa_dejavu.playground.data import MOVES, SPLITS
from alpa_dejavu.playground.exchanges import EXCHANGES
from alpa_dejavu.playground.fault import FAULTS
from alpa_dejavu.playground.jobs import POLICIES
from alpa_dejavu.playground.problems import PROBLEMS
from alpa_dejavu.playground.scenarios import TOPOLOGY_WORDS, read_runs

SCENARIO = """\
version: 1
problem: sparse-least-squares
cluster: {name: p3.8xlarge}
compute_s: 0.5
exchanges: [all-reduce, async-server]
until: {steps: 5}
seeds: [0, 1]
looks: 5
target: {loss: 1e3}
"""


def command(*words):
    return CliRunner().invoke(main, ["playground", *map(str, words)])


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A folder with a scenario, and one of time alone."""
    made = tmp_path_factory.mktemp("playground")
    (made / "small.yaml").write_text(SCENARIO)
    alone = SCENARIO.replace("problem: sparse-least-squares", "num_bytes: 1e6")
    (made / "alone.yaml").write_text(alone.replace("target: {loss: 1e3}", ""))
    return made


@pytest.fixture(scope="module")
def ran(folder):
    """What `run` printed of the scenario, after it has written its runs and its page."""
    return command("run", folder / "small.yaml", "--html", folder / "run.html", "--json", folder / "run.json")


def test_all_names_are_listed_with_a_line_each():
    result = command("list")
    assert result.exit_code == 0
    lines = [line.split() for line in result.stdout.splitlines() if line.startswith("  ")]
    assert [words[0] for words in lines] == [
        *EXCHANGES, *TOPOLOGY_WORDS, *FAULTS, *CONDITIONS, *SPLITS, *MOVES, *POLICIES, *PROBLEMS
    ]  # fmt: skip
    assert all(len(words) > 3 for words in lines)
    assert "[bound=2, server=0]" in result.stdout


def test_run_prints_the_tables_and_writes_what_is_asked_for(folder, ran):
    assert (ran.exit_code, ran.stderr) == (0, "")
    assert "small: target loss at most 1000" in ran.stdout
    rows = [line.split() for line in ran.stdout.splitlines() if line.startswith(("all-reduce", "async-server"))]
    assert [row[:4] for row in rows[:2]] == [["all-reduce", "2", "of", "2"], ["async-server", "2", "of", "2"]]
    assert all(row[-1] == "steps" for row in rows[2:])
    assert f"wrote {folder / 'run.html'}" in ran.stdout
    runs = read_runs(folder / "run.json")
    assert [(run.exchange, run.seed) for run in runs.runs] == [
        ("all-reduce", 0), ("all-reduce", 1), ("async-server", 0), ("async-server", 1),
    ]  # fmt: skip
    assert (folder / "run.html").read_text().startswith("<!DOCTYPE html>")


def test_compare_takes_runs_and_scenarios(folder, ran, tmp_path):
    result = command("compare", folder / "run.json", folder / "alone.yaml", "--html", tmp_path / "both.html")
    assert result.exit_code == 0
    assert "small: loss at most 1000; alone: none" in result.stdout
    assert "alone: async-server" in result.stdout
    assert "no target" in result.stdout
    assert "alone: all-reduce" in (tmp_path / "both.html").read_text()
    twice = command("compare", folder / "run.json", folder / "run.json").stdout
    assert twice.startswith("small (1), small (2): target")
    assert twice.count("\nsmall (2): async-server") == 2


def test_a_run_that_is_kept_goes_on_where_it_was_interrupted(folder, tmp_path, monkeypatch):
    words = "run", folder / "small.yaml", "--keep", tmp_path / "kept"

    def ends(*args, **options):
        if options["seed"] == 1:
            raise KeyboardInterrupt
        return simulate(*args, **options)

    with monkeypatch.context() as early:
        early.setattr("alpa_dejavu.playground.scenarios._scenario.simulate", ends)
        assert command(*words).exit_code != 0
    computed, following = [], Journal.next

    def counted(self, compute):
        return following(self, lambda: computed.append(self._folder) or compute())

    monkeypatch.setattr(Journal, "next", counted)
    assert command(*words, "--json", tmp_path / "run.json").exit_code == 0
    # The first run is there; those of the other seed and the other exchange aren't.
    assert {folder.name for folder in computed if folder} == {"0001", "0002", "0003"}
    computed.clear()
    assert command(*words, "--json", tmp_path / "again.json").exit_code == 0
    assert not any(computed)
    assert (tmp_path / "run.json").read_text() == (tmp_path / "again.json").read_text()
    assert command("run", folder / "small.yaml", "--json", tmp_path / "plain.json").exit_code == 0
    assert (tmp_path / "run.json").read_text() == (tmp_path / "plain.json").read_text()
    other = tmp_path / "other.yaml"
    other.write_text(SCENARIO.replace("steps: 5", "steps: 6"))
    result = command("run", other, "--keep", tmp_path / "kept")
    assert (result.exit_code, "scenario.yaml is another one; give another folder" in result.stderr) == (1, True)
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "a.txt").write_text("a")
    assert "must be empty or keep runs" in command("run", other, "--keep", tmp_path / "full").stderr
    assert "can't be made: No such file" in command("run", other, "--keep", tmp_path / "none" / "kept").stderr


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (["run", "none.yaml"], 1, "none.yaml can't be read"),
        (["run", "wrong.yaml"], 1, "wrong.yaml, line 4: compute_s is -1, but must be"),
        (["run", "small.yaml", "--html", "none/run.html"], 1, "there is no folder"),
        (["compare", "none.json"], 1, "none.json can't be read"),
        (["compare", "wrong.json"], 1, "wrong.json, line 1: the file lacks the key 'version'"),
        (["compare"], 2, "Missing argument 'FILE...'"),
        (["run"], 2, "Missing argument 'SCENARIO'"),
        (["plan"], 2, "No such command 'plan'"),
    ],
)
def test_what_is_wrong_is_a_message_and_nothing_is_written(folder, monkeypatch, words, code, said):
    monkeypatch.chdir(folder)
    (folder / "wrong.yaml").write_text(SCENARIO.replace("compute_s: 0.5", "compute_s: -1"))
    (folder / "wrong.json").write_text('{"runs": []}')
    before = sorted(folder.iterdir())
    result = command(*words)
    assert result.exit_code == code
    assert said in result.stderr
    assert "Traceback" not in result.output
    assert sorted(folder.iterdir()) == before


def test_off_a_terminal_a_wide_table_is_neither_cut_nor_folded(folder, ran, tmp_path):
    data = json.loads((folder / "run.json").read_text())
    name = "gossip of a topology that has " + "a long name " * 12
    for run in data["runs"]:
        run["exchange"] = f"{name}{run['exchange']}"
    for n in (1, 2):
        (tmp_path / f"{n}.json").write_text(json.dumps({**data, "scenario": f"number {n}"}))
    result = command("compare", tmp_path / "1.json", tmp_path / "2.json")
    rows = [line for line in result.stdout.splitlines() if line.startswith("number 1: gossip")]
    assert len(rows) == 4
    assert all(f"{name}a" in row for row in rows)
    assert all(row.rstrip().endswith(" steps") for row in rows[2:])


@pytest.mark.parametrize("error", [ValueError("a run can't go on"), KeyboardInterrupt()])
def test_runs_that_were_finished_are_kept_where_another_one_ends_early(folder, tmp_path, monkeypatch, error):
    def ends(*args, **options):
        if options["seed"] == 1:
            raise error
        return simulate(*args, **options)

    monkeypatch.setattr("alpa_dejavu.playground.scenarios._scenario.simulate", ends)
    result = command("run", folder / "alone.yaml", "--json", tmp_path / "run.json")
    assert result.exit_code != 0
    assert f"1 of 4 runs were finished, and are in {tmp_path / 'run.json'}" in result.stderr
    assert [(run.exchange, run.seed) for run in read_runs(tmp_path / "run.json").runs] == [("all-reduce", 0)]


def test_json_may_go_to_standard_output(folder):
    result = command("run", folder / "alone.yaml", "--json", "-")
    assert len(json.loads(result.stdout)["runs"]) == 4
    assert "ended by" in result.stderr
