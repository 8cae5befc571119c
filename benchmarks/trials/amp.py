"""Whole iterations of pipelines under DeepSpeed (AMP): a cluster of T4s, one of V100s and, kept back, one of both."""

from __future__ import annotations

import dataclasses
import functools
import itertools
import json
from collections.abc import Callable, Mapping
from typing import Any, final

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike, NDArray

from alpa_dejavu.costs.communication import AlphaBeta, CommunicationModel, Group
from alpa_dejavu.costs.cost_models import CostModels
from alpa_dejavu.costs.latency import LayerTimes, ProfiledLayers
from alpa_dejavu.planning.strategies import Task
from alpa_dejavu.planning.strategies.stages import Pipeline, PlacedStage, config_of, ranks
from alpa_dejavu.problem import Cluster, Device, Host, Link, Model
from fitting import Array, Deviation
from trials._folder import AbsentError, Folder, UnreadableError, measured
from trials._profiled_model import ProfiledLayer, profiled_model
from trials._step_trials import RuntimeTrials, log_columns
from trials._steps import columns, parts_of
from trials._trial_set import MEASURED_S, Context, StepSet, TrialSet, labels

_NUMBERS = ("global_batch", "micro_batch", "tp", "dp", "pp")
_DEVICES_PER_HOST = 4
_WITHIN_S, _BETWEEN_S = 1e-5, 3e-5
"""Latencies of messages, as in the machine files: an estimate of their order."""
_HIDDEN, _TOKENS, _VOCABULARY = 1024, 1024, 52256
_BLOCK_PARAMETERS = 12.6e6
_BYTES = 4.0
"""Of an element: the models train in single precision."""
_PEAK_FLOP_PER_S = {"t4": 8.1e12, "v100": 15.7e12}
_MEMORY_BYTES_PER_S = {"t4": 320e9, "v100": 900e9}
_DEVICES = {
    name: Device(name, 16e9, {"float32": rate}, rate, _MEMORY_BYTES_PER_S[name], dispatch_s=1e-4, step_s=5e-3)
    for name, rate in _PEAK_FLOP_PER_S.items()
}
"""By their data sheets; what starting a computation and a step takes is the order that the machine files have."""
_HOSTS = {"g4dn": ("t4", 50e9 / 8, 50e9 / 8), "p3": ("v100", 170e9 / 8, 10e9 / 8)}
"""Device, and bytes per second within the host and to others."""
_CLUSTERS = {"homogeneous": ("g4dn",) * 4, "het_model": ("p3",) * 4, "het_cluster": ("p3",) * 3 + ("g4dn",)}

_DEVIATIONS = (Deviation("step", {"source": 1e-3, "log_tp": 1.0, "log_pp": 1.4, "log_micro_batch": 1.0}, 0.15, 0.03),)

_division, _groups = labels("tp", "dp"), labels("cluster", "tp", "dp")


@functools.cache
def cluster_of(name: str) -> Cluster:
    """A cluster of AMP's: a link between hosts has the slower of its two ends."""
    kinds = _CLUSTERS[name]
    hosts = tuple(Host(f"{kind}-{n}", _DEVICES[_HOSTS[kind][0]], _DEVICES_PER_HOST) for n, kind in enumerate(kinds))
    between = [_HOSTS[kind][2] for kind in kinds]
    links = tuple(
        tuple(
            Link(_WITHIN_S, _HOSTS[kind][1]) if n == m else Link(_BETWEEN_S, min(between[n], between[m]))
            for m in range(len(kinds))
        )
        for n, kind in enumerate(kinds)
    )
    return Cluster(name, hosts, links)


def described(rows: pd.DataFrame, folder: Folder) -> dict[str, Array]:
    """Each row as a pipeline under DeepSpeed, by profiles of its layers, with the cluster as its source."""
    numbers = rows[list(_NUMBERS)].astype(int).itertuples(index=False)
    steps = [
        _parts(folder, cluster, boundaries, tuple(row))
        for cluster, boundaries, row in zip(rows["cluster"], rows["boundaries"], numbers, strict=True)
    ]
    source = np.array([list(_CLUSTERS).index(cluster) for cluster in rows["cluster"]], dtype=np.float64)
    return (
        columns(steps)
        | log_columns(rows, "tp", "pp", "micro_batch")
        | {"source": source, "layers_from": np.full(len(rows), 0.0)}
    )


@functools.cache
def _parts(folder: Folder, cluster: str, boundaries: tuple[int, ...], row: tuple[int, ...]) -> dict[str, Array]:
    return parts_of(*trial(folder, cluster, boundaries, row))


def trial(folder: Folder, cluster: str, boundaries: tuple[int, ...], row: tuple[int, ...]) -> tuple[Task, Pipeline]:
    """A plan as the planner takes it. Ranks go through tensor, then data, then pipeline parallelism."""
    of = dict(zip(_NUMBERS, row, strict=True))
    wide, samples = of["tp"] * of["dp"], of["micro_batch"] * of["dp"]
    task = _task(folder, cluster, samples)
    hosts = ranks(task.cluster, range(len(task.cluster.hosts)))
    stages = tuple(
        PlacedStage(first, end - 1, hosts[n * wide : (n + 1) * wide], config_of(of["dp"], of["tp"]))
        for n, (first, end) in enumerate(itertools.pairwise(boundaries))
    )
    return task, Pipeline(stages, samples, max(of["global_batch"] // samples, 1))


@functools.cache
def _task(folder: Folder, cluster: str, samples: int) -> Task:
    name = "transgan" if cluster == "het_model" else "gpt2"
    known = _profiled(folder, name)
    return Task(
        known.model(samples),
        samples,
        cluster_of(cluster),
        samples,
        CostModels(known.latency, StartedLinks(known.starts_s)),
    )


@final
@dataclasses.dataclass(frozen=True, eq=False)
class StartedLinks(CommunicationModel):
    """The alpha-beta model on the links, and what an all-reduce takes besides on hosts of a kind of device.

    Attributes:
        starts_s: seconds by the name of the device.
    """

    starts_s: Mapping[str, float]

    def seconds(self, collective: str, num_bytes: ArrayLike, group: Group) -> NDArray[np.float64]:
        """The seconds of one collective for each size in bytes."""
        alone = AlphaBeta().seconds(collective, num_bytes, group)
        start_s = max(self.starts_s[group.cluster.hosts[host].device.name] for host in group.hosts)
        return np.where(alone > 0, alone + (start_s if collective == "all_reduce" else 0.0), alone)


@final
@dataclasses.dataclass(frozen=True, eq=False)
class _Profiled:
    """A model by what was profiled, and what its description says, for each of its L layers.

    Attributes:
        forward_s: seconds for one sample on one device, by its name, each of shape (L,).
        divided_s: the same on several tensor-parallel devices, by the name and their number.
        is_block: whether it is a transformer block, shape (L,).
        parameters: how many it has, shape (L,).
        out_elements: of one sample's activations behind it, shape (L,).
        tied: pairs of layers of which the second has the first's parameters.
    """

    forward_s: dict[str, Array]
    divided_s: dict[tuple[str, int], Array]
    is_block: NDArray[np.bool_]
    parameters: Array
    out_elements: Array
    tied: tuple[tuple[int, int], ...] = ()

    @property
    def latency(self) -> ProfiledLayers:
        """Passes of one sample, divided by the degree of tensor parallelism; backward takes twice as long as forward.

        Profiles with tensor parallelism have all-reduces in them: these go by `StartedLinks`.
        """
        times = {
            device: {
                f"{n} {phase}": LayerTimes({tp: (np.ones(1), np.array([factor * one / tp])) for tp in (1, 2, 4, 8, 16)})
                for n, one in enumerate(seconds.tolist())
                for phase, factor in (("forward", 1.0), ("backward", 2.0))
            }
            for device, seconds in self.forward_s.items()
        }
        return ProfiledLayers(times)

    @property
    def starts_s(self) -> dict[str, float]:
        """What an all-reduce takes besides its bytes, by the device: a block's forward pass has two of them."""
        found: dict[str, list[float]] = {device: [] for device in self.forward_s}
        for (device, tp), divided in self.divided_s.items():
            cluster = cluster_of(next(name for name, kinds in _CLUSTERS.items() if _HOSTS[kinds[0]][0] == device))
            exchange_s = np.median((divided - self.forward_s[device] / tp)[self.is_block]) / 2
            sent = float(np.median(self.out_elements[self.is_block])) * _BYTES
            found[device].append(float(exchange_s - AlphaBeta().seconds("all_reduce", sent, Group(cluster, (0,) * tp))))
        return {device: max(float(np.median(starts)), 0.0) if starts else 0.0 for device, starts in found.items()}

    def model(self, samples: int) -> Model:
        """For a micro-batch of so many samples; a block all-reduces its activations twice forward, twice backward."""
        sent = self.out_elements * _BYTES * samples
        layers = [
            ProfiledLayer(str(n), bool(block), parameters * _BYTES, sent_bytes, (sent_bytes,) * 4 if block else ())
            for n, (block, parameters, sent_bytes) in enumerate(
                zip(self.is_block, self.parameters.tolist(), sent.tolist(), strict=True)
            )
        ]
        return profiled_model(layers, samples, self.tied)


@functools.cache
def _profiled(folder: Folder, name: str) -> _Profiled:
    profiles: dict[tuple[str, int], Array] = {}
    for device, tp in itertools.product(_DEVICES, (1, 2, 4)):
        path = f"amp/layer_forward_{name}_{device}_tp{tp}.csv"
        try:
            rows = folder.table(path, [], ["layer", "forward_s_per_sample"])
        except AbsentError:
            continue
        profiles[device, tp] = _profile(f"{folder.path}: {path}", rows)
    if ("v100", 1) not in profiles:
        raise UnreadableError(f"{folder.path}/amp: lacks layer_forward_{name}_v100_tp1.csv; convert it again")
    lengths = {f"{device}, tp{tp}": len(of) for (device, tp), of in profiles.items()}
    if len(set(lengths.values())) > 1:
        unlike = f"have unlike numbers of layers: {lengths}"
        raise UnreadableError(f"{folder.path}/amp: layer_forward_{name}_*: {unlike}; convert them again")
    times = {device: profile for (device, tp), profile in profiles.items() if tp == 1}
    divided = {key: profile for key, profile in profiles.items() if key[0] in times and key[1] > 1}
    layer = np.arange(len(times["v100"]))
    if name == "gpt2":
        block = (layer >= 2) & (layer < 26)
        parameters = np.where(block, _BLOCK_PARAMETERS, 0.0)
        parameters[0] = (_VOCABULARY + _TOKENS) * _HIDDEN
        return _Profiled(times, divided, block, parameters, np.full(len(layer), float(_TOKENS * _HIDDEN)), ((0, 28),))
    block = ((layer >= 3) & (layer < 15)) | ((layer >= 41) & (layer < 53))
    elements: NDArray[np.float64] = np.where(layer < 19, 0.5, 1.0) * float(_TOKENS * _HIDDEN)
    return _Profiled(times, divided, block, np.where(block, _BLOCK_PARAMETERS, 0.0), elements)


def _profile(where: str, rows: pd.DataFrame) -> NDArray[np.float64]:
    """Forward seconds of a sample of layers 0, 1 ..., none of them missing."""
    ordered = rows.sort_values("layer")
    layers, seconds = ordered["layer"].to_numpy(float), ordered["forward_s_per_sample"].to_numpy(float)
    off = np.flatnonzero(layers != np.arange(len(layers)))
    if len(off):
        raise UnreadableError(f"{where}: layer {off[0]} is missing, or there twice; mend it")
    wrong = np.flatnonzero(~(seconds >= 0))
    if len(wrong):
        n = int(wrong[0])
        raise UnreadableError(
            f"{where}: layer {n}: forward_s_per_sample is {seconds[n]:g}, but must be a number of at least 0; mend it"
        )
    return seconds


def _features(rows: pd.DataFrame, context: Context) -> pd.DataFrame:
    """The plan, and both sides of a roofline of its slowest device's work."""
    of = described(rows, context.folder)
    tp, micro_batch = rows["tp"].to_numpy(float), rows["micro_batch"].to_numpy(float)
    device_s, kinds = (
        (of["device_s"] * of["counts"])[:, :, :2].sum(axis=(2, 3)),
        [_slowest(cluster) for cluster in rows["cluster"]],
    )
    blocks = np.array([_blocks(context.folder, *row) for row in zip(rows["cluster"], rows["boundaries"], strict=True)])
    work = _TOKENS * (micro_batch / tp) * blocks
    micro_batches = of["num_micro_batches"]
    return pd.DataFrame(
        {
            "compute_s": 72 * _HIDDEN**2 * work / np.array([_PEAK_FLOP_PER_S[kind] for kind in kinds]) * micro_batches,
            "traffic_s": 144 * _HIDDEN * work / np.array([_MEMORY_BYTES_PER_S[kind] for kind in kinds]) * micro_batches,
            "num_micro_batches": micro_batches,
            "most_blocks": blocks,
            "profiled_s": device_s.sum(axis=1) + (micro_batches - 1) * device_s.max(axis=1),
            **{name: rows[name].to_numpy(float) for name in _NUMBERS},
        }
    )


def _slowest(cluster: str) -> str:
    return min((_HOSTS[kind][0] for kind in _CLUSTERS[cluster]), key=_PEAK_FLOP_PER_S.__getitem__)


def _blocks(folder: Folder, cluster: str, boundaries: tuple[int, ...]) -> int:
    """How many blocks the stage with most of them has."""
    known = _profiled(folder, "transgan" if cluster == "het_model" else "gpt2").is_block
    return max(int(known[first:end].sum()) for first, end in itertools.pairwise(boundaries))


def _loader(cluster: str) -> Callable[[Folder], pd.DataFrame]:
    def load(folder: Folder) -> pd.DataFrame:
        path = f"amp/{cluster}_trials.csv"
        table = folder.table(path, ["layer_boundaries"], [*_NUMBERS, "measured_s"], counts=_NUMBERS)
        rows = measured(table, ["measured_s"], path)
        rows["boundaries"] = [_boundaries(path, row, len(_CLUSTERS[cluster])) for row in rows.to_dict("records")]
        return rows.assign(cluster=cluster)[["cluster", *_NUMBERS, "boundaries", MEASURED_S]]

    return load


def _boundaries(path: str, row: dict[str, Any], hosts: int) -> tuple[int, ...]:
    named = f"{path}: the plan {', '.join(f'{name}={row[name]:g}' for name in _NUMBERS)}"
    needed = row["tp"] * row["dp"] * row["pp"]
    if needed > hosts * _DEVICES_PER_HOST:
        there = f"the cluster has {hosts * _DEVICES_PER_HOST}"
        raise UnreadableError(f"{named}: needs {needed:g} devices, but {there}; mend or remove it")
    try:
        cuts = tuple(int(cut) for cut in json.loads(row["layer_boundaries"]))
    except (ValueError, TypeError) as error:
        raise UnreadableError(
            f"{named}: layer_boundaries is {row['layer_boundaries']!r}, but must be a list of layers; mend it"
        ) from error
    if len(cuts) != row["pp"] + 1 or list(cuts) != sorted(set(cuts)):
        raise UnreadableError(
            f"{named}: layer_boundaries is {cuts}, but must rise and have pp + 1 = {row['pp'] + 1:g}; mend it"
        )
    return cuts


def _set(cluster: str, fitted_on: tuple[str, ...] = ()) -> TrialSet:
    key = f"amp/{cluster}_trials"
    return TrialSet(
        key,
        _loader(cluster),
        _division,
        lambda: RuntimeTrials(described, _groups, _DEVIATIONS, _FITTED),
        _features,
        fitted_on=fitted_on,
        job=labels("cluster", "global_batch"),
        steps=StepSet(described, elsewhere=tuple(other for other in _FITTED if not fitted_on and other != key)),
    )


_FITTED = ("amp/homogeneous_trials", "amp/het_model_trials")

SETS = (_set("homogeneous"), _set("het_model"), _set("het_cluster", _FITTED))
