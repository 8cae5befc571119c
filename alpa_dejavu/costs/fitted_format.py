"""Fitted models in calibrations as declared types: every key, and what it must be.

Lengths that other values say are checked by who makes the models.
"""

from __future__ import annotations

from typing import Annotated, Literal, TypeAlias

from pydantic import AfterValidator
from typing_extensions import TypedDict

from alpa_dejavu._util.format_fields import Count, Index, listed, said

_MOST = 1e300


def _lower_first(ends: list[float]) -> list[float]:
    if ends[0] > ends[1]:
        raise ValueError(f"{ends[0]:g} is above {ends[1]:g}")
    return ends


_Number: TypeAlias = Annotated[float, said("a finite number", ge=-_MOST, le=_MOST)]
_LogRatio: TypeAlias = Annotated[float, said("a finite number: a logarithm of a ratio", ge=-_MOST, le=_MOST)]
_Numbers: TypeAlias = Annotated[list[_Number], listed("a list of numbers")]
_Places: TypeAlias = Annotated[list[Index], listed("a list of whole numbers of at least 0")]
_Interval: TypeAlias = Annotated[
    list[_LogRatio],
    listed("a list of the two ends of an interval, the lower one first", min_length=2, max_length=2),
    AfterValidator(_lower_first),
]
_Collective: TypeAlias = Annotated[
    Literal["all_gather", "all_reduce", "all_to_all", "reduce_scatter"],
    said("all_gather, all_reduce, all_to_all or reduce_scatter"),
]
CollectiveEndsData = TypedDict("CollectiveEndsData", {"seen sizes": _Interval, "other sizes": _Interval})


class CollectivesData(TypedDict):
    """The JSON form of `FittedCollectives`, a fitted model of collectives."""

    collectives: Annotated[list[_Collective], listed("a list of the names of collectives, at least one", min_length=1)]
    values: _Numbers
    ends: CollectiveEndsData
    sizes: Annotated[list[Count], listed("a list of sizes of groups, at least one", min_length=1)]
    most_bytes: Annotated[float, said("bytes above 0", gt=0, le=_MOST)]
    outliers: _Places
