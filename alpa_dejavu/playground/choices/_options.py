"""Choices in rows, and the options that they make: one choice of each row."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Mapping, Sequence
from typing import Any, final

from alpa_dejavu.playground._exchange import Exchange
from alpa_dejavu.playground.exchanges import exchange as resolved
from alpa_dejavu.playground.job import Job

__all__ = ["Choice", "Option", "options"]


@final
@dataclasses.dataclass(frozen=True, eq=False)
class Choice:
    """One entry of a row: what it sets, where the other entries of its row set something else.

    Attributes:
        name: for people.
        exchange: how workers train together, or its name; None: another row says.
        changes: attributes of the job with other values, such as its batch with the seconds of that.
    """

    name: str
    exchange: str | Exchange | None = None
    changes: Mapping[str, Any] = dataclasses.field(default_factory=dict)


@final
@dataclasses.dataclass(frozen=True, eq=False)
class Option:
    """A whole setting: one choice of each row.

    Attributes:
        name: the names of its choices.
        places: for each row the place of its choice.
        job: the job with what the choices change.
        exchange: how workers train together.
    """

    name: str
    places: tuple[int, ...]
    job: Job
    exchange: Exchange


def options(job: Job, rows: Sequence[Sequence[Choice]]) -> tuple[Option, ...]:
    """Returns every combination of one choice of each row, the last row's running fastest.

    Args:
        job: the job that choices change.
        rows: the choices, row by row; exactly one row names exchanges.

    Raises:
        ValueError: a row is empty, not exactly one row names exchanges, or a choice changes the problem or optimizer.

    >>> rows = [[Choice("ring", "gossip"), Choice("sum", "all-reduce")], [Choice("16", changes={"batch": 16})]]
    >>> [option.name for option in options(Job(None, 1.0, num_bytes=8), rows)]
    ['ring, 16', 'sum, 16']
    """
    if not rows or not all(rows):
        raise ValueError(f"rows is {rows!r}, but must be rows of at least one choice each; leave out what has none")
    named = [{choice.exchange is not None for choice in row} for row in rows]
    if named.count({True}) != 1 or {True, False} in named:
        raise ValueError("rows: choices name exchanges in another way than all those of exactly one row; give each "
                         "choice of one row an exchange")  # fmt: skip
    kept = {"problem", "optimizer", "hosts", "own_starts"}
    for choice in itertools.chain(*rows):
        if wrong := kept.intersection(choice.changes):
            raise ValueError(f"choice {choice.name!r} changes {sorted(wrong)}, but must leave {sorted(kept)}; change "
                             "them in the job")  # fmt: skip
    made = []
    for places in itertools.product(*(range(len(row)) for row in rows)):
        chosen = [row[place] for row, place in zip(rows, places, strict=True)]
        (way,) = (choice.exchange for choice in chosen if choice.exchange is not None)
        changed = {name: value for choice in chosen for name, value in choice.changes.items()}
        name = ", ".join(choice.name for choice in chosen)
        made.append(Option(name, places, dataclasses.replace(job, **changed), resolved(way)))
    return tuple(made)
