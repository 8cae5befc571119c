"""Results of `parallel_initialize`, version 1, as a declared type: every key, and what it must be."""

from __future__ import annotations

from typing import Annotated, Literal

from typing_extensions import NotRequired, TypedDict

from alpa_dejavu._util.format_fields import WHOLE, Index, Text, Words, file_format, listed, stated, whole


class CandidateData(TypedDict):
    """A candidate of a run of `parallel_initialize`, with its loss curve, as `Curve` has it."""

    number: Index
    parents: Annotated[list[Index], listed("a list of numbers")]
    batch_rows: Annotated[Annotated[int, whole("", 1), WHOLE] | None, stated("a number of rows, or null")]
    first_step: Index
    dropped_step: Annotated[Index | None, stated("a number of steps, or null")]
    why: Words
    method: NotRequired[Annotated[Words, stated("text: the name of a start")]]
    rate: NotRequired[Annotated[float, stated("a learning rate", gt=0)]]
    began_at: NotRequired[Annotated[float, stated("a number of steps", ge=0)]]
    point: Annotated[list[Annotated[float, stated("a number")]], listed("a list of numbers")]
    losses: Annotated[list[Annotated[float, stated("a number")]], listed("a list of numbers")]
    relative_gradients: Annotated[
        list[Annotated[float | None, stated("a number, or null")]], listed("a list of numbers or nulls")
    ]


@file_format
class ResultData(TypedDict):
    """A result of `parallel_initialize`, as `Initialized` has it; its training state is in a file beside it."""

    version: Annotated[Literal[1], stated("1, the version of results that this release reads"), WHOLE]
    state_file: Annotated[Text, stated("the name of an NPZ file beside this one")]
    chosen: Index
    steps: Index
    total_steps: Index
    padded_steps: Index
    diverged: Index
    lost: Index
    restarts: Index
    seconds: Annotated[float, stated("a number of seconds", ge=0)]
    seed: Index
    interrupted: Annotated[bool, stated("true or false")]
    rungs: Annotated[list[Index], listed("a list of steps")]
    notes: Annotated[list[Words], listed("a list of sentences")]
    candidates: Annotated[
        list[Annotated[CandidateData, stated("a candidate")]], listed("a list of candidates", min_length=1)
    ]
