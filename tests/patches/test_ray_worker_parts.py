"""What a worker on CPU is made of, without Ray: its environment, its mover of checkpoints, meshes of single devices."""
import pytest

from alpa_stock_jax.ray_compilers import compiler_count
from alpa_stock_jax.ray_hosts import one_device_hosts
from alpa_stock_jax.ray_nodes import node_address


def test_devices_keep_their_order_when_each_is_a_host():
    assert one_device_hosts([0, 2], [[1, 3], [0, 1]]) == ([0, 0, 2, 2], [[1], [3], [0], [1]])


@pytest.mark.parametrize(("wanted", "cores", "count"), [(4, 2, 2), (1, 8, 1), (0, 8, 1)])
def test_compilers_are_no_more_than_cores(wanted, cores, count):
    assert compiler_count(wanted, cores) == count


def test_a_nodes_name_tells_its_address():
    assert node_address("192.0.2.2-281c3aba") == "192.0.2.2"
