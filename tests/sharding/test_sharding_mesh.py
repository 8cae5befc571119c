"""The costs of collectives on a mesh are Alpa's; measured ones are interpolated."""

import pytest

from alpa_dejavu.sharding import CollectiveProfile, LogicalMesh


def test_costs_follow_alpas_formulas():
    mesh = LogicalMesh((2, 4), (1, 2), (1, 0.1))
    assert mesh.all_gather_cost(800, 1) == pytest.approx(2 + 0.1 * 3 / 4 * 800 + 0.1)
    assert mesh.all_reduce_cost(800, 0) == pytest.approx(1 + 2 * 1 / 2 * 800 + 0.01)
    assert mesh.all_to_all_cost(800, 1) == pytest.approx(2 + 0.1 * 3 / 16 * 800 * 2 + 0.001)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (((0, 2),), "length 1 or more"),
        (((2, 2), (1,)), "one value for each"),
        (((2, 2), (), (), (0, 1)), "do not fill"),
    ],
)
def test_an_impossible_mesh_is_refused(arguments, message):
    with pytest.raises(ValueError, match=message):
        LogicalMesh(*arguments)


def test_measured_costs_replace_the_formulas():
    groups = ((0, 1), (2, 3))
    profile = CollectiveProfile.from_dicts(
        {(groups, "float32"): [(0, 1.0), (100, 3.0), (200, 7.0)], (groups, "float16"): [(0, 9.0)]}, {}
    )
    mesh = LogicalMesh((2, 2), profile=profile)
    assert mesh.all_reduce_cost(4 * 50, 1) == pytest.approx(1.0)
    assert mesh.all_reduce_cost(4 * 150, 1) == pytest.approx(4.0)
    assert mesh.all_reduce_cost(4 * 300, 1) == pytest.approx(10.0)
    assert mesh.all_gather_cost(4 * 100, 1) == pytest.approx(1.0)
    with pytest.raises(ValueError, match="no collective was measured"):
        mesh.all_reduce_cost(4, 0)


def test_groups_are_the_lines_of_the_grid():
    mesh = LogicalMesh((2, 3), device_ids=(0, 1, 2, 3, 4, 5))
    assert mesh.groups(0) == ((0, 3), (1, 4), (2, 5))
    assert mesh.groups(1) == ((0, 1, 2), (3, 4, 5))


def test_a_profile_without_measurements_is_none():
    assert CollectiveProfile.from_dicts({}, {}) is None
