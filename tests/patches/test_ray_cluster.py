"""The part of a cluster that Alpa takes."""

from types import SimpleNamespace

import pytest
from alpa import device_mesh
from hypothesis import given
from hypothesis import strategies as st

from alpa_stock_jax import ray_session
from alpa_stock_jax.ray_cluster import Share, choose_share, taken_devices


@pytest.mark.parametrize(
    ("free", "nodes", "per_node", "share"),
    [
        ([8], None, None, Share(1, 8)),
        ([4, 4], None, None, Share(2, 4)),
        ([4, 1], None, None, Share(1, 4)),
        ([4, 3, 3], None, None, Share(3, 3)),
        ([4, 3], 2, None, Share(2, 3)),
        ([4, 4, 4], 2, None, Share(2, 4)),
        ([4, 3], None, 2, Share(2, 2)),
        ([4, 3], 1, 4, Share(1, 4)),
    ],
)
def test_the_largest_mesh_that_was_asked_for(free, nodes, per_node, share):
    assert choose_share(free, nodes, per_node) == share


@pytest.mark.parametrize(
    ("free", "nodes", "per_node"), [([], None, None), ([0, 0], None, None), ([4], 2, None), ([3], 1, 4)]
)
def test_fewer_devices_than_asked_for_are_an_error(free, nodes, per_node):
    with pytest.raises(RuntimeError, match=r"have \[.*\] free devices: ask for fewer"):
        choose_share(free, nodes, per_node)


@given(st.lists(st.integers(0, 16), min_size=1, max_size=6).filter(any))
def test_a_share_fits_and_none_is_larger(free):
    share = choose_share(free)
    assert sum(devices >= share.devices_per_host for devices in free) >= share.hosts
    sizes = [size * sum(devices >= size for devices in free) for size in range(1, 17)]
    assert share.hosts * share.devices_per_host == max(sizes)


@given(st.lists(st.integers(0, 16), min_size=1, max_size=6).filter(any))
def test_every_free_device_is_taken_unless_a_mesh_is_asked_for(free):
    assert taken_devices(free) == [devices for devices in free if devices]
    share = choose_share(free, num_nodes=1)
    assert taken_devices(free, num_nodes=1) == [share.devices_per_host] == [max(free)]


@pytest.mark.parametrize("name", ["get_virtual_physical_mesh", "get_physical_mesh"])
def test_a_mesh_of_unlike_hosts_is_the_largest_that_is_even_and_knows_all(monkeypatch, name):
    made = []

    def mesh(**given):
        made.append(given)
        return SimpleNamespace(**given)

    for kind in ("VirtualPhysicalMesh", "DistributedPhysicalDeviceMesh"):
        monkeypatch.setattr(device_mesh, kind, mesh)
    infos = [{"host": n} for n in range(3)]
    cluster = SimpleNamespace(host_info=infos, host_num_devices=[1, 4, 2], namespace=None)
    whole = getattr(device_mesh.DeviceCluster, name)(cluster)
    assert (whole.host_ids, whole.num_devices_per_host) == ([1], 4)
    assert whole.every_host == ((infos[0], 1), (infos[1], 4), (infos[2], 2))
    part = getattr(device_mesh.DeviceCluster, name)(cluster, [1, 2], 2)
    assert (part.host_ids, part.num_devices_per_host) == ([1, 2], 2)
    assert not hasattr(part, "every_host")


def test_all_meshes_end_and_free_nothing_later_where_a_group_of_workers_fails(monkeypatch):
    """Else an executable of theirs would ask for them when it is collected, in another session of Ray."""
    def fail():
        raise RuntimeError("a worker of the group is gone")

    ended = []
    meshes = [SimpleNamespace(shutdown=lambda n=n: ended.append(n), session=("here", "1")) for n in range(2)]
    group = SimpleNamespace(meshes=meshes, destroy_collective_groups=fail)
    virtual = SimpleNamespace(launched_physical_mesh_group=group)
    monkeypatch.setattr(device_mesh, "global_virtual_physical_mesh", virtual)
    monkeypatch.setattr(ray_session.ray, "is_initialized", lambda: True)
    monkeypatch.setattr(ray_session, "session", lambda: ("here", "1"))
    monkeypatch.setattr(device_mesh, "update_jax_platform", lambda platform: ended.append("platform"))
    with pytest.raises(RuntimeError, match="of the group is gone"):
        device_mesh.shutdown_global_cluster()
    assert ended == [1, 0, "platform"]
