"""Measured training steps by the planner's default models: how each set is described, on made-up figures."""

import dataclasses
import itertools
import json

import numpy as np
import pandas as pd
import pytest

from alpa_dejavu.costs.communication import AlphaBeta, Group
from alpa_dejavu.costs.cost_models import CostModels
from alpa_dejavu.layers.models import Transformer
from alpa_dejavu.planning.strategies import Task
from alpa_dejavu.planning.strategies.stages import PlacedStage, config_of
from alpa_dejavu.sharding.transformers import EXECUTIONS, transformer_model
from alpa_dejavu.testing import example_cluster
from trials import _sailor_tasks, amp, vtrain
from trials._folder import Folder, UnreadableError
from trials._planned_steps import PROFILED, by_rank, estimated, simulated, with_ends
from trials._sailor_links import BandwidthFit, FittedLinks
from trials._sailor_parts import parts
from trials._sets import SETS

SMALL = (16, 2, 256, 4, 4, 128, 2, 2, 2)
"""Batch, micro-batch, width, heads, blocks, tokens, and degrees of tensor, data and pipeline parallelism."""


def test_a_trial_of_megatrons_is_a_plan_whose_blocks_are_in_equal_parts():
    task, pipeline = vtrain.trial(SMALL)
    assert [(stage.first, stage.last) for stage in pipeline.stages] == [(0, 2), (3, 5)]
    assert (pipeline.micro_batch, pipeline.num_micro_batches) == (4, 4)
    assert {stage.config.remat for stage in pipeline.stages} == {"none"}
    step_s, lower, upper = estimated(task, pipeline)
    assert step_s == pytest.approx(simulated(task, pipeline)[0], rel=1e-6)
    assert lower < step_s < upper


def test_blocks_are_computed_again_only_where_a_stage_does_not_fit():
    large = (64, 1, 12288, 96, 48, 2048, 8, 1, 2)
    assert {stage.config.remat for stage in vtrain.trial(large)[1].stages} == {"layer"}
    fewer = (64, 1, 12288, 96, 8, 2048, 8, 1, 2)
    assert {stage.config.remat for stage in vtrain.trial(fewer)[1].stages} == {"none"}


def test_stages_on_uneven_parts_of_hosts_are_simulated():
    task, pipeline = vtrain.trial((24, 1, 256, 4, 4, 128, 4, 3, 2))
    assert [stage.is_submesh for stage in pipeline.stages] == [False, False]
    step_s, lower, upper = estimated(task, pipeline)
    assert (step_s, lower, upper) == simulated(task, pipeline)
    assert upper / step_s == pytest.approx(step_s / lower)


def test_ranks_go_through_hosts_in_their_order():
    stages = by_rank(example_cluster(2), with_ends(5, 2), config_of(2, 2))
    assert [(stage.first, stage.last, stage.hosts) for stage in stages] == [(0, 3, (0,) * 4), (4, 6, (1,) * 4)]


def _amp(folder):
    """Profiles of AMP's layers, of which all take as long, with exchanges of 3 ms where devices divide them."""
    (folder / "amp").mkdir()
    for model, layers in (("gpt2", 30), ("transgan", 56)):
        for device, seconds in (("t4", 5e-3), ("v100", 4e-3)):
            for tp in (1, 2, 4):
                times = [seconds / tp + (3e-3 * (tp > 1))] * layers
                lines = ["layer,forward_s_per_sample", *(f"{n},{one}" for n, one in enumerate(times))]
                (folder / "amp" / f"layer_forward_{model}_{device}_tp{tp}.csv").write_text("\n".join(lines))
    return Folder(folder)


def test_layers_take_what_was_profiled_and_nothing_is_launched_besides(tmp_path):
    task, pipeline = amp.trial(_amp(tmp_path), "het_model", (0, 56), (8, 2, 1, 1, 1))
    update_s = 7 * task.model.parameter_bytes / 900e9 + 24 * task.cluster.hosts[0].device.kernel_s
    found = simulated(task, pipeline)[0]
    assert found == pytest.approx(4 * 2 * 3 * 56 * 4e-3 + update_s + PROFILED.step_s, rel=1e-6)


def test_what_an_all_reduce_takes_besides_is_read_off_the_profiles(tmp_path):
    """A block's forward has two all-reduces, of 4 MiB: 3 ms more than the divided layer takes, at 6.25 GB/s."""
    starts = amp._profiled(_amp(tmp_path), "gpt2").starts_s
    ring = [2 * 1e-5 + 4 * 2**20 / 6.25e9, 6 * 1e-5 + 1.5 * 4 * 2**20 / 6.25e9]
    assert starts["T4"] == pytest.approx(np.median([3e-3 / 2 - each for each in ring]), abs=1e-9)


def test_a_mixed_cluster_is_as_slow_as_its_slow_host(tmp_path):
    folder, lines = _amp(tmp_path), ["global_batch,micro_batch,tp,dp,pp,layer_boundaries,measured_s"]
    lines += [f'32,{size},{tp},{dp},{pp},"{json.dumps(cuts)}",1.0' for size, tp, dp, pp, cuts in (
        (1, 1, 16, 1, [0, 30]), (1, 4, 1, 4, [0, 8, 16, 23, 30]), (2, 2, 8, 1, [0, 30]), (1, 1, 8, 2, [0, 15, 30]),
    )]  # fmt: skip
    (tmp_path / "amp" / "het_cluster_trials.csv").write_text("\n".join(lines))
    trial = SETS["amp/het_cluster_trials"]
    rows = trial.load(folder)
    mixed = trial.predict(rows.drop(columns="measured_s"), folder)
    fast = trial.predict(rows.assign(cluster="het_model").drop(columns="measured_s"), folder)
    assert len(mixed.mean) == 4
    assert (mixed.lower < mixed.mean).all()
    assert mixed.mean[0] > fast.mean[0] * 30 / 56


def test_a_missing_profile_is_named(tmp_path):
    folder = _amp(tmp_path)
    (tmp_path / "amp" / "layer_forward_gpt2_v100_tp1.csv").unlink()
    with pytest.raises(UnreadableError, match=r"lacks layer_forward_gpt2_v100_tp1\.csv"):
        amp._profiled(folder, "gpt2")


_SIZES = {
    "params_floats": 1e6, "params_bytes": 4e6, "act_mem_bytes": 3e6, "act_output_bytes": 2e6,
}  # fmt: skip


def _sailor(folder):
    """Sizes, profiles and links: OPT-350 and OPT-30 on GH200, of which the latter takes ten times as long."""
    (folder / "sailor").mkdir()
    models = {
        name: {str(tp): {str(n): {k: v / tp for k, v in _SIZES.items()} for n in range(layers)} for tp in (1, 2, 4)}
        for name, layers in (("OPT-350", 26), ("GPT-Neo-2.7", 34), ("OPT-30", 50))
    }
    fits = {"GH-96": {"4": [[0.0, 0.0, 100.0], 1e11]}}, {"GH-96": {"1": {"GH-96": {"1": [[0.0, 0.0, 10.0], 1e10]}}}}
    for name, content in (
        ("llm_info", models), ("intra_node_bandwidth_fits", fits[0]), ("network_fits_between", fits[1]),
    ):  # fmt: skip
        (folder / "sailor" / f"{name}.json").write_text(json.dumps(content))
    lines = ["model,gpu,micro_batch,tp,layer,num_equal_layers,forward_s,backward_s,update_s"]
    for model, blocks, factor in (("OPT-350", 24, 1e-3), ("OPT-30", 48, 1e-2)):
        for samples in (1, 2):
            for tp in (1, 4):
                block_s, end_s = factor * samples / tp, 1e-4 * samples
                lines.append(f"{model},GH-96,{samples},{tp},0,1,{end_s},,5e-4")
                lines.append(f"{model},GH-96,{samples},{tp},1,{blocks},{block_s},{2 * block_s},5e-4")
                lines.append(f"{model},GH-96,{samples},{tp},{blocks + 1},1,{end_s},{end_s},5e-4")
    (folder / "sailor" / "layer_profiles.csv").write_text("\n".join(lines))
    return Folder(folder)


def test_sailors_layers_take_what_was_profiled_or_are_between_it(tmp_path):
    known = parts(_sailor(tmp_path))
    assert known.pass_s("OPT-350", "GH-96", "block", "forward", 4, 2) == pytest.approx(5e-4)
    assert known.pass_s("OPT-350", "GH-96", "block", "backward", 2, 2) == pytest.approx((5e-4 + (1e-3) / 2) * 2)
    assert known.pass_s("OPT-350", "GH-96", "embedding", "backward", 4, 2) == 0
    assert 1e-3 < known.pass_s("GPT-Neo-2.7", "GH-96", "block", "forward", 1, 1) < 1e-2
    assert known.update_s("GPT-Neo-2.7", "GH-96", "block", 1) == 5e-4
    assert known.update_s("OPT-350", "RTX-3090", "block", 1) == pytest.approx(28e6 / 936e9)
    with pytest.raises(UnreadableError, match="has no block on 'RTX-3090'"):
        known.pass_s("OPT-350", "RTX-3090", "block", "forward", 1, 1)


def _plan(stages, replicas, samples, batch, nodes):
    one = [[["GH-96", 4, "zone"]], 4]
    ends = np.linspace(0, 26, stages + 1).astype(int).tolist()
    layers = [list(range(first, end)) for first, end in itertools.pairwise(ends)]
    pipeline = {"layers_per_stage": layers, "tmp_per_stage": [[one] * replicas] * stages}
    row = {"model": "OPT-350", "micro_batch": samples, "global_batch": batch, "nodes": nodes}
    return row | {"pipelines": json.dumps([pipeline])}


def test_steps_and_peaks_of_sailors_plans_by_hand(tmp_path):
    folder = _sailor(tmp_path)
    rows = pd.DataFrame([_plan(1, 1, 2, 8, 1), _plan(2, 1, 2, 8, 2)])
    found = SETS["sailor/clariden_plans"].predict(rows, folder)
    micro_batch_s = 24 * 3 * 2 * 1e-3 / 4 + 3 * 2e-4
    assert found.mean[0] == pytest.approx(4 * micro_batch_s + 26 * 5e-4 + PROFILED.step_s)
    assert micro_batch_s * 5 / 2 < found.mean[1] - 13 * 5e-4 - PROFILED.step_s < micro_batch_s * 4
    hidden, wide = 2048 * 1024 * 4, 2048 * 4096 * 4
    going = 2 * (2 * wide / 4 + 2 * hidden)
    assert found.memory is not None
    assert found.memory[0] == pytest.approx(26 * (4 * 1e6 + 2 * 3e6 / 4) + going + PROFILED.own_bytes)
    assert found.memory[1] == pytest.approx(13 * (4 * 1e6 + 2 * 2 * 3e6 / 4) + going + PROFILED.own_bytes)


def test_replicas_add_gradients_up_over_the_fitted_links(tmp_path):
    folder = _sailor(tmp_path)
    rows = pd.DataFrame([_plan(1, 1, 2, 8, 1), _plan(1, 2, 2, 16, 2)])
    alone, both = SETS["sailor/clariden_plans"].predict(rows, folder).mean.tolist()
    # Four groups at a time share the 10 GB/s between two nodes.
    assert both - alone == pytest.approx(26 * 4e6 / 4 / (10e9 / 4))


def test_sailors_replicas_are_put_on_nodes_of_their_gpu_and_alike_pipelines_are_joined():
    def gpus(name, tp):
        return [[[name, tp, "zone"]], tp]

    pipeline = {"layers_per_stage": [list(range(13)), list(range(13, 26))], "tmp_per_stage": [
        [gpus("Titan-RTX", 2), gpus("RTX-2080", 4)], [gpus("RTX-2080", 4), gpus("RTX-2080", 4)],
    ]}  # fmt: skip
    row = {"model": "OPT-350", "micro_batch": 2.0, "global_batch": 64.0, "nodes": 4.0}
    (model, samples, micro_batches, staged, per_node) = _sailor_tasks.trials(
        row | {"pipelines": json.dumps([pipeline, pipeline])}
    )[0]
    assert (model, samples, micro_batches) == ("OPT-350", 2, 8)
    assert [len(replicas) for replicas, _ in staged] == [4, 4]
    nodes, places = _sailor_tasks.placed(staged, int(per_node))
    assert [gpu for gpu, _ in nodes].count("Titan-RTX") == 1
    assert all(len(hosts) == sum(tp for _, tp in replicas) for (replicas, _), hosts in zip(staged, places, strict=True))


def test_a_bandwidth_fit_that_is_none_is_refused():
    with pytest.raises(ValueError, match="largest bytes/s"):
        BandwidthFit.of([1.0, 2.0])


def test_links_without_a_fit_are_named(tmp_path):
    links, cluster = FittedLinks.read(_sailor(tmp_path)), example_cluster(2)
    with pytest.raises(UnreadableError, match=r"network_fits_between\.json: has no GPU"):
        links.seconds("send", 1e6, Group(cluster, (0, 1)))
    with pytest.raises(ValueError, match="no fits of 'all_to_all'"):
        links.seconds("all_to_all", 1e6, Group(cluster, (0, 1)))


def test_replicas_of_unlike_width_are_as_slow_as_the_slowest_and_exchange_over_their_hosts():
    size = Transformer(256, 2, 4, 512, 64)
    model, cluster = transformer_model(size, EXECUTIONS["deepspeed"], 2), example_cluster(2)
    task = Task(model, 2, cluster, 2, CostModels.named())
    unlike = PlacedStage(0, 3, (0, 1, 1), config_of(2, 1), (1, 2))
    narrow = PlacedStage(0, 3, (0, 0), config_of(2, 1))
    wide = PlacedStage(0, 3, (1, 1, 1, 1), config_of(2, 2))
    found, one, two = (task.stage_times([stage], 2)[0] for stage in (unlike, narrow, wide))
    assert found.forward_s == max(one.forward_s, two.forward_s)
    group, num_bytes = Group(cluster, (0, 1)), task.stage_costs(2).gradient_bytes[0, 3]
    assert found.synchronisation_s == AlphaBeta().seconds("all_reduce", num_bytes, group)
    assert found.synchronisation_s > one.synchronisation_s


@pytest.mark.parametrize("widths", [(1, 1), (2, 2), (1, 2, 1)])
def test_widths_that_are_no_replicas_of_the_config_are_refused(widths):
    with pytest.raises(ValueError, match="widths is"):
        PlacedStage(0, 1, (0, 0, 0), config_of(2, 1), widths)


def test_a_pipeline_without_unlike_replicas_is_a_submesh():
    assert PlacedStage(0, 1, (0, 0), config_of(2, 1)).is_submesh
    assert not PlacedStage(0, 1, (0, 0, 1, 1, 1, 1), config_of(2, 2), (2, 4)).is_submesh
    assert dataclasses.replace(PlacedStage(0, 1, (0, 0), config_of(2, 1)), hosts=(0, 1)).is_submesh
