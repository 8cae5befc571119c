"""A finished plan: which stage runs where, and what it is predicted to cost."""

from __future__ import annotations

import collections
import dataclasses
from collections.abc import Mapping, Sequence
from typing import Annotated, TypeAlias, final

from alpa_dejavu._util import units
from alpa_dejavu._util.dataclass_format import Elsewhere, Key, Needed, Rare, chosen
from alpa_dejavu._util.format_fields import (
    MOST,
    NotNegative,
    Positive,
    Seconds,
    SecondsAboveZero,
    Text,
    Words,
    listed,
    stated,
    whole,
)
from alpa_dejavu.problem import checks
from alpa_dejavu.problem._confidence import Confidence, PricedBy
from alpa_dejavu.problem._hardware import ClusterSummary
from alpa_dejavu.problem._stage_plan import Contingency, StagePlan
from alpa_dejavu.problem.limits import MOST_MICRO_BATCHES, at_most
from alpa_dejavu.problem.run import INTERLEAVED, SCHEDULES, schedule_form

LAYER_OPTIONS = ("auto", "manual")
MicroBatches: TypeAlias = Annotated[int, whole("a whole number of micro-batches, at least 1", 1, MOST_MICRO_BATCHES)]
Stages: TypeAlias = Annotated[tuple[StagePlan, ...], listed("a list of at least one stage", min_length=1)]


class NoPlanError(RuntimeError):
    """An error that says that no plan fits: what is lacking where (such as memory), and what would help.

    Attributes:
        remedies: flags of the command line, each of which was tried and is enough; empty: none was found.
        advice: what may help, and wasn't tried; empty: nothing is known.
    """

    def __init__(self, why: str, remedies: Sequence[str] = (), advice: str = "") -> None:
        super().__init__("; ".join(filter(None, (why, advice))))
        self.why, self.remedies, self.advice = why, tuple(remedies), advice


@final
@dataclasses.dataclass(frozen=True)
class StepCorrection:
    """A factor that predicted times are multiplied by, learned from the measured steps of past runs.

    Attributes:
        spread: one standard deviation of its logarithm, from one run to another.
        runs: how many past runs it comes from: they were on devices of the same kind, and predicted by the same models.
        own_runs: how many of them were of the same model on the same cluster.
    """

    factor: Positive
    spread: NotNegative
    runs: Annotated[int, whole("a whole number of runs, at least 0")]
    own_runs: Annotated[int, whole("a whole number of runs, at least 0")]

    def __post_init__(self) -> None:
        checks.fields("correction", self, "factor", "spread")


@final
@dataclasses.dataclass(frozen=True, kw_only=True)
class Plan:
    """A pipeline-parallel plan: the stages that a model is cut into, and the predicted time of a training step.

    Attributes:
        stages: in the order of the layers; where the schedule has several on each submesh, those of one submesh have
            the same hosts, submesh and logical mesh.
        lower_bound_s: a bound in seconds: by the same predicted costs no plan's objective, the closed form that slicers
            minimise, is smaller; 0 where none is known, as under schedules that Alpa hasn't. It is `step_s` at most,
            though the closed form may be more than the simulated step.
        layer_option: how the step was cut into layers: "auto" as Alpa's `AutoLayerOption` does, or "manual", where the
            user marked them.
        correction: what past runs taught; all seconds here have been multiplied by its factor. None: they are as
            predicted.
        contingencies: by the name of a host, the fallback plan that is run instead once that host is lost; empty for a
            single host, and where none was made.
        strategy: the name, in `alpa_dejavu.planning.rivals`, of the planner that made it, such as Megatron's;
            empty: this package's own search.
    """

    model: Needed[Annotated[str, stated("text: a model's name or module:function, empty if Alpa made the layers")]] = ""
    num_layers: Annotated[int, whole("a whole number of layers, at least 1", 1, MOST)] = dataclasses.field(init=False)
    layer_option: Annotated[str, chosen(LAYER_OPTIONS), stated('"auto" or "manual"')] = "auto"
    cluster: Text
    hardware: Rare[Annotated[ClusterSummary | None, stated("an object: the hosts of the cluster, used or not")]] = None
    priced_by: Rare[Annotated[PricedBy | None, stated("an object: what the plan was chosen under")]] = None
    num_devices: Annotated[int, whole("a whole number of devices, at least 1", 1, MOST)] = dataclasses.field(init=False)
    batch: Needed[
        Annotated[Annotated[int, whole("", 1)] | None, stated("a whole number of samples, at least 1, or null")]
    ] = None
    num_micro_batches: MicroBatches
    schedule: Annotated[
        str,
        stated(
            f"a schedule: {', '.join(SCHEDULES)}, or interleaved_ with a number of chunks",
            pattern=f"^({'|'.join(SCHEDULES)}|{INTERLEAVED})$",
        ),
    ]
    step_s: Annotated[SecondsAboveZero, Key("iteration_time_s")]
    lower_bound_s: Seconds = 0.0
    planning_s: Annotated[Mapping[str, Seconds], stated("an object of steps and their seconds")] = dataclasses.field(
        hash=False
    )
    confidence: Rare[Confidence | None] = None
    notes: Rare[Annotated[tuple[Words, ...], listed("a list of sentences")]] = ()
    correction: Rare[StepCorrection | None] = None
    strategy: Rare[Annotated[str, stated("text: whose plan it is, empty for this package's own search")]] = ""
    runs_on_alpa: Rare[Annotated[bool, stated("true, or false of what is estimated only")]] = True
    stages: Stages
    contingencies: Elsewhere[Mapping[str, Contingency]] = dataclasses.field(default_factory=dict, hash=False)

    def __post_init__(self) -> None:
        at_most("num_micro_batches", self.num_micro_batches, MOST_MICRO_BATCHES, "take larger micro-batches")
        checks.one_of("plan", "layer_option", self.layer_option, LAYER_OPTIONS)
        chunks = schedule_form(self.schedule).chunks
        if len(self.stages) % chunks:
            raise ValueError(
                f"plan: there are {len(self.stages)} stages, but must be a multiple of {chunks}, as many as "
                f"{self.schedule} has on each submesh; plan again for this schedule"
            )
        object.__setattr__(self, "num_layers", self.stages[-1].layers[1] + 1 if self.stages else 0)
        object.__setattr__(self, "num_devices", sum(stage.submesh.num_devices for stage in self.on_submeshes))

    @property
    def submesh_of(self) -> tuple[int, ...]:
        """Returns for each stage the number of its submesh, which several stages may share in some schedules."""
        return schedule_form(self.schedule).submesh_of(len(self.stages))

    @property
    def stages_on(self) -> tuple[tuple[int, ...], ...]:
        """Returns for each submesh of the pipeline the numbers of its stages."""
        places = list(enumerate(self.submesh_of))
        return tuple(tuple(n for n, on in places if on == submesh) for submesh in range(len(self.on_submeshes)))

    @property
    def on_submeshes(self) -> tuple[StagePlan, ...]:
        """Returns for each submesh of the pipeline the first stage on it."""
        return self.stages[: len(self.stages) // schedule_form(self.schedule).chunks]

    @property
    def offloads(self) -> bool:
        """Returns whether any stage of the plan offloads a part of what it keeps."""
        return any(stage.offloaded.any for stage in self.stages)

    @property
    def streams(self) -> bool:
        """Returns whether the plan's devices were taken to communicate while they compute."""
        return self.priced_by is not None and self.priced_by.streams

    @property
    def devices_of_hosts(self) -> collections.Counter[str]:
        """Returns for each host's name how many of its devices the plan's stages use."""
        devices: collections.Counter[str] = collections.Counter()
        for stage in self.on_submeshes:
            devices.update(dict.fromkeys(stage.hosts, stage.submesh.devices_per_host))
        return devices

    @property
    def expected_s(self) -> float:
        """Returns the seconds of a step to budget by: the expected step; `step_s` where no errors were drawn."""
        return self.step_s if self.confidence is None else self.confidence.expected_step_s

    @property
    def predicted(self) -> str:
        """Returns the predicted and the expected step in words, as "predicted 1.2 s a step, expected 1.25 s"."""
        expected = "" if self.confidence is None else f", expected {units.seconds(self.expected_s)}"
        return f"predicted {units.seconds(self.step_s)} a step{expected}"

    @property
    def uncorrected_s(self) -> float:
        """Returns the seconds of a training step as they were predicted, before past runs corrected them."""
        return self.step_s if self.correction is None else self.step_s / self.correction.factor

    @property
    def without_a_host(self) -> str | None:
        """Returns in a few words what losing the worst host costs; None if the plan has no contingencies."""
        if not self.contingencies:
            return None
        host, worst = max(self.contingencies.items(), key=lambda item: (item[1].step_s, item[1].moves.seconds))
        return f"{units.seconds(worst.step_s)} a step without {host}; first its state moves: {worst.moves.text}"

    @property
    def total_planning_s(self) -> float:
        """Returns the seconds that planning took, all of its steps together."""
        return sum(self.planning_s.values())

    def after(self, steps_s: Mapping[str, float]) -> Plan:
        """Returns the plan with the seconds of earlier planning steps, by name, put before or added to its own."""
        own = {name: seconds + steps_s.get(name, 0.0) for name, seconds in self.planning_s.items()}
        return dataclasses.replace(self, planning_s={**steps_s, **own})

    @property
    def layer_ids(self) -> list[list[int]]:
        """Returns the list of each stage's layers, as Alpa's ManualStageOption takes them."""
        return [list(range(stage.layers[0], stage.layers[1] + 1)) for stage in self.stages]
