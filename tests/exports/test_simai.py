"""SimAI's workload: a reader of its form, written from its documentation, finds all seconds and bytes in it."""

import dataclasses

import pytest

from alpa_dejavu.exports import export, named_target
from alpa_dejavu.exports._target import CostedWriter
from alpa_dejavu.exports.simai import simai_files
from alpa_dejavu.exports.testing import check_target
from alpa_dejavu.layers import trace
from alpa_dejavu.layers.models import Transformer
from alpa_dejavu.planning import GivenStage, estimate
from alpa_dejavu.problem import MeshConfig, Run, Submesh
from alpa_dejavu.sharding import model_of_step
from alpa_dejavu.sharding.transformers import execution, transformer_model
from alpa_dejavu.simulation.plan_times import plan_times
from alpa_dejavu.testing import example_cluster
from models import chain
from tanh_layers import trained

KINDS = ("ALLREDUCE", "ALLGATHER", "REDUCESCATTER", "ALLTOALL", "ALLTOALL_EP", "ALLREDUCE_DP_EP", "NONE")
MOE = Transformer(512, 4, 8, 1024, 256, feed_forward=256, num_experts=16, experts_per_token=2)


def made(layers=((0, 1), (2, 3)), meshes=((2, 2), (2, 2)), zero=0, schedule="1f1b", micro_batches=4):
    model = chain(layers[-1][1] + 1, flop=1e10, parameter_bytes=1e7, activation_bytes=1e6, exchanged=(8e6,))
    given = [
        GivenStage(*own, Submesh(1, mesh[0] * mesh[1]), MeshConfig(mesh, *mesh, zero=zero))
        for own, mesh in zip(layers, meshes, strict=True)
    ]
    return estimate(model, example_cluster(len(layers), 4), Run(micro_batches, schedule), given, batch=16)


def divided(*degrees, tensor=2, zero=0):
    """A transformer with experts, of whose stages each has eight devices, divided in some further ways."""
    configs = [MeshConfig((8 // tensor, tensor), 8 // tensor, tensor, zero=zero, **each) for each in degrees]
    share = 6 // len(configs)
    given = [GivenStage(n * share, (n + 1) * share - 1, Submesh(1, 8), config) for n, config in enumerate(configs)]
    model = transformer_model(MOE, execution("megatron"), 4)
    return estimate(model, example_cluster(len(configs), 8), Run(2), given, batch=8)


def target(planned):
    return dataclasses.replace(named_target("simai"), writer=CostedWriter(simai_files, planned.table.stage_costs))


def read(text):
    """As SimAI does: words of the first line, the number of lines, and 12 words for each."""
    first, second, *lines = text.splitlines()
    words = first.split()
    assert words[0] == "HYBRID_TRANSFORMER_FWD_IN_BCKWD"
    header = {name.rstrip(":"): int(value) for name, value in zip(words[1::2], words[2::2], strict=True)}
    rows = [line.split() for line in lines]
    assert int(second) == len(rows)
    assert all(len(row) == 12 for row in rows)
    for row in rows:
        assert (row[1], row[11]) == ("-1", "100")
        for compute, kind, size in (row[2:5], row[5:8], row[8:11]):
            assert int(compute) >= 1
            assert kind in KINDS
            assert (int(size) > 0) == (kind != "NONE")
    return header, rows


def test_the_target_keeps_its_contract():
    planned = made()
    check_target(target(planned), [(planned.plan, None)], lambda files, _: read(files["workload.txt"]) and None)


def test_the_text_has_all_that_a_stage_does(tmp_path):
    planned = made()
    export(planned.plan, target(planned), tmp_path)
    header, rows = read((tmp_path / "workload.txt").read_text(encoding="utf-8"))
    assert header == {
        "model_parallel_NPU_group": 2, "ep": 1, "pp": 2, "vpp": 1, "ga": 4, "all_gpus": 8, "checkpoints": 0,
        "checkpoint_initiates": 0, "pp_comm": round(1e6 / 4),
    }  # fmt: skip
    times = max(plan_times(planned.plan), key=lambda one: one.forward_s + one.backward_s)
    layers = [row for row in rows if row[0].startswith("layer_")]
    assert len(layers) == 4 * 2
    forward, backward = (1e-9 * sum(int(row[n]) for row in layers) / 4 for n in (2, 5))
    assert forward == pytest.approx(times.forward_s - times.forward_collective_s, rel=1e-3)
    assert backward == pytest.approx(times.backward_s - times.backward_collective_s, rel=1e-3)
    assert {(row[3], row[4], row[6], row[7]) for row in layers} == {("ALLREDUCE", "2000000", "ALLREDUCE", "2000000")}
    gradients = [row for row in rows if row[9] != "NONE"]
    assert [(row[9], row[10]) for row in gradients] == [("ALLREDUCE", str(round(2 * 1e7 / 2)))]


def test_experts_have_groups_of_their_own(tmp_path):
    planned = divided({"expert_parallel": 2})
    export(planned.plan, target(planned), tmp_path)
    header, rows = read((tmp_path / "workload.txt").read_text(encoding="utf-8"))
    assert (header["model_parallel_NPU_group"], header["ep"], header["all_gpus"]) == (2, 2, 8)
    kinds = {(row[3], row[6]) for row in rows if row[0].startswith("layer_1")}
    assert kinds == {("ALLGATHER",) * 2, ("REDUCESCATTER",) * 2, ("ALLTOALL_EP",) * 2}
    assert [row[9] for row in rows if row[0].startswith("gradients")] == ["ALLREDUCE_DP_EP", "ALLREDUCE"]


@pytest.mark.parametrize(
    ("planned", "said"),
    [
        (lambda: made(((0, 0), (1, 3))), "stage 1 has 3 layers, but must have 1 for simai.*cut the layers evenly"),
        (lambda: made(meshes=((2, 2), (4, 1))), r"stage 1's logical_mesh is \(4, 1\), but must be stage 0's, \(2, 2\)"),
        (lambda: divided({}, {"expert_parallel": 2}), "stage 1's expert_parallel is 2, but must be stage 0's, 1"),
        (lambda: made(zero=3), "all_gather' among 2 data-parallel devices, but must.*plan with ZeRO 0 or 2"),
        (
            lambda: divided({"context_parallel": 2}),
            "stage 0 has 'forward layer 1 all_gather' among 2 context-parallel devices, but.*; export to chakra$",
        ),
        (lambda: divided({"expert_parallel": 2}, zero=3), "all_gather' among 2 data-parallel devices"),
        (lambda: divided({"sharded": 2}, zero=3), "all_gather' among 2 sharded devices"),
        (lambda: divided({"sharded": 1}, zero=3), "all_reduce' among 4 replicated devices"),
        (lambda: made(schedule="zb_h1"), "schedule is 'zb_h1', but must be one of 1f1b, gpipe for simai"),
    ],
)
def test_what_simai_cannot_say_is_refused(tmp_path, planned, said):
    planned = planned()
    with pytest.raises(ValueError, match=said):
        export(planned.plan, target(planned), tmp_path / "new")
    assert not (tmp_path / "new").exists()


def test_gradients_that_tensor_parallel_devices_add_up_are_in_a_column_of_theirs(tmp_path):
    model = model_of_step(trace(trained, batch=1024), 2)
    given = [GivenStage(0, 1, Submesh(1, 4), MeshConfig((1, 4), 1, 4))]
    planned = estimate(model, example_cluster(1, 4), Run(2), given, batch=2048)
    export(planned.plan, target(planned), tmp_path)
    _, rows = read((tmp_path / "workload.txt").read_text(encoding="utf-8"))
    assert rows[0][5:] == ["1", "ALLREDUCE", str(6 * 64 * 64 * 4), "1", "NONE", "0", "100"]
