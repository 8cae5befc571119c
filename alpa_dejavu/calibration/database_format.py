"""Converted profiling databases, version 1, as a declared type: every key, and what it must be, in SI units."""

from __future__ import annotations

from typing import Annotated, Literal, TypeAlias

from typing_extensions import NotRequired, TypedDict

from alpa_dejavu._util.format_fields import (
    WHOLE,
    GivenNotNegative,
    GivenPositive,
    Index,
    Number,
    Size,
    Text,
    Words,
    file_format,
    listed,
    stated,
)

_Sizes: TypeAlias = Annotated[list[GivenNotNegative], listed("a list of sizes")]


class LeftOutData(TypedDict):
    """A measurement of Alpa's profiler that can't be right, and the reason, in a converted database."""

    num_bytes: NotRequired[GivenNotNegative]
    flop: NotRequired[GivenNotNegative]
    seconds: Annotated[Number | None, stated("a number, or null")]
    reason: Words


class SeriesData(TypedDict):
    """The measured seconds of a collective or of a matrix product in several sizes: bytes of the collective's tensor,
    or floating-point operations of the product.
    """

    name: Annotated[
        Literal["all_gather", "all_reduce", "all_to_all", "reduce_scatter", "dot"], stated('a collective, or "dot"')
    ]
    dtype: Text
    groups: Annotated[
        list[Annotated[list[Index], listed("a list of devices", min_length=1)]], listed("a list of groups of devices")
    ]
    num_bytes: NotRequired[_Sizes]
    flop: NotRequired[_Sizes]
    seconds: Annotated[list[GivenPositive], listed("a list of seconds")]
    left_out: Annotated[
        list[Annotated[LeftOutData, stated("an object with a size, seconds and a reason")]],
        listed("a list of what can't be right"),
    ]


class MeshData(TypedDict):
    """A mesh and what Alpa's profiler measured on it, in a converted database."""

    cluster: Words
    mesh: Annotated[list[Size], listed("a list: hosts, and devices of each", min_length=2, max_length=2)]
    available_bytes_per_device: Annotated[GivenPositive | None, stated("a number above 0, or null")]
    series: Annotated[
        list[Annotated[SeriesData, stated("an object: what one operator took in several sizes")]],
        listed("a list of series"),
    ]


@file_format
class DatabaseData(TypedDict):
    """A file of the measurements of Alpa's profiler, converted from its pickle."""

    version: Annotated[Literal[1], stated("1, the version of converted databases that this release reads"), WHOLE]
    kind: Annotated[Literal["alpa-profiling-database"], stated('"alpa-profiling-database"')]
    units: Annotated[Literal["SI"], stated('"SI": seconds, bytes and operations without multiples')]
    origin: Annotated[str, stated("text: the file that it was converted from", min_length=1)]
    meshes: Annotated[
        list[Annotated[MeshData, stated("an object: what was measured on a mesh")]],
        listed("a list of meshes", min_length=1),
    ]
