"""The prices of plans: a cluster and the models of its operators and collectives."""

from __future__ import annotations

import dataclasses
import functools
import os
import pathlib
from typing import Annotated, Any, Literal, final

from alpa_dejavu._util.dataclass_format import typed_dict_of
from alpa_dejavu._util.format_fields import WHOLE, stated
from alpa_dejavu._util.json_file import read_checked, write_whole
from alpa_dejavu.calibration._calibration import VERSION, Calibration
from alpa_dejavu.clusters.gpus import gpu_of
from alpa_dejavu.costs.communication import (
    CommunicationModel,
    communication_model,
    communication_name,
    communication_names,
)
from alpa_dejavu.costs.latency import LatencyModel, latency_model, latency_name, latency_names
from alpa_dejavu.costs.memory_margin import MemoryResiduals
from alpa_dejavu.costs.runtime import ALPA, CostModels, RuntimeProfile, runtime_profile
from alpa_dejavu.problem import Cluster, PricedBy

NONE = "none"
"""The choice of no calibration and no fitted models: data sheets, though such devices were measured."""
AUTO = "auto"
"""The default: a calibration's models; without one those fitted to GPUs where there are some, else the roofline and
alpha-beta. It has a name of its own, so that whoever asks for one of these beside a calibration is told."""
_OPEN = (AUTO, "links")
_SHEETS = ("analytic", "alpha-beta")
_GPUS = ("kernels", "nccl")
"""The choices of models that a calibration is taken beside: "links" goes by the links that the calibration brings."""


@final
@dataclasses.dataclass(frozen=True)
class Prices:
    """A cluster and the cost models by which plans on it are priced, and the calibration of both, if there is one."""

    cluster: Cluster
    models: CostModels
    calibration: Calibration | None = None

    def residuals(self, chosen: MemoryResiduals | None) -> MemoryResiduals | None:
        """Returns the measured residuals of memory that a plan's margin follows from: chosen, or the calibration's."""
        return chosen if chosen is not None or self.calibration is None else self.calibration.memory

    def named(self, asked: PricedBy | None = None) -> PricedBy:
        """Returns the record of by which models and calibration a plan was priced, added to the options asked for."""
        return dataclasses.replace(
            asked or PricedBy(),
            latency=latency_name(self.models.latency),
            communication=communication_name(self.models.communication),
            calibration="" if self.calibration is None else self.calibration.name,
            runtime=self.models.runtime.name,
        )


def check_choice(
    calibration: str | os.PathLike[str] | Calibration | None,
    latency: str | LatencyModel,
    communication: str | CommunicationModel,
) -> Calibration | Literal["none"] | None:
    """Returns a calibration, checked, "none" or None; ValueError or TypeError if cost models are given with it."""
    latency_model(latency)
    communication_model(communication)
    if calibration is None:
        return None
    if calibration == NONE:
        return "none"
    choices = {"latency": latency, "communication": communication}
    own = [name for name, choice in choices.items() if choice not in _OPEN]
    if own:
        raise ValueError(
            f"both a calibration and {own[0]}={choices[own[0]]!r} are given, but a calibration brings its own models; "
            f"leave {own[0]} out, or give the models of `Calibration.latency()` and `.communication()` yourself"
        )
    return chosen_calibration(calibration)


def prices(
    cluster: Cluster,
    calibration: str | os.PathLike[str] | Calibration | None,
    latency: str | LatencyModel,
    communication: str | CommunicationModel,
    runtime: str | RuntimeProfile = ALPA,
) -> Prices:
    """Returns the cluster and the cost models that plans are priced by: a calibration's (a file's path, or an object)
    or those given. ValueError or TypeError where it is broken or of other devices, or models contradict it or aren't
    known.

    "auto" stands for the calibration's models; without one for GPUs' kernels and NCCL where the cluster has known GPUs,
    and else, or with the calibration "none", for the roofline of data sheets and alpha-beta.
    """
    chosen = check_choice(calibration, latency, communication)
    usual = _SHEETS if chosen == NONE or not any(gpu_of(host.device.name) for host in cluster.hosts) else _GPUS
    if chosen is None or isinstance(chosen, str):
        latency = usual[0] if latency == AUTO else latency
        communication = usual[1] if communication == AUTO else communication
        return Prices(cluster, CostModels.named(latency, communication, runtime))
    model = communication_model(communication) if communication == "links" else chosen.communication()
    operators = chosen.latency() if chosen.knows_operators else latency_model(usual[0])
    profile = runtime_profile(runtime)
    profile = profile if chosen.traced is None else chosen.traced.applied_to(profile)
    return Prices(chosen.applied_to(cluster), CostModels(operators, model, profile), chosen)


def models_of(by: PricedBy | None) -> tuple[str, str]:
    """Returns the names of the models by which a plan was priced, "auto" for one that isn't known by its name alone.

    >>> models_of(PricedBy(latency="analytic", communication="alpha-beta")), models_of(None)
    (('analytic', 'alpha-beta'), ('auto', 'auto'))
    """
    if by is None or by.calibration:
        return AUTO, AUTO
    latency = by.latency if by.latency in latency_names() else AUTO
    return latency, by.communication if by.communication in communication_names() else AUTO


_REMEDY = (
    "write it again with `alpa-dejavu calibrate`, or leave it out: GPUs are predicted without one; "
    "`schemas/calibration-1.json` says what each key may be"
)


def read_calibration(path: str | os.PathLike[str]) -> Calibration:
    """Reads a calibration from its JSON file, and checks it; ValueError says where what is wrong, and what to do."""
    return read_checked(pathlib.Path(path), calibration_format(), _REMEDY).described(Calibration)


@functools.cache
def calibration_format() -> Any:
    """Returns the `TypedDict` of a calibration file's data: every key, and what it must be, in SI units."""
    version = stated(f"{VERSION}, the version of calibrations that this release reads")
    head = {
        "version": Annotated[Literal[VERSION], version, WHOLE],
        "units": Annotated[Literal["SI"], stated('"SI": seconds, bytes and operations without multiples')],
    }
    return typed_dict_of(Calibration, head)


def chosen_calibration(choice: str | os.PathLike[str] | Calibration) -> Calibration:
    """Returns the calibration of a path, or given as an object; ValueError if the file is broken, else TypeError."""
    if isinstance(choice, Calibration):
        return choice
    if not isinstance(choice, (str, os.PathLike)):
        raise TypeError(f'calibration is {choice!r}; give a file, a Calibration, "none" or None')
    if not os.path.isfile(choice):
        raise ValueError(
            f"there is no calibration {os.fspath(choice)!r}; give the path of a file that `alpa-dejavu calibrate` "
            "wrote, or leave it out: GPUs are predicted without one"
        )
    return read_calibration(choice)


def write_calibration(calibration: Calibration, path: str | os.PathLike[str]) -> None:
    """Writes a calibration to a JSON file, whole or not at all; ValueError where it can't, or a number is infinite."""
    write_whole(pathlib.Path(path), calibration.text)
