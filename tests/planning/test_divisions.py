"""Plans of transformers by their sizes with every division that their framework has, against all plans by hand."""

import itertools
import math

import pytest

from alpa_dejavu.costs.table import cost_table
from alpa_dejavu.layers.models import Transformer
from alpa_dejavu.planning import plan_model
from alpa_dejavu.planning.search._candidate import Candidate, Costs, fitting
from alpa_dejavu.planning.search.runtimes import RUNTIMES
from alpa_dejavu.problem import (
    MeshConfig,
    NoPlanError,
    NoShardingError,
    Run,
    SearchSpace,
    Slicing,
    StageChoice,
    Submesh,
)
from alpa_dejavu.sharding.transformers import execution, transformer_model
from alpa_dejavu.testing import example_cluster

DENSE = Transformer(512, 3, 8, 4096, 2048, kv_heads=4, feed_forward=1024)
EXPERTS = Transformer(512, 2, 4, 4096, 1024, feed_forward=512, num_experts=4, experts_per_token=2)


def divided_configs(submesh, micro_batch, size, limits, stages):
    """Every config of a submesh in powers of two, by loops over all degrees and not by the search's rules."""
    devices = submesh.num_devices
    powers = [2**n for n in range(devices.bit_length()) if devices % 2**n == 0]
    for tensor, context, expert, same, sharded in itertools.product(powers, powers, powers, (0, 1), (0, *powers)):
        data = devices // tensor
        if tensor > submesh.devices_per_host or size.kv_heads % tensor:
            continue
        if data % context or micro_batch % (data // context):
            continue
        if sharded == data or (sharded and data % sharded) or (same and (expert == 1 or tensor == 1)):
            continue
        for remat, zero in itertools.product(("none", "selective", "layer"), (0, 2, 3)):
            if (zero == 0 and sharded) or (zero and data == 1):
                continue
            options = {"force_batch_dim_to_mesh_dim": 0}
            try:
                config = MeshConfig(
                    (data, tensor), data, tensor, options, remat, zero, context_parallel=context, sharded=sharded,
                    expert_parallel=expert, expert_tensor=same,
                )  # fmt: skip
            except ValueError:
                continue
            if zero in limits.zero_of(stages) and not limits.why_not_divided(config, stages):
                yield config


def least_step(planned, size, runtime, batch):
    """The least simulated step of all plans that a framework can run, however stages are divided and layers cut."""
    cluster, models, steps = planned.cluster, planned.table.stage_costs.models, []
    for count, stages in itertools.product((1, 2, 4), (1, 2, 4)):
        samples = batch // count
        submesh = Submesh(max(len(cluster.hosts) // stages, 1), min(2, 4 // stages))
        model = transformer_model(size, execution(runtime), samples)
        for config in divided_configs(submesh, samples, size, RUNTIMES[runtime], stages):
            try:
                model.sharding.prepare([config])
            except NoShardingError:
                continue
            space, run = SearchSpace((submesh,), ((config,),)), Run(count)
            table = cost_table(model, cluster, space, run, models, planned.table.margin)
            costs = Costs(model, cluster, space, run, table)
            for cuts in itertools.combinations(range(1, model.num_layers), stages - 1):
                ends = (0, *cuts, model.num_layers)
                chosen = tuple(StageChoice(a, b - 1, 0, 0) for a, b in itertools.pairwise(ends))
                slicing = Slicing.of(costs.problem, chosen)
                if math.isfinite(slicing.cost_s) and (candidate := fitting(Candidate(costs, slicing))) is not None:
                    steps.append((candidate.step_s, count, stages, config))
    return min(steps, key=lambda row: row[0])


@pytest.mark.parametrize(
    ("size", "runtime", "memory"),
    [(DENSE, "megatron", 2.0**33), (DENSE, "megatron", 9e7), (EXPERTS, "megatron", 1e8), (EXPERTS, "torchtitan", 8e7)],
)
def test_no_division_is_better_than_the_plan(size, runtime, memory):
    cluster = example_cluster(2, 2, memory_bytes=memory)
    planned = plan_model(size.text, cluster, batch=4, runtime=runtime, cache=False)
    least = least_step(planned, size, runtime, batch=4)
    assert planned.plan.step_s <= least[0] * (1 + 1e-9), least


FIXED = [
    {"pipeline": 2}, {"tensor": 2}, {"context": 2}, {"experts": 4}, {"shard": "host"}, {"shard": "all"}, {"shard": 2},
]  # fmt: skip


@pytest.mark.parametrize(("size", "hosts"), [(EXPERTS, 2), (DENSE, 4)])
def test_a_free_plan_is_no_slower_than_one_with_a_degree_fixed(size, hosts):
    def planned(**fixed):
        cluster = example_cluster(hosts, 2, memory_bytes=1.2e8)
        return plan_model(size.text, cluster, batch=8, runtime="megatron", cache=False, **fixed).plan

    free_s = planned().step_s
    for fixed in FIXED if size.num_experts else [fixed for fixed in FIXED if "experts" not in fixed]:
        plan = planned(**fixed)
        assert free_s <= plan.step_s * (1 + 1e-9), fixed
        for stage in plan.stages:
            data, tensor = stage.logical_mesh
            degrees = {
                "pipeline": len(plan.on_submeshes), "tensor": tensor, "context": stage.context_parallel,
                "experts": stage.expert_parallel, "shard": {data: "all"}.get(stage.sharded or data, stage.sharded),
            }  # fmt: skip
            ((name, value),) = fixed.items()
            assert degrees[name] == value or (name, degrees[name]) in (("shard", 2 // tensor), ("shard", "all"))


@pytest.mark.parametrize(
    ("size", "runtime", "fixed", "why"),
    [
        (DENSE, "megatron", {"tensor": 3}, "tensor is 3, but must divide the 8 heads"),
        (DENSE, "megatron", {"tensor": 8}, "tensor is 8, but must divide the 4 heads of keys and values"),
        (DENSE, "megatron", {"context": 3}, "context is 3, but must divide the 2048 tokens"),
        (EXPERTS, "megatron", {"experts": 3}, "experts is 3, but must divide the 4 experts"),
        (DENSE, "megatron", {"experts": 2}, "experts is 2, but must be 1 where the model has no experts"),
        (DENSE, "fsdp", {"context": 2}, "context is 2, but must be 1 under fsdp"),
        (DENSE, "alpa", {"context": 2}, "context is 2, but must be 1 for a traced model"),
        (DENSE, "megatron", {"shard": "nix"}, "shard is 'nix', but must be at least 1, 'host' or 'all'"),
        (DENSE, "megatron", {"pipeline": 0}, "pipeline is 0, but must be at least 1"),
        (DENSE, "megatron", {"context": 0}, "context is 0, but must be at least 1"),
        (DENSE, "alpa", {"remat": ["selective"]}, "remat is \\['selective'\\], but must be among"),
    ],
)
def test_what_a_model_or_a_framework_cannot_have_is_refused(size, runtime, fixed, why):
    with pytest.raises(ValueError, match=why):
        plan_model(size.text, example_cluster(1, 4), batch=4, runtime=runtime, cache=False, **fixed)


def test_a_degree_that_no_stage_can_have_is_named():
    with pytest.raises(NoPlanError, match="shard is 3, but no stage"):
        plan_model(DENSE.text, example_cluster(1, 4), batch=4, runtime="megatron", cache=False, shard=3)
