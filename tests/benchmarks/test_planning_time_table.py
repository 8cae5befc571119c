"""The table of planning time: its jobs, pairs of runs, ratios, exponents, and processes that end without a plan."""

import json

import pytest

import test_planning_time as bench

PROGRAM = """
import json, os, pathlib, sys
words = sys.argv[1:]
cache = pathlib.Path(os.environ["ALPA_DEJAVU_CACHE"])
if "fails" in words:
    sys.exit("Error: nothing fits")
warm = cache.exists()
cache.mkdir(exist_ok=True)
plan = {"stages": [1, 2], "num_micro_batches": 4, "iteration_time_s": 2.0, "planning_s": {"slicing": 0.5 + warm}}
pathlib.Path(words[words.index("--json") + 1]).write_text(json.dumps(plan))
"""


@pytest.fixture
def tree(tmp_path):
    package = tmp_path / "tree" / "alpa_dejavu"
    package.mkdir(parents=True)
    (package / "__init__.py").touch()
    (package / "__main__.py").write_text(PROGRAM)
    return package.parent


def test_a_run_is_cold_and_then_warm_with_its_figures(tree):
    runs = bench.cold_and_warm(bench.JOBS["gpt-1.3b-8-v100"], tree, 60.0)
    assert runs["cold"]["planning_s"] == {"slicing": 0.5}
    assert runs["warm"]["planning_s"] == {"slicing": 1.5}
    assert runs["cold"]["step_s"] == 2.0
    assert runs["cold"]["cpu_s"] > 0
    assert runs["cold"]["peak_bytes"] > 2**20


def test_ratios_are_medians_of_pairs(tree):
    def of(*seconds):
        return [{"cold": {"s": s} if s else {"error": "none"}} for s in seconds]

    row = {"ours": of(1.0, 2.0, 9.0), "first": of(2.0, 2.0, 3.0)}
    assert bench.ratio(row, "cold", "s") == 1.0
    assert bench.ratio({"ours": of(1.0), "first": of(0)}, "cold", "s") is None
    assert bench.ratio({"ours": of(1.0)}, "cold", "s") is None


def test_the_table_and_the_file_have_each_job_and_go_on(tree, monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(bench, "ROOT", tree)
    asked = ["--first", str(tree), "--repeat", "2", "--json", str(tmp_path / "out.json")]
    assert bench.main(["--jobs", "gpt-1.3b-8-v100", *asked]) == 0
    assert bench.main(["--jobs", "gpt-39b-64-v100", *asked]) == 0
    kept = json.loads((tmp_path / "out.json").read_text())
    assert [row[0] for row in kept["tables"][0]["rows"]] == ["gpt-1.3b-8-v100", "gpt-39b-64-v100"]
    assert len(kept["jobs"]["gpt-1.3b-8-v100"]["first"]) == 2
    assert "cold / first" in capsys.readouterr().out
