"""Comparisons of clusters, version 1, as a declared type: every key, and what it must be."""

from __future__ import annotations

from typing import Annotated, Literal

from typing_extensions import TypedDict

from alpa_dejavu._util.format_fields import (
    WHOLE,
    Bytes,
    Count,
    NotNegative,
    Seconds,
    SecondsAboveZero,
    Text,
    Words,
    file_format,
    listed,
    said,
)

_Measure = Annotated[Literal["seconds", "price"], said('"seconds" or "price"')]
_Share = Annotated[float, said("a share from 0 to 1", ge=0, le=1 + 1e-9)]
_Price = Annotated[NotNegative | None, said("US dollars, or null where a host's price isn't known")]
_Names = Annotated[list[Text], listed("a list of names")]


class SavingData(TypedDict):
    """A way to keep less in memory, with the options of `alpa-dejavu plan` that allow it."""

    name: Text
    flags: Words


class FootingData(TypedDict):
    """A part of a plan's predicted work by what it rests on."""

    rests_on: Text
    share: _Share
    spread: NotNegative


class TrainingData(TypedDict):
    """The figures of a training of so many steps."""

    seconds: SecondsAboveZero
    deviation_s: Annotated[Seconds | None, said("seconds of at least 0, or null")]
    device_s: SecondsAboveZero
    price: _Price


class FiguresData(TypedDict):
    """The figures of a plan, as `Figures` has them."""

    step_s: SecondsAboveZero
    expected_step_s: SecondsAboveZero
    interval_s: Annotated[
        Annotated[list[SecondsAboveZero], listed("the two ends of an interval", min_length=2, max_length=2)] | None,
        said("the two ends of the 90 % interval, or null"),
    ]
    price: _Price
    memory_bytes: Bytes
    stages: Count
    micro_batches: Count
    uses: _Names
    calibration: Words
    footings: Annotated[list[FootingData], listed("a list of what seconds rest on")]
    training: Annotated[TrainingData | None, said("an object: a training of `steps` steps, or null")]


class CellData(TypedDict):
    """One cluster with one saving, as `Cell` has it."""

    cluster: Text
    saving: Text
    flags: Words
    figures: Annotated[FiguresData | None, said("an object: the figures of the plan, or null")]
    why_not: Words
    fits: Annotated[bool, said("true or false")]
    remedies: _Names


class OrderData(TypedDict):
    """The order of the clusters with one saving, as `Order` has it."""

    saving: Text
    measure: _Measure
    clusters: _Names
    before: Annotated[list[Annotated[list[_Share], listed("a list of shares")]], listed("a list of rows")]
    unfit: _Names


class ChangeData(TypedDict):
    """Two clusters whose order changes with the saving, as `Change` has it."""

    measure: _Measure
    one: Text
    other: Text
    before: _Names
    behind: _Names
    sure: Annotated[bool, said("true or false")]


@file_format
class ComparisonData(TypedDict):
    """A comparison of clusters, as `Comparison` has it."""

    version: Annotated[Literal[1], said("1, the version of comparisons that this release writes"), WHOLE]
    model: Words
    batch: Count
    steps: Annotated[Count | None, said("a whole number of at least 1, or null")]
    clusters: _Names
    savings: Annotated[list[SavingData], listed("a list of ways to keep less in memory")]
    cells: Annotated[list[CellData], listed("a list of cells")]
    orders: Annotated[list[OrderData], listed("a list of orders")]
    changes: Annotated[list[ChangeData], listed("a list of changes")]
