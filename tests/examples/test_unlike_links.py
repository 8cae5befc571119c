"""008_unlike_links.py on four hosts: no order of the hosts is faster than the plan's, by the prices of given plans."""

import importlib.util
import json
import sys
from pathlib import Path

import pytest

FILE = Path(__file__).parents[2] / "examples" / "008_unlike_links.py"


@pytest.fixture
def example():
    spec = importlib.util.spec_from_file_location("example_008", FILE)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def cluster_file(tmp_path, fast):
    """Four hosts of one V100 with links of 10 Gbit/s, but for some pairs, whose Gbit/s are given."""

    def link(source, target, rate):
        figures = {"latency_s": (50, "us"), "bytes_per_s": (rate, "Gbit/s")}
        said = {key: {"value": value, "unit": unit, "source": "made up"} for key, (value, unit) in figures.items()}
        return {"from": source, "to": target, "both_ways": True, **said}

    data = {
        "version": 1,
        "name": "four",
        "hosts": [{"name": name, "machine": "p3.8xlarge", "devices": 1} for name in "abcd"],
        "links": [link("*", "*", 10), *(link(*pair, rate) for pair, rate in fast.items())],
    }
    path = tmp_path / "four.json"
    path.write_text(json.dumps(data), encoding="utf-8")
    return path


@pytest.mark.parametrize(
    ("batch", "fast", "hosts"),
    [
        (64, {"ad": 100, "bc": 50}, {"b c", "a d"}),
        # One stage on all hosts: an all-to-all takes less in one order of them than in others.
        (512, {"ac": 100, "bd": 25}, None),
    ],
)
def test_no_order_of_the_hosts_is_faster(example, tmp_path, monkeypatch, capsys, batch, fast, hosts):
    path = cluster_file(tmp_path, fast)
    monkeypatch.setattr(sys, "argv", ["008", "--cluster", str(path), "--batch", str(batch)])
    assert example.main() == 0
    rows = {line.split("  ")[0]: line for line in capsys.readouterr().out.splitlines() if " s a step, " in line}
    assert set(rows) >= {"as planned", "in the file's order", "best of all 24", "worst of all 24"}
    assert "1.000 of the best" in rows["as planned"]
    if hosts:
        assert set(rows["as planned"].partition("of the best: ")[2].split(", ")) == hosts
        assert "1.000 of the best" not in rows["in the file's order"]


def test_a_plan_that_is_not_the_fastest_is_found_out(example, tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["008", "--cluster", str(cluster_file(tmp_path, {"ad": 100})), "--batch", "64"])
    right = example.seconds_by_placement

    def faster_elsewhere(found):
        own = tuple(stage.hosts for stage in found.plan.stages)
        return {on: step_s / 2 if on != own else step_s for on, step_s in right(found).items()}

    monkeypatch.setattr(example, "seconds_by_placement", faster_elsewhere)
    assert example.main() == 1
