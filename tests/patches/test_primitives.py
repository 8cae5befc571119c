"""Pipeline markers and the all-reduce between meshes are lowered."""
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from alpa.pipeline_parallel.apply_grad import cross_mesh_allreduce_p
from alpa.pipeline_parallel.primitive_def import pipeline_p

from alpa_stock_jax.lowering import lower


def _hlo(function, *args):
    jaxpr = jax.make_jaxpr(function)(*args)
    return lower("module", jaxpr, [False] * len(jaxpr.in_avals), "cpu").get_hlo_module().to_string()


def _marked(x, y, mark_type="start", name="stage"):
    return pipeline_p.bind(x, y, name=name, mark_type=mark_type)


X = np.ones((2, 3), np.float32)


Y = np.ones((4,), np.float32)


@pytest.mark.parametrize("mark_type", ["start", "end"])
def test_a_stage_boundary_is_a_custom_call_on_a_tuple(mark_type):
    text = _hlo(lambda x, y: _marked(x, y, mark_type), X, Y)
    (line,) = [line for line in text.splitlines() if "pipeline_marker" in line]
    assert "(f32[2,3]{1,0}, f32[4]{0}) custom-call((f32[2,3]{1,0}, f32[4]{0}) %tuple" in line
    assert f'op_name="stage${mark_type}"' in line


def test_an_empty_boundary_stays():
    text = _hlo(lambda x: (pipeline_p.bind(name="stage", mark_type="start"), x)[1], X)
    assert text.count('custom_call_target="pipeline_marker"') == 1


def test_a_hook_is_a_barrier():
    text = _hlo(lambda x, y: _marked(x, y, "hook", "hook"), X, Y)
    assert "opt-barrier" in text
    assert 'op_name="hook$hook"' in text


def test_markers_can_be_differentiated():
    def loss(x):
        (x,) = pipeline_p.bind(x, name="a", mark_type="start")
        (x,) = pipeline_p.bind(jnp.sin(x), name="a", mark_type="end")
        return x.sum()

    np.testing.assert_allclose(jax.grad(loss)(X), np.cos(X), rtol=1e-6)


def test_an_all_reduce_between_meshes_names_its_meshes():
    jaxpr = jax.make_jaxpr(jnp.sin)(X)
    eqn = jaxpr.eqns[0].replace(
        primitive=cross_mesh_allreduce_p, params={"type": jax.lax.add_p, "group_meshes": (0, 1), "number": 3}
    )
    reducing = jaxpr.replace(jaxpr=jaxpr.jaxpr.replace(eqns=[eqn]))
    text = lower("module", reducing, [False], "cpu").get_hlo_module().to_string()
    assert "__builtin$CrossMeshAllReduce" in text
    assert "SUM;" in text
