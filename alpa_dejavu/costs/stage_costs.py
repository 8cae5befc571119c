"""The costs of stages: each kind of work, for all ranges of layers at once, on the very devices that a stage is on."""

from __future__ import annotations

import dataclasses
import functools
import itertools
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import TYPE_CHECKING, Any, final

import numpy as np
from numpy.typing import NDArray

from alpa_dejavu._util.content import content_digest
from alpa_dejavu._util.range_sums import FloatArray, range_sum, stage_sum
from alpa_dejavu._util.ties import rounded
from alpa_dejavu.costs._batched_predictions import PredictedOperators, predicted_operators
from alpa_dejavu.costs._hidden import FETCHED, SENT, SUMMED, Buckets, StagePass, hidden_seconds
from alpa_dejavu.costs._megatron_division import EvenDivision
from alpa_dejavu.costs._streams import makespan_s
from alpa_dejavu.costs.communication import Group
from alpa_dejavu.costs.communication.reduction_servers import served_s
from alpa_dejavu.costs.interstage import InterstageTransfer
from alpa_dejavu.costs.kept_prices import KeptPrices
from alpa_dejavu.costs.latency import Latency
from alpa_dejavu.costs.memory import ModelMemory, StageMemory, stage_memory
from alpa_dejavu.costs.offload import StageParts, added_s, copies, known_share, with_offload
from alpa_dejavu.costs.overlap import PUBLISHED
from alpa_dejavu.costs.runtime import CostModels
from alpa_dejavu.costs.stage_devices import StageDevices, StagePlaces, check_computable
from alpa_dejavu.problem import (
    PHASES,
    TENSOR,
    AxisCollectives,
    Cluster,
    Device,
    Division,
    MemoryPart,
    MeshConfig,
    Model,
    Operators,
    blocks_again,
)

if TYPE_CHECKING:
    from jaxtyping import Bool, Float

COST_KINDS = (
    "compute_forward_s", "compute_backward_s", "collective_forward_s", "collective_backward_s",
    "synchronisation_s", "update_s",
)  # fmt: skip
"""The seconds that `StageCostModel.seconds` gives, in this order: of a micro-batch, but for the last two, of a step."""

_Mesh = tuple[int, int, int, bool, int, int, int, int]
"""The part of a config that tells divisions apart: all but its remat."""


@final
@dataclasses.dataclass(frozen=True, eq=False)
class _LayerExchanges:
    """The collectives of layers' variants in a phase: those of several layers as one for each kind and mesh axis, each
    with the place of its layer among the different ones; and the place of each variant's.
    """

    joined: tuple[tuple[AxisCollectives, NDArray[np.intp]], ...]
    num_layers: int
    of_variants: NDArray[np.intp]

    @classmethod
    def of(cls, division: Division, phase: str) -> _LayerExchanges:
        every = [division.exchanges(n, phase) for n in range(len(division.variants))]
        different = {id(exchanges): exchanges for exchanges in every}
        places = {key: place for place, key in enumerate(different)}
        alike: dict[tuple[str, int, float], list[tuple[int, AxisCollectives]]] = {}
        for place, exchanges in enumerate(different.values()):
            for sent in exchanges:
                alike.setdefault((sent.kind, sent.axis, sent.behind), []).append((place, sent))
        joined = []
        for (kind, axis, behind), parts in alike.items():
            num_bytes, counts = (
                np.concatenate([getattr(sent, name) for _, sent in parts]) for name in ("num_bytes", "counts")
            )
            of_layers = np.repeat([place for place, _ in parts], [len(sent.counts) for _, sent in parts])
            joined.append((AxisCollectives(kind, axis, num_bytes, counts, behind), of_layers))
        return cls(tuple(joined), len(different), np.array([places[id(exchanges)] for exchanges in every]))


@final
class StageCostModel:
    """A model of the seconds and bytes of stages on a cluster: what they compute, send among their devices, and do once
    a step.

    `interstage` prices transfers from stage to stage; `places` gives the devices that a stage runs on. A stage takes as
    long as its slowest device and its slowest group of devices. What doesn't depend on the mesh is computed once.
    `kept` has seconds and bytes of this model by these cost models from before, and gets what it lacks; None: each is
    computed.
    """

    def __init__(self, model: Model, cluster: Cluster, models: CostModels, kept: KeptPrices | None = None) -> None:
        check_computable(model, cluster)
        self.model, self.cluster, self.models, self._kept = model, cluster, models, kept
        self.places = StagePlaces(model, cluster)
        self.interstage = InterstageTransfer(model, cluster, models.communication, models.runtime)
        self._divisions: dict[_Mesh, Division] = {}
        self._operators: dict[Device, PredictedOperators] = {}
        self._recomputed: dict[tuple[_Mesh, str], Sequence[Operators]] = {}
        self._exchanges: dict[tuple[_Mesh, str], _LayerExchanges] = {}
        self._again: dict[tuple[Device, _Mesh, str], FloatArray] = {}
        self._computed: dict[tuple[Device, _Mesh, str], FloatArray] = {}
        self._sent: dict[tuple[StageDevices, _Mesh, str], list[tuple[AxisCollectives, FloatArray]]] = {}
        self._exchanged: dict[tuple[StageDevices, _Mesh, str], list[FloatArray]] = {}
        self._plain: dict[tuple[StageDevices, _Mesh, str], StageParts] = {}
        self._by_weight: dict[tuple[StageDevices, _Mesh, str, float], FloatArray] = {}
        self._passes: dict[tuple[StageDevices, _Mesh, str, str], StagePass] = {}
        self._hidden: dict[tuple[StageDevices, _Mesh, str], FloatArray] = {}
        self._memory: dict[MeshConfig, StageMemory] = {}

    @functools.cached_property
    def _whole(self) -> ModelMemory:
        return ModelMemory.of(self.model)

    def prepare(self, choices: Iterable[tuple[StageDevices, MeshConfig]]) -> None:
        """Predicts and caches, in a few large calls of the latency model, what stages on the given devices with the
        given mesh configs compute; without it that is predicted mesh by mesh when it is needed.
        """
        wanted: dict[Device, dict[tuple[_Mesh, str], MeshConfig]] = {}
        for devices, config in choices:
            for device in devices.kinds:
                wanted.setdefault(device, {})[config.division_key, config.remat] = config
        for device, configs in wanted.items():
            self._on(device).ask(
                itertools.chain.from_iterable(
                    sets
                    for config in configs.values()
                    for sets in (*(self._operators_of(config, phase) for phase in PHASES), self._recomputed_of(config))
                )
            )

    def forget(self) -> None:
        """Forgets the seconds and bytes of all ranges of layers, which are worked out again where they are asked for;
        predictions of operators are kept.
        """
        of_ranges: tuple[dict[Any, Any], ...] = (
            self._computed, self._sent, self._plain, self._by_weight, self._passes, self._hidden, self._memory,
            self._divisions,
        )  # fmt: skip
        for kept in of_ranges:
            kept.clear()

    def _on(self, device: Device) -> PredictedOperators:
        if device not in self._operators:
            self._operators[device] = predicted_operators(self.models, device)
        return self._operators[device]

    def _operators_of(self, config: MeshConfig, phase: str) -> Sequence[Operators]:
        return self.division(config).operators(phase, config.remat)

    def _recomputed_of(self, config: MeshConfig) -> Sequence[Operators]:
        key = config.division_key, config.remat
        if key not in self._recomputed:
            self._recomputed[key] = self.division(config).recomputed(config.remat)
        return self._recomputed[key]

    def seconds(self, devices: StageDevices, config: MeshConfig) -> Float[FloatArray, "6 L L"]:
        """Returns the seconds of each stage of layers i..j on some devices with a mesh config, by `COST_KINDS`.

        All are rounded, so that equal layers give exactly equal seconds wherever in the model they are. What hides
        behind computing (`hidden_s`) is left out of collectives and of synchronising.
        """
        if self._kept is None:
            return self._seconds(devices, config)
        self.price([(devices, config)])
        return self._kept.figures(self._text(devices, config))

    def price(self, choices: Iterable[tuple[StageDevices, MeshConfig]]) -> None:
        """Adds to the kept prices the seconds and bytes of stages on given devices with given mesh configs that they
        lack.
        """
        assert self._kept is not None, "there is something to add them to"
        new = [pair for pair in choices if self._text(*pair) not in self._kept or _text_of(pair[1]) not in self._kept]
        self.prepare(new)
        for devices, config in new:
            self._kept.add(self._text(devices, config), self._seconds(devices, config))
            self.memory(config)

    def priced(self, devices: StageDevices, config: MeshConfig) -> tuple[Float[FloatArray, "6 R"], StageMemory]:
        """Returns the seconds and bytes of stages, which were priced, by the kept prices' kinds of ranges."""
        assert self._kept is not None, "they were added to it"
        texts = self._text(devices, config), _text_of(config)
        seconds, memory = map(self._kept.rows, texts)
        return seconds, StageMemory.of(memory)

    def _text(self, devices: StageDevices, config: MeshConfig) -> str:
        return f"{self.places.content(devices)} {_text_of(config)}"

    def _seconds(self, devices: StageDevices, config: MeshConfig) -> Float[FloatArray, "6 L L"]:
        parts = self._without_offload(devices, config)
        if config.offload.any:
            exchanged = self._combined_s(devices, config, "step", lambda kind: kind != "all_gather")
            added = self.offload_s(devices, config)
            fixed_s = self.models.runtime.started_step_s(devices.kinds[0])
            parts = with_offload(parts, added, config.offload, np.minimum(exchanged, parts[4]), fixed_s)
        return rounded(np.stack(parts))

    def _without_offload(self, devices: StageDevices, config: MeshConfig) -> StageParts:
        """Returns the kinds of seconds of stages if they offloaded nothing: the same whatever they offload."""
        if config.remat_share < 1:
            ends = [np.stack(self._without_offload(devices, end)) for end in config.remat_ends]
            forward, backward, ahead, back, once, update = self._between(config, *ends)
            return forward, backward, ahead, back, once, update
        key = devices, config.division_key, config.remat
        if key not in self._plain:
            forward, backward, update = self.computed_s(devices, config)
            ahead, back = self._collective_s(devices, config)
            once = self._combined_s(devices, config, "step")
            if self._hides(config):
                ahead, back, once = np.maximum(np.stack([ahead, back, once]) - self.hidden_s(devices, config), 0.0)
            self._plain[key] = forward, backward, ahead, back, once, update
        return self._plain[key]

    def offload_s(self, devices: StageDevices, config: MeshConfig) -> Float[FloatArray, "3 L L"]:
        """Returns the seconds that offload adds to each stage of layers i..j: copies to a micro-batch's forward and
        backward pass, and once a step the hosts' update; ValueError where too little is known of the hosts.
        """
        names = [self.cluster.hosts[host].name for host in dict.fromkeys(devices.hosts)]
        share, memory = known_share(config.offload, devices.share, names), self.memory(config)
        assert memory.elsewhere is not None, "something is offloaded"
        kept = memory.per_micro_batch + memory.elsewhere.per_micro_batch
        copied = copies(self._whole, self.division(config).memory(config.remat), kept, config.offload, share)
        fixed_s, streams = self.models.runtime.started_step_s(devices.kinds[0]), self.models.runtime.overlap.streams
        return added_s(self._without_offload(devices, config), copied, config.offload, fixed_s, streams)

    def hidden_s(self, devices: StageDevices, config: MeshConfig) -> Float[FloatArray, "3 L L"]:
        """Returns the seconds of collectives that hide behind computing in each stage of layers i..j: in a
        micro-batch's forward pass, in its backward pass, and of a step's synchronising; without overlap only what
        devices that share tokens pass on while they compute attention.
        """
        overlap, size = self.models.runtime.overlap, self.model.num_layers
        if not self._hides(config):
            return np.zeros((3, size, size))
        if config.remat_share < 1:
            return self._between(config, *(self.hidden_s(devices, end) for end in config.remat_ends))
        key = devices, config.division_key, config.remat
        if key not in self._hidden:
            forward, backward = self._pass(devices, config, "forward"), None
            if self.model.training:
                backward, kinds = self._pass(devices, config, "backward"), devices.kinds
                again = self.exchanges_again(config, kinds[0])
                shares = np.stack([self.again(config, device) for device in kinds])
                backward = dataclasses.replace(
                    backward,
                    hidden_s=backward.hidden_s + forward.hidden_s * again,
                    free_s=backward.free_s + forward.free_s * shares,
                )
            summed, updated = (self._buckets(devices, config, "step", kinds) for kinds in (SUMMED, FETCHED))
            # Where they are gathered layer by layer
            gathered = updated if overlap.kind in ("gradients", "tensor") else None
            of_stages = self.division(config).of_stages
            self._hidden[key] = hidden_seconds(forward, backward, summed, gathered, of_stages, overlap)
        return self._hidden[key]

    def _hides(self, config: MeshConfig) -> bool:
        return self.models.runtime.overlap.hides or config.context_parallel > 1

    def _pass(self, devices: StageDevices, config: MeshConfig, phase: str) -> StagePass:
        key = devices, config.division_key, config.remat, phase
        if key not in self._passes:
            computed_s = np.stack([self._operators_s(device, config, phase) for device in devices.kinds])
            hidden_s = self._hidden_in_layers(devices, config, phase)
            buckets = (self._buckets(devices, config, phase, kinds) for kinds in (FETCHED, SENT))
            self._passes[key] = StagePass(hidden_s, np.maximum(computed_s - hidden_s, 0.0), *buckets)
        return self._passes[key]

    def _buckets(self, devices: StageDevices, config: MeshConfig, phase: str, kinds: Collection[str]) -> Buckets:
        """Returns what stages send in a phase for all their layers together, of some kinds of collectives, where a
        runtime overlaps it.
        """
        kinds = kinds if self.models.runtime.overlap.hides else ()
        division, wholes = self.division(config), self.combined(devices, config, phase)
        pairs = zip(wholes, division.shares(phase), strict=True)
        sent = [(s, self.sent_s(devices, config, share, phase)) for (_, s), share in pairs if share.kind in kinds]
        return Buckets.of(sent, (self.model.num_layers, len(division.variants)), division.of_stages)

    def _hidden_in_layers(self, devices: StageDevices, config: MeshConfig, phase: str) -> Float[FloatArray, " V"]:
        """Returns the seconds of collectives of activations that hide in a pass of each layer variant, on the device
        where least does: behind attention, and behind independent operators of its pass.
        """
        division, overlap = self.division(config), self.models.runtime.overlap
        if config.context_parallel > 1:
            ring_s = self._behind_attention(devices, config, phase)
        else:
            ring_s = np.zeros(len(division.variants))
        if not overlap.streams:
            share = overlap.hidden_tensor_share
            return ring_s + share * self._exchanges_s(devices, config, phase, [TENSOR]) if share else ring_s
        pairs = [(division.flow(n, phase), some) for n, some in enumerate(self._operators_of(config, phase))]
        different = {tuple(map(id, pair)): pair for pair in pairs}
        hidden_s = dict.fromkeys(different, 0.0)
        for key, (flow, operators) in different.items():
            if flow is not None and flow.collectives:
                sent = [self.sent_s(devices, config, sent, phase) * sent.counts for sent in flow.collectives]
                sent_s = np.concatenate(sent)
                computed = [
                    self.latency_of(operators, kind).mean_s * self.crowding(kind, config) for kind in devices.kinds
                ]
                both = [
                    seconds.sum() + sent_s.sum() - makespan_s(seconds, sent_s, flow.edges, overlap)
                    for seconds in computed
                ]
                hidden_s[key] = max(float(min(sent_s.sum(), *both)), 0.0)
        return ring_s + np.array([hidden_s[tuple(map(id, pair))] for pair in pairs])

    def _behind_attention(self, devices: StageDevices, config: MeshConfig, phase: str) -> Float[FloatArray, " V"]:
        """Returns the seconds of collectives that hide behind each layer variant's attention, at the published slowdown
        where a runtime overlaps nothing else.
        """
        division, overlap = self.division(config), self.models.runtime.overlap
        overlap = overlap if overlap.hides else PUBLISHED
        pairs = [(division.exchanges(n, phase), some) for n, some in enumerate(self._operators_of(config, phase))]
        different = {tuple(map(id, pair)): pair for pair in pairs}
        hidden_s = dict.fromkeys(different, 0.0)
        for key, (exchanges, operators) in different.items():
            passed = [sent for sent in exchanges if sent.behind]
            if not passed:
                continue
            sent_s = np.array([sum(float(self.sent_s(devices, config, sent, phase) @ sent.counts) for sent in passed)])
            is_attention = [record.kind == "attention" for record in operators.records]
            of_kinds = [self.latency_of(operators, kind).mean_s[is_attention].sum() for kind in devices.kinds]
            beside_s = np.array([passed[0].behind * min(of_kinds)])
            both_s = makespan_s(beside_s, sent_s, np.zeros((0, 2), np.int32), overlap)
            hidden_s[key] = float(beside_s[0] + sent_s[0]) - both_s
        return np.array([hidden_s[tuple(map(id, pair))] for pair in pairs])

    def exposed_s(self, devices: StageDevices, config: MeshConfig) -> Float[FloatArray, " V"]:
        """Returns the seconds that nothing hides of each layer's passes of one micro-batch, by variant: what its device
        computes, and exchanges of activations.
        """
        device, total_s = devices.kinds[0], np.zeros(len(self.division(config).variants))
        for phase in ("backward", "forward") if self.model.training else ("forward",):
            computed_s = self._operators_s(device, config, phase)
            sent_s = self._exchanges_s(devices, config, phase) - self._hidden_in_layers(devices, config, phase)
            total_s += computed_s + sent_s
        if self.model.training:
            exchanged = config.remat_share * self.exchanges_again(config, device)
            total_s += self.again(config, device) * computed_s + exchanged * sent_s
        return total_s

    def computed_s(self, devices: StageDevices, config: MeshConfig) -> Float[FloatArray, "3 L L"]:
        """Returns the seconds that the slowest device of each stage of layers i..j computes: forward and backward for
        one micro-batch, and once a step.
        """
        if config.remat_share < 1:
            return self._between(config, *(self.computed_s(devices, end) for end in config.remat_ends))
        return np.asarray(np.max([self._computed_on(device, config) for device in devices.kinds], axis=0))

    def _computed_on(self, device: Device, config: MeshConfig) -> Float[FloatArray, "3 L L"]:
        key = device, config.division_key, config.remat
        if key not in self._computed:
            self._computed[key] = self._compute_s(device, config)
        return self._computed[key]

    def memory(self, config: MeshConfig) -> StageMemory:
        """Returns the bytes that each device of a stage with this config keeps, for each range of layers i..j."""
        if config not in self._memory:
            text = _text_of(config)
            if self._kept is not None and text in self._kept:
                self._memory[config] = StageMemory.of(self._kept.figures(text))
            else:
                memory = self._memory[config] = self._stage_memory(config)
                if self._kept is not None:
                    self._kept.add(text, np.stack(memory.figures))
        return self._memory[config]

    def _stage_memory(self, config: MeshConfig) -> StageMemory:
        if config.remat_share < 1:
            none, whole = (self.memory(end) for end in config.remat_ends)
            between = StageMemory.of(self._between(config, np.stack(none.figures), np.stack(whole.figures)))
            return dataclasses.replace(between, temporary=np.maximum(none.temporary, whole.temporary))
        shares = self.division(config).memory(config.remat)
        return stage_memory(self._whole, shares, config.remat == "layer", config.offload)

    def parts(self, config: MeshConfig) -> Sequence[MemoryPart]:
        """Returns what each device of a stage with this config keeps, part by part."""
        if config.remat_share == 1:
            return self.division(config).parts(config.remat)
        pairs = zip(*(self.division(config).parts(end.remat) for end in config.remat_ends), strict=True)
        return [
            dataclasses.replace(
                none,
                num_bytes=np.maximum(none.num_bytes, whole.num_bytes)
                if none.kind == "temporary"
                else self._between(config, none.num_bytes, whole.num_bytes),
            )
            for none, whole in pairs
        ]

    def _between(self, config: MeshConfig, none: FloatArray, whole: FloatArray) -> FloatArray:
        """Returns figures of stages of layers i..j that compute some of their blocks again, between those that compute
        none and all: each block that does adds as much.
        """
        blocks = range_sum([float(len(operators) > 0) for operators in self._recomputed_of(config.remat_ends[1])])
        return none + (whole - none) * blocks_again(config.remat_share, blocks) / np.maximum(blocks, 1.0)

    @property
    def gradient_bytes(self) -> Float[FloatArray, "L L"]:
        """Returns the bytes of the gradients of all trained parameters of each range of layers i..j."""
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

    def _operators_s(self, device: Device, config: MeshConfig, phase: str) -> Float[FloatArray, " V"]:
        """Returns the seconds of each layer's operators on one device; by variant."""
        totals_s = self._on(device).totals_s(self._operators_of(config, phase))
        return totals_s * self.crowding(device, config)

    def by_weight_shares(self, devices: StageDevices, config: MeshConfig) -> Float[FloatArray, "L L"]:
        """Returns the share of what each stage computes in a backward pass that only gradients of weights need: what a
        schedule that splits backward passes may put off. The slowest device counts.
        """

        def on(device: Device) -> FloatArray:
            every = self._operators_of(config, "backward")
            seconds = [self.latency_of(operators, device).mean_s[operators.by_weight].sum() for operators in every]
            return self._summed(config, np.array(seconds) * self.crowding(device, config))

        key = devices, config.division_key, config.remat, config.remat_share
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

    def latency_of(self, operators: Operators, device: Device) -> Latency:
        """Returns the predicted latency of some operators on a device, which is predicted once for each object."""
        return self._on(device).latency(operators)

    def _compute_s(self, device: Device, config: MeshConfig) -> FloatArray:
        """Returns the seconds of all layers' operators, divided among the devices, and of the computations' start."""
        runtime, training = self.models.runtime, self.model.training
        forward, backward, update = (self._operators_s(device, config, phase) for phase in PHASES)
        backward = backward + forward * self.again(config, device) if training else np.zeros_like(forward)
        start_s = runtime.dispatch_s(device)
        starts_s = np.array([start_s, start_s * training, runtime.started_step_s(device)])
        return self._summed(config, np.stack([forward, backward, update])) + starts_s[:, None, None]

    def again(self, config: MeshConfig, device: Device) -> Float[FloatArray, " V"]:
        """Returns for each sharding variant (way to shard one layer) the share of its forward pass, by its seconds on a
        device, that its backward pass runs again; of a share of the blocks the mean over all.
        """
        key = device, config.division_key, config.remat
        if key not in self._again:
            on, some = self._on(device), self._recomputed_of(config)
            whole_s, again_s = on.totals_s(self._operators_of(config, "forward")), on.totals_s(some)
            shares = np.array([float(len(operators) > 0) for operators in some])
            self._again[key] = np.divide(again_s, whole_s, out=shares, where=whole_s > 0)
        return self._again[key] * config.remat_share

    def exchanges_again(
        self, config: MeshConfig, device: Device, stage: tuple[int, int] = (0, -1)
    ) -> Bool[NDArray[np.bool_], " V"]:
        """Returns for each sharding variant whether its backward pass runs its forward pass's collectives again; of a
        share of the blocks the first ones of a stage, given by its first and last layer, do.
        """
        again = (self.again(config, device) > 0) & (config.remat == "layer")
        if config.remat_share < 1:
            blocks = stage[0] + np.flatnonzero(again[stage[0] : stage[1] + 1])
            again[blocks[int(blocks_again(config.remat_share, len(blocks))) :]] = False
        return again

    def _summed(self, config: MeshConfig, values: FloatArray) -> FloatArray:
        """Returns the sums for all stages, from what the layers' variants take."""
        return stage_sum(values, self.division(config).of_stages)

    def _collective_s(self, devices: StageDevices, config: MeshConfig) -> tuple[FloatArray, FloatArray]:
        """Returns the seconds of the collectives of a stage for each micro-batch, forward and backward."""
        phases = ("forward", "backward") if self.model.training else ("forward",)
        rows = [self._exchanges_s(devices, config, phase) for phase in phases]
        if self.model.training:
            rows[1] = rows[1] + rows[0] * self.exchanges_again(config, devices.kinds[0])
        sums = self._summed(config, np.stack(rows))
        whole = [
            seconds + self._combined_s(devices, config, phase) for seconds, phase in zip(sums, phases, strict=True)
        ]
        return whole[0], whole[1] if self.model.training else np.zeros_like(whole[0])

    def _exchanges_s(
        self, devices: StageDevices, config: MeshConfig, phase: str, axes: Collection[int] | None = None
    ) -> FloatArray:
        """Returns the seconds of each layer's collectives, along some axes of the mesh alone if these are given, one
        after the other; by variant.
        """
        key = config.division_key, phase
        if key not in self._exchanges:
            self._exchanges[key] = _LayerExchanges.of(self.division(config), phase)
        exchanges = self._exchanges[key]
        place = devices, config.division_key, phase
        if place not in self._exchanged:
            self._exchanged[place] = [
                self.sent_s(devices, config, sent, phase) * sent.counts for sent, _ in exchanges.joined
            ]
        total_s = np.zeros(exchanges.num_layers)
        for (sent, of_layers), seconds in zip(exchanges.joined, self._exchanged[place], strict=True):
            if axes is None or sent.axis in axes:
                total_s += np.bincount(of_layers, seconds, minlength=len(total_s))
        return total_s[exchanges.of_variants]

    def _combined_s(
        self, devices: StageDevices, config: MeshConfig, phase: str, counts: Callable[[str], bool] = lambda _: True
    ) -> FloatArray:
        """Returns the seconds of all that each range of layers sends as one, of the kinds that count."""
        total = np.zeros_like(self._whole.parameters)
        every = self.combined(devices, config, phase)
        return sum((seconds for exchange, seconds in every if counts(exchange.kind)), total)

    def combined(
        self, devices: StageDevices, config: MeshConfig, phase: str
    ) -> list[tuple[AxisCollectives, Float[FloatArray, "L L"]]]:
        """Returns the collectives that a stage of layers i..j does in a phase once for all its layers, such as the
        all-reduce of gradients, each with its seconds.
        """
        key = devices, config.division_key, phase
        if key not in self._sent:
            exchanges = self.division(config).combined(phase)
            self._sent[key] = [(sent, self.sent_s(devices, config, sent, phase) * sent.counts) for sent in exchanges]
        return self._sent[key]

    def sent_s(
        self, devices: StageDevices, config: MeshConfig, exchange: AxisCollectives, phase: str
    ) -> Float[FloatArray, " sizes"]:
        """Returns the seconds of a collective in a phase, for each of its sizes in bytes, in the slowest group of a
        stage's devices along its mesh axis; all groups along that axis communicate at the same time. Gradients are
        added up with the cluster's reduction servers where that takes less.
        """
        groups = self.places.groups(devices, config, exchange.axis)
        slowest = functools.reduce(np.maximum, (self._in_group_s(exchange, group, phase == "step") for group in groups))
        return self.models.runtime.sent_s(slowest, phase)

    def _in_group_s(self, exchange: AxisCollectives, group: Group, gradients: bool) -> FloatArray:
        alone = self.models.communication.seconds(exchange.kind, exchange.num_bytes, group)
        served = None
        if gradients and exchange.kind == "all_reduce":
            served = served_s(self.models.communication, exchange.num_bytes, group)
        return alone if served is None else np.minimum(alone, served)


@functools.lru_cache(maxsize=4096)
def _text_of(config: MeshConfig) -> str:
    return content_digest(config)
