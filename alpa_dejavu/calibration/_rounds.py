"""All pairs in rounds of disjoint ones, as in a tournament."""

from __future__ import annotations

from typing import TypeAlias

__all__ = ["Pair", "rounds"]

Pair: TypeAlias = tuple[int, int]


def rounds(count: int) -> list[list[Pair]]:
    """Each pair of so many once; nobody is in two pairs of a round: count - 1 rounds, or count if that is odd.

    References:
        The circle method: Kirkman, On a problem in combinations, Cambridge and Dublin Mathematical Journal 2, 1847.

    >>> rounds(4)
    [[(0, 3), (1, 2)], [(0, 2), (3, 1)], [(0, 1), (2, 3)]]
    >>> [len(each) for each in rounds(5)]
    [2, 2, 2, 2, 2]
    """
    seats: list[int | None] = [*range(count), *([None] if count % 2 else [])]
    found = []
    for _ in range(len(seats) - 1):
        half = len(seats) // 2
        facing = zip(seats[:half], reversed(seats[half:]), strict=True)
        found.append([(a, b) for a, b in facing if a is not None and b is not None])
        seats = [seats[0], seats[-1], *seats[1:-1]]
    return found
