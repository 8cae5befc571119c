"""A number is reduced between the devices of a process and the processes of other meshes, inside an executable."""

import threading

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from alpa.pipeline_parallel.apply_grad import cross_mesh_allreduce_p

from alpa_stock_jax import _mesh_all_reduce
from alpa_stock_jax._mesh_all_reduce import MeshAllReduce, opaque
from alpa_stock_jax.compile import compile_computation
from alpa_stock_jax.lowering import lower


def _gather_with(*others):
    return lambda group, channel, value: [value, *(np.asarray(other, value.dtype) for other in others)]


@pytest.mark.parametrize(
    ("operator", "mine", "others", "expected"),
    [("SUM", [1.5, 2.0], [3.0], 6.5), ("AND", [True, True], [False], False), ("OR", [False, False], [True], True)],
)
def test_all_devices_get_the_same_result(operator, mine, others, expected):
    values = [np.asarray(value) for value in mine]
    reduce = MeshAllReduce(len(mine), _gather_with(*others))
    written = opaque(operator, "0$1$", 0, values[0].dtype)
    for _ in range(3):
        found = []
        threads = [threading.Thread(target=lambda v=v, found=found: found.append(reduce(written, v))) for v in values]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert [float(one) for one in found] == [float(expected)] * len(mine)


def _compiled_sum():
    aval = jax.core.ShapedArray((), jnp.float32)
    new = jax.core.gensym()
    given, result = new(aval), new(aval)
    params = {"type": jax.lax.add_p, "group_meshes": (0, 1)}
    eqn = jax.core.new_jaxpr_eqn([given], [result], cross_mesh_allreduce_p, params, jax.core.no_effects)
    jaxpr = jax.core.ClosedJaxpr(jax.core.Jaxpr([], [given], [result], [eqn]), [])
    return compile_computation(jax.devices("cpu")[0].client, lower("reduced", jaxpr, [False], "cpu"))


def test_an_executable_asks_for_the_sum_in_its_middle(monkeypatch):
    asked = []

    def answer(written, value):
        asked.append(written)
        return value + 40

    monkeypatch.setattr(_mesh_all_reduce, "_answer", answer)
    executable = _compiled_sum()
    (result,) = executable.execute([jax.device_put(jnp.float32(2), jax.devices("cpu")[0])])
    assert float(np.asarray(result)) == 42
    assert asked == ["SUM;0$1$;0;float32"]
    assert executable.hlo_modules()[0].to_string().count("CrossMeshAllReduce") == 1


def test_a_failed_exchange_makes_the_numbers_invalid(monkeypatch, caplog):
    def answer(written, value):
        raise RuntimeError("the other mesh has gone")

    monkeypatch.setattr(_mesh_all_reduce, "_answer", answer)
    (result,) = _compiled_sum().execute([jax.device_put(jnp.float32(2), jax.devices("cpu")[0])])
    assert np.isnan(np.asarray(result))
    assert "the other mesh has gone" in caplog.text
