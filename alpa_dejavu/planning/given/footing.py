"""The footing of a plan's predicted seconds: which work they are of, what they rest on, and how far off that may be."""

from __future__ import annotations

import collections
import dataclasses
import math
from collections.abc import Iterator, Sequence
from typing import Protocol, final, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from alpa_dejavu._util.normal import REACH_90
from alpa_dejavu.costs.communication import Nccl
from alpa_dejavu.costs.stage_costs import StageCostModel
from alpa_dejavu.costs.stage_devices import StageDevices
from alpa_dejavu.costs.table import CostTable
from alpa_dejavu.planning.search.uncertainty import KnowsInterval, assumed_spread
from alpa_dejavu.problem import AxisCollectives, Device, MeshConfig, Operators, Run, SearchSpace, StageChoice

_SHEET, _MEASURED, _FITTED = "data sheet", "measured", "fitted to "
_Sum = collections.defaultdict[tuple[str, str], NDArray[np.float64]]
"""By work and what it rests on: seconds, and seconds times spread."""


@runtime_checkable
class SaysFooting(Protocol):
    """A latency model that knows what its predictions rest on."""

    def footing(self, operators: Operators, device: Device) -> NDArray[np.str_]:
        """Returns in a few words what the prediction of each operator on a device rests on, shape (operators,)."""
        ...


@final
@dataclasses.dataclass(frozen=True)
class Footing:
    """A part of the predicted work of a plan's stages, with what its seconds rest on."""

    work: str  # the part: "products", "convolutions", "other operators", or collectives within or between hosts
    rests_on: str  # "measured", "measured on its generation", "fitted to" something else, or "data sheet"
    share: float  # its share of the seconds for which the stages compute and run collectives
    spread: float  # how far off its seconds may be: the spread of log(actual / predicted), of what fits leave out


def footings(table: CostTable, space: SearchSpace, stages: Sequence[StageChoice], run: Run) -> tuple[Footing, ...]:
    """Returns what a plan's seconds rest on, the largest part first; transfers and starts of programs are left out."""
    costs, total = table.stage_costs, _Sum(lambda: np.zeros(2))
    assert costs is not None, "a table that was priced keeps its prices"
    of_operators: dict[int, tuple[Operators, _Sum]] = {}
    for stage in stages:
        config = space.config(stage)
        devices = table.devices[stage.submesh]
        division, again = costs.division(config), costs.again(config, devices.kinds[0])
        for phase, times in phases(costs, run):
            for variant in variants_of(costs, config, stage):
                of_layer = times * (1 + again[variant]) if phase == "forward" else times
                on_device = of_layer * (1 - config.offload.optimizer) if phase == "step" else of_layer
                operators = division.operators(phase, config.remat)[variant]
                if id(operators) not in of_operators:
                    of_operators[id(operators)] = operators, _computed(costs, operators, devices.kinds[0])
                _add(total, of_operators[id(operators)][1], on_device * costs.crowding(devices.kinds[0], config))
                for sent in division.exchanges(variant, phase):
                    seconds = float(costs.sent_s(devices, config, sent, phase) @ sent.counts)
                    _add(total, _of_collective(costs, config, devices, sent, seconds), of_layer)
            for sent, of_ranges in costs.combined(devices, config, phase):
                seconds = float(of_ranges[stage.first, stage.last])
                _add(total, _of_collective(costs, config, devices, sent, seconds), times)
        if config.offload.any:
            forward, backward, once = costs.offload_s(devices, config)[:, stage.first, stage.last].tolist()
            seconds = run.num_micro_batches * (forward + backward) + once
            total["copies to hosts, and their updates", _SHEET] += seconds, seconds * assumed_spread("launches")
    whole = sum(seconds for seconds, _ in total.values())
    parts = [
        Footing(work, rests_on, float(seconds / whole), float(weighted / seconds))
        for (work, rests_on), (seconds, weighted) in total.items()
        if seconds > 0
    ]
    return tuple(sorted(parts, key=lambda part: -part.share))


def by_ground(parts: Sequence[Footing]) -> list[tuple[str, float, float]]:
    """Returns what parts rest on, each once with its share of the seconds and its mean spread, the largest share first.

    >>> by_ground([Footing("products", "measured", 0.5, 0.25), Footing("other operators", "measured", 0.5, 0.75)])
    [('measured', 1.0, 0.5)]
    """
    shares, weighted = collections.defaultdict[str, float](float), collections.defaultdict[str, float](float)
    for part in parts:
        shares[part.rests_on] += part.share
        weighted[part.rests_on] += part.share * part.spread
    return [(name, share, weighted[name] / share) for name, share in sorted(shares.items(), key=lambda item: -item[1])]


def phases(costs: StageCostModel, run: Run) -> Iterator[tuple[str, int]]:
    """Yields each phase of a step, and how often the step goes through it, but for what remat computes again."""
    yield "forward", run.num_micro_batches
    if costs.model.training:
        yield "backward", run.num_micro_batches
        yield "step", 1


def variants_of(costs: StageCostModel, config: MeshConfig, stage: StageChoice) -> list[int]:
    """Returns the numbers of the ways in which a stage's layers are divided, a number for each layer."""
    of_stages = costs.division(config).of_stages
    layers = range(stage.first, stage.last + 1)
    return list(layers) if of_stages is None else of_stages[stage.first, stage.last, layers].tolist()


def _computed(costs: StageCostModel, operators: Operators, device: Device) -> _Sum:
    latency, total = costs.latency_of(operators, device), _Sum(lambda: np.zeros(2))
    convolution = np.array([record.kind == "conv" for record in operators.records], dtype=np.bool_)
    work = np.where(convolution, "convolutions", np.where(operators.is_product, "products", "other operators"))
    model, unknown = costs.models.latency, _MEASURED if costs.cluster.shared else _SHEET
    rests_on = np.full(len(operators), unknown)
    if isinstance(model, SaysFooting):
        rests_on = model.footing(operators, device)
    relative = np.divide(latency.spread_s, latency.mean_s, out=np.zeros(len(work)), where=latency.mean_s > 0)
    assumed = np.where(operators.is_product, assumed_spread("products"), assumed_spread("other operators"))
    sigma = np.where(relative > 0, np.log1p(relative), assumed)
    for key in set(zip(work.tolist(), rests_on.tolist(), strict=True)):
        chosen = (work == key[0]) & (rests_on == key[1])
        total[key] += latency.mean_s[chosen].sum(), latency.mean_s[chosen] @ sigma[chosen]
    return total


def _of_collective(
    costs: StageCostModel, config: MeshConfig, devices: StageDevices, sent: AxisCollectives, seconds: float
) -> _Sum:
    group, model = costs.places.groups(devices, config, sent.axis)[0], costs.models.communication
    place = "between hosts" if len(set(group.hosts)) > 1 else "within hosts"
    rests_on = f"{_FITTED}other links" if isinstance(model, Nccl) else _MEASURED if costs.cluster.shared else _SHEET
    spread = assumed_spread(f"{sent.kind} {place}")
    if isinstance(model, KnowsInterval) and sent.num_bytes.size:  # its spread is that for the largest one
        largest = sent.num_bytes.ravel()[[int(np.argmax(sent.num_bytes))]]
        lower, upper, measured = model.interval(sent.kind, largest, group)
        rests_on = _MEASURED if measured[0] else rests_on
        spread = math.log(upper[0] / lower[0]) / (2 * REACH_90) if lower[0] > 0 else 0.0
    total = _Sum(lambda: np.zeros(2))
    total[f"collectives {place}", rests_on] += seconds, seconds * spread
    return total


def _add(total: _Sum, part: _Sum, times: float) -> None:
    for key, sums in part.items():
        total[key] += times * sums
