"""Plan files: the same plan comes back, and what is wrong with one is named with its line."""

import copy
import dataclasses
import json
import pathlib

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from alpa_dejavu._util import json_file
from alpa_dejavu.plans.plan_file import plan_data, read_plan, write_plan
from alpa_dejavu.problem import HostSummary, PricedBy
from plans import example_plan, hardware, stage, whole_plan

FIRST = ("hardware", "hosts", 0)
SECOND = "stages", 1
DATA = pathlib.Path(__file__).parents[1] / "whole" / "data"
TOP = (
    "version model num_layers cluster num_devices batch num_micro_batches schedule iteration_time_s planning_s stages"
).split()
STAGE = "layers submesh logical_mesh hosts remat zero forward_s backward_s per_step_s memory_bytes memory_limit_bytes"


@pytest.mark.parametrize(
    ("name", "plan"),
    [
        pytest.param("plan-1", example_plan(), id="from before plans held their cluster"),
        pytest.param("plan-1-whole", whole_plan(), id="with its cluster"),
    ],
)
def test_the_golden_file_is_what_is_written(tmp_path, name, plan):
    golden = DATA / f"{name}.json"
    assert write_plan(plan, tmp_path / "plan.json").read_text() == golden.read_text()
    assert read_plan(golden) == plan


def test_what_a_plan_says_of_unlike_and_shared_hosts_comes_back(tmp_path):
    hosts = (*hardware(1).hosts, HostSummary("b", 2, "T4", 1.0, 1, 1.5))
    unlike = dataclasses.replace(hardware(2, machine_file="mine.json", cores=8), hosts=hosts)
    plan = whole_plan(hardware=unlike, priced_by=PricedBy())
    assert read_plan(write_plan(plan, tmp_path / "plan.json")) == plan


def test_the_keys_of_version_1_are_there():
    data = plan_data(example_plan())
    assert set(TOP) <= set(data)
    assert set(STAGE.split()) <= set(data["stages"][0])
    assert (data["version"], data["num_layers"], data["num_devices"]) == (1, 4, 4)
    assert data["stages"][1]["layers"] == [3, 3]
    assert data["stages"][0]["submesh"] == [1, 2]


def test_keys_to_run_a_plan_with_suffice(tmp_path):
    data = plan_data(example_plan())
    data = {key: data[key] for key in TOP}
    data["stages"] = [{key: row[key] for key in STAGE.split()} for row in data["stages"]]
    path = tmp_path / "plan.json"
    path.write_text(json.dumps(data))
    plan = read_plan(path)
    assert plan.layer_ids == [[0, 1, 2], [3]]
    assert plan.stages[0].compute_s == pytest.approx(0.025)
    assert plan.stages[0].options == {"force_batch_dim_to_mesh_dim": 0}


seconds = st.floats(0, 1e6)
rows = st.tuples(seconds, seconds, st.sampled_from(["none", "layer"]), st.sampled_from([0, 2, 3]))


@settings(deadline=None)
@given(
    times=st.lists(rows, min_size=1),
    step_s=st.floats(1e-9, 1e6),
    model=st.text(),
    batch=st.none() | st.integers(1, 9).map(lambda n: 4 * n),
    option=st.sampled_from(["auto", "manual"]),
)
def test_every_plan_comes_back(tmp_path_factory, times, step_s, model, batch, option):
    stages = tuple(
        stage(
            (n, n),
            forward_s=forward,
            backward_s=backward,
            compute_s=forward + backward,
            collective_s=0.0,
            forward_collective_s=0.0,
            remat=remat,
            zero=zero,
        )
        for n, (forward, backward, remat, zero) in enumerate(times)
    )
    step_s += 4 * max(one.compute_s for one in stages)
    plan = example_plan(
        stages=stages, step_s=step_s, lower_bound_s=step_s / 2, model=model, batch=batch, layer_option=option
    )
    path = write_plan(plan, tmp_path_factory.mktemp("plans") / "plan.json")
    assert read_plan(path) == plan


def changed(path, value, plan=None):
    data = copy.deepcopy(plan_data(plan or example_plan()))
    place = data
    for step in path[:-1]:
        place = place[step]
    if value is None and path[-1] != "batch":
        del place[path[-1]]
    else:
        place[path[-1]] = value
    return json.dumps(data, indent=2)


@pytest.mark.parametrize(
    ("path", "value", "said"),
    [
        (["version"], 2, r"line 2: version is 2, but must be 1, the version"),
        (["version"], None, r"line 1: the file lacks the key 'version'"),
        (["num_layer"], 4, r"num_layer is an unknown key; did you mean 'num_layers'"),
        (["num_micro_batches"], 0, r"line 9: num_micro_batches is 0, but must be a whole number of micro-batches"),
        (["num_micro_batches"], 2.5, r"num_micro_batches is 2\.5"),
        (["num_micro_batches"], True, r"num_micro_batches is true"),
        (["num_micro_batches"], 3, r"line 9: num_micro_batches is 3, which doesn't divide the batch of 32"),
        (["schedule"], "2f2b", r"line 10: schedule is \"2f2b\", but must be a schedule: 1f1b, "),
        (["iteration_time_s"], 0, r"iteration_time_s is 0, but must be seconds above 0"),
        (["stages", 0, "context_parallel"], 3, r"stages\[0\]\.context_parallel is 3, but must divide the \d+ data"),
        (["planning_s", "slicing"], -1, r"planning_s\.slicing is -1, but must be seconds of at least 0"),
        (["num_layers"], 5, r"line 4: num_layers is 5, but the stages have 4 layers"),
        (["num_devices"], 8, r"num_devices is 8, but the stages have 4"),
        (["stages"], [], r"stages is \[\], but must be a list of at least one stage"),
        (["stages", 0, "forward_s"], -0.5, r"line \d+: stages\[0\]\.forward_s is -0\.5, but must be seconds of at"),
        (["stages", 1, "memory_bytes"], "much", r"stages\[1\]\.memory_bytes is \"much\", but must be bytes"),
        (["stages", 1, "submesh"], [1], r"stages\[1\]\.submesh is \[1\], but must be \[hosts, devices per host\]"),
        (["stages", 1, "layers"], [2, 3], r"stages\[1\]\.layers is \[2, 3\], but must go on from layer 3"),
        (["stages", 1, "logical_mesh"], [2, 2], r"logical_mesh is \[2, 2\], 4 devices, but its submesh has 2"),
        (["stages", 1, "hosts"], ["a", "b"], r"stages\[1\]\.hosts names 2 hosts, but its submesh has 1"),
        (["stages", 1, "remat"], "some", r"stages\[1\]\.remat is \"some\", but must be \"none\", \"selective"),
        (["stages", 0, "zero"], 1, r"stages\[0\]\.zero is 1, but must be 0, 2 or 3"),
        (["stages", 0, "hosts"], None, r"stages\[0\] lacks the key 'hosts'"),
        (["lower_bound_s"], 0.51, r"lower_bound_s is 0\.51, but must be at most 0\.5, which these"),
        (["iteration_time_s"], 1e-9, r"iteration_time_s is 1e-09, but must be at least 0\.1, which its"),
        ([*SECOND, "collective_s"], 25.0, r"collective_s is 25\.0, but must be at most forward_s plus backward_s"),
        ([*SECOND, "compute_s"], 0.021, r"compute_s is 0\.021, but must be forward_s plus backward_s without collecti"),
        ([*SECOND, "forward_collective_s"], 0.006, r"forward_collective_s is 0\.006, but must be at most collective"),
        ([*SECOND, "synchronisation_s"], 0.02, r"synchronisation_s is 0\.02, but must be at most per_step_s, 0\.01"),
        ([*SECOND, "memory_bytes"], 8e-6, r"memory_bytes is 8e-06, but must be at least resident_bytes plus temporary"),
        ([*SECOND, "memory_limit_bytes"], 8e-6, r"memory_limit_bytes is 8e-06, but must be 0, or at least 0\.001"),
        ([*SECOND, "memory_parts"], {"weights": 9e9}, r"memory_bytes is .*, but must be the sum of memory_parts, 9000"),
    ],
)
def test_what_is_wrong_is_named(tmp_path, path, value, said):
    file = tmp_path / "mine.json"
    file.write_text(changed(path, value))
    with pytest.raises(ValueError, match=rf"mine\.json, line.*{said}|mine\.json, {said}") as caught:
        read_plan(file)
    assert "alpa-dejavu plan --json" in str(caught.value)


@pytest.mark.parametrize(
    ("path", "value", "said"),
    [
        (["hardware", "hosts"], [], r"hardware\.hosts is \[\], but must be a list of at least one host"),
        ([*FIRST, "num_devices"], 0, r"hardware\.hosts\[0\]\.num_devices is 0, but must be a whole number"),
        ([*FIRST, "num_devices"], 3, r"stages\[1\] and those before it take more devices of 'p3\.16xlarge-0'"),
        ([*FIRST, "name"], "p3.16xlarge-1", r"hardware\.hosts names 'p3\.16xlarge-1' twice"),
        ([*FIRST, "name"], "a", r"stages\[0\]\.hosts names 'p3\.16xlarge-0', which hardware\.hosts doesn't"),
        (["hardware", "machin"], "", r"hardware\.machin is an unknown key; did you mean 'machine'"),
        (["priced_by", "layers"], "all", r"priced_by\.layers is \"all\", but must be a whole number of layers"),
        (["priced_by", "zero"], [1], r"priced_by\.zero\[0\] is 1, but must be 0, 2 or 3"),
    ],
)
def test_what_is_wrong_with_what_a_plan_says_of_itself_is_named(tmp_path, path, value, said):
    file = tmp_path / "mine.json"
    file.write_text(changed(path, value, whole_plan()))
    with pytest.raises(ValueError, match=rf"mine\.json, line \d+: {said}"):
        read_plan(file)


def test_what_is_no_plan_and_a_file_that_is_not_there_are_named(tmp_path):
    for text, said in (("{", "line 1: this isn't JSON"), ("[]", r"the file is \[\], but must be an object")):
        (tmp_path / "mine.json").write_text(text)
        with pytest.raises(ValueError, match=said):
            read_plan(tmp_path / "mine.json")
    with pytest.raises(ValueError, match=r"gone\.json can't be read"):
        read_plan(tmp_path / "gone.json")
    with pytest.raises(ValueError, match=r"there is no folder .*nowhere"):
        write_plan(example_plan(), tmp_path / "nowhere" / "plan.json")


def test_nothing_is_written_half(tmp_path, monkeypatch):
    path = write_plan(example_plan(), tmp_path / "plan.json")
    before = path.read_text()

    def fails(*_):
        raise OSError("the disk is full")

    monkeypatch.setattr(json_file.os, "replace", fails)
    with pytest.raises(ValueError, match=r"plan\.json can't be written: the disk is full"):
        write_plan(example_plan(batch=64), path)
    with pytest.raises(ValueError, match="JSON compliant"):
        write_plan(example_plan(step_s=float("nan")), path)
    assert path.read_text() == before
    assert list(tmp_path.iterdir()) == [path]
