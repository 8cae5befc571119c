"""Operators are measured on a mesh, and the database of measurements is read back."""
import jax

from alpa_stock_jax.mesh_operators import measure_operator


def _measure(op_info):
    devices = jax.devices("cpu")
    return measure_operator(devices[0].client, devices, 0, len(devices), op_info)


def _groups():
    count = jax.device_count("cpu")
    return (tuple(range(count)),), tuple((rank,) for rank in range(count))


def test_a_barrier_is_not_measured():
    assert _measure(("barrier",)) == 0
    assert _measure(("create-communicator", (_groups()[0],))) == 0
