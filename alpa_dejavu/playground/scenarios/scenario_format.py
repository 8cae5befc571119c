"""Scenario files, version 1, as a declared type: every key, its units, and what it must be."""

from __future__ import annotations

from typing import Annotated, Any, Literal, TypeAlias

from typing_extensions import NotRequired, TypedDict

from alpa_dejavu._util.dataclass_format import typed_dict_of
from alpa_dejavu._util.format_fields import (
    WHOLE,
    Bytes,
    Count,
    Index,
    NotNegative,
    Number,
    Positive,
    Seconds,
    SecondsAboveZero,
    Size,
    Text,
    at_most,
    file_format,
    listed,
    stated,
    whole,
)
from alpa_dejavu.playground.scenarios._scenario import Question

Settings: TypeAlias = dict[str, Any]
Named: TypeAlias = Annotated[
    Text | Annotated[dict[str, Settings | None], stated("", min_length=1, max_length=1), at_most(1)],
    stated("a name, or one name with its settings, such as {stale-server: {bound: 4}}"),
]

_ComputeSeconds: TypeAlias = Annotated[
    Literal["predicted", "planned"] | Seconds | Annotated[list[Seconds], listed("", min_length=1)],
    stated('"predicted", "planned", or seconds of a gradient: of all workers, or a list with those of each'),
]
_Question = typed_dict_of(Question)
_Exchanges: TypeAlias = Annotated[list[Named], listed("a list of at least one exchange", min_length=1)]


class ClusterPartData(TypedDict):
    """The cluster of a scenario: a machine type by name, or a file, and how much of it is used."""

    name: Annotated[str, stated("a known machine, such as p3.16xlarge, or a machine or cluster file", min_length=1)]
    hosts: NotRequired[Size]
    devices_per_host: NotRequired[Size]


class WorkersData(TypedDict):
    """The workers of a scenario, where they aren't the devices of all hosts: on given hosts, or whole pipelines."""

    hosts: NotRequired[Annotated[list[Index], listed("a list of the index of each worker's host", min_length=1)]]
    plans: NotRequired[Annotated[list[Text], listed("a list of plan files, a pipeline of each", min_length=1)]]
    copies: NotRequired[Size]


class OptimizerData(TypedDict):
    """The optimizer of a scenario, by name, with its rate."""

    name: Annotated[Literal["sgd", "adam"], stated('"sgd" or "adam"')]
    rate: Positive
    momentum: NotRequired[Annotated[float, stated("a number of at least 0 and below 1", ge=0, lt=1)]]


class UntilData(TypedDict):
    """When the runs of a scenario end: at virtual seconds, or when each worker has computed so many gradients."""

    seconds: NotRequired[SecondsAboveZero]
    steps: NotRequired[Count]


class TargetData(TypedDict):
    """A figure that the runs of a scenario are timed to: a held-out loss, or a share of predictions that are right."""

    loss: NotRequired[Number]
    accuracy: NotRequired[Annotated[float, stated("a share above 0 and at most 1", gt=0, le=1)]]


class _ChangeableData(TypedDict):
    """The keys that a scenario needn't have, and that its variants may change."""

    spread: NotRequired[NotNegative]
    batch: NotRequired[
        Annotated[
            Size | Annotated[list[Size], listed("", min_length=1)],
            stated("samples of a gradient: of all workers, or a list with those of each"),
        ]
    ]
    drop: NotRequired[
        Annotated[
            list[list[Annotated[float, stated("a share of 0 to 1, 1 for a whole block", ge=0, le=1)]]],
            listed("a list with, for each worker, the share of each layer's units that it leaves out", min_length=1),
        ]
    ]
    data: NotRequired[Annotated[Named, stated("a split, such as independent or {dirichlet: {alpha: 0.1}}")]]
    moves: NotRequired[Annotated[Named, stated("a policy of moving samples, such as {random-share: {share: 0.1}}")]]
    optimizer: NotRequired[Annotated[OptimizerData, stated("an object such as {name: sgd, rate: 0.1}")]]
    faults: NotRequired[Annotated[list[Named], listed("a list of faults")]]


class VariantData(_ChangeableData):
    """The keys of a scenario that one of its variants has in their place."""

    compute_s: NotRequired[_ComputeSeconds]
    exchanges: NotRequired[_Exchanges]


@file_format
class ScenarioData(_ChangeableData):
    """A scenario of the playground: what is trained, on which workers, by which exchanges, and what goes wrong."""

    version: Annotated[Literal[1], stated("1, the version of scenarios that this release reads"), WHOLE]
    problem: NotRequired[Annotated[Text | None, stated("the name of a problem, or null: time alone is simulated")]]
    num_bytes: NotRequired[Bytes]
    cluster: Annotated[ClusterPartData, stated("an object such as {name: p3.16xlarge, hosts: 2}")]
    workers: NotRequired[
        Annotated[WorkersData, stated("an object such as {hosts: [0, 0, 1]}, or {plans: [plan.json]}")]
    ]
    compute_s: _ComputeSeconds
    sample_bytes: NotRequired[Bytes]
    exchanges: _Exchanges
    conditions: NotRequired[Annotated[list[Named], listed("a list of conditions")]]
    until: Annotated[UntilData, stated("an object with seconds, or steps, or both")]
    seeds: NotRequired[
        Annotated[
            list[Annotated[int, whole("a whole number of at least 0", 0, 2**31 - 1), WHOLE]],
            listed("a list of one to 1000 whole numbers", min_length=1, max_length=1000),
        ]
    ]
    looks: NotRequired[Index]
    target: NotRequired[Annotated[TargetData, stated("an object with either loss or accuracy")]]
    variants: NotRequired[
        Annotated[
            dict[str, Annotated[VariantData, stated("an object with keys of the scenario, such as {data: sorted}")]],
            stated("an object with the keys that differ, by the variants' names", min_length=1),
        ]
    ]
    question: NotRequired[Annotated[_Question, stated("an object with text, better, than and by")]]  # type: ignore[valid-type]
