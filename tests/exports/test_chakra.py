"""Traces of a plan's step: a replayer that knows only Chakra's documentation takes as long as our simulation."""

import dataclasses
import itertools

import pytest

from alpa_dejavu.cli.main import main
from alpa_dejavu.exports import export, named_target
from alpa_dejavu.exports._target import CostedWriter
from alpa_dejavu.exports.chakra import chakra_files
from alpa_dejavu.exports.testing import check_target
from alpa_dejavu.layers.models import Transformer
from alpa_dejavu.planning import GivenStage, estimate
from alpa_dejavu.planning.changed.kept import Kept, write_with_kept
from alpa_dejavu.plans.plan_file import read_plan
from alpa_dejavu.problem import MeshConfig, Run, Submesh
from alpa_dejavu.sharding.transformers import execution, transformer_model
from alpa_dejavu.simulation import simulate
from alpa_dejavu.simulation.plan_times import plan_times
from alpa_dejavu.testing import example_cluster
from chakra_replay import COLLECTIVE, COMPUTE, RECEIVE, SEND, read_traces, replay
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


MOE = Transformer(512, 4, 8, 1024, 256, feed_forward=256, num_experts=16, experts_per_token=2)


ROWS = [[0, 1], [2, 3], [4, 5], [6, 7], [8, 9], [10, 11], [12, 13], [14, 15]]


COLUMNS = [[0, 2, 4, 6, 8, 10, 12, 14], [1, 3, 5, 7, 9, 11, 13, 15]]


PAIRS = [[0, 2], [4, 6], [8, 10], [12, 14], [1, 3], [5, 7], [9, 11], [13, 15]]


FOURS = [[0, 2, 4, 6], [8, 10, 12, 14], [1, 3, 5, 7], [9, 11, 13, 15]]


APART = [[0, 8], [2, 10], [4, 12], [6, 14], [1, 9], [3, 11], [5, 13], [7, 15]]


def test_stages_of_unlike_devices_send_each_other_all_bytes(tmp_path):
    model = chain(6, flop=3e10, parameter_bytes=1e7, activation_bytes=1e6)
    given = [
        GivenStage(2 * n, 2 * n + 1, Submesh(1, size), MeshConfig((size, 1), size, 1))
        for n, size in enumerate((1, 1, 2))
    ]
    made = scaled(estimate(model, example_cluster(1, 4), Run(4), given, batch=16))
    ranks, groups = traced(made, tmp_path)
    assert replay(ranks, groups).step_s == pytest.approx(simulated(made.plan).step_s, rel=1e-4)
    cuts = made.table.stage_costs.interstage.bytes
    sent = {}
    for node in itertools.chain(*ranks):
        if node.kind == SEND:
            assert node.attributes["comm_src"] == node.rank
            way = node.name.partition(",")[0]
            sent[way] = sent.get(way, 0) + node.attributes["comm_size"]
    whole = {
        f"forward send from stage {n} to stage {n + 1}": 4 * cuts.forward_bytes[stage.layers[0]]
        for n, stage in enumerate(made.plan.stages[1:])
    }
    whole |= {
        f"backward send from stage {n + 1} to stage {n}": 4 * cuts.backward_bytes[stage.layers[0]]
        for n, stage in enumerate(made.plan.stages[1:])
    }
    assert sent == pytest.approx(whole, rel=1e-3)


def test_each_layer_of_each_micro_batch_is_a_node_of_each_rank(tmp_path):
    made = scaled(small_planned(6, 2, micro_batches=4))
    ranks, _ = traced(made, tmp_path)
    computed = {}
    for node in itertools.chain(*ranks):
        assert node.attributes["is_cpu_op"] == 0
        if node.kind == COMPUTE:
            computed.setdefault(node.name, []).append(node.micros)
    wanted = {
        f"{way} layer {layer}, micro-batch {batch}"
        for way in ("forward", "backward")
        for layer in range(6)
        for batch in range(4)
    }
    assert computed.keys() == {*wanted, "optimizer"}
    for n, stage in enumerate(made.plan.stages):
        devices, times = stage.submesh.num_devices, plan_times(made.plan)[n]
        layers = range(stage.layers[0], stage.layers[1] + 1)
        named = [computed[f"forward layer {layer}, micro-batch {batch}"] for layer in layers for batch in range(4)]
        assert all(len(each) == devices for each in named)
        seconds = sum(map(sum, named)) / 1e6 / devices / 4
        assert seconds == pytest.approx(times.forward_s - times.forward_collective_s, rel=1e-4)


@pytest.mark.parametrize(
    ("degrees", "wanted"),
    [
        (
            {"context_parallel": 2, "expert_parallel": 4, "zero": 2},
            {
                "forward layer 1 reduce_scatter": ROWS, "forward layer 1 all_gather": ROWS + PAIRS,
                "forward layer 1 all_to_all": FOURS, "step all layers reduce_scatter": APART + COLUMNS,
            },
        ),
        (
            {"sharded": 4, "zero": 3},
            {
                "forward layer 1 reduce_scatter": ROWS, "forward all layers all_gather": FOURS,
                "backward all layers reduce_scatter": FOURS, "backward all layers all_reduce": APART,
            },
        ),
    ],
)  # fmt: skip
def test_each_degree_has_its_own_groups(tmp_path, degrees, wanted):
    config = MeshConfig((8, 2), 8, 2, **degrees)
    given = [GivenStage(first, first + 2, Submesh(1, 16), config) for first in (0, 3)]
    model = transformer_model(MOE, execution("megatron"), config.replicas)
    made = scaled(estimate(model, example_cluster(2, 16), Run(2), given, batch=2 * config.replicas))
    ranks, groups = traced(made, tmp_path)
    assert replay(ranks, groups).step_s == pytest.approx(simulated(made.plan).step_s, rel=1e-4)
    found = {}
    for node in itertools.chain(*ranks):
        if node.kind == COLLECTIVE:
            group = groups[node.attributes["pg_name"]]
            assert node.rank in group
            found.setdefault(node.name.partition(",")[0], set()).add(tuple(group))
    for name, own in wanted.items():
        other = name.replace("layer 1", "layer 4")
        further = [[rank + 16 for rank in group] for group in own]
        assert found[name] | found[other] == {*map(tuple, own + further)}, name


def test_the_replayer_sees_what_would_hang(tmp_path):
    made = scaled(small_planned(6, 2, micro_batches=2))
    ranks, groups = traced(made, tmp_path)
    sends = [node for node in itertools.chain(*ranks) if node.kind == SEND]
    for name, wrong in (("comm_tag", 10**6), ("comm_size", 1)):
        right = sends[0].attributes[name]
        sends[0].attributes[name] = wrong
        with pytest.raises(ValueError, match=r"never end; waiting: .*send from stage"):
            replay(ranks, groups)
        sends[0].attributes[name] = right
    sends[0].needs += (ranks[sends[0].rank][-1].number,)
    with pytest.raises(ValueError, match="never end"):
        replay(ranks, groups)
