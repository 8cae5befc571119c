"""A job's step by its devices, cores and memory."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, final

from alpa_dejavu.problem import checks

if TYPE_CHECKING:
    from alpa_dejavu.problem import Cluster

__all__ = ["StepCurve", "planned_curve"]


@final
@dataclasses.dataclass(frozen=True)
class StepCurve:
    """The seconds of a step: the longest of computing, preparing samples on cores, and reading those from storage that
    memory doesn't keep, as all three go on at the same time.

    Attributes:
        compute_s: seconds of computing by the number of devices; numbers that make it no shorter are left out.
        core_s: seconds of one core that prepare a step's samples.
        data_bytes: memory that keeps all samples of the job.
        uncached_s: seconds of reading a step's samples where memory keeps none; it takes its share of them where memory
            keeps a share.

    References:
        Mohan, Phanishayee, Kulkarni and Chidambaram, Looking Beyond GPUs for DNN Scheduling on Multi-Tenant Clusters
        (Synergy), OSDI 2022.
    """

    compute_s: Mapping[int, float] = dataclasses.field(hash=False)
    core_s: float = 0.0
    data_bytes: float = 0.0
    uncached_s: float = 0.0

    def __post_init__(self) -> None:
        if not self.compute_s:
            raise ValueError("step curve: compute_s is empty, but must have a number of devices; give one with seconds")
        for devices, seconds in self.compute_s.items():
            checks.count("step curve", "devices", devices)
            checks.positive("step curve", f"compute_s[{devices}]", seconds)
        for field in ("core_s", "data_bytes", "uncached_s"):
            checks.not_negative("step curve", field, getattr(self, field))
        falling: dict[int, float] = {}
        for devices, seconds in sorted(self.compute_s.items()):
            if seconds < min(falling.values(), default=math.inf):
                falling[devices] = seconds
        object.__setattr__(self, "compute_s", falling)

    @property
    def sizes(self) -> tuple[int, ...]:
        """Returns the numbers of devices, in rising order."""
        return tuple(self.compute_s)

    def seconds(self, devices: int, cores: float, memory_bytes: float) -> float:
        """Returns the seconds of a step; infinity where samples need a core and there is none."""
        prepare_s = self.core_s / cores if cores > 0 else math.inf if self.core_s else 0.0
        kept = min(memory_bytes / self.data_bytes, 1.0) if self.data_bytes else 1.0
        return max(self.compute_s[devices], prepare_s, self.uncached_s * (1 - kept))

    def needs(self, step_s: float) -> tuple[float, float]:
        """Returns the least cores and bytes of memory with which neither makes a step longer than so many seconds."""
        kept = 1 - step_s / self.uncached_s if self.uncached_s > step_s else 0.0
        return self.core_s / step_s, self.data_bytes * kept


def planned_curve(model: str, cluster: Cluster, batch: int, **more: Any) -> StepCurve:
    """Returns a curve whose seconds of computing are those of the planner's plans for parts of a cluster: 1, 2, 4, ...
    devices of a host, all of it, and 2, 4, ... whole hosts. A part that the model doesn't fit on is left out.

    Args:
        model: a model's name, as `plan_model` takes it.
        cluster: a cluster of equal hosts.
        batch: samples of a step.
        **more: other arguments of `plan_model`.

    Raises:
        NoPlanError: the model fits on no part.
    """
    from alpa_dejavu.planning import plan_model
    from alpa_dejavu.problem import Cluster, NoPlanError

    host, compute_s, wrong = cluster.hosts[0], dict[int, float](), None  # type: Any, Any, NoPlanError | None
    parts = [(1, devices) for devices in _doubled(host.num_devices)]
    parts += [(hosts, host.num_devices) for hosts in _doubled(len(cluster.hosts))[1:]]
    for hosts, devices in parts:
        names = [one.name for one in cluster.hosts[:hosts]]
        part = Cluster.uniform(cluster.name, names, host.device, devices, cluster.links[0][0], cluster.links[0][-1])
        try:
            compute_s[hosts * devices] = plan_model(model, part, batch=batch, **more).plan.step_s
        except NoPlanError as error:
            wrong = error
    if not compute_s and wrong is not None:
        raise wrong
    return StepCurve(compute_s)


def _doubled(most: int) -> list[int]:
    """Returns 1, 2, 4, ... below the most, and the most."""
    return [2**n for n in range(most.bit_length()) if 2**n < most] + [most]
