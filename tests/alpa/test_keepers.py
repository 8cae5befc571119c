"""Copies of training state on hosts: put together from pieces, kept until the next is whole, and checked."""

import itertools
import types

import numpy as np
import pytest

from alpa_dejavu.alpa import _keepers
from alpa_dejavu.alpa._copies import Copies, _pieces
from alpa_dejavu.alpa._keepers import Keeper, Piece


def cuts(size, parts):
    edges = [size * n // parts for n in range(parts + 1)]
    return list(itertools.pairwise(edges))


@pytest.mark.parametrize("parts", [(1, 1), (2, 3), (4, 1)])
@pytest.mark.parametrize("wanted", [(1, 1), (3, 2), (1, 4), (2, 4)])
def test_any_part_is_put_together_from_pieces_that_were_cut_otherwise(parts, wanted):
    whole = np.arange(12 * 24).reshape(12, 24).astype(np.float32)

    def places(counts):
        return list(itertools.product(*(cuts(size, count) for size, count in zip(whole.shape, counts, strict=True))))

    def part(place):
        return whole[tuple(slice(*each) for each in place)]

    pieces = {Piece(0, place): part(place) for place in places(parts)}
    for place in places(wanted):
        np.testing.assert_array_equal(_keepers._assembled(place, whole.dtype, pieces), part(place))


def test_a_keeper_has_the_whole_copy_until_the_next_one_is():
    keeper, piece = Keeper(), Piece(0, ((0, 4),))

    def taken(step, whole, value):
        value = np.full(4, value, np.float32)
        keeper.take(step, whole, piece, value, _keepers._checksum(value))

    taken(2, None, 2)
    taken(4, 2, 4)
    assert [keeper.give(step, piece)[0] for step in (2, 4)] == [2, 4]
    taken(6, 4, 6)
    assert keeper.intact(2) == []
    assert keeper.intact(4) == keeper.intact(6) == [piece]
    room = keeper.room_bytes()
    assert room > 32


def test_a_torn_piece_is_not_taken_and_not_given_out():
    keeper, piece, value = Keeper(), Piece(3, ((0, 4),)), np.ones(4, np.float32)
    with pytest.raises(RuntimeError, match="array 3 of step 2 came with another checksum"):
        keeper.take(2, None, piece, value, 0)
    assert keeper.intact(2) == []
    keeper.take(2, None, piece, value, _keepers._checksum(value))
    keeper.give(2, piece)[1] = 5
    assert keeper.intact(2) == []


def array(holders, indices, shape):
    """An array of Alpa's on hosts of some nodes, with a device each, of which only places matter."""
    mesh = types.SimpleNamespace(num_devices_per_host=1, host_info=[{"NodeID": node} for node in holders])
    return types.SimpleNamespace(device_mesh=mesh, indices=indices, shape=shape)


NODES = {"host-0": "a", "host-1": "b", "host-2": "c"}


def test_a_stage_is_kept_by_its_own_host_and_a_neighbour():
    ((piece, holders),) = _pieces(0, array(["b"], [(slice(None),)], (4,)))
    assert (piece, holders) == (Piece(0, ((0, 4),)), {(0, 0): "b"})
    assert Copies({})._kept_by(holders, NODES) == [((0, 0), ["b", "c"])]
    assert Copies({"host-1": "host-0"})._kept_by(holders, NODES) == [((0, 0), ["b", "a"])]
    # The neighbour is gone, or all others are.
    left = {"host-1": "b", "host-2": "c"}
    assert Copies({"host-1": "host-0"})._kept_by(holders, left) == [((0, 0), ["b", "c"])]
    assert Copies({})._kept_by(holders, {"host-1": "b"}) == [((0, 0), ["b"])]


def test_neighbours_are_other_hosts_of_the_training():
    Copies({"host-0": "host-2"}).check_neighbours(NODES)
    for wrong in ({"host-0": "host-0"}, {"host-0": "host-9"}, {"host-9": "host-0"}):
        with pytest.raises(ValueError, match="but must have another of the hosts host-0, host-1, host-2; give one"):
            Copies(wrong).check_neighbours(NODES)


def test_a_number_is_a_piece_too():
    piece = Piece(0, ())
    assert _keepers._assembled((), np.float32, {piece: np.float32(3)}) == 3
    assert _keepers._checksum(np.float32(3)) != _keepers._checksum(np.float32(4))


def test_what_data_parallel_hosts_have_is_kept_by_two_of_them_and_not_sent():
    ((_, holders),) = _pieces(0, array(["b", "a", "c"], [(slice(None),)] * 3, (4,)))
    assert Copies({})._kept_by(holders, NODES) == [((0, 0), ["b"]), ((1, 0), ["a"])]
    halves = dict(_pieces(0, array(["a", "b"], [(slice(0, 2),), (slice(2, 4),)], (4,))))
    assert halves == {Piece(0, ((0, 2),)): {(0, 0): "a"}, Piece(0, ((2, 4),)): {(1, 0): "b"}}
