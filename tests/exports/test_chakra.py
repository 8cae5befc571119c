"""Traces of a plan's step: a replayer that knows only Chakra's documentation takes as long as our simulation."""

import dataclasses

import pytest

from alpa_dejavu.cli.main import main
from alpa_dejavu.exports import export, named_target
from alpa_dejavu.exports._target import CostedWriter
from alpa_dejavu.exports.chakra import chakra_files
from alpa_dejavu.exports.testing import check_target
from alpa_dejavu.planning.changed.kept import Kept, write_with_kept
from alpa_dejavu.plans.plan_file import read_plan
from alpa_dejavu.simulation import simulate
from alpa_dejavu.simulation.plan_times import plan_times
from chakra_replay import COLLECTIVE, RECEIVE, SEND, read_traces, replay
from models import chain
from timelines import small_planned


def target(made):
    return dataclasses.replace(named_target("chakra"), writer=CostedWriter(chakra_files, made.table.stage_costs))


def traced(made, folder):
    export(made.plan, target(made), folder)
    return read_traces(folder)


def simulated(plan):
    return simulate(plan_times(plan), plan.num_micro_batches, plan.schedule)


def scaled(made, factor=1e3):
    """The plan with so many times the seconds, so that whole microseconds don't matter."""
    names = [
        "compute_s", "collective_s", "boundary_s", "per_step_s", "forward_s", "backward_s", "forward_collective_s",
        "forward_boundary_s", "synchronisation_s", "backward_weight_s",
    ]  # fmt: skip
    stages = [
        dataclasses.replace(stage, **{name: factor * getattr(stage, name) for name in names})
        for stage in made.plan.stages
    ]
    plan = dataclasses.replace(made.plan, stages=tuple(stages), step_s=factor * made.plan.step_s)
    return dataclasses.replace(made, plan=plan)


@pytest.mark.parametrize(
    "schedule", ["1f1b", "1f1b_overlap_friendly", "gpipe", "inference", "interleaved", "zb_h1", "zb_v", "pipedream"]
)
def test_a_replay_takes_as_long_as_the_simulated_step(tmp_path, schedule):
    layers = 8 if schedule in ("interleaved", "zb_v") else 6
    model = chain(layers, flop=1e10, parameter_bytes=1e7, activation_bytes=1e7, training=schedule != "inference")
    stages = 4 if schedule in ("interleaved", "zb_v") else 2
    made = scaled(small_planned(layers, stages, schedule=schedule, model=model))
    ranks, groups = traced(made, tmp_path)
    found = replay(ranks, groups)
    assert len(ranks) == made.plan.num_devices
    assert found.step_s == pytest.approx(simulated(made.plan).step_s, rel=1e-4)
    assert found.nodes[SEND] == found.nodes[RECEIVE] == found.pairs > 0


def test_collectives_have_the_groups_kinds_and_bytes_that_were_priced(tmp_path):
    model = chain(2, flop=1e12, parameter_bytes=1e7, activation_bytes=1e5, exchanged=(8e6, 4e6))
    made = scaled(small_planned(2, 1, micro_batches=2, model=model), 10.0)
    stage = made.plan.stages[0]
    data, tensor = stage.logical_mesh
    ranks, groups = traced(made, tmp_path)
    assert all(int(name) > 0 and len(group) > 1 for name, group in groups.items()), "0 is all ranks in ASTRA-sim"
    nodes = [node for node in ranks[0] if node.kind == COLLECTIVE]
    assert nodes
    for node in nodes:
        assert 0 in groups[node.attributes["pg_name"]]
        assert node.attributes["comm_type"] == 0
    in_step = [node for node in nodes if "step" in node.name]
    assert [len(groups[node.attributes["pg_name"]]) for node in in_step] == [data] * (data > 1)
    assert all(node.attributes["comm_size"] == round(2e7 / tensor) for node in in_step)
    in_pass = [node for node in nodes if node.name.startswith("forward layer 0")]
    assert all(len(groups[node.attributes["pg_name"]]) == tensor for node in in_pass)
    assert all(node.attributes["comm_size"] == round(0.5 * 12e6 / data) for node in in_pass)


def test_the_target_keeps_its_contract():
    made = small_planned(6, 2)
    check_target(target(made), [(made.plan, None)])


def test_the_command_goes_by_what_is_kept_beside_the_plan(tmp_path, capsys):
    made, path = small_planned(6, 2), tmp_path / "plan.json"
    write_with_kept(made.plan, Kept.of(made), path)
    with pytest.raises(SystemExit) as ended:
        main(["export", str(path), "--to", "chakra", "--output", str(tmp_path / "traces")])
    assert ended.value.code == 0
    assert "ASTRA-sim itself wasn't run" in " ".join(capsys.readouterr().out.split())
    expected = chakra_files(read_plan(path), made.table.stage_costs)
    for name, content in expected.items():
        written = (tmp_path / "traces" / name).read_bytes()
        assert written == (content.encode() if isinstance(content, str) else content)


def test_a_plan_of_another_model_is_refused(tmp_path):
    made, other = small_planned(6, 2), small_planned(4, 2)
    with pytest.raises(ValueError, match="the plan has 6 layers, but must have the 4 of its model; plan again"):
        export(made.plan, target(other), tmp_path / "new")
    with pytest.raises(ValueError, match=r"the plan is for the cluster 'example'.*give that"):
        export(made.plan, "chakra", tmp_path / "new")
    assert not (tmp_path / "new").exists()
