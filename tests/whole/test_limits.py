"""What planning doesn't take on: it is said at once, with the limit, the value and what to do."""

import json

import numpy as np
import pytest
from click.testing import CliRunner

from alpa_dejavu import layers
from alpa_dejavu.cli.main import main
from alpa_dejavu.clusters import named_cluster, read_cluster, write_cluster
from alpa_dejavu.clusters.machine_file import FOLDER
from alpa_dejavu.planning import plan_model
from alpa_dejavu.planning.search._shapes import micro_batch_counts
from alpa_dejavu.plans.plan_file import plan_data
from alpa_dejavu.problem import Run, SlicingProblem
from alpa_dejavu.problem.limits import MOST_BATCH, MOST_HOSTS, MOST_LAYERS, MOST_MICRO_BATCHES
from alpa_dejavu.slicing import Dynamic, Exhaustive
from alpa_dejavu.testing import example_cluster
from plans import example_plan

ASKED = "plan --model gpt-125m --cluster p3.16xlarge".split()


@pytest.fixture(autouse=True)
def nothing_is_done(monkeypatch):
    monkeypatch.setattr(layers, "trace", lambda *_, **__: pytest.fail("the model is traced"))


def command(*words):
    return CliRunner().invoke(main, [str(word) for word in words])


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ("--batch 32 --hosts 1000000", f"hosts is 1000000, but must be at most {MOST_HOSTS}; plan for a part of"),
        ("--batch 32 --layers 1000", f"layers is 1000, but must be at most {MOST_LAYERS}; cut the model into fewer"),
        ("--batch 10000000 --micro-batches 10000000", "micro_batches is 10000000, but must be at most 65536; take"),
        ("--batch 1000000007", f"batch is 1000000007, but must be at most {MOST_BATCH}; give the samples of one"),
        (f"--batch {2**60}", f"batch is {2**60}, but must be at most {MOST_BATCH}"),
        (f"--batch {10**4000}", "but must be at most"),
    ],
)
def test_what_would_take_hours_or_all_memory_is_refused_before_any_work(options, said):
    result = command(*ASKED, *options.split())
    assert result.exit_code == 1
    assert result.stderr.startswith("Error: ")
    assert said in result.stderr
    assert len(result.stderr.splitlines()) == 1


@pytest.mark.parametrize("devices", [10**9, 10**30])
def test_a_host_of_too_many_devices_is_refused(tmp_path, devices):
    data = json.loads((FOLDER / "p3.16xlarge.json").read_text(encoding="utf-8"))
    path = tmp_path / "mine.json"
    path.write_text(json.dumps({**data, "name": "mine", "devices_per_host": devices}))
    result = command("plan", "--model", "gpt-125m", "--cluster", path, "--batch", 32)
    assert result.exit_code == 1
    assert f"devices_per_host is {devices}, but must be " in result.stderr
    assert "at most 1024" in result.stderr
    cluster = tmp_path / "cluster.json"
    write_cluster(named_cluster("p3.16xlarge"), cluster)
    cluster.write_text(cluster.read_text().replace('"devices": 8', f'"devices": {devices}'))
    with pytest.raises(ValueError, match="and at most 1024"):
        read_cluster(cluster)


@pytest.mark.parametrize("name", ["2 x p3.16", "1" * 5000 + " x p3", "", " ", "p3.16xlarge\x1b[2J", "a" * 5000])
def test_a_cluster_that_there_is_not_is_one_message(name):
    result = command("plan", "--model", "gpt-125m", "--cluster", name, "--batch", 32)
    assert result.exit_code == 1
    assert result.stderr.startswith("Error: ")
    assert "there is no machine" in result.stderr or "File name too long" in result.stderr
    assert len(result.stderr.splitlines()) == 1


@pytest.mark.parametrize(("number", "said"), [(0, "hosts is 0, but must be"), (10**8, "hosts is 100000000, but must")])
def test_a_number_of_hosts_that_there_is_not_is_one_message(number, said):
    result = command("plan", "--model", "gpt-125m", "--cluster", f"{number} x p3.16xlarge", "--batch", 32)
    assert (result.exit_code, len(result.stderr.splitlines())) == (1, 1)
    assert result.stderr.startswith(f"Error: {said}")


def test_files_with_too_many_micro_batches_are_refused_too(tmp_path):
    path = tmp_path / "plan.json"
    path.write_text(json.dumps({**plan_data(example_plan()), "num_micro_batches": 10**9, "batch": 10**9}))
    for asked in (["explain", path], ["estimate", path], ["diff", path, path], ["profile", path, "--no-history"]):
        result = command(*asked)
        assert result.exit_code == 1
        assert "line 1: num_micro_batches is 1000000000, but must be " in result.stderr
        assert f"at most {MOST_MICRO_BATCHES}" in result.stderr
        assert "Traceback" not in result.stderr
    with pytest.raises(ValueError, match="num_micro_batches is 70000, but must be at most"):
        Run(70000)


def test_numbers_that_are_left_open_stay_below_the_limit():
    assert micro_batch_counts(2**24) == tuple(2**n for n in range(17))
    assert micro_batch_counts(1000003) == (1,)
    assert micro_batch_counts(24) == (1, 3, 6, 12, 24)


def test_in_python_the_limits_are_the_same():
    for asked in ({"hosts": 10**6}, {"layers": 1000}, {"batch": 2**60}, {"micro_batches": 10**7, "batch": 10**7}):
        with pytest.raises(ValueError, match="but must be at most"):
            plan_model("gpt-125m", "p3.16xlarge", **asked)
    assert example_cluster(2).num_devices == 8


def slicing_problem(num_layers, num_configs):
    costs = np.ones((num_layers, num_layers, 2, num_configs))
    return SlicingProblem(costs, np.array([1, 2]), 8, 4)


def test_the_exhaustive_slicer_refuses_what_it_could_not_end():
    found = Exhaustive().slice(slicing_problem(3, 3))
    # Each of 3 layers apart, the first two, the last two, or all together: 6 choices for each stage.
    assert found.iterations == 6**3 + 2 * 6**2 + 6
    assert found.cost_s == Dynamic().slice(slicing_problem(3, 3)).cost_s
    with pytest.raises(ValueError, match=r"6 layers can be sliced in .* ways, and it tries at most 1000000; take 'dyn"):
        Exhaustive().slice(slicing_problem(6, 24))
