"""Measured training steps by the planner's own costs: the columns that are fitted say what the planner says."""

import dataclasses
import json

import numpy as np
import pandas as pd
import pytest

from alpa_dejavu.costs.communication import AlphaBeta, Group
from alpa_dejavu.costs.cost_models import CostModels
from alpa_dejavu.costs.runtime import ALPA, RuntimeProfile
from alpa_dejavu.planning.strategies import StrategyPlan, Task, as_planned
from alpa_dejavu.planning.strategies.stages import Pipeline, PlacedStage, config_of
from alpa_dejavu.testing import example_cluster
from fitting import fit
from trials import _sailor_columns, amp, vtrain
from trials._folder import Folder
from trials._gpt import GPT
from trials._step_trials import elsewhere, plain
from trials._steps import PRIORS, Steps, columns, parts_of, steps_s

ROWS = pd.DataFrame(
    {
        "global_batch": [8.0, 16.0, 8.0, 32.0], "micro_batch": [1.0, 2.0, 4.0, 1.0], "hidden": 256.0, "heads": 4.0,
        "layers": 4.0, "seq_len": 128.0, "tp": [1.0, 2.0, 1.0, 1.0],
        "dp": [2.0, 2.0, 1.0, 1.0], "pp": [2.0, 1.0, 4.0, 4.0],
    }
)  # fmt: skip
RUNTIME = RuntimeProfile("made up", 1.4, 4e-5, 1.3, 2e-5, 0.8, 1.5, 1e-4, 0.01)


def test_columns_under_a_runtime_take_as_long_as_the_planner_says():
    """Columns are the planner's parts; a step of the planner's own, under the same runtime, is the same number."""
    fast = steps_s(RUNTIME, vtrain.described(ROWS, Folder(".")))
    for row, seconds in zip(ROWS.astype(int).itertuples(index=False), fast.tolist(), strict=True):
        task, pipeline = vtrain.trial(tuple(row))
        under = Task(
            task.model, task.samples, task.cluster, task.batch, dataclasses.replace(task.models, runtime=RUNTIME)
        )
        assert seconds == pytest.approx(under.step_s(pipeline), rel=1e-9)


def test_columns_of_layers_that_are_computed_again_are_the_planners_too():
    model, cluster = GPT(256, 4, 4, 128, 512).model(), example_cluster(1)
    neutral, under = (Task(model, 1, cluster, 4, CostModels.named(runtime=each)) for each in (ALPA, RUNTIME))
    config = dataclasses.replace(config_of(1, 2), remat="layer")
    pipeline = Pipeline((PlacedStage(0, 5, (0, 0), config),), 1, 4)
    found = steps_s(RUNTIME, columns([parts_of(neutral, pipeline)]))[0]
    assert found == pytest.approx(under.step_s(pipeline), rel=1e-9)
    plain = Pipeline((PlacedStage(0, 5, (0, 0), config_of(1, 2)),), 1, 4)
    assert found > under.step_s(plain)


def test_a_trial_is_a_plan_on_a_cluster_with_the_same_step():
    task, pipeline = vtrain.trial(tuple(ROWS.astype(int).iloc[0]))
    made = StrategyPlan("megatron", (pipeline,), 8, 1.0, None, True, True, 1, 0.0)
    how = {"latency": task.models.latency, "communication": task.models.communication, "runtime": RUNTIME}
    plan = as_planned(made, task.model, task.cluster, samples=task.samples, **how).plan
    assert [stage.layers for stage in plan.stages] == [(0, 2), (3, 5)]
    assert plan.step_s == pytest.approx(steps_s(RUNTIME, columns([parts_of(task, pipeline)]))[0], rel=1e-9)


def test_a_profile_is_found_again():
    """Steps are made up from a profile; the figures on which they depend are fitted again."""
    grid = [
        (32, samples, hidden, 4, 4, 128, tp, dp, pp)
        for samples in (1, 4) for hidden in (256, 2048) for tp, dp, pp in ((1, 1, 2), (2, 2, 1), (4, 1, 1), (1, 4, 2))
    ]  # fmt: skip
    rows = vtrain.described(pd.DataFrame(grid, columns=ROWS.columns).astype(float), Folder("."))
    found = fit(Steps(), rows, steps_s(RUNTIME, rows), floor=0.002).values
    assert found["launch_s"] == pytest.approx(RUNTIME.launch_s, rel=0.05)
    assert found["operators"] == pytest.approx(RUNTIME.operators, rel=0.1)
    assert set(found) == set(PRIORS)


def test_a_gpt_has_as_many_operations_as_the_formula_says():
    """Narayanan et al., SC 2021, section 5: 96 B s l h² (1 + s / 6h + V / 16lh) with layers computed again, so 3/4."""
    size = GPT(512, 8, 6, 256, 4096, samples=2)
    products = sum(layer.forward.product_flop + layer.backward.product_flop for layer in size.model().layers)
    tokens, h, blocks, s = 2 * 256, 512, 6, 256
    assert products == pytest.approx(72 * tokens * blocks * h**2 * (1 + s / (6 * h)) + 6 * tokens * h * 4096)
    assert sum(size.parameters[:-1]) == size.model().parameter_bytes / 2


def _amp(folder, clusters=("homogeneous",)):
    (folder / "amp").mkdir()
    for model, layers in (("gpt2", 30), ("transgan", 56)):
        for device, seconds in (("t4", 5e-3), ("v100", 4e-3)):
            for tp in (1, 2, 4):
                times = [seconds / tp + (3e-3 * (tp > 1))] * layers
                lines = ["layer,forward_s_per_sample", *(f"{n},{one}" for n, one in enumerate(times))]
                (folder / "amp" / f"layer_forward_{model}_{device}_tp{tp}.csv").write_text("\n".join(lines))
    return Folder(folder)


def _trials(folder, cluster, seconds=None):
    plans = [(1, 1, 16, 1), (2, 1, 8, 2), (1, 2, 2, 4), (4, 4, 1, 4), (8, 2, 4, 2), (2, 4, 2, 2)]
    last = 56 if cluster == "het_model" else 30
    rows = pd.DataFrame(plans, columns=["micro_batch", "tp", "dp", "pp"]).astype(float)
    rows = rows.assign(cluster=cluster, global_batch=64.0, boundaries=[
        tuple(np.linspace(0, last, pp + 1).astype(int).tolist()) for *_, pp in plans
    ])  # fmt: skip
    return rows if seconds is None else rows.assign(measured_s=seconds)


def test_a_cluster_that_was_never_seen_is_predicted_by_what_others_taught(tmp_path):
    """Both clusters run under one made-up profile, which the plain sum doesn't know and another cluster's fit does."""
    folder = _amp(tmp_path)
    known, asked = _trials(folder, "homogeneous"), _trials(folder, "het_model")
    runtime = RuntimeProfile("made up", 0.6, 5e-5, 1.0, 0.0, 1.2, 0.6, 1e-3, 0.02)
    measured, truth = (steps_s(runtime, amp.described(rows, folder)) for rows in (known, asked))
    found = elsewhere(asked, amp.described, [(known.assign(measured_s=measured), amp.described)], folder)
    off, alone = (np.abs(seconds / truth - 1).mean() for seconds in (found.mean, plain(asked, amp.described, folder)))
    assert off < 0.6 * alone
    assert (found.lower < truth).all()
    assert (truth < found.upper).all()


def test_what_an_all_reduce_takes_besides_is_read_off_the_profiles(tmp_path):
    """A block's forward has two all-reduces, of 4 MiB: 3 ms more than the divided layer takes, at 6.25 GB/s."""
    starts = amp._profiled(_amp(tmp_path), "gpt2").starts_s
    ring = [2 * 1e-5 + 4 * 2**20 / 6.25e9, 6 * 1e-5 + 1.5 * 4 * 2**20 / 6.25e9]
    assert starts["t4"] == pytest.approx(np.median([3e-3 / 2 - each for each in ring]), abs=1e-9)


def test_replicas_of_unlike_width_are_as_slow_as_the_slowest_and_exchange_over_their_hosts():
    model, cluster = GPT(256, 4, 2, 64, 512, samples=2).model(), example_cluster(2)
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


def test_sailors_replicas_are_put_on_nodes_of_their_gpu_and_alike_pipelines_are_joined():
    def gpus(name, tp):
        return [[[name, tp, "zone"]], tp]

    pipeline = {"layers_per_stage": [list(range(13)), list(range(13, 26))], "tmp_per_stage": [
        [gpus("Titan-RTX", 2), gpus("RTX-2080", 4)], [gpus("RTX-2080", 4), gpus("RTX-2080", 4)],
    ]}  # fmt: skip
    row = {"model": "OPT-350", "micro_batch": 2.0, "global_batch": 64.0, "nodes": 4.0}
    (model, samples, micro_batches, staged, per_node) = _sailor_columns.trials(
        row | {"pipelines": json.dumps([pipeline, pipeline])}
    )[0]
    assert (model, samples, micro_batches) == ("OPT-350", 2, 8)
    assert [len(replicas) for replicas, _ in staged] == [4, 4]
    nodes, places = _sailor_columns._placed(staged, int(per_node))
    assert [gpu for gpu, _ in nodes].count("Titan-RTX") == 1
    assert all(len(hosts) == sum(tp for _, tp in replicas) for (replicas, _), hosts in zip(staged, places, strict=True))


def test_columns_of_pipelines_of_several_depths_are_padded():
    model, cluster = GPT(64, 2, 3, 32, 128).model(), example_cluster(1)
    task = Task(model, 1, cluster, 4, CostModels.named())
    one = Pipeline((PlacedStage(0, 4, (0,), config_of(1, 1)),), 1, 4)
    two = Pipeline(tuple(PlacedStage(*cut, (0,), config_of(1, 1)) for cut in ((0, 1), (2, 4))), 1, 4)
    both = columns([parts_of(task, each) for each in (one, two)])
    apart = [steps_s(RUNTIME, columns([parts_of(task, each)]))[0] for each in (one, two)]
    assert steps_s(RUNTIME, both) == pytest.approx(apart)
