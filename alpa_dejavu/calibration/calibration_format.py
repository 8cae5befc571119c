"""What calibration files have of fitted models, and figures by their names, as declared types."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal, TypeAlias

from typing_extensions import TypedDict

from alpa_dejavu._util.format_fields import Asked, Count, Index, NotNegative, Number, listed, stated

_MOST = 1e300


def _lower_first(ends: Any) -> Any:
    if isinstance(ends, list) and len(ends) == 2 and all(isinstance(end, float) for end in ends) and ends[0] > ends[1]:
        raise ValueError(f"{ends[0]:g} is above {ends[1]:g}")
    return ends


_Number: TypeAlias = Annotated[float, stated("a finite number", ge=-_MOST, le=_MOST)]
_LogRatio: TypeAlias = Annotated[float, stated("a finite number: a logarithm of a ratio", ge=-_MOST, le=_MOST)]
_Numbers: TypeAlias = Annotated[list[_Number], listed("a list of numbers")]
_Places: TypeAlias = Annotated[list[Index], listed("a list of whole numbers of at least 0")]
_Interval: TypeAlias = Annotated[
    list[_LogRatio],
    listed("a list of the two ends of an interval, the lower one first", min_length=2, max_length=2),
    Asked(before=_lower_first),
]
_Collective: TypeAlias = Annotated[
    Literal["all_gather", "all_reduce", "all_to_all", "reduce_scatter"],
    stated("all_gather, all_reduce, all_to_all or reduce_scatter"),
]
Spread: TypeAlias = Annotated[
    Mapping[str, NotNegative], stated("an object of standard deviations of logarithms by the names of figures")
]
Figures: TypeAlias = Annotated[Mapping[str, Number], stated("an object of numbers by name")]

CollectiveEndsData = TypedDict("CollectiveEndsData", {"seen sizes": _Interval, "other sizes": _Interval})


class CollectivesData(TypedDict):
    """The JSON form of `FittedCollectives`, a fitted model of collectives."""

    collectives: Annotated[list[_Collective], listed("a list of the names of collectives, at least one", min_length=1)]
    values: _Numbers
    ends: CollectiveEndsData
    sizes: Annotated[list[Count], listed("a list of sizes of groups, at least one", min_length=1)]
    most_bytes: Annotated[float, stated("bytes above 0", gt=0, le=_MOST)]
    outliers: _Places
