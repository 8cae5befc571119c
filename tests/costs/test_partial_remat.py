"""A share of a stage's blocks that is computed again, beside stages of single blocks that are and that aren't."""

import dataclasses
import math

import numpy as np
import pytest

from alpa_dejavu.clusters import named_cluster
from alpa_dejavu.costs import CostModels, StageCostModel
from alpa_dejavu.layers.models import Transformer
from alpa_dejavu.problem import MeshConfig, Submesh
from alpa_dejavu.sharding.transformers import execution, transformer_model

SIZE = Transformer(1024, 7, 16, 51200, 2048)
NONE = MeshConfig((2, 2), 2, 2, {"force_batch_dim_to_mesh_dim": 0}, "none", 2)
WHOLE = dataclasses.replace(NONE, remat="layer")


def costs():
    model = transformer_model(SIZE, execution("megatron"), 2)
    return StageCostModel(model, named_cluster("dgx-h100"), CostModels.named(runtime="megatron+none"))


@pytest.mark.parametrize("share", [0.25, 0.5, 3 / 7, 0.99])
def test_each_block_that_is_computed_again_adds_its_seconds_and_leaves_out_its_bytes(share):
    of, config = costs(), dataclasses.replace(WHOLE, remat_share=share)
    devices = of.places.on_submesh(Submesh(1, 4))
    ends, between = [of.seconds(devices, end) for end in (NONE, WHOLE)], of.seconds(devices, config)
    memory, (none, whole) = of.memory(config), (of.memory(end) for end in (NONE, WHOLE))
    for first, last in ((0, 8), (1, 4), (3, 7), (2, 2), (7, 8)):
        sent_again = np.flatnonzero(of.exchanges_again(config, devices.kinds[0], (first, last))[first : last + 1])
        blocks = range(max(first, 1), min(last, 7) + 1)
        again = blocks[: math.ceil(share * len(blocks) - 1e-9)]
        assert (first + sent_again).tolist() == list(again)
        added = sum(ends[1][:, n, n] - ends[0][:, n, n] for n in again)
        np.testing.assert_allclose(between[:, first, last], ends[0][:, first, last] + added, rtol=1e-6)
        left_out = sum(none.per_micro_batch[n, n] - whole.per_micro_batch[n, n] for n in again)
        assert memory.per_micro_batch[first, last] == pytest.approx(none.per_micro_batch[first, last] - left_out)
        assert memory.temporary[first, last] == whole.temporary[first, last]
        assert memory.resident[first, last] == none.resident[first, last]
        for kind in ("resident", "per_micro_batch", "temporary"):
            total = sum(part.num_bytes[first, last] for part in of.parts(config) if part.kind == kind)
            assert total == pytest.approx(getattr(memory, kind)[first, last])


@pytest.mark.parametrize(("remat", "share"), [("none", 0.5), ("selective", 0.5), ("layer", 0.0), ("layer", 1.5)])
def test_shares_that_there_are_not(remat, share):
    with pytest.raises(ValueError, match=f"remat_share is {share}, but must be above 0 and at most 1"):
        dataclasses.replace(NONE, remat=remat, remat_share=share)
