"""Which hosts' devices jobs are given."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from alpa_dejavu.playground.jobs._state import Places, State
from alpa_dejavu.playground.jobs._workload import Pool

__all__ = ["kept_places", "placed", "placed_beside"]


def placed(pool: Pool, state: State, sizes: Mapping[int, int]) -> dict[int, Places]:
    """Returns the places of jobs by their numbers of devices: those that they had, where that goes; else those of all
    anew. A job for which there is no room is left out.

    Args:
        pool: the hosts.
        state: says which hosts are there, and where jobs ran.
        sizes: how many devices each job has; the first ones go first where there isn't room for all.
    """
    had = {number: places for number, places in kept_places(state).items()
           if sizes.get(number) == sum(count for _, count in places)}  # fmt: skip
    found = placed_beside(pool, state.there, sizes, had)
    return found if len(found) == len(sizes) else placed_beside(pool, state.there, sizes, {})


def kept_places(state: State) -> dict[int, Places]:
    """Returns the places of jobs that run, by number."""
    return {one.number: one.allotment.places for one in state.jobs if one.allotment is not None}


def placed_beside(
    pool: Pool, there: Sequence[bool], sizes: Mapping[int, int], had: Mapping[int, Places]
) -> dict[int, Places]:
    """Returns the places that jobs have, and those of others beside them: the one with most devices first, each on the
    host that it fills most. One for which there is no room is left out.
    """
    free = [pool.devices if here else 0 for here in there]
    for places in had.values():
        for host, count in places:
            free[host] -= count
    found = dict(had)
    for number in sorted((number for number in sizes if number not in had), key=lambda number: -sizes[number]):
        size = sizes[number]
        if size > pool.devices:
            whole = [host for host, count in enumerate(free) if count == pool.devices][: size // pool.devices]
            places = tuple((host, pool.devices) for host in whole)
        else:
            places = tuple((host, size) for _, host in sorted((c, h) for h, c in enumerate(free) if c >= size)[:1])
        if sum(count for _, count in places) == size:
            found[number] = places
            for host, count in places:
                free[host] -= count
    return found
