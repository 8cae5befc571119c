"""A published measurement on real GPUs, against what is predicted: nothing is fitted to it.

GPT-2.6B on 8 V100 (AWS p3.16xlarge): data parallelism 2, operator parallelism 2, 2 stages, a batch of 32 in 4
micro-batches, remat, the batch forced onto the first mesh axis, reduce-scatter preferred: 2.464 s a step, 8.745 GB at
most on a device.

References:
    https://github.com/alpa-projects/alpa, benchmark/alpa/README.md.
"""

import pytest

from alpa_dejavu.clusters import named_cluster
from alpa_dejavu.layers import trace
from alpa_dejavu.planning import GivenStage, estimate
from alpa_dejavu.problem import MeshConfig, Run, Submesh
from alpa_dejavu.sharding import model_of_step


def test_gpt_2_6b_on_8_v100():
    model = model_of_step(trace("gpt-2.6b", batch=8), 32)
    forced = {"force_batch_dim_to_mesh_dim": 0, "prefer_reduce_scatter": True}
    config = MeshConfig((2, 2), 2, 2, remat="layer", zero=2, options=forced)
    stages = [GivenStage(first, first + 15, Submesh(1, 4), config) for first in (0, 16)]
    for calibration, most in (("none", 0.2), (None, 0.25)):
        planned = estimate(model, named_cluster("p3.16xlarge"), Run(4), stages, batch=32, calibration=calibration)
        assert planned.plan.step_s == pytest.approx(2.464, rel=most)
        assert max(stage.memory_bytes for stage in planned.plan.stages) == pytest.approx(8.745e9, rel=0.2)
