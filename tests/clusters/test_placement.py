"""On equal hosts stages are where Alpa itself puts them."""

import pytest
from alpa.device_mesh import VirtualPhysicalMesh
from alpa.pipeline_parallel import stage_construction
from hypothesis import example, given
from hypothesis import strategies as st

from alpa_dejavu.alpa._places import on_hosts, slicing
from alpa_dejavu.clusters.placement import alpas_hosts, place
from alpa_dejavu.problem import Submesh
from alpa_dejavu.testing import example_cluster


def by_alpa(shapes, hosts, devices):
    """The submeshes that Alpa makes; None where it refuses."""
    infos = [{"NodeManagerAddress": f"10.0.0.{n}"} for n in range(hosts)]
    mesh = VirtualPhysicalMesh(list(range(hosts)), infos, devices)
    try:
        return stage_construction.get_sliced_virtual_submeshes(mesh, shapes)
    except AssertionError:
        return None


def where_alpa_puts(shapes, hosts, devices):
    """The hosts of each stage; None where Alpa refuses."""
    sliced = by_alpa(shapes, hosts, devices)
    return None if sliced is None else [tuple(own.host_ids) for own in sliced]


@st.composite
def filled(draw):
    """Submeshes, as many as fill equal hosts: whole hosts, and parts of one, in any order."""
    devices, left, shapes = draw(st.sampled_from([1, 2, 4, 6, 8])), draw(st.integers(1, 6)), []
    hosts = left
    while left:
        whole = draw(st.integers(0, left))
        shapes += [(whole, devices)] if whole else []
        left -= whole
        rest = devices if left and not whole else 0
        left -= 1 if rest else 0
        while rest:
            part = draw(st.integers(1, rest))
            shapes.append((1, part))
            rest -= part
    return draw(st.permutations(shapes)), hosts, devices


@given(filled())
@example(([(1, 4)] * 3, 3, 4))
@example(([(1, 2)] * 4, 2, 4))
@example(([(1, 4), (1, 2), (1, 4), (1, 2)], 2, 6))
def test_equal_hosts_are_taken_as_alpa_takes_them(drawn):
    shapes, hosts, devices = drawn
    expected = where_alpa_puts(shapes, hosts, devices)
    submeshes = [Submesh(*shape) for shape in shapes]
    assert alpas_hosts(submeshes, hosts, devices) == expected
    if expected is not None:
        assert place(submeshes, example_cluster(hosts, devices)) == expected


@given(filled())
def test_on_the_hosts_of_a_plan_stages_have_the_devices_that_alpa_gives_them(drawn):
    """A plan that Alpa would place alike runs on the same devices, whether we place it or Alpa does."""
    shapes, hosts, devices = drawn
    expected = by_alpa(shapes, hosts, devices)
    if expected is None:
        return
    with on_hosts([own.host_ids for own in expected]):
        ours = slicing(stage_construction.get_sliced_virtual_submeshes)(expected[0].parent, shapes)
    for own, theirs in zip(ours, expected, strict=True):
        assert (own.host_ids, [*map(list, own.devices)]) == (theirs.host_ids, [*map(list, theirs.devices)])


@pytest.mark.parametrize("shapes", [[(1, 4)], [(1, 4)] * 3, [(2, 2), (2, 2)], [(2, 2), (1, 2), (1, 2)], [(1, 3)] * 3])
def test_what_alpa_refuses_is_known(shapes):
    assert where_alpa_puts(shapes, 2, 4) is None
    assert alpas_hosts([Submesh(*shape) for shape in shapes], 2, 4) is None
