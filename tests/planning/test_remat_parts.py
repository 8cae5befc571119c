"""Plans that compute some blocks of a stage again, beside all shares of them estimated one by one."""

import pytest

from alpa_dejavu.clusters import named_cluster
from alpa_dejavu.layers.models import Transformer
from alpa_dejavu.planning import GivenStage, estimate, plan_model
from alpa_dejavu.planning.search._remat_parts import with_parts
from alpa_dejavu.problem import MeshConfig, Run, SearchSpace, Submesh
from alpa_dejavu.sharding.transformers import execution, transformer_model

SIZE = Transformer(4096, 24, 32, 32000, 40960, kv_heads=8, feed_forward=14336)
WAYS = {"tensor": 8, "context": 1, "zero": (0,), "micro_batches": 4, "layers": 26}


def planned(stages, **more):
    cluster = named_cluster("dgx-h100", stages)
    ways = {**WAYS, "memory_margin": 0.0, **more}
    return cluster, plan_model(SIZE.text, cluster, batch=16, runtime="megatron", cache=False, **ways).plan


def test_a_stage_computes_no_more_blocks_again_than_its_memory_needs():
    cluster, plan = planned(1)
    (stage,) = plan.stages
    model = transformer_model(SIZE, execution("megatron"), 4)
    steps = {}
    for number in range(1, 25):
        config = MeshConfig((1, 8), 1, 8, {"force_batch_dim_to_mesh_dim": 0}, "layer", 0, remat_share=number / 24)
        whole = GivenStage(0, 25, Submesh(1, 8), config)
        one = estimate(model, cluster, Run(4), [whole], name=SIZE.text, batch=16, runtime="megatron").plan
        if one.stages[0].memory_bytes <= one.stages[0].memory_limit_bytes:
            steps[number] = one.step_s
    assert stage.remat_text == f"layer {min(steps) / 24:.0%}"
    assert plan.step_s == pytest.approx(min(steps.values()))
    assert plan.step_s < planned(1, remat=("layer",))[1].step_s * (1 - 1e-3)


def test_shares_are_of_the_family_of_the_config_that_they_are_a_part_of():
    submeshes = Submesh(1, 4), Submesh(1, 8)
    none, layer = (
        [MeshConfig((1, n), 1, n, {"force_batch_dim_to_mesh_dim": 0}, remat) for n in (4, 8)]
        for remat in ("none", "layer")
    )
    families = tuple(frozenset({(s, c)}) for s in range(2) for c in range(2))
    space = SearchSpace(submeshes, tuple(zip(none, layer, strict=True)), families=families)

    def fits(config):
        return config.tensor_parallel == 8 or (config.remat == "layer" and config.remat_share >= 0.7)

    more = with_parts(space, 16, lambda config: 2, fits)
    assert [config and config.remat_share for config in more.configs[0][2:]] == [6 / 8, 7 / 8]
    assert more.configs[1][2:] == (None, None)
    assert set(more.families) == {*families, frozenset({(0, 2)}), frozenset({(0, 3)})}
    alone = with_parts(space, 8, lambda config: 1, fits)
    assert [config and config.remat_share for config in alone.configs[0][2:]] == [6 / 8]
