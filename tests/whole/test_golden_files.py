"""Files that releases have written: each is read, and what was read is written as the same bytes."""

import dataclasses
import json
import pathlib
import sqlite3

import pytest

from alpa_dejavu.calibration import read_calibration, write_calibration
from alpa_dejavu.calibration.database import read_database
from alpa_dejavu.calibration.history import StageSeconds, Store, corrected
from alpa_dejavu.calibration.text import json_text
from alpa_dejavu.clusters import named_cluster, read_cluster, write_cluster
from alpa_dejavu.clusters.machine_file import read_machine
from alpa_dejavu.planning.inference import read_serving_plan, write_serving_plan
from alpa_dejavu.plans.plan_file import read_plan, write_plan
from alpa_dejavu.playground.scenarios import read_runs, write_runs
from alpa_dejavu.problem import StepCorrection
from past_runs import run_of
from plans import example_plan, whole_plan

DATA = pathlib.Path(__file__).parent / "data"


def same(tmp_path, golden, write, read):
    path = tmp_path / "again.json"
    write(read(golden), path)
    assert path.read_bytes() == golden.read_bytes()


@pytest.mark.parametrize("name", ["plan-1", "plan-1-whole", "plan-1-said"])
def test_a_plan(tmp_path, name):
    same(tmp_path, DATA / f"{name}.json", write_plan, read_plan)


def test_a_plan_for_inference(tmp_path):
    same(tmp_path, DATA / "serving-1.json", write_serving_plan, read_serving_plan)


def test_the_runs_of_a_scenario(tmp_path):
    same(tmp_path, DATA / "runs-1.json", write_runs, read_runs)


@pytest.mark.parametrize("name", ["cluster-1", "cluster-1-memory"])
def test_a_cluster(tmp_path, name):
    same(tmp_path, DATA / f"{name}.json", write_cluster, read_cluster)


def test_a_cluster_that_somebody_wrote_by_hand():
    """Its hosts have the memory of their machine types now, which the release that wrote the other file didn't know."""
    by_hand = read_cluster(DATA / "cluster-1-by-hand.json")
    assert [host.memory is not None for host in by_hand.hosts] == [True, True, True, False]
    hosts = tuple(dataclasses.replace(host, memory=None) for host in by_hand.hosts)
    assert dataclasses.replace(by_hand, hosts=hosts) == read_cluster(DATA / "cluster-1.json")


def test_a_machine():
    golden = DATA / "machine-1.json"
    assert read_machine(str(golden)) == json.loads(golden.read_text(encoding="utf-8"))
    assert named_cluster(str(golden), 2).hosts[1].memory_margin == 0.08


def test_a_calibration(tmp_path):
    same(tmp_path, DATA / "calibration-1.json", write_calibration, read_calibration)


def test_a_converted_database(tmp_path):
    golden = DATA / "database-1.json"
    assert json_text(read_database(golden)) == golden.read_text(encoding="utf-8")


@pytest.mark.parametrize("version", [1, 2])
def test_a_history(tmp_path, version):
    path = tmp_path / "history.sqlite"
    connection = sqlite3.connect(path)
    connection.executescript((DATA / f"history-{version}.sql").read_text(encoding="utf-8"))
    connection.close()
    first, second, third = Store(path).runs()
    # Version 1 didn't know what predicted a run.
    known = ("unknown", "unknown") if version == 1 else ("v100", "")
    assert first == run_of(whole_plan(), when_s=2.5, calibration=known[0])
    assert second.stages == (StageSeconds(0.1, 0.2, 0.01, 0.25, 0.3),) * 2
    assert second.ratio == pytest.approx(1.25)
    unnamed = corrected(example_plan(model="", batch=None), StepCorrection(1.5, 0.1, 3, 1))
    assert third == run_of(unnamed, model="another", calibration=known[1])
