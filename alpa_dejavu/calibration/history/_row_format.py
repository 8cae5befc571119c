"""A row of the history as a declared type, once the JSON in its columns is read.

The columns that are there for SQL alone aren't in it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, TypeAlias

from typing_extensions import TypedDict

from alpa_dejavu._util.format_fields import Seconds, SecondsAboveZero, Text, Words, file_format, listed, stated
from alpa_dejavu.plans.plan_file import plan_format

if TYPE_CHECKING:
    PlanData: TypeAlias = dict[str, Any]
else:
    PlanData = plan_format()
_LAST_S = 253_402_300_799
"""The end of the year 9999: calendars know no later one."""


class StageSecondsData(TypedDict):
    """The measured seconds of a stage in a row of the history file, as `StageSeconds` has them."""

    forward_s: Seconds
    backward_s: Seconds
    per_step_s: Seconds
    computing_s: Seconds
    predicted_computing_s: Seconds


@file_format
class RowData(TypedDict):
    """A row of the history file: one past run, as `PastRun` and its `Origin` have it."""

    when_s: Annotated[float, stated("seconds since 1970, before the year 10000", ge=0, le=_LAST_S)]
    model_fingerprint: Words
    cluster_fingerprint: Words
    devices: Words
    predictor: Words
    calibration: Words
    plan: Annotated[PlanData, stated("an object: a plan")]
    predicted_s: SecondsAboveZero
    steps_s: Annotated[list[SecondsAboveZero], listed("a list of the seconds of at least one step", min_length=1)]
    stages: Annotated[list[StageSecondsData], listed("a list of the seconds of each stage, or an empty one")]
    versions: Annotated[dict[str, Text], stated("an object of the versions of packages")]
