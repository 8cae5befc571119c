"""Takes cost tables apart: each entry's seconds by what errs together. They are linear in the errors' factors."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Hashable, Mapping, Sequence
from typing import final

import numpy as np
from numpy.typing import NDArray

from alpa_dejavu._util.normal import REACH_90
from alpa_dejavu._util.range_sums import FloatArray
from alpa_dejavu.costs.communication import Group
from alpa_dejavu.costs.latency import Latency, LatencyModel
from alpa_dejavu.costs.stage_costs import StageCostModel
from alpa_dejavu.costs.stage_devices import StageDevices
from alpa_dejavu.costs.table import CostTable
from alpa_dejavu.planning.search.uncertainty._spreads import (
    CLASSES,
    COMPUTE,
    LAUNCHES,
    KnowsFigures,
    KnowsInterval,
    Spreads,
    common_share,
    link_class,
    said_by,
)
from alpa_dejavu.problem import PHASES, AxisCollectives, Device, MeshConfig, Operators


@final
@dataclasses.dataclass(frozen=True, eq=False)
class WorkSeconds:
    """The seconds of stages of any range of L layers, by class of work (products, collectives of a kind, ...)."""

    of_variants: FloatArray  # of each of V ways to shard a layer in each of N classes, shape (V, N)
    # By the number of a class, the further seconds of a stage of layers i..j that aren't a sum over its layers, such as
    # kernel launches and combined collectives, shape (L, L).
    of_ranges: Mapping[int, FloatArray]


@final
@dataclasses.dataclass(frozen=True, eq=False)
class Resolved:
    """The predicted seconds of stages of any layers on one submesh with one config, by what errs separately."""

    # For each of V layer variants (ways to shard a layer) the numbers of two errors that only layers like it have: on
    # any mesh, and on this logical mesh; shape (V, 2).
    own: NDArray[np.intp]
    of_stages: NDArray[np.signedinteger] | None  # the variants of layers i..j, (L, L, L), -1 outside; None: one each
    micro_batch: WorkSeconds  # the seconds of forward and backward of one micro-batch, collectives included
    step: WorkSeconds  # the seconds of what is computed and sent once a step
    # The logarithm to base 2 of the number of the stage's devices; 0 where each is a process of one CPU, which computes
    # as a stage of one device does, and where a runtime is described operator by operator.
    doublings: float = 0.0


@final
class Resolver:
    """A splitter of the entries of cost tables into parts whose prediction errors are the same.

    It numbers these the same way in all tables: one for each class of work, one for each kind of layer, and one for
    each kind of layer on each logical mesh. Layers are of one kind if they have the same operators; if `apart`, each is
    its own kind, as where measured stages tell of alike layers that they take unlike times.
    """

    def __init__(self, apart: bool = False) -> None:
        self._apart = apart
        self._own: dict[Hashable, int] = {}
        self._resolved: dict[Hashable, Resolved] = {}
        self._rows: dict[tuple[int, Device, int], tuple[Operators, FloatArray]] = {}
        self._kinds: dict[int, tuple[object, NDArray[np.intp], frozenset[Hashable]]] = {}
        self._common: dict[tuple[int, Device, int], tuple[object, FloatArray]] = {}
        self._kept: dict[int, object] = {}
        self._sent: set[tuple[int, int]] = set()
        self._seconds, self._weighted, self._shares, self._alone = (np.zeros(len(CLASSES)) for _ in range(4))
        self._said_by: dict[str, None] = {}
        self._runtime = 0.0

    @property
    def num_own(self) -> int:
        return len(self._own)

    @property
    def spreads(self) -> Spreads:
        """Returns how large errors are for each class: as models tell it of what was met, averaged by seconds."""
        sigma, shares, alone = (
            np.divide(weighted, self._seconds, out=np.zeros(len(CLASSES)), where=self._seconds > 0)
            for weighted in (self._weighted, self._shares, self._alone)
        )
        shares[LAUNCHES:] = 1.0
        return Spreads.of(sigma, shares, alone, self._runtime)

    @property
    def source(self) -> str:
        return self.spreads.source(self._seconds, tuple(self._said_by) or ("the models",))

    def resolved(self, costs: StageCostModel, devices: StageDevices, config: MeshConfig) -> Resolved:
        """Returns the predicted seconds of all stages on some devices with a config, by what errs separately."""
        key = id(costs), devices, _mesh(config), config.zero, config.remat, config.offload
        if key not in self._resolved:
            self._kept[id(costs)] = costs  # so that its id stays its own
            self._runtime = max(self._runtime, costs.models.runtime.spread or 0.0)
            alone = costs.cluster.apart(len(set(devices.hosts))) or costs.models.runtime.spread is not None
            self._resolved[key] = Resolved(
                own=self._own_errors(costs, config),
                of_stages=costs.division(config).of_stages,
                micro_batch=self._micro_batch(costs, devices, config),
                step=self._step(costs, devices, config),
                doublings=0.0 if alone else math.log2(len(devices.hosts)),
            )
        return self._resolved[key]

    def sent(self, table: CostTable, link: int) -> int:
        """Notes the spread of transfers over one kind of link, by its index in a table, and returns their class."""
        between, transfer, costs = table.interstage, table.transfer, table.stage_costs
        assert between is not None, "a table that was priced keeps what crosses"
        assert transfer is not None, "a table that was priced keeps what crosses"
        assert costs is not None, "a table that was priced keeps its prices"
        ends, key = between.ends[link], (id(between), link)
        if key not in self._sent:
            self._sent.add(key)
            self._kept[id(between)] = between
            largest = AxisCollectives("send", 0, np.array([transfer.bytes.largest / between.shares[link]]), np.ones(1))
            seconds = between.forward_s[:, link] + between.backward_s[:, link]
            self._note_exchange(costs, Group(costs.cluster, ends), largest, seconds)
        return link_class("send", ends)

    def _micro_batch(self, costs: StageCostModel, devices: StageDevices, config: MeshConfig) -> WorkSeconds:
        device = devices.kinds[0]
        forward = self._layers(costs, devices, config, "forward")
        of_variants, phases = forward, ["forward"]
        if costs.model.training:
            of_variants = of_variants + self._layers(costs, devices, config, "backward")
            of_variants = of_variants + forward * costs.again(config, device)[:, None]
            phases.append("backward")
        launches = len(phases) * costs.models.runtime.dispatch_s(device)
        ranges = self._ranges(costs, devices, config, phases, launches, "dispatch_s", slice(2))
        return WorkSeconds(of_variants, ranges)

    def _step(self, costs: StageCostModel, devices: StageDevices, config: MeshConfig) -> WorkSeconds:
        launches = costs.models.runtime.started_step_s(devices.kinds[0])
        computed = self._computed(costs, devices, config, "step") * (1 - config.offload.optimizer)
        return WorkSeconds(computed, self._ranges(costs, devices, config, ["step"], launches, "step_s", slice(2, 3)))

    def _layers(self, costs: StageCostModel, devices: StageDevices, config: MeshConfig, phase: str) -> FloatArray:
        """Returns the seconds of operators and collectives of each variant by class, shape (V, N)."""
        seconds = self._computed(costs, devices, config, phase)
        division, rows = costs.division(config), dict[tuple[int, ...], tuple[Sequence[AxisCollectives], FloatArray]]()
        for n in range(len(seconds)):
            exchanges = division.exchanges(n, phase)
            key = tuple(map(id, exchanges))
            if key not in rows:
                row = np.zeros(len(CLASSES))
                for exchange in exchanges:
                    sent_s = costs.sent_s(devices, config, exchange, phase)
                    group = costs.places.groups(devices, config, exchange.axis)[0]
                    row[self._note_exchange(costs, group, exchange, sent_s)] += sent_s @ exchange.counts
                rows[key] = exchanges, row  # the exchanges are kept, so that their ids stay theirs
            seconds[n] += rows[key][1]
        return seconds

    def _ranges(
        self,
        costs: StageCostModel,
        devices: StageDevices,
        config: MeshConfig,
        phases: Sequence[str],
        launches_s: float,
        figure: str,
        offloads: slice,
    ) -> dict[int, FloatArray]:
        """Returns the seconds of whole stages by class, less what hides behind computing; each of shape (L, L)."""
        model, starts_s = costs.models.latency, np.full((costs.model.num_layers,) * 2, launches_s)
        if isinstance(model, KnowsFigures):
            sigma = model.figure_spread(devices.kinds[0], figure)
            self._note(LAUNCHES, launches_s, sigma, 1.0, 0.0, said_by(model))
        if config.offload.any:
            starts_s = starts_s + costs.offload_s(devices, config)[offloads].sum(axis=0)
        sent_s: dict[int, FloatArray] = {}
        for phase in phases:
            for exchange, seconds in costs.combined(devices, config, phase):
                group = costs.places.groups(devices, config, exchange.axis)[0]
                number = self._note_exchange(costs, group, exchange, seconds)
                sent_s[number] = sent_s[number] + seconds if number in sent_s else seconds
        hidden_s = costs.hidden_s(devices, config)[[PHASES.index(phase) for phase in phases]].sum(axis=0)
        total: FloatArray = sum(sent_s.values(), np.zeros_like(hidden_s))
        share = np.divide(total - hidden_s, total, out=np.ones_like(total), where=(total > 0) & (hidden_s > 0))
        exposed = {number: seconds * np.clip(share, 0.0, 1.0) for number, seconds in sent_s.items()}
        return {LAUNCHES: starts_s} | exposed

    def _computed(self, costs: StageCostModel, devices: StageDevices, config: MeshConfig, phase: str) -> FloatArray:
        """Returns the seconds of operators of each variant by class, shape (V, N)."""
        slowest = devices.kinds[0]
        divided = costs.division(config).operators(phase, config.remat)
        rows = [self._row(costs, slowest, operators) for operators in divided]
        return np.array(rows).reshape(len(rows), len(CLASSES)) * costs.crowding(slowest, config)

    def _row(self, costs: StageCostModel, device: Device, operators: Operators) -> FloatArray:
        key, model = (id(costs), device, id(operators)), costs.models.latency
        if key not in self._rows:
            latency, row = costs.latency_of(operators, device), np.zeros(len(CLASSES))
            shares = self._common_shares(model, operators, device)
            for number, product in zip(COMPUTE, (True, False), strict=True):
                chosen = operators.is_product == product
                row[number] = latency.mean_s[chosen].sum()
                of_kinds = np.bincount(self._kinds_of(operators)[0][chosen], weights=latency.mean_s[chosen])
                alone = float(np.linalg.norm(of_kinds)) / row[number] if row[number] > 0 else 0.0
                share = float(shares[chosen] @ latency.mean_s[chosen]) / row[number] if row[number] > 0 else 0.0
                self._note(number, row[number], _relative(latency, chosen), share, alone, said_by(model))
            self._rows[key] = operators, row
        return self._rows[key][1]

    def _common_shares(self, model: LatencyModel, operators: Operators, device: Device) -> FloatArray:
        """Returns the share of operators' errors that their class has in common, however they are divided."""
        key = id(model), device, id(operators.records)
        if key not in self._common:
            self._common[key] = operators.records, common_share(model, operators, device)
        return self._common[key][1]

    def _own_errors(self, costs: StageCostModel, config: MeshConfig) -> NDArray[np.intp]:
        """Returns the numbers of the two errors that each variant of a layer has for itself, shape (V, 2)."""
        division, numbers = costs.division(config), []
        for layer, operators in zip(division.variants, division.operators("forward"), strict=True):
            whole = layer if self._apart else self._kinds_of(costs.model.layers[layer].forward)[1]
            divided = _mesh(config), self._kinds_of(operators)[1]
            numbers.append([self._own.setdefault(key, len(self._own)) for key in (whole, divided)])
        return np.array(numbers, dtype=np.intp).reshape(-1, 2)

    def _kinds_of(self, operators: Operators) -> tuple[NDArray[np.intp], frozenset[Hashable]]:
        """Returns the number of each operator's kind (what it does to which shapes), and all kinds."""
        records = operators.records
        if id(records) not in self._kinds:
            numbers: dict[Hashable, int] = {}
            of_records = [
                numbers.setdefault((record.primitive, record.input_shapes), len(numbers)) for record in records
            ]
            self._kinds[id(records)] = records, np.array(of_records, dtype=np.intp), frozenset(numbers)
        return self._kinds[id(records)][1:]

    def _note_exchange(
        self, costs: StageCostModel, group: Group, exchange: AxisCollectives, seconds: FloatArray
    ) -> int:
        """Notes what the model says of an exchange's spread, and returns the exchange's class."""
        number, model, sizes = link_class(exchange.kind, group.hosts), costs.models.communication, exchange.num_bytes
        sigma = 0.0
        if isinstance(model, KnowsInterval) and sizes.size:
            largest = int(np.argmax(sizes))
            lower, upper, _ = model.interval(exchange.kind, sizes.ravel()[largest : largest + 1], group)
            sigma = float(np.log(upper[0] / lower[0])) / (2 * REACH_90) if lower[0] > 0 else 0.0
        self._note(number, float(seconds.max()) if seconds.size else 0.0, sigma, 1.0, 0.0, said_by(model))
        return number

    def _note(self, number: int, seconds: float, sigma: float, share: float, alone: float, source: str) -> None:
        if seconds * sigma > 0:
            self._said_by[source] = None
        self._alone[number] += seconds * alone
        self._seconds[number] += seconds
        self._weighted[number] += seconds * sigma
        self._shares[number] += seconds * share


def _relative(latency: Latency, chosen: NDArray[np.bool_]) -> float:
    """Returns the mean of operators' spreads (of logarithms), weighted by their seconds."""
    mean, spread = latency.mean_s[chosen], latency.spread_s[chosen]
    total = float(mean.sum())
    ratio = np.divide(spread, mean, out=np.zeros_like(mean), where=mean > 0)
    return float(np.log1p(ratio) @ mean) / total if total > 0 else 0.0


def _mesh(config: MeshConfig) -> tuple[int, int, bool]:
    return config.data_parallel, config.tensor_parallel, config.batch_forced
