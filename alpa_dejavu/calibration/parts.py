"""Parts of calibrations, as their files have them: fits, measured kinds of links, and models of collectives."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from typing import Annotated, Any, Literal, TypeAlias, final

from typing_extensions import TypedDict

from alpa_dejavu._util.format_fields import Asked, Count, Index, NotNegative, Number, Text, Words, listed, stated
from alpa_dejavu.costs.runtime import RuntimeProfile
from alpa_dejavu.problem import Device, Link, checks

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


def check_spread(owner: str, spread: Mapping[str, float], of: type[Device] | type[Link]) -> None:
    """Raises ValueError for spreads that are negative, or of what is no field of a device or a link."""
    fields = [field.name for field in dataclasses.fields(of)]
    for name, value in spread.items():
        if name.split("[")[0] not in fields:
            raise ValueError(f"{owner}: has a spread of {name!r}, which is no figure; known are {', '.join(fields)}")
        checks.not_negative(owner, f"the spread of {name}", value)


@final
@dataclasses.dataclass(frozen=True)
class Fit:
    """How well a part of a calibration was fitted to how many measurements of its devices: errors `held_out`, when
    `left_out` was left out in turn, as fractions by "mape", "median_ape", "coverage_90"; and further `figures`.
    """

    part: Text
    origin: Annotated[str, stated("text: which measurements", min_length=1)]
    rows: Index
    left_out: Annotated[str, stated("text: what was left out in turn")] = ""
    held_out: Figures = dataclasses.field(default_factory=dict)
    figures: Figures = dataclasses.field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.rows < 0:
            raise ValueError(f"fit of {self.part}: rows is {self.rows}, but must be at least 0")
        for name, value in (*self.held_out.items(), *self.figures.items()):
            if not math.isfinite(value):
                raise ValueError(f"fit of {self.part}: {name} is {value!r}, but must be a finite number")


@final
@dataclasses.dataclass(frozen=True)
class MeasuredLink:
    """The measured latency and rate of a kind of link, within a host or across, and the spread of each by its field."""

    devices: Annotated[
        tuple[Words, Words], listed("a list of the two kinds of devices at its ends", min_length=2, max_length=2)
    ]
    within: Annotated[bool, stated("true (both ends in one host) or false")]
    link: Annotated[Link, stated("an object with the figures of a link")]
    spread: Spread = dataclasses.field(default_factory=dict)

    def __post_init__(self) -> None:
        check_spread(f"link {' - '.join(self.devices)}", self.spread, Link)

    @property
    def kind(self) -> tuple[tuple[str, ...], bool]:
        """Returns a key of the kind of link: the sorted names of both ends' devices, and if they are in one host."""
        return tuple(sorted(self.devices)), self.within


@final
@dataclasses.dataclass(frozen=True)
class TracedRuntime:
    """A training framework whose steps the other figures were traced in: they have what it adds to operators, and here
    are the seconds that a step takes besides.
    """

    runtime: Text
    step_s: NotNegative

    def applied_to(self, profile: RuntimeProfile) -> RuntimeProfile:
        """Returns a runtime's profile with the traced figures in place of the bundled ones, if it is this runtime's."""
        if profile.name.partition("+")[0] != self.runtime:
            return profile
        return dataclasses.replace(
            profile, launch_s=0.0, elementwise=1.0, collectives=1.0, step_s=self.step_s, compiled=False
        )
