"""The one object that a user writes."""

from __future__ import annotations

import dataclasses
import logging
import math
import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, final

from alpa_dejavu.calibration import Calibration, check_choice
from alpa_dejavu.costs.communication import CommunicationModel
from alpa_dejavu.costs.latency import LatencyModel
from alpa_dejavu.costs.memory_margin import DEFAULT_RISK, MemoryMargin, MemoryResiduals
from alpa_dejavu.planning.result import OURS
from alpa_dejavu.problem import Cluster, Plan
from alpa_dejavu.slicing import Slicer, slicer

if TYPE_CHECKING:
    from alpa_dejavu.calibration.history import Origin
    from alpa_dejavu.planning import PlanningTask
    from alpa_dejavu.planning.rivals import Strategy

_log = logging.getLogger(__name__)

PROFILES = ("auto", "never", "decisive", "playoff")
_BUDGETS_S = {"auto": 20.0, "never": 0.0, "decisive": 60.0, "playoff": 60.0}


@final
@dataclasses.dataclass
class DejavuStageOption:
    """A stage option by which the stages of Alpa's `PipeshardParallel` are planned without compiling or profiling any.

    Give it as `stage_option=`, where `AutoStageOption` would stand; making one installs the hooks into Alpa
    (`alpa_dejavu.uninstall()` takes them out again). Once Alpa has compiled, `last_plan` is the plan that runs.

    Alpa's fields for the search space mean what they mean in `AutoStageOption`, and have its defaults:

    Attributes:
        submesh_physical_shape_space: "power_of_two" (1, 2, 4 ... devices of a host, or a number that divides its own,
            then 1, 2, 4 ... hosts), "small_power_of_two" (at most 4 hosts), "all" (any number of hosts), or "manual".
            The default keeps the search small, and collectives are fast on its submeshes. Where links within hosts are
            slower than those between them, parts of several hosts are submeshes too, except with "manual" or
            profile="decisive".
        manually_specified_submeshes: the (hosts, devices per host) to choose from, with "manual".
        submesh_logical_shape_space: "single_node_model_parallel" (every split into data and tensor parallelism with the
            tensor-parallel devices in one host, since they talk most), "all", "same_as_physical", "data_parallel_only"
            or "model_parallel_only".
        stage_imbalance_tolerance: how far a stage's share of the operations may be from its share of the devices;
            infinite by default: the search finds by itself that uneven stages are slow.
        slicer: "dynamic" (exact, the default), or another in `alpa_dejavu.slicing.SLICERS`, or a `Slicer` of one's own.
        latency: "analytic" (a roofline; measured once on a CPU cluster, by data sheet on GPUs), or a `LatencyModel`.
            "auto", the default, is the calibration's, and without one "analytic".
        communication: "alpha-beta" (latency and rate of the slowest link), "links" (by the links of each group of
            devices, in rings along fast ones), "free" (what Alpa's search assumes between stages), or a
            `CommunicationModel`. "auto", the default, is the calibration's, and without one "alpha-beta".
        cluster: None, the default, looks at the cluster that Alpa is connected to; the name of a machine type or the
            path of a machine's or cluster's file (`alpa_dejavu/clusters`) gives the hosts its figures; a `Cluster` is
            taken as it is.
        risk: the probability of running out of memory that a plan may have; 1 % by default.
        memory: measured peaks of memory against the analytic count, from which the risk is known; None, the default:
            the calibration's, if it has any; else a share of the memory is left free, and plans say that their risk is
            unknown.
        memory_margin: the share of the memory that is left free without measured peaks; None, the default: each host's
            own, or 5 % where its machine's file has none.
        profile: "auto", the default, takes the plan as it is predicted where that is nearly the best with 90 %. Else it
            measures stages whose error could change the chosen plan (on a CPU cluster in a process of their own, else
            in Alpa's workers), until none could, the budget is spent, or a twentieth of the time in which
            `AutoStageOption` would measure all stages. On hosts of several kinds it measures none. "never" compiles and
            measures nothing. "decisive" measures however sure the plan is, and for as long as the budget lasts.
            "playoff" compiles the plans that may be the best one after the other, runs some steps of each on the
            cluster's devices, with arrays that the workers make up, and keeps the fastest.
        budget_s: seconds for these measurements together; None, the default: 20, or 60 for "decisive" and "playoff".
        plan: None, the default, plans. A plan file's path, or a `Plan`, is run as it is once it is seen to fit
            the step and the cluster, each stage on the hosts that it names, in that order. Where the plan's hosts are
            alike and none of them has a name that is known here, the n-th one of its cluster means the n-th here.
        history: None, the default, records no runs. The path of a file of past runs: predicted seconds are corrected by
            the runs in it. The stages of three early steps are measured and appended, by which the next start of the
            same job plans. When Alpa shuts down the steps of this plan are appended, if Alpa waits for steps
            (`alpa.global_config.pipeline_sync_for_timer = True`). A plan that is given is recorded, not corrected.
        strategy: "dejavu", the default, is this package's search; by "amp", "megatron" or "alpa", or a `Strategy` of
            `alpa_dejavu.planning.rivals`, stages are chosen by rules of its own in place of the search space and
            the slicer, for the micro-batches that Alpa is told. "hetpipe" is refused: Alpa can't run its stale
            synchronisation.
        calibration: measured figures of the cluster's devices and links: a `Calibration`, or the path of a file. None,
            the default, predicts GPUs by models that are fitted to measured ones, and other devices by their data
            sheets. "none" goes by data sheets for all. "links" may go by a calibration's links, too.
        accumulate: what micro-batches do with a result of the loss that can't be put together from theirs, such as a
            ratio of two sums over the batch: None, the default, takes the mean over micro-batches and warns, "mean"
            takes it, and "sum" adds them up. All other results are the whole batch's own whatever this is.
        contingencies: whether the plan is to hold ready what is run once each of its hosts is lost; False, the default,
            as that takes longer.
        layer_profile_mode, use_hlo_cost_model, profiling_database_filename, cached_profile_result: fields of
            `AutoStageOption`, accepted so that its arguments can be handed over as they are. They have no effect; a
            warning says so for the last three if one is set.

    Raises:
        ValueError: an unknown name, a negative tolerance or budget, a risk that isn't above 0 and below 0.5, a
            memory_margin that isn't at least 0 and below 1, "manual" without submeshes, a plan file that is wrong, a
            calibration that is broken or given beside a latency or communication model, or a strategy that Alpa can't
            run, or beside a plan, a slicer or "decisive".
        TypeError: an object that isn't what its field asks for.

    References:
        Zheng et al., Alpa, OSDI 2022: the search space and the objective.
    """

    submesh_physical_shape_space: str = "power_of_two"
    manually_specified_submeshes: Sequence[tuple[int, int]] | None = None
    submesh_logical_shape_space: str = "single_node_model_parallel"
    layer_profile_mode: str = "composition"
    stage_imbalance_tolerance: float = math.inf
    use_hlo_cost_model: bool = False
    profiling_database_filename: str | None = None
    cached_profile_result: str | None = None
    slicer: str | Slicer = "dynamic"
    latency: str | LatencyModel = "auto"
    communication: str | CommunicationModel = "auto"
    cluster: str | Cluster | None = None
    plan: str | os.PathLike[str] | Plan | None = None
    risk: float = DEFAULT_RISK
    memory: MemoryResiduals | None = None
    memory_margin: float | None = None
    profile: str = "auto"
    budget_s: float | None = None
    history: str | os.PathLike[str] | None = None
    calibration: str | os.PathLike[str] | Calibration | None = None
    strategy: str | Strategy = OURS
    accumulate: str | None = None
    contingencies: bool = False
    last_plan: Plan | None = dataclasses.field(default=None, init=False, repr=False, compare=False)
    last_origin: Origin | None = dataclasses.field(default=None, init=False, repr=False, compare=False)
    task: PlanningTask | None = dataclasses.field(default=None, init=False, repr=False, compare=False)
    entrants: tuple[Plan, ...] = dataclasses.field(default=(), init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        self._check_space()
        slicer(self.slicer)
        if self.memory is not None and not isinstance(self.memory, MemoryResiduals):
            raise TypeError(f"memory is {self.memory!r}; give MemoryResiduals, or None")
        MemoryMargin(self.risk, self.memory, self.memory_margin)
        if self.profile not in PROFILES:
            raise ValueError(f"profile is {self.profile!r}; choose one of {', '.join(map(repr, PROFILES))}")
        if not (math.isfinite(self.measuring_s) and self.measuring_s >= 0):
            raise ValueError(f"budget_s is {self.budget_s!r}, but must be a finite number of seconds, at least 0")
        if self.strategy != OURS:
            self._check_strategy()
        if self.accumulate not in (None, "mean", "sum"):
            raise ValueError(f'accumulate is {self.accumulate!r}, but must be "mean", "sum" or None')
        self.calibration = check_choice(self.calibration, self.latency, self.communication)
        if self.cluster is not None and not isinstance(self.cluster, (str, Cluster)):
            raise TypeError(f"cluster is {self.cluster!r}; give a machine's name, a file, a Cluster, or None")
        if self.plan is not None and not isinstance(self.plan, Plan):
            from alpa_dejavu.plans.plan_file import read_plan

            if not isinstance(self.plan, (str, os.PathLike)):
                raise TypeError(f"plan is {self.plan!r}; give the path of a plan file, a Plan, or None")
            self.plan = read_plan(self.plan)
        if self.history is not None:
            from alpa_dejavu.calibration.history import Store

            if not isinstance(self.history, (str, os.PathLike)):
                raise TypeError(f"history is {self.history!r}; give the path of a file, or None")
            Store(self.history).check()
        ignored = ("use_hlo_cost_model", "profiling_database_filename", "cached_profile_result")
        without_effect = [name for name in ignored if getattr(self, name)]
        if without_effect:
            _log.warning("%s: no effect, since DejavuStageOption doesn't profile", ", ".join(without_effect))
        from alpa_dejavu.alpa import install

        install()

    @property
    def measuring_s(self) -> float:
        """Returns the seconds that measurements may take together: `budget_s`, or what `profile` has by default."""
        return _BUDGETS_S[self.profile] if self.budget_s is None else self.budget_s

    def _check_strategy(self) -> None:
        from alpa_dejavu.planning.rivals import HetPipe, strategy

        if isinstance(strategy(self.strategy), HetPipe):
            raise ValueError(
                "strategy is 'hetpipe', but Alpa's runtime can't run its virtual workers, which share parameters by "
                "waves: `plan_model(strategy='hetpipe')` and `alpa-dejavu plan` estimate it; choose another one here"
            )
        for name, left in (("plan", (None,)), ("slicer", ("dynamic",)), ("profile", ("auto", "never"))):
            if getattr(self, name) not in left:
                raise ValueError(
                    f"strategy is {self.strategy!r} and {name} {getattr(self, name)!r}, but only one of them can "
                    "choose the stages; leave out the other"
                )

    def _check_space(self) -> None:
        manual = self.submesh_physical_shape_space == "manual"
        spaces = {
            "submesh_physical_shape_space": ("power_of_two", "small_power_of_two", "all", "manual"),
            "submesh_logical_shape_space": (
                "single_node_model_parallel",
                "all",
                "same_as_physical",
                "data_parallel_only",
                "model_parallel_only",
            ),
        }
        for name, choices in spaces.items():
            if getattr(self, name) not in choices:
                raise ValueError(f"{name} is {getattr(self, name)!r}; choose one of {', '.join(map(repr, choices))}")
        if manual != bool(self.manually_specified_submeshes):
            raise ValueError(
                f"submesh_physical_shape_space is {self.submesh_physical_shape_space!r} and "
                f"manually_specified_submeshes {self.manually_specified_submeshes!r}; 'manual' takes a list of (hosts, "
                "devices per host), others take none"
            )
        if not self.stage_imbalance_tolerance >= 0:
            raise ValueError(f"stage_imbalance_tolerance is {self.stage_imbalance_tolerance}, but must be at least 0")
