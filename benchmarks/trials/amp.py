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

from alpa_dejavu.clusters.gpus import gpu_of
from alpa_dejavu.costs.communication import AlphaBeta, CommunicationModel, Group
from alpa_dejavu.costs.cost_models import CostModels
from alpa_dejavu.costs.latency import LayerTimes, ProfiledLayers
from alpa_dejavu.planning.strategies import Task
from alpa_dejavu.planning.strategies.stages import Pipeline, config_of
from alpa_dejavu.problem import Cluster, Host, Link, Model
from trials._folder import AbsentError, Folder, UnreadableError, measured
from trials._planned_steps import PROFILED, Ends, by_rank, simulated
from trials._profiled_model import ProfiledLayer, profiled_model
from trials._trial_set import MEASURED_S, Predicted, TrialSet, labels

Array = NDArray[np.float64]
_NUMBERS = ("global_batch", "micro_batch", "tp", "dp", "pp")
_DEVICES_PER_HOST = 4
_WITHIN_S, _BETWEEN_S = 1e-5, 3e-5
"""Latencies of messages, as in the machine files: an estimate of their order."""
_HIDDEN, _TOKENS, _VOCABULARY = 1024, 1024, 52256
_BLOCK_PARAMETERS = 12.6e6
_BYTES = 4.0
"""Of an element: the models train in single precision."""
_GPUS = {"t4": "T4", "v100": "V100-SXM2-16GB"}
_HOSTS = {"g4dn": ("t4", 50e9 / 8, 50e9 / 8), "p3": ("v100", 170e9 / 8, 10e9 / 8)}
"""Device, and bytes per second within the host and to others."""
_CLUSTERS = {"homogeneous": ("g4dn",) * 4, "het_model": ("p3",) * 4, "het_cluster": ("p3",) * 3 + ("g4dn",)}


@functools.cache
def cluster_of(name: str) -> Cluster:
    """A cluster of AMP's: a link between hosts has the slower of its two ends."""
    kinds = [_HOSTS[kind] for kind in _CLUSTERS[name]]
    hosts = []
    for n, (device, _, _) in enumerate(kinds):
        gpu = gpu_of(_GPUS[device])
        assert gpu is not None, "its data sheet is known"
        hosts.append(Host(f"{_CLUSTERS[name][n]}-{n}", gpu.device(), _DEVICES_PER_HOST))
    links = tuple(
        tuple(Link(_WITHIN_S, a[1]) if n == m else Link(_BETWEEN_S, min(a[2], b[2])) for m, b in enumerate(kinds))
        for n, a in enumerate(kinds)
    )
    return Cluster(name, tuple(hosts), links)


@functools.cache
def _step(folder: Folder, cluster: str, boundaries: tuple[int, ...], row: tuple[int, ...]) -> Ends:
    return simulated(*trial(folder, cluster, boundaries, row))


def trial(folder: Folder, cluster: str, boundaries: tuple[int, ...], row: tuple[int, ...]) -> tuple[Task, Pipeline]:
    """A plan as the planner takes it."""
    of = dict(zip(_NUMBERS, row, strict=True))
    samples, spans = of["micro_batch"] * of["dp"], [(first, end - 1) for first, end in itertools.pairwise(boundaries)]
    task = _task(folder, cluster, samples)
    stages = by_rank(task.cluster, spans, config_of(of["dp"], of["tp"]))
    return task, Pipeline(stages, samples, max(of["global_batch"] // samples, 1))


@functools.cache
def _task(folder: Folder, cluster: str, samples: int) -> Task:
    known = _profiled(folder, "transgan" if cluster == "het_model" else "gpt2")
    models = CostModels(known.latency, StartedLinks(known.starts_s), PROFILED)
    return Task(known.model(samples), samples, cluster_of(cluster), samples, models)


@final
@dataclasses.dataclass(frozen=True, eq=False)
class StartedLinks(CommunicationModel):
    """The alpha-beta model on the links, and what an all-reduce takes besides on hosts of a kind of device.

    Attributes:
        starts_s: seconds by the name of the device.
    """

    starts_s: Mapping[str, float]

    def seconds(self, collective: str, num_bytes: ArrayLike, group: Group) -> Array:
        """The seconds of one collective for each size in bytes."""
        alone = AlphaBeta().seconds(collective, num_bytes, group)
        start_s = max(self.starts_s[group.cluster.hosts[host].device.name] for host in group.hosts)
        return np.where(alone > 0, alone + (start_s if collective == "all_reduce" else 0.0), alone)


@final
@dataclasses.dataclass(frozen=True, eq=False)
class _Profiled:
    """A model by what was profiled, and what its description says, for each of its L layers.

    Attributes:
        forward_s: seconds for one sample on tensor-parallel devices, by their kind and number, each of shape (L,).
        is_block: whether it is a transformer block, shape (L,).
        parameters: how many it has, shape (L,).
        out_elements: of one sample's activations behind it, shape (L,).
        tied: pairs of layers of which the second has the first's parameters.
    """

    forward_s: dict[tuple[str, int], Array]
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
            _GPUS[device]: {
                f"{n} {phase}": LayerTimes({tp: (np.ones(1), np.array([factor * one / tp])) for tp in (1, 2, 4, 8, 16)})
                for n, one in enumerate(seconds.tolist())
                for phase, factor in (("forward", 1.0), ("backward", 2.0))
            }
            for (device, degree), seconds in self.forward_s.items()
            if degree == 1
        }
        return ProfiledLayers(times)

    @property
    def starts_s(self) -> dict[str, float]:
        """What an all-reduce takes besides its bytes, by the device: a block's forward pass has two of them."""
        found: dict[str, list[float]] = {device: [] for device, _ in self.forward_s}
        for (device, tp), divided in self.forward_s.items():
            if tp > 1:
                name = next(name for name, kinds in _CLUSTERS.items() if _HOSTS[kinds[0]][0] == device)
                exchange_s = np.median((divided - self.forward_s[device, 1] / tp)[self.is_block]) / 2
                sent = float(np.median(self.out_elements[self.is_block])) * _BYTES
                alone_s = AlphaBeta().seconds("all_reduce", sent, Group(cluster_of(name), (0,) * tp))
                found[device].append(float(exchange_s - alone_s))
        return {_GPUS[device]: max(float(np.median(starts or 0.0)), 0.0) for device, starts in found.items()}

    def model(self, samples: int) -> Model:
        """For a micro-batch of so many samples; a block all-reduces its activations twice forward, twice backward."""
        sent = self.out_elements * _BYTES * samples
        layers = [
            ProfiledLayer(str(n), parameters * _BYTES, sent_bytes, (sent_bytes,) * 4 if block else ())
            for n, (block, parameters, sent_bytes) in enumerate(
                zip(self.is_block, self.parameters.tolist(), sent.tolist(), strict=True)
            )
        ]
        return profiled_model(layers, samples, self.tied)


@functools.cache
def _profiled(folder: Folder, name: str) -> _Profiled:
    times: dict[tuple[str, int], Array] = {}
    for device, tp in itertools.product(_GPUS, (1, 2, 4)):
        path = f"amp/layer_forward_{name}_{device}_tp{tp}.csv"
        try:
            rows = folder.table(path, [], ["layer", "forward_s_per_sample"])
        except AbsentError:
            continue
        times[device, tp] = _profile(f"{folder.path}: {path}", rows)
    missing = [device for device in ("v100", *(device for device, _ in times)) if (device, 1) not in times]
    if missing:
        raise UnreadableError(f"{folder.path}/amp: lacks layer_forward_{name}_{missing[0]}_tp1.csv; convert it again")
    lengths = {f"{device}, tp{tp}": len(of) for (device, tp), of in times.items()}
    if len(set(lengths.values())) > 1:
        unlike = f"have unlike numbers of layers: {lengths}"
        raise UnreadableError(f"{folder.path}/amp: layer_forward_{name}_*: {unlike}; convert them again")
    layer = np.arange(len(times["v100", 1]))
    if name == "gpt2":
        block = (layer >= 2) & (layer < 26)
        parameters = np.where(block, _BLOCK_PARAMETERS, 0.0)
        parameters[0] = (_VOCABULARY + _TOKENS) * _HIDDEN
        return _Profiled(times, block, parameters, np.full(len(layer), float(_TOKENS * _HIDDEN)), ((0, 28),))
    block = ((layer >= 3) & (layer < 15)) | ((layer >= 41) & (layer < 53))
    elements: Array = np.where(layer < 19, 0.5, 1.0) * float(_TOKENS * _HIDDEN)
    return _Profiled(times, block, np.where(block, _BLOCK_PARAMETERS, 0.0), elements)


def _profile(where: str, rows: pd.DataFrame) -> Array:
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


def _predict(rows: pd.DataFrame, folder: Folder) -> Predicted:
    numbers = rows[list(_NUMBERS)].astype(int).itertuples(index=False)
    asked = zip(rows["cluster"], rows["boundaries"], numbers, strict=True)
    return Predicted.of([_step(folder, cluster, boundaries, tuple(row)) for cluster, boundaries, row in asked])


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


SETS = tuple(
    TrialSet(f"amp/{cluster}_trials", _loader(cluster), _predict, labels("cluster", "global_batch"))
    for cluster in _CLUSTERS
)
