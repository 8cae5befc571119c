"""What moves from plan to plan, by figures that can be reckoned in the head."""

import dataclasses

import numpy as np
import pytest

from alpa_dejavu.planning.changed.state_migration import Settler, devices_of, layer_state, moves
from alpa_dejavu.problem import Cluster, Link
from alpa_dejavu.testing import example_cluster
from models import chain
from plans import stage

STATE = layer_state(chain(4, parameter_bytes=1000.0))


def cluster(hosts=3, within=100.0, between=10.0):
    device = example_cluster().hosts[0].device
    return Cluster.uniform("made up", "abcdefgh"[:hosts], device, 4, Link(0.0, within), Link(0.0, between))


def on(host, *layers, devices=4, logical=None, **more):
    hosts = tuple(host)
    shape = logical or (len(hosts) * devices, 1)
    return stage((layers[0], layers[-1]), submesh=(len(hosts), devices), logical=shape, hosts=hosts, **more)


def test_large_stages_take_their_devices_first():
    stages = [on("a", 0, devices=1), on("a", 1, devices=2), on("bc", 2)]
    assert devices_of(stages) == [{"a": (2, 1)}, {"a": (0, 2)}, {"b": (0, 4), "c": (0, 4)}]
    assert devices_of([on("a", 0, devices=2), on("a", 1, devices=2)]) == [{"a": (2, 2)}, {"a": (0, 2)}]


def test_a_layer_goes_over_the_link_between_its_hosts():
    found = moves([on("a", 0, 1), on("b", 2, 3)], [on("a", 0), on("b", 1, 3)], cluster(), STATE)
    assert found.layers == (1,)
    assert found.num_bytes == 3000.0
    assert found.seconds == 300.0


def test_hosts_take_in_at_a_time_and_give_one_after_the_other():
    before = [on("a", 0, 3)]
    found = moves(before, [on("b", 0, 1), on("c", 2, 3)], cluster(), STATE)
    assert found.num_bytes == 12000.0
    assert found.seconds == 1200.0
    swapped = moves([on("a", 0, 1), on("b", 2, 3)], [on("b", 0, 1), on("a", 2, 3)], cluster(), STATE)
    assert (swapped.num_bytes, swapped.seconds) == (12000.0, 600.0)


def test_every_host_of_a_stage_needs_it_all_but_for_what_zero_divides():
    before = [on("a", 0, 3)]
    assert moves(before, [on("bc", 0, 3)], cluster(), STATE).num_bytes == 24000.0
    assert moves(before, [on("bc", 0, 3, zero=2)], cluster(), STATE).num_bytes == 2 * (4000 + 4000)
    assert moves(before, [on("bc", 0, 3, zero=3)], cluster(), STATE).num_bytes == 12000.0


def test_what_a_lost_host_alone_had_is_read_from_a_checkpoint():
    assert moves([on("a", 0, 3)], [on("c", 0, 3)], cluster(), STATE).checkpoint_bytes == 0.0
    lost = moves([on("a", 0, 3)], [on("c", 0, 3)], cluster(), STATE, lost=["a"])
    assert (lost.num_bytes, lost.seconds) == (0.0, 0.0)
    assert (lost.checkpoint_bytes, lost.checkpoint_s) == (12000.0, None)
    assert "from a checkpoint, whose rate is unknown" in lost.text
    rated = dataclasses.replace(cluster(), checkpoint_bytes_per_s=4.0)
    known = moves([on("a", 0, 3)], [on("c", 0, 3)], rated, STATE, lost=["a"])
    assert known.checkpoint_s == 3000.0
    assert known == lost.read_at(4.0)
    assert known.text.endswith("from a checkpoint in 3000 s")
    assert moves([on("a", 0, 3)], [on("a", 0, 3)], cluster(1), STATE).seconds == 0.0


def test_parts_that_go_over_one_medium_divide_its_rate():
    links = tuple(tuple(dataclasses.replace(link, shares=("switch",)) for link in row) for row in cluster(4).links)
    switched = dataclasses.replace(cluster(4), links=links, media={"switch": 5.0})
    before, after = [on("a", 0, 1), on("b", 2, 3)], [on("c", 0, 1), on("d", 2, 3)]
    assert moves(before, after, cluster(4), STATE).seconds == 600.0
    assert moves(before, after, switched, STATE).seconds == 12000.0 / 5.0


def test_the_fastest_of_those_that_have_it_gives_it():
    links = [list(row) for row in cluster().links]
    links[0][2] = Link(0.0, 1.0)
    slow = dataclasses.replace(cluster(), links=tuple(map(tuple, links)))
    assert moves([on("ab", 0, 3)], [on("c", 0, 3)], slow, STATE).seconds == 1200.0


def test_stages_settle_where_their_layers_are():
    before = [on("a", 0), on("b", 1, 2), on("c", 3)]
    new = [on("a", 0, 1), on("b", 2, 3)]
    settler = Settler(new, before, {"a": 4, "b": 4, "c": 4}, STATE)
    assert [one.hosts for one in settler.settled(new, ["a"])] == [("b",), ("c",)]
    assert [one.hosts for one in settler.settled(new, ["c"])] == [("a",), ("b",)]
    halves = [on("a", 0, 2, devices=2), on("a", 3, devices=2)]
    assert [one.hosts for one in Settler(halves, before, {"c": 4}, STATE).settled(halves, [])] == [("c",), ("c",)]


def test_a_layer_has_its_parameters_and_the_optimizer_s_state():
    np.testing.assert_array_equal(STATE, [[1000.0, 2000.0]] * 4)


def test_what_stays_does_not_move():
    plan = [on("a", 0, 1), on("b", 2, 3)]
    assert moves(plan, plan, cluster(), STATE).layers == ()
    less = [dataclasses.replace(plan[0], layers=(0, 0)), on("b", 1), dataclasses.replace(plan[1])]
    assert 0 not in moves(plan, less[:1], cluster(), STATE).layers


def test_fewer_replicas_keep_theirs_unless_zero_divided_them():
    assert moves([on("ab", 0, 3)], [on("a", 0, 3)], cluster(), STATE).num_bytes == 0.0
    divided = moves([on("ab", 0, 3, zero=2)], [on("a", 0, 3, zero=2)], cluster(), STATE)
    assert divided.layers == (0, 1, 2, 3)


def test_another_division_within_a_host_moves_within_it():
    found = moves([on("a", 0, 3)], [on("a", 0, 3, logical=(1, 4))], cluster(), STATE)
    assert (found.num_bytes, found.seconds) == (12000.0, 120.0)


def test_a_host_has_only_its_part_of_what_is_divided_among_hosts():
    """Three hosts have a third each of 12000 bytes; without one, each of two needs a half, and has only its part."""
    found = moves([on("abc", 0, 3, zero=3)], [on("ab", 0, 3, zero=3)], cluster(), STATE, lost=["c"])
    # Host a needs its own third and a sixth of b; b needs a sixth of its own, and the third that c had.
    assert (found.num_bytes, found.checkpoint_bytes) == pytest.approx((8000.0, 4000.0))
    assert found.seconds == pytest.approx(4000 / 100 + 2000 / 10)


def test_no_host_takes_in_more_than_its_link_carries():
    before, after = [on("abcd", 0, 3, zero=3)], [on("abc", 0, 3)]
    found = moves(before, after, cluster(4, within=1e9), STATE, lost=["d"])
    assert (found.num_bytes, found.checkpoint_bytes) == (3 * 9000.0, 3 * 3000.0)
    assert found.seconds == pytest.approx(6000 / 10, rel=1e-4)


def test_stages_that_cannot_settle_stay():
    new = [on("ab", 0, 3)]
    assert Settler(new, new, {"a": 4, "b": 4}, STATE).settled(new, ["b"]) == tuple(new)


@pytest.mark.parametrize("field", ["num_bytes", "seconds", "checkpoint_bytes", "checkpoint_s"])
def test_nothing_negative_moves(field):
    found = moves([on("a", 0, 3)], [on("b", 0, 3)], cluster(), STATE)
    with pytest.raises(ValueError, match=rf"moves: {field} is -1"):
        dataclasses.replace(found, **{field: -1.0})
