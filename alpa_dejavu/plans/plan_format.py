"""Plan files, version 1, as a declared type: every key, and what it must be."""

from __future__ import annotations

from typing import Annotated, Any, Literal, TypeAlias

from typing_extensions import NotRequired, TypedDict

from alpa_dejavu._util.format_fields import (
    MOST,
    WHOLE,
    Bytes,
    Index,
    NotNegative,
    Positive,
    Remat,
    Seconds,
    SecondsAboveZero,
    Size,
    Text,
    Words,
    Zero,
    at_most,
    file_format,
    listed,
    said,
    whole,
)
from alpa_dejavu.problem.limits import MOST_MICRO_BATCHES
from alpa_dejavu.problem.run import INTERLEAVED, SCHEDULES


class HostData(TypedDict):
    """The data of a cluster's host in a plan file: name, devices and memory, as `HostSummary` has them."""

    name: Text
    num_devices: Annotated[int, whole("a whole number of devices, at least 1", 1, MOST), WHOLE]
    device: Annotated[str, said("text: what its devices are")]
    memory_bytes: Bytes
    kind: NotRequired[Annotated[int, whole("a whole number: hosts of equal ones are interchangeable"), WHOLE]]
    slowdown: NotRequired[Positive]


class HardwareData(TypedDict):
    """The data of a cluster in a plan file: its hosts and machine type, as `ClusterSummary` has them."""

    machine: NotRequired[
        Annotated[str, said("text: the machine type that all hosts are of, empty if they aren't of one")]
    ]
    machine_file: NotRequired[
        Annotated[str, said("text: the path of that type's file, empty if it comes with the package")]
    ]
    cores: NotRequired[
        Annotated[
            Annotated[int, whole("", 1, MOST), WHOLE] | None, said("a whole number of cores, at least 1, or null")
        ]
    ]
    hosts: Annotated[list[HostData], listed("a list of at least one host", min_length=1)]


class PricedByData(TypedDict):
    """The data in a plan file of the models and options that the plan was chosen under, as `PricedBy` has them."""

    latency: NotRequired[Annotated[str, said("text: the latency model")]]
    communication: NotRequired[Annotated[str, said("text: the communication model")]]
    calibration: NotRequired[Annotated[str, said("text: the calibration, empty if there was none")]]
    risk: NotRequired[Annotated[NotNegative | None, said("a number of at least 0, or null")]]
    margin: NotRequired[Annotated[NotNegative | None, said("a number of at least 0, or null")]]
    submeshes: NotRequired[Annotated[str, said("text: which submeshes there were")]]
    remat: NotRequired[Annotated[list[Remat], listed('a list of "none", "selective" and "layer"')]]
    zero: NotRequired[Annotated[list[Zero], listed("a list of 0, 2 and 3")]]
    layers: NotRequired[Annotated[Size | Literal["auto"], said('a whole number of layers, at least 1, or "auto"')]]
    micro_batches: NotRequired[
        Annotated[Size | Literal["auto"], said('a whole number of micro-batches, at least 1, or "auto"')]
    ]
    slicer: NotRequired[Annotated[str, said("text: the slicer")]]
    objective: NotRequired[Annotated[str, said("text: what was to be least")]]
    strategy: NotRequired[Annotated[str, said("text: whose search it was")]]
    runtime: NotRequired[Annotated[str, said("text: the runtime profile")]]
    offload: NotRequired[Annotated[str, said("text: where stages could offload")]]
    replicas: NotRequired[Annotated[Size, said("a whole number of replicas that each stage had at least")]]
    runs_on: NotRequired[Annotated[str, said("text: the training framework whose rules plans were restricted to")]]
    attention: NotRequired[Annotated[Literal["", "fused", "plain"], said('"fused", "plain" or empty')]]


class CorrectionData(TypedDict):
    """The data in a plan file of a correction of its seconds by past runs, as `StepCorrection` has it."""

    factor: Positive
    spread: NotNegative
    runs: Annotated[int, whole("a whole number of runs, at least 0"), WHOLE]
    own_runs: Annotated[int, whole("a whole number of runs, at least 0"), WHOLE]


class ConfidenceData(TypedDict):
    """The data in a plan file that say how sure its prediction is, as `Confidence` has them."""

    probability: Annotated[float, said("a number from 0 to 1", ge=0, le=1)]
    expected_step_s: SecondsAboveZero
    interval_s: Annotated[list[SecondsAboveZero], listed("[lower, upper] in seconds", min_length=2, max_length=2)]
    draws: Annotated[int, whole("a whole number of draws, at least 1", 1), WHOLE]
    candidates: Annotated[int, whole("a whole number of plans, at least 1", 1), WHOLE]
    spread_from: Words
    compared: NotRequired[Words]
    deviation_s: NotRequired[Seconds]


Share: TypeAlias = Annotated[float, said("a share from 0 to 1", ge=0, le=1)]


class OffloadData(TypedDict):
    """The data in a plan file of what a stage's hosts keep in place of its devices, as `StageOffload` has them."""

    optimizer: NotRequired[Share]
    gradients: NotRequired[Share]
    parameters: NotRequired[Share]
    activations: NotRequired[Share]
    place: Annotated[Literal["cpu", "nvme"], said('"cpu" or "nvme"')]
    host_bytes: NotRequired[Bytes]
    host_limit_bytes: NotRequired[Bytes]
    nvme_bytes: NotRequired[Bytes]
    nvme_limit_bytes: NotRequired[Bytes]
    forward_s: NotRequired[Seconds]
    backward_s: NotRequired[Seconds]
    step_s: NotRequired[Seconds]


class DrawnData(TypedDict):
    """The data in a plan file of drawn seconds, as `DrawnSeconds` has them; layers have none of their own."""

    mean_s: Seconds
    deviation_s: Seconds


class StageDrawnData(DrawnData):
    """The data in a plan file of a stage's drawn seconds, with those of its layers."""

    layers: Annotated[list[DrawnData], listed("a list of mean and deviation of each layer of the stage")]


class StageData(TypedDict):
    """The data of a stage in a plan file, as `StagePlan` has it.

    `auto_sharding` follows the logical mesh where it is left out.
    """

    layers: Annotated[
        list[Annotated[int, whole("a whole number of at least 0", 0, MOST), WHOLE]],
        listed("[first layer, last layer], inclusive, from 0", min_length=2, max_length=2),
    ]
    submesh: Annotated[list[Size], listed("[hosts, devices per host]", min_length=2, max_length=2)]
    logical_mesh: Annotated[
        list[Size], listed("a list of sizes, such as [data parallel, tensor parallel]", min_length=1)
    ]
    hosts: Annotated[list[Text], listed("a list of host names", min_length=1)]
    remat: Remat
    zero: Zero
    auto_sharding: NotRequired[Annotated[dict[str, Any], said("an object of options of Alpa's AutoShardingOption")]]
    forward_s: Seconds
    backward_s: Seconds
    per_step_s: Seconds
    memory_bytes: Bytes
    memory_limit_bytes: Bytes
    compute_s: NotRequired[Seconds]
    collective_s: NotRequired[Seconds]
    boundary_s: NotRequired[Seconds]
    forward_collective_s: NotRequired[Seconds]
    forward_boundary_s: NotRequired[Seconds]
    synchronisation_s: NotRequired[Seconds]
    backward_weight_s: NotRequired[Seconds]
    activation_bytes: NotRequired[Bytes]
    resident_bytes: NotRequired[Bytes]
    temporary_bytes: NotRequired[Bytes]
    hidden_s: NotRequired[Seconds]
    hidden_per_step_s: NotRequired[Seconds]
    offload: NotRequired[Annotated[OffloadData, said("an object: the shares that its hosts keep")]]
    drawn: NotRequired[Annotated[StageDrawnData, said("an object: mean and deviation of its seconds")]]
    context_parallel: NotRequired[Size]
    expert_parallel: NotRequired[Size]
    sharded: NotRequired[Size]
    memory_parts: NotRequired[Annotated[dict[str, Bytes], said("an object: bytes by what they are of")]]


Stages = Annotated[list[StageData], listed("a list of at least one stage", min_length=1)]
MicroBatches = Annotated[int, whole("a whole number of micro-batches, at least 1", 1, MOST_MICRO_BATCHES), WHOLE]


class OtherPlanData(TypedDict):
    """The data in a plan file of a fallback plan, to be run once one of several hosts is lost."""

    iteration_time_s: SecondsAboveZero
    num_micro_batches: MicroBatches
    stages: Stages


class LostHostData(TypedDict):
    """The data in a plan file of a host's loss: which fallback plan is run, on which hosts, and what moves for it."""

    plan: Annotated[int, whole("a whole number: which of contingencies.plans"), WHOLE]
    hosts: Annotated[
        list[Annotated[list[Text], listed("a list of host names", min_length=1)]],
        listed("a list of host names for each stage"),
    ]
    unused: Annotated[list[Text], listed("a list of host names")]
    moved_layers: Annotated[list[Index], listed("a list of layers")]
    moved_bytes: Bytes
    moved_s: Seconds
    checkpoint_bytes: NotRequired[Bytes]
    checkpoint_s: NotRequired[Annotated[Seconds | None, said("seconds of at least 0, or null")]]


class ContingenciesData(TypedDict):
    """The data in a plan file of all fallback plans, each once, and of the hosts whose loss they are for."""

    plans: Annotated[list[OtherPlanData], listed("a list of at least one plan", min_length=1)]
    hosts: Annotated[dict[str, LostHostData], said("an object of hosts and what is run without each"), at_most(10_000)]


@file_format
class PlanData(TypedDict):
    """The data of a plan file, with all that a `Plan` has."""

    version: Annotated[Literal[1], said("1, the version of plan files that this release reads"), WHOLE]
    model: Annotated[str, said("text: a model's name or module:function, empty if Alpa made the layers")]
    num_layers: Annotated[int, whole("a whole number of layers, at least 1", 1, MOST), WHOLE]
    layer_option: NotRequired[Annotated[Literal["auto", "manual"], said('"auto" or "manual"')]]
    cluster: Text
    hardware: NotRequired[Annotated[HardwareData, said("an object: the hosts of the cluster, used or not")]]
    priced_by: NotRequired[Annotated[PricedByData, said("an object: what the plan was chosen under")]]
    num_devices: Annotated[int, whole("a whole number of devices, at least 1", 1, MOST), WHOLE]
    batch: Annotated[Annotated[int, whole("", 1), WHOLE] | None, said("a whole number of samples, at least 1, or null")]
    num_micro_batches: MicroBatches
    schedule: Annotated[
        str,
        said(
            f"a schedule: {', '.join(SCHEDULES)}, or interleaved_ with a number of chunks",
            pattern=f"^({'|'.join(SCHEDULES)}|{INTERLEAVED})$",
        ),
    ]
    iteration_time_s: SecondsAboveZero
    lower_bound_s: NotRequired[Seconds]
    planning_s: Annotated[dict[str, Seconds], said("an object of steps and their seconds")]
    confidence: NotRequired[ConfidenceData]
    notes: NotRequired[Annotated[list[Words], listed("a list of sentences")]]
    correction: NotRequired[CorrectionData]
    strategy: NotRequired[Annotated[str, said("text: whose plan it is, empty for this package's own search")]]
    runs_on_alpa: NotRequired[Annotated[bool, said("true, or false of what is estimated only")]]
    stages: Stages
    contingencies: NotRequired[ContingenciesData]
