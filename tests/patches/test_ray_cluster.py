"""The part of a cluster that Alpa takes."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from alpa_stock_jax.ray_cluster import Share, choose_share


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
