"""Plans of transformers by their sizes with every division that their framework has, against all plans by hand."""

import dataclasses
import itertools

import pytest

from alpa_dejavu.clusters.space import DivisionChoices, search_space
from alpa_dejavu.costs.table import cost_table
from alpa_dejavu.layers.models import Transformer
from alpa_dejavu.planning import plan_model
from alpa_dejavu.planning.search._candidate import Candidate, Costs, fitting
from alpa_dejavu.planning.search.runtimes import RUNTIMES
from alpa_dejavu.problem import MeshConfig, NoShardingError, Run, SearchSpace, Slicing, StageChoice, Submesh
from alpa_dejavu.testing import example_cluster

DENSE = Transformer(512, 3, 8, 4096, 2048, kv_heads=4, feed_forward=1024)
EXPERTS = Transformer(512, 2, 8, 4096, 1024, feed_forward=512, num_experts=4, experts_per_token=2)
SHARES = [1.0, *(n / 8 for n in range(1, 8))]


def divided_configs(submesh, micro_batch, size, limits, stages):
    """Every config of a submesh in powers of two, by loops over all degrees and not by the search's rules."""
    devices = submesh.num_devices
    powers = [2**n for n in range(devices.bit_length()) if devices % 2**n == 0]
    for tensor, context, expert, same, sharded in itertools.product(powers, powers, powers, (0, 1), (0, *powers)):
        data = devices // tensor
        if tensor > submesh.devices_per_host or size.kv_heads % tensor or data % context or micro_batch % (data // context):
            continue
        if sharded == data or (sharded and data % sharded) or (same and (expert == 1 or tensor == 1)):
            continue
        for (remat, share), zero in itertools.product([("none", 1.0), *(("layer", n) for n in SHARES)], (0, 2, 3)):
            if (zero == 0 and sharded) or (zero and data == 1):
                continue
            options = {"force_batch_dim_to_mesh_dim": 0}
            try:
                config = MeshConfig(
                    (data, tensor), data, tensor, options, remat, zero, context_parallel=context, sharded=sharded,
                    expert_parallel=expert, expert_tensor=same, remat_share=share,
                )  # fmt: skip
            except ValueError:
                continue
            if zero in limits.zero_of(stages) and not limits.why_not_divided(config, stages):
                yield config


def least_step(planned, size, limits):
    """The least simulated step of all plans that a framework can run, however stages are divided and layers cut."""
    cluster, model, best = planned.cluster, planned.model, []
    prices = planned.table.stage_costs.models
    for count in (1, 2, 4, 8):
        samples = planned.plan.batch // count
        of_count = dataclasses.replace(model, sharding=model.sharding.with_micro_batch(samples / model.sharding.samples))
        for stages in (1, 2, 4):
            submesh = Submesh(max(len(cluster.hosts) // stages, 1), min(4, 8 // stages))
            for config in divided_configs(submesh, samples, size, limits, stages):
                try:
                    of_count.sharding.prepare([config])
                except NoShardingError:
                    continue
                space, run = SearchSpace((submesh,), ((config,),)), Run(count)
                from alpa_dejavu.sharding.transformers import transformer_model

                own = transformer_model(size, of_count.sharding.execution, samples)
                table = cost_table(own, cluster, space, run, prices, planned.table.margin)
                costs = Costs(own, cluster, space, run, table)
                for cuts in itertools.combinations(range(1, own.num_layers), stages - 1):
                    ends = (0, *cuts, own.num_layers)
                    chosen = tuple(StageChoice(a, b - 1, 0, 0) for a, b in itertools.pairwise(ends))
                    slicing = Slicing.of(costs.problem, chosen)
                    if slicing.found and (candidate := fitting(Candidate(costs, slicing))) is not None:
                        best.append((candidate.step_s, count, stages, config))
    return min(best, key=lambda row: row[0])


@pytest.mark.parametrize("memory", [2.0**33, 1.2e8])
@pytest.mark.parametrize(("size", "runtime"), [(DENSE, "megatron"), (EXPERTS, "megatron"), (EXPERTS, "torchtitan")])
def test_no_division_of_any_is_better_than_the_plan(size, runtime, memory):
    cluster = example_cluster(2, 4, memory_bytes=memory)
    planned = plan_model(size.text, cluster, batch=8, runtime=runtime, cache=False)
    least = least_step(planned, size, RUNTIMES[runtime])
    assert planned.plan.step_s <= least[0] * (1 + 1e-9), least
