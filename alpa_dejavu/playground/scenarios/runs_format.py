"""Files of a scenario's runs, version 1, as a declared type: every key, its units, and what it must be."""

from __future__ import annotations

from typing import Annotated, Literal, TypeAlias

from typing_extensions import NotRequired, TypedDict

from alpa_dejavu._util.format_fields import WHOLE, Bytes, Index, Seconds, Text, Words, file_format, listed, said, whole
from alpa_dejavu.playground.scenarios.scenario_format import QuestionData

_Number: TypeAlias = Annotated[float, said("a number")]
_SecondsList: TypeAlias = Annotated[list[Seconds], listed("a list of seconds, as many as its neighbours have")]
_Counts: TypeAlias = Annotated[list[Index], listed("a list of whole numbers, as many as its neighbours have")]
_BytesList: TypeAlias = Annotated[list[Bytes], listed("a list of bytes, as many as its neighbours have")]
_Figures: TypeAlias = Annotated[
    list[Annotated[float | None, said("a number, or null")]],
    listed("a list of numbers or nulls, as many as its neighbours have"),
]
_Workers: TypeAlias = Annotated[
    list[Annotated[int, whole("a worker's number, or -1", -1), WHOLE]],
    listed("a list of workers' numbers or -1, as many as its neighbours have"),
]


class TimelineData(TypedDict):
    """The intervals of workers' time in a run, as `History.timeline` has them, a list for each field."""

    worker: _Counts
    kind: Annotated[
        list[Annotated[int, whole("0, 1 or 2", 0, 2), WHOLE]],
        listed("a list of 0 (computing), 1 (sending) or 2 (failed), as many as its neighbours have"),
    ]
    other: _Workers
    start_s: _SecondsList
    end_s: _SecondsList


class RunData(TypedDict):
    """A run of a scenario, as `History` has it, without the parameters."""

    exchange: Text
    seed: Index
    end: Text
    time_s: Annotated[list[Seconds], listed("a list of seconds", min_length=1)]
    loss: _Figures
    accuracy: _Figures
    consensus: _Figures
    steps: _Counts
    samples: _Counts
    sent_bytes: _BytesList
    staleness: _Counts
    busy_s: _SecondsList
    idle_s: Annotated[list[_Number], listed("a list of seconds, as many as its neighbours have")]
    worker_steps: _Counts
    lost_updates: Index
    links: Annotated[
        list[Annotated[list[Index], listed("a pair of hosts", min_length=2, max_length=2)]],
        listed("a list of pairs of hosts"),
    ]
    link_bytes: _BytesList
    link_messages: _Counts
    notes: NotRequired[Annotated[list[Text], listed("a list of texts")]]
    violated_s: NotRequired[
        Annotated[list[Seconds | None], listed("a list of seconds or nulls, as many as there are conditions")]
    ]
    timeline: NotRequired[Annotated[TimelineData, said("an object with lists of the intervals of workers' time")]]


class ReachedData(TypedDict):
    """A measure and the value that the runs of a file are timed to."""

    measure: Annotated[Literal["loss", "accuracy"], said('"loss" or "accuracy"')]
    value: _Number


@file_format
class RunsData(TypedDict):
    """All runs of a scenario of the playground."""

    version: Annotated[Literal[1], said("1, the version of runs that this release reads"), WHOLE]
    scenario: Words
    problem: Annotated[Text | None, said("the name of a problem, or null")]
    hosts: Annotated[list[Text], listed("a list of the host of each worker", min_length=1)]
    conditions: NotRequired[Annotated[list[Text], listed("a list of the names of conditions")]]
    target: Annotated[ReachedData | None, said('an object such as {"measure": "loss", "value": 0.5}, or null')]
    question: NotRequired[Annotated[QuestionData, said("an object with text, better, than and by")]]
    runs: Annotated[list[Annotated[RunData, said("a run")]], listed("a list of at least one run", min_length=1)]
