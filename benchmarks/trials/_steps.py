"""Measured training steps by the planner's own costs: parts of stages, a runtime profile, the simulated schedule."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Mapping, Sequence
from typing import Any, final

import numpy as np
from numpy.typing import NDArray

from alpa_dejavu._util.ties import rounded
from alpa_dejavu.costs.runtime import BOUNDS, RuntimeProfile, launches
from alpa_dejavu.planning.strategies import Task
from alpa_dejavu.planning.strategies.stages import Pipeline, PlacedStage
from alpa_dejavu.problem import Division
from alpa_dejavu.simulation.step import StageTimes, step_seconds
from fitting import Array, Deviation, Parameter, Physics, Rows

PRIORS = {
    "operators": (1.0, 0.4),
    "launch_s": (3e-5, 0.7),
    "collectives": (1.2, 0.3),
    "collective_s": (3e-4, 1.5),
    "synchronisation": (1.0, 0.4),
    "sends": (1.2, 0.4),
    "send_s": (3e-4, 1.5),
    "step_s": (1e-2, 1.0),
}
"""Of each figure of a runtime profile, before any measurement: the median, and the spread of its logarithm."""
_PASSES, _PHASES = ("forward", "backward"), ("forward", "backward", "step")


def columns(steps: Sequence[Mapping[str, Array]]) -> dict[str, Array]:
    """The parts of N steps, as `parts_of` has them, as columns of N rows; 0 where a step has no such stage or layer."""
    stages, kinds = (max(one["counts"].shape[axis] for one in steps) for axis in (0, -1))
    return {name: np.stack([_padded(one[name], stages, kinds) for one in steps]) for name in steps[0]}


def _padded(value: Array, stages: int, kinds: int) -> Array:
    if value.ndim == 0:
        return value
    wide = [(0, stages - len(value)), *[(0, 0)] * (value.ndim - 1)]
    if value.ndim == 3:
        wide[-1] = (0, kinds - value.shape[-1])
    return np.pad(value, wide)


def parts_of(task: Task, pipeline: Pipeline) -> dict[str, Array]:
    """The parts of a step's stages without a runtime: what a stage computes by layers, sends and does once.

    Shapes, with S stages of up to K kinds of layers: `device_s` and `launches` (S, 3, K), forward, backward and of the
    update; `counts` of the layers of each kind (S, 1, K); `dispatch_s`, `collectives_s`, `num_collectives` and
    `sends_s` (S, 2); `synchronisation_s` and `once_s` (S,); `num_stages` and `num_micro_batches` ().
    """
    costs = task.stage_costs(pipeline.micro_batch)
    times = task.stage_times(pipeline.stages, pipeline.micro_batch, _at_a_time(pipeline))
    layers, rest = list[tuple[Array, NDArray[np.int64]]](), list[dict[str, object]]()
    for placed, took in zip(pipeline.stages, times, strict=True):
        stage = task.slowest(placed, pipeline.micro_batch)
        devices, division = costs.places.on(stage.hosts), costs.division(stage.config)
        device, computed = devices.kinds[0], costs.computed_s(devices, stage.config)
        numbers = range(stage.first, stage.last + 1)
        fixed = device.dispatch_s, device.dispatch_s, device.step_s
        alone = [[computed[n, layer, layer] - fixed[n] for layer in numbers] for n in range(len(_PHASES))]
        started = [[launches(division.operators(phase)[layer]) for layer in numbers] for phase in _PHASES]
        if stage.config.remat == "layer":
            _forward_again(alone, started)
        alike, counts = np.unique(rounded(np.array([*alone, *started])), axis=1, return_counts=True)
        layers.append((alike, counts))
        rest.append(
            {
                "dispatch_s": [device.dispatch_s] * 2,
                "collectives_s": [took.forward_collective_s, took.backward_collective_s],
                "num_collectives": [_collectives(division, stage, phase) for phase in _PASSES],
                "sends_s": [took.forward_send_s, took.backward_send_s],
                "synchronisation_s": took.synchronisation_s,
                "once_s": device.step_s,
            }
        )
    kinds = max(len(counts) for _, counts in layers)
    alike = np.stack([np.pad(alike, ((0, 0), (0, kinds - len(counts)))) for alike, counts in layers])
    counts = np.stack([np.pad(counts, (0, kinds - len(counts))) for _, counts in layers])
    found = {name: np.array([stage[name] for stage in rest], dtype=np.float64) for name in rest[0]}
    return found | {
        "device_s": alike[:, :3],
        "launches": alike[:, 3:],
        "counts": counts[:, None].astype(np.float64),
        "num_stages": np.array(float(len(pipeline.stages))),
        "num_micro_batches": np.array(float(pipeline.num_micro_batches)),
    }


def _forward_again(alone: list[list[float]], started: list[list[float]]) -> None:
    """Adds to what layers compute and launch their forward passes in the backward pass, each as a layer of its own."""
    for rows in (alone, started):
        forward, backward, update = rows
        again, nothing = list(forward), [0.0] * len(forward)
        forward += nothing
        backward += again
        update += nothing
    layers = len(alone[0]) // 2
    for n in range(layers):
        alone[1][n] -= alone[1][layers + n]


def _at_a_time(pipeline: Pipeline) -> dict[tuple[int, int], int]:
    """Between each two hosts how many devices send at a time: each tensor-parallel one sends all of what crosses."""
    found: dict[tuple[int, int], int] = {}
    for before, after in itertools.pairwise(pipeline.stages):
        for pair in itertools.product(set(before.hosts), set(after.hosts)):
            found[pair] = found[pair[::-1]] = before.config.tensor_parallel
    return found


def _collectives(division: Division, stage: PlacedStage, phase: str) -> float:
    """How many collectives a stage does in a pass of a micro-batch."""
    sizes = stage.config.data_parallel, stage.config.tensor_parallel
    layers = range(stage.first, stage.last + 1)
    phases = _PASSES if phase == "backward" and stage.config.remat == "layer" else (phase,)
    exchanges = (one for each in phases for n in layers for one in division.exchanges(n, each))
    return float(sum(one.counts.sum() for one in exchanges if sizes[one.axis] > 1))


def steps_s(runtime: RuntimeProfile, rows: Rows, off: Array | None = None, layers_off: Array | None = None) -> Array:
    """Seconds of each step under a runtime profile.

    `off` multiplies the passes of each step's micro-batches, and `layers_off` what devices compute for them.
    """
    device_s = rows["device_s"] if layers_off is None else rows["device_s"] * layers_off[:, None, None, None]
    layers = (runtime.computed_s(device_s, rows["launches"]) * rows["counts"]).sum(axis=-1)
    collectives = runtime.collectives * rows["collectives_s"] + runtime.collective_s * rows["num_collectives"]
    passes = layers[..., :2] + rows["dispatch_s"] + collectives
    if off is not None:
        passes = passes * off[:, None, None]
    sends = np.where(rows["sends_s"] > 0, runtime.sends * rows["sends_s"] + runtime.send_s, 0.0)
    exchanged = runtime.synchronisation * rows["synchronisation_s"]
    once = exchanged + layers[..., 2] + rows["once_s"] + runtime.step_s
    found = np.zeros(len(passes))
    for n, micro_batches in enumerate(rows["num_micro_batches"].astype(int).tolist()):
        stages = int(rows["num_stages"][n])
        both, per_step, sent = (part[n, :stages].tolist() for part in (passes, once, sends))
        times = [
            StageTimes(ahead, back, per_step[s], sent[s][0], sent[s][1], synchronisation_s=float(exchanged[n, s]))
            for s, (ahead, back) in enumerate(both)
        ]
        found[n] = step_seconds(times, micro_batches)
    return found


@final
@dataclasses.dataclass(frozen=True)
class Steps(Physics):
    """Steps under a runtime profile whose figures are fitted, and what micro-batches alike are off them by."""

    deviations: tuple[Deviation, ...] = ()

    @property
    def parameters(self) -> tuple[Parameter, ...]:  # type: ignore[override]
        """The figures of a runtime profile."""
        own = any(kind.name == "layers" for kind in self.deviations)
        return tuple(Parameter(name, *prior) for name, prior in PRIORS.items() if not (own and name == "operators"))

    def log_value(self, values: Mapping[str, float], deviations: Mapping[str, Array], rows: Rows) -> Array:
        """The logarithm of each step's seconds, shape (N,)."""
        off, layers_off = (np.exp(deviations[name]) if name in deviations else None for name in ("passes", "layers"))
        found = np.log(steps_s(profile("fitted", values), rows, off, layers_off))
        return found + deviations["step"] if "step" in deviations else found


def profile(name: str, values: Mapping[str, float]) -> RuntimeProfile:
    """The runtime profile of fitted figures, each within its bounds."""
    within: dict[str, Any] = {figure: float(np.clip(value, *BOUNDS[figure])) for figure, value in values.items()}
    return RuntimeProfile(name, **within)
