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
    return lambda group, channel, value, what: [value, *(np.asarray(other, value.dtype) for other in others)]


def _no_failure(error):
    raise AssertionError(error)


def _by_devices(reduce, written, value, devices):
    """What each device of a process gets, in three rounds."""
    found = []
    for _ in range(3):
        threads = [threading.Thread(target=lambda: found.append(reduce(written, value))) for _ in range(devices)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    return [one.item() for one in found]


@pytest.mark.parametrize(
    ("operator", "mine", "others", "expected"),
    [
        ("SUM", 1.5, [3.0], 4.5), ("SUM", np.int32(3), [4, 5], 12), ("AND", True, [False], False),
        ("OR", False, [True], True), ("AND", np.int32(6), [3], 2), ("MIN", 2.0, [np.inf, -1.0], -1.0),
        ("MAX", 2.0, [np.nan], np.nan),
    ],
)  # fmt: skip
def test_all_devices_get_the_same_result(operator, mine, others, expected):
    value = np.asarray(mine)
    reduce = MeshAllReduce(3, True, _gather_with(*others), _no_failure)
    found = _by_devices(reduce, opaque(operator, "0$1$", 0, value.dtype), value, 3)
    np.testing.assert_array_equal(found, [expected] * 9)


@pytest.mark.parametrize(("operator", "expected"), [("SUM", 3.0), ("MAX", 7.0)])
def test_a_meshs_number_counts_once_if_the_mesh_has_several_processes(operator, expected):
    reduce = MeshAllReduce(1, False, _gather_with(3.0), _no_failure)
    assert _by_devices(reduce, opaque(operator, "0$1$", 0, np.dtype("float32")), np.float32(7), 1) == [expected] * 3


def test_a_failed_exchange_is_told_and_all_devices_go_on():
    told, raised = [], []

    def gather(group, channel, value, what):
        raise TimeoutError(what)

    reduce = MeshAllReduce(2, True, gather, told.append)

    def ask():
        try:
            reduce(opaque("SUM", "0$2$", 3, np.dtype("float32")), np.float32(1))
        except TimeoutError as error:
            raised.append(str(error))

    threads = [threading.Thread(target=ask) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert raised == ["all-reduce 3 (SUM) of the update, between meshes 0, 2"] * 2
    assert len(told) == 2


def _compiled_sum(calls=1):
    """A program of so many all-reduces of its argument, each after the one before it, whose last result it returns."""
    aval = jax.core.ShapedArray((), jnp.float32)
    new = jax.core.gensym()
    given, results = new(aval), [new(aval) for _ in range(calls)]
    eqns = [
        jax.core.new_jaxpr_eqn(
            [given, *results[:number][-1:]], [result], cross_mesh_allreduce_p,
            {"type": jax.lax.add_p, "group_meshes": (0, 1), "number": number}, jax.core.no_effects,
        )
        for number, result in enumerate(results)
    ]  # fmt: skip
    jaxpr = jax.core.ClosedJaxpr(jax.core.Jaxpr([], [given], results[-1:], eqns), [])
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


def test_all_reduces_come_in_their_order_whatever_is_read(monkeypatch):
    asked = []

    def answer(written, value):
        asked.append(int(written.split(";")[2]))
        return value

    monkeypatch.setattr(_mesh_all_reduce, "_answer", answer)
    _compiled_sum(12).execute([jax.device_put(jnp.float32(2), jax.devices("cpu")[0])])[0].block_until_ready()
    assert asked == list(range(12))
