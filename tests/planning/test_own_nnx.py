"""The module of flax NNX of docs/guides/plan-a-model.md is planned, by a jax that has its attention."""

import pathlib
import re

import jax
import pytest

from alpa_dejavu import plan_model
from alpa_dejavu.layers import attention_of, trace

PAGE = pathlib.Path(__file__).parents[2] / "docs/guides/plan-a-model.md"

pytestmark = pytest.mark.skipif(
    not hasattr(jax.nn, "dot_product_attention"), reason="this jax has no jax.nn.dot_product_attention"
)


@pytest.fixture
def step():
    (code,) = re.findall(r"<!-- file my_nnx.py -->\n```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    names = {}
    exec(compile(code, "my_nnx.py", "exec"), names)
    return names["step"]


def test_each_attention_is_one_fused_kernel(step):
    traced = trace(step, batch=2)
    assert (attention_of(traced).by_pattern, attention_of(traced).by_call) == (8, 0)
    parameters = 8 * (2 * 1024 + (1024 + 1) * 3 * 1024 + (1024 + 1) * 4096 + (4096 + 1) * 1024)
    assert traced.num_parameters == parameters


def test_it_is_planned(step):
    plans = [
        plan_model(step, "p4d.24xlarge", batch=64, layers=4, micro_batches=4, attention=attention).plan
        for attention in ("plain", "fused")
    ]
    assert all(plan.stages[-1].layers[1] == 3 for plan in plans)
    assert plans[1].step_s < plans[0].step_s
    assert plans[0].priced_by.jax == jax.__version__
