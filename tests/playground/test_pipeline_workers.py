"""Scenarios whose workers are whole pipelines of plans."""

import pytest

from alpa_dejavu.plans import write_plan
from alpa_dejavu.playground.scenarios import read_scenario, run_scenario
from plans import example_plan, stage

PIPELINES = """\
version: 1
num_bytes: 1e6
cluster: {name: p3.16xlarge, hosts: 5}
workers:
  plans: [wide.json, narrow.json]
compute_s: planned
exchanges: [all-reduce]
until: {steps: 3}
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("pipelines")
    hosts = tuple(f"p3.16xlarge-{n}" for n in range(2))
    stages = tuple(stage((n, n), hosts=(host,)) for n, host in enumerate(hosts))
    write_plan(example_plan(stages=stages), folder / "wide.json")
    write_plan(example_plan(step_s=0.5), folder / "narrow.json")
    (folder / "broken.json").write_text("{}")
    return folder


def read(folder, text):
    path = folder / "scenario.yaml"
    path.write_text(text)
    return read_scenario(path)


def test_each_worker_takes_its_plans_step_on_the_hosts_after_the_one_before(folder):
    scenario = read(folder, PIPELINES)
    assert (scenario.job.compute_s, scenario.job.hosts) == ([0.25, 0.5], (0, 2))
    (run,) = run_scenario(scenario).runs
    assert 1.5 < run.history.end_s < 1.6
    assert run.history.links.tolist() == [[0, 2], [2, 0]]
    copied = read(folder, PIPELINES.replace("[wide.json, narrow.json]", "[narrow.json]\n  copies: 3"))
    assert (copied.job.compute_s, copied.job.hosts) == ([0.5] * 3, (0, 1, 2))


@pytest.mark.parametrize(
    ("old", "new", "line", "said"),
    [
        ("wide.json", "none.json", 5, "none.json ca"),
        ("wide.json", "broken.json", 5, "broken.json"),
        ("[wide.json, narrow.json]", "[wide.json]\n  copies: 3", 4, "copies is 3, but must be at most 2"),
        ("[wide.json, narrow.json]", "[]", 5, "workers.plans is [], but must be a list of plan files"),
        ("  plans: [wide.json, narrow.json]", "  copies: 2", 4, "both or neither of hosts and plans"),
        ("  plans: [wide.json, narrow.json]", "  hosts: [0]", 6, "compute_s is 'planned', but must be"),
        ("  plans: [wide.json, narrow.json]", "  hosts: [0]\n  copies: 2", 6, "copies is there without plans"),
        ("compute_s: planned", "compute_s: 0.1", 6, "compute_s is 0.1, but must be 'planned' where workers are"),
    ],
)
def test_what_cannot_be_is_said_with_its_line(folder, old, new, line, said):
    assert PIPELINES.count(old) == 1
    with pytest.raises(ValueError, match=rf"scenario\.yaml, line {line}: .*; docs/guides/playground-sc") as caught:
        read(folder, PIPELINES.replace(old, new))
    assert said in str(caught.value)
