"""Pipeline markers and the all-reduce between meshes are lowered."""

import alpa  # noqa: F401  (registers the primitives)
import jax
import numpy as np
import pytest
from alpa.pipeline_parallel.primitive_def import pipeline_p

from alpa_stock_jax.lowering import lower


def _hlo(function, *args):
    jaxpr = jax.make_jaxpr(function)(*args)
    return lower("module", jaxpr, [False] * len(jaxpr.in_avals), "cpu").get_hlo_module().to_string()


def _marked(x, y, mark_type="start", name="stage"):
    return pipeline_p.bind(x, y, name=name, mark_type=mark_type)


X = np.ones((2, 3), np.float32)
Y = np.ones((4,), np.float32)


@pytest.mark.parametrize("mark_type", ["start", "end", "grad", "boundary", "hook", "jvp_start"])
def test_a_marker_is_an_identity_to_jax(mark_type):
    for function in (_marked, jax.jit(_marked, static_argnums=(2,))):
        x, y = function(X, Y, mark_type)
        np.testing.assert_array_equal(x, X)
        np.testing.assert_array_equal(y, Y)


@pytest.mark.parametrize("mark_type", ["grad", "boundary", "jvp_end"])
def test_marks_for_jaxprs_only_leave_nothing(mark_type):
    assert "custom-call" not in _hlo(lambda x, y: _marked(x, y, mark_type), X, Y)
