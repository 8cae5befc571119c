"""The costs of stages: each kind of work, for all ranges of layers at once, on the very devices that a stage is on."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Sequence
from typing import final

import numpy as np
from numpy.typing import NDArray

from alpa_dejavu._util.range_sums import FloatArray, stage_sum
from alpa_dejavu._util.ties import rounded
from alpa_dejavu.costs._batched_predictions import SentSeconds, latencies
from alpa_dejavu.costs._hidden import HiddenSeconds
from alpa_dejavu.costs._megatron_division import EvenDivision
from alpa_dejavu.costs.communication import Group
from alpa_dejavu.costs.communication.reduction_servers import served_s
from alpa_dejavu.costs.interstage import InterstageTransfer
from alpa_dejavu.costs.latency import Latency
from alpa_dejavu.costs.memory import ModelMemory, StageMemory, stage_memory
from alpa_dejavu.costs.offload import StageParts, added_s, copies, known_share, with_offload
from alpa_dejavu.costs.runtime import CostModels
from alpa_dejavu.costs.stage_devices import StageDevices, StagePlaces, check_computable
from alpa_dejavu.problem import (
    PHASES,
    AxisCollectives,
    Cluster,
    Device,
    Division,
    MeshConfig,
    Model,
    Operators,
)

__all__ = ["COST_KINDS", "StageCostModel"]

COST_KINDS = (
    "compute_forward_s", "compute_backward_s", "collective_forward_s", "collective_backward_s",
    "synchronisation_s", "update_s",
)  # fmt: skip
"""The seconds that `StageCostModel.seconds` gives, in this order: of a micro-batch, but for the last two, of a step."""

_Mesh = tuple[int, int, int, bool, int, int, int]
"""The part of a config that tells divisions apart: all but its remat."""
_Predicted = dict[int, tuple[Operators, Latency, float]]


@final
class StageCostModel:
    """A model of the seconds and bytes of stages on a cluster: what they compute, send among their devices, and do once
    a step.

    `interstage` prices transfers from stage to stage; `places` gives the devices that a stage runs on. A stage takes as
    long as its slowest device and its slowest group of devices. What doesn't depend on the mesh is computed once.
    """

    def __init__(self, model: Model, cluster: Cluster, models: CostModels) -> None:
        check_computable(model, cluster)
        self.model, self.cluster, self.models = model, cluster, models
        self.places = StagePlaces(model, cluster)
        self.interstage = InterstageTransfer(model, cluster, models.communication, models.runtime)
        self._whole = ModelMemory.of(model)
        self._divisions: dict[_Mesh, Division] = {}
        self._predicted: dict[Device, _Predicted] = {}
        self._computed: dict[tuple[Device, _Mesh, str], FloatArray] = {}
        self._sent: dict[tuple[StageDevices, _Mesh, str], list[tuple[AxisCollectives, FloatArray]]] = {}
        self._plain: dict[tuple[StageDevices, _Mesh, str], StageParts] = {}
        self._by_weight: dict[tuple[StageDevices, _Mesh], FloatArray] = {}
        self._together: dict[tuple[_Mesh, str], Sequence[AxisCollectives]] = {}
        self._sent_s = SentSeconds(models.communication)
        self._hidden = HiddenSeconds(self, models.runtime.overlap)

    def prepare(self, choices: Iterable[tuple[StageDevices, MeshConfig]]) -> None:
        """Predicts and caches, in a few large calls of the models, what stages on the given devices with the given mesh
        configs compute and send; without it that is predicted one by one when it is needed.
        """
        meshes = {(devices, config.division_key): config for devices, config in choices}
        wanted: dict[Device, dict[_Mesh, MeshConfig]] = {}
        for (devices, mesh), config in meshes.items():
            for device in devices.kinds:
                wanted.setdefault(device, {})[mesh] = config
        for device, configs in wanted.items():
            self._predict(device, configs.values())
        self._sent_s.ask(
            (exchange.kind, exchange.num_bytes, group)
            for (devices, _), config in meshes.items()
            for exchange in self._all_sent(config)
            for group in self.places.groups(devices, config, exchange.axis)
        )

    def _predict(self, device: Device, configs: Iterable[MeshConfig]) -> None:
        cache = self._predicted.setdefault(device, {})
        every = (sets for config in configs for phase in PHASES for sets in self.division(config).operators(phase))
        wanted = {id(operators): operators for operators in every if id(operators) not in cache}
        predictions = latencies(self.models.latency, list(wanted.values()), device)
        for operators, predicted in zip(wanted.values(), predictions, strict=True):
            latency = self.models.runtime.latency(predicted, operators)
            cache[id(operators)] = operators, latency, latency.total_s

    def _all_sent(self, config: MeshConfig) -> list[AxisCollectives]:
        """Returns the collectives among the devices of any stage, all phases together, those of alike layers once."""
        division = self.division(config)
        every = (division.exchanges(n, phase) for phase in PHASES for n in range(len(division.variants)))
        distinct = {id(exchanges): exchanges for exchanges in every}
        combined = (self._combined_of(config, phase) for phase in PHASES)
        shares = (division.shares(phase) for phase in PHASES if self.models.runtime.overlap.hides)
        return [exchange for exchanges in (*distinct.values(), *combined, *shares) for exchange in exchanges]

    def seconds(self, devices: StageDevices, config: MeshConfig) -> NDArray[np.float64]:
        """Returns the seconds of each stage of layers i..j on some devices with a mesh config, shape (6, L, L), by
        `COST_KINDS`.

        All are rounded, so that equal layers give exactly equal seconds wherever in the model they are. What hides
        behind computing (`hidden_s`) is left out of collectives and of synchronising.
        """
        parts = self._without_offload(devices, config)
        if config.offload.any:
            exchanged = self._combined_s(devices, config, "step", lambda kind: kind != "all_gather")
            added = self.offload_s(devices, config)
            fixed_s = self.models.runtime.started_step_s(devices.kinds[0])
            parts = with_offload(parts, added, config.offload, np.minimum(exchanged, parts[4]), fixed_s)
        return rounded(np.stack(parts))

    def _without_offload(self, devices: StageDevices, config: MeshConfig) -> StageParts:
        """Returns the kinds of seconds of stages if they offloaded nothing: the same whatever they offload."""
        key = devices, config.division_key, config.remat
        if key not in self._plain:
            forward, backward, update = self.computed_s(devices, config)
            ahead, back = self._collective_s(devices, config)
            once = self._combined_s(devices, config, "step")
            if self.models.runtime.overlap.hides:
                ahead, back, once = np.maximum(np.stack([ahead, back, once]) - self.hidden_s(devices, config), 0.0)
            self._plain[key] = forward, backward, ahead, back, once, update
        return self._plain[key]

    def offload_s(self, devices: StageDevices, config: MeshConfig) -> FloatArray:
        """Returns the seconds that offload adds to each stage of layers i..j, shape (3, L, L): copies to a
        micro-batch's forward and backward pass, and once a step the hosts' update; ValueError where too little is known
        of the hosts.
        """
        names = [self.cluster.hosts[host].name for host in dict.fromkeys(devices.hosts)]
        share, memory = known_share(config.offload, devices.share, names), self.memory(config)
        assert memory.elsewhere is not None, "something is offloaded"
        kept = memory.per_micro_batch + memory.elsewhere.per_micro_batch
        copied = copies(self._whole, self.division(config).memory(config.remat), kept, config.offload, share)
        fixed_s, streams = self.models.runtime.started_step_s(devices.kinds[0]), self.models.runtime.overlap.streams
        return added_s(self._without_offload(devices, config), copied, config.offload, fixed_s, streams)

    def hidden_s(self, devices: StageDevices, config: MeshConfig) -> FloatArray:
        """Returns the seconds of collectives that hide behind computing in each stage of layers i..j, shape (3, L, L):
        in a micro-batch's forward pass, in its backward pass, and of a step's synchronising; 0 without overlap.
        """
        if not self.models.runtime.overlap.hides:
            return np.zeros((3, *self._whole.gradients.shape))
        return self._hidden.seconds(devices, config)

    def computed_s(self, devices: StageDevices, config: MeshConfig) -> NDArray[np.float64]:
        """Returns the seconds that the slowest device of each stage of layers i..j computes, shape (3, L, L): forward
        and backward for one micro-batch, and once a step.
        """
        return np.asarray(np.max([self._computed_on(device, config) for device in devices.kinds], axis=0))

    def _computed_on(self, device: Device, config: MeshConfig) -> FloatArray:
        key = device, config.division_key, config.remat
        if key not in self._computed:
            update = self._summed(config, self._operators_s(device, config, "step"))
            update = update + self.models.runtime.started_step_s(device)
            self._computed[key] = np.stack([*self._compute_s(device, config), update])
        return self._computed[key]

    def memory(self, config: MeshConfig) -> StageMemory:
        """Returns the bytes that each device of a stage with this config keeps, for each range of layers i..j."""
        shares = self.division(config).memory(config.remat)
        return stage_memory(self._whole, shares, config.remat == "layer", config.offload)

    @property
    def gradient_bytes(self) -> FloatArray:
        """Returns the bytes of the gradients of all trained parameters of each range of layers i..j, shape (L, L)."""
        return self._whole.gradients

    def division(self, config: MeshConfig) -> Division:
        """Returns how a config divides the layers among a stage's devices: what each computes, sends and keeps."""
        key = config.division_key
        if key not in self._divisions:
            sharding = self.model.sharding
            if sharding is None:
                config.check_plain()
                self._divisions[key] = EvenDivision(self.model, self._whole, *key[:3])
            else:
                self._divisions[key] = sharding.on(self.model.layers, config)
        return self._divisions[key]

    def _operators_s(self, device: Device, config: MeshConfig, phase: str) -> FloatArray:
        """Returns the seconds of each layer's operators on one device; by variant."""
        alone = [self._priced(operators, device)[2] for operators in self.division(config).operators(phase)]
        return np.array(alone) * self.crowding(device, config)

    def by_weight_shares(self, devices: StageDevices, config: MeshConfig) -> FloatArray:
        """Returns the share of what each stage computes in a backward pass that only gradients of weights need, shape
        (L, L): what a schedule that splits backward passes may put off. The slowest device counts.
        """

        def on(device: Device) -> FloatArray:
            every = self.division(config).operators("backward")
            seconds = [self.latency_of(operators, device).mean_s[operators.by_weight].sum() for operators in every]
            return self._summed(config, np.array(seconds) * self.crowding(device, config))

        key = devices, config.division_key
        if key not in self._by_weight:
            by_weight = np.max([on(device) for device in devices.kinds], axis=0)
            whole = self.computed_s(devices, config)[1]
            self._by_weight[key] = np.clip(by_weight / np.where(whole > 0, whole, 1.0), 0.0, 1.0)
        return self._by_weight[key]

    def crowding(self, device: Device, config: MeshConfig) -> float:
        """Returns the factor by which operators take longer on a device of a stage with several devices; 1 for one
        device.
        """
        return device.crowding if config.data_parallel * config.tensor_parallel > 1 else 1.0

    def _priced(self, operators: Operators, device: Device) -> tuple[Operators, Latency, float]:
        """Returns operators with their latency, predicted once: alike layers share their operators."""
        cache = self._predicted.setdefault(device, {})
        if id(operators) not in cache:
            latency = self.models.runtime.latency(self.models.latency.predict(operators, device), operators)
            cache[id(operators)] = operators, latency, latency.total_s
        return cache[id(operators)]

    def latency_of(self, operators: Operators, device: Device) -> Latency:
        """Returns the predicted latency of some operators on a device, which is predicted once for each object."""
        return self._priced(operators, device)[1]

    def _compute_s(self, device: Device, config: MeshConfig) -> tuple[FloatArray, FloatArray]:
        """Returns the seconds of all layers' operators, divided among the devices, and of the computations' start."""
        start, forward = self.models.runtime.dispatch_s(device), self._operators_s(device, config, "forward")
        if not self.model.training:
            return self._summed(config, forward) + start, np.zeros_like(self._whole.gradients)
        backward = self._operators_s(device, config, "backward")
        backward = backward + forward * self.again(config, device)
        return self._summed(config, forward) + start, self._summed(config, backward) + start

    def again(self, config: MeshConfig, device: Device) -> FloatArray:
        """Returns for each sharding variant (way to shard one layer) the share of its forward pass, by its seconds on a
        device, that its backward pass runs again.
        """
        division = self.division(config)
        shares = np.zeros(len(division.variants))
        if config.remat != "none":
            passes = zip(division.recomputed(config.remat), division.operators("forward"), strict=True)
            for n, (some, whole) in enumerate(passes):
                total_s = self.latency_of(whole, device).total_s
                shares[n] = self.latency_of(some, device).total_s / total_s if total_s > 0 else float(len(some) > 0)
        return shares

    def exchanges_again(self, config: MeshConfig, device: Device) -> NDArray[np.bool_]:
        """Returns for each sharding variant whether its backward pass runs its forward pass's collectives again."""
        return (self.again(config, device) > 0) & (config.remat == "layer")

    def _summed(self, config: MeshConfig, values: FloatArray) -> FloatArray:
        """Returns the sums for all stages, from what the layers' variants take."""
        return stage_sum(values, self.division(config).of_stages)

    def _collective_s(self, devices: StageDevices, config: MeshConfig) -> tuple[FloatArray, FloatArray]:
        """Returns the seconds of the collectives of a stage for each micro-batch, forward and backward."""
        forward = self._exchanges_s(devices, config, "forward")
        ahead = self._summed(config, forward) + self._combined_s(devices, config, "forward")
        if not self.model.training:
            return ahead, np.zeros_like(ahead)
        backward = self._exchanges_s(devices, config, "backward")
        backward = backward + forward * self.exchanges_again(config, devices.kinds[0])
        return ahead, self._summed(config, backward) + self._combined_s(devices, config, "backward")

    def _exchanges_s(self, devices: StageDevices, config: MeshConfig, phase: str) -> FloatArray:
        """Returns the seconds of each layer's collectives, one after the other; by variant."""
        division, totals = self.division(config), dict[int, tuple[Sequence[AxisCollectives], float]]()
        seconds = np.zeros(len(division.variants))
        for n in range(len(seconds)):
            exchanges = division.exchanges(n, phase)
            if id(exchanges) not in totals:
                total = sum(float(self.sent_s(devices, config, sent, phase) @ sent.counts) for sent in exchanges)
                totals[id(exchanges)] = exchanges, total  # they are kept, so that their ids stay theirs
            seconds[n] = totals[id(exchanges)][1]
        return seconds

    def _combined_s(
        self, devices: StageDevices, config: MeshConfig, phase: str, counts: Callable[[str], bool] = lambda _: True
    ) -> FloatArray:
        """Returns the seconds of all that each range of layers sends as one, of the kinds that count."""
        total = np.zeros_like(self._whole.parameters)
        every = self.combined(devices, config, phase)
        return sum((seconds for exchange, seconds in every if counts(exchange.kind)), total)

    def combined(
        self, devices: StageDevices, config: MeshConfig, phase: str
    ) -> list[tuple[AxisCollectives, FloatArray]]:
        """Returns the collectives that a stage of layers i..j does in a phase once for all its layers, such as the
        all-reduce of gradients, each with its seconds, of shape (L, L).
        """
        key = devices, config.division_key, phase
        if key not in self._sent:
            exchanges = self._combined_of(config, phase)
            self._sent[key] = [(sent, self.sent_s(devices, config, sent, phase) * sent.counts) for sent in exchanges]
        return self._sent[key]

    def _combined_of(self, config: MeshConfig, phase: str) -> Sequence[AxisCollectives]:
        key = config.division_key, phase
        if key not in self._together:
            self._together[key] = self.division(config).combined(phase)
        return self._together[key]

    def sent_s(self, devices: StageDevices, config: MeshConfig, exchange: AxisCollectives, phase: str) -> FloatArray:
        """Returns the seconds of a collective in a phase, for each of its sizes in bytes, in the slowest group of a
        stage's devices along its mesh axis; all groups along that axis communicate at the same time. Gradients are
        added up with the cluster's reduction servers where that takes less.
        """
        groups = self.places.groups(devices, config, exchange.axis)
        slowest = functools.reduce(np.maximum, (self._in_group_s(exchange, group, phase == "step") for group in groups))
        return self.models.runtime.sent_s(slowest, phase)

    def _in_group_s(self, exchange: AxisCollectives, group: Group, gradients: bool) -> FloatArray:
        alone = self._sent_s.seconds(exchange.kind, exchange.num_bytes, group)
        served = None
        if gradients and exchange.kind == "all_reduce":
            served = served_s(self.models.communication, exchange.num_bytes, group)
        return alone if served is None else np.minimum(alone, served)
