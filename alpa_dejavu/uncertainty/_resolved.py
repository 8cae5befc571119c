"""Cost tables taken apart: the seconds of each entry by what errs together. They are linear in the errors' factors."""

from __future__ import annotations

import dataclasses
from collections.abc import Hashable, Mapping, Sequence
from typing import final

import numpy as np
from numpy.typing import NDArray

from alpa_dejavu._ranges import FloatArray
from alpa_dejavu.communication import Group
from alpa_dejavu.latency import Latency
from alpa_dejavu.pricing import Pricing
from alpa_dejavu.problem import Exchange, MeshConfig, Operators, Submesh
from alpa_dejavu.uncertainty._spreads import (
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

__all__ = ["Resolved", "Resolver", "Seconds"]

_OF_INTERVAL = 2 * 1.6449
"""The logarithm of a 90 % interval's ends in standard deviations, if errors were normal."""


@final
@dataclasses.dataclass(frozen=True, eq=False)
class Seconds:
    """By class, of all ranges of layers.

    Attributes:
        of_variants: what each variant of a layer takes, shape (V, N).
        of_ranges: by the number of a class, what layers i..j take as one, shape (L, L).
    """

    of_variants: FloatArray
    of_ranges: Mapping[int, FloatArray]


@final
@dataclasses.dataclass(frozen=True, eq=False)
class Resolved:
    """All ranges of layers on one submesh with one config.

    Attributes:
        own: of each variant, the number of its own error, shape (V,).
        of_stages: as `stage_sum` takes it.
        micro_batch: forward and backward of one micro-batch, collectives included.
        boundary: of one micro-batch, what comes from the neighbours; nothing where it depends on their hosts.
        step: what comes once a step.
    """

    own: NDArray[np.intp]
    of_stages: NDArray[np.intp] | None
    micro_batch: Seconds
    boundary: Seconds
    step: Seconds


@final
class Resolver:
    """Takes apart the entries of several cost tables; what errs together has the same number in all of them.

    Layers that compute the same operators on the same mesh, however many of each, have one own error.
    """

    def __init__(self) -> None:
        self._own: dict[Hashable, int] = {}
        self._known: dict[Hashable, Resolved] = {}
        self._rows: dict[tuple[int, int], tuple[Operators, FloatArray]] = {}
        self._kinds: dict[int, tuple[object, NDArray[np.intp], frozenset[Hashable]]] = {}
        self._pricings: dict[int, Pricing] = {}
        self._seconds, self._weighted, self._shares, self._alone = (np.zeros(len(CLASSES)) for _ in range(4))
        self._said_by: dict[str, None] = {}

    @property
    def num_own(self) -> int:
        """How many own errors were met."""
        return len(self._own)

    @property
    def spreads(self) -> Spreads:
        """Of all that was taken apart: the mean of what the models say of it, by seconds."""
        sigma, shares, alone = (
            np.divide(weighted, self._seconds, out=np.zeros(len(CLASSES)), where=self._seconds > 0)
            for weighted in (self._weighted, self._shares, self._alone)
        )
        shares[LAUNCHES:] = 1.0
        return Spreads.of(sigma, shares, alone)

    @property
    def source(self) -> str:
        """Where the spread is from."""
        return self.spreads.source(self._seconds, tuple(self._said_by) or ("the models",))

    def resolved(self, pricing: Pricing, submesh: Submesh, config: MeshConfig) -> Resolved:
        """What a table's entries on a submesh with a config are made of."""
        key = id(pricing), submesh, _mesh(config), config.zero, config.remat
        if key not in self._known:
            self._pricings[id(pricing)] = pricing  # kept, so that its id stays its own
            division = pricing.division(config)
            forward = [division.operators(n, "forward") for n in range(len(division.variants))]
            self._known[key] = Resolved(
                own=np.array([self._own_of(each, config) for each in forward], dtype=np.intp),
                of_stages=division.of_stages,
                micro_batch=self._micro_batch(pricing, submesh, config),
                boundary=self._boundary(pricing, submesh),
                step=self._step(pricing, submesh, config),
            )
        return self._known[key]

    def _micro_batch(self, pricing: Pricing, submesh: Submesh, config: MeshConfig) -> Seconds:
        forward = self._layers(pricing, submesh, config, "forward")
        found, phases = forward, ["forward"]
        if pricing.model.training:
            found = found + self._layers(pricing, submesh, config, "backward")
            if config.remat == "layer":
                found = found + forward * pricing.trains(config)[:, None]
            phases.append("backward")
        starts = np.full((pricing.model.num_layers,) * 2, len(phases) * pricing.device.dispatch_s)
        self._note_launches(pricing, "dispatch_s", starts[0, 0])
        return Seconds(found, {LAUNCHES: starts} | self._combined(pricing, submesh, config, phases))

    def _step(self, pricing: Pricing, submesh: Submesh, config: MeshConfig) -> Seconds:
        starts = np.full((pricing.model.num_layers,) * 2, pricing.device.step_s)
        self._note_launches(pricing, "step_s", starts[0, 0])
        ranges = {LAUNCHES: starts} | self._combined(pricing, submesh, config, ["step"])
        return Seconds(self._computed(pricing, config, "step"), ranges)

    def _boundary(self, pricing: Pricing, submesh: Submesh) -> Seconds:
        if pricing.hosts is not None:
            return Seconds(np.zeros((0, len(CLASSES))), {})
        ends = (0, 0) if len(pricing.cluster.hosts) == 1 else (0, 1)
        forward, backward = pricing.boundary_s(submesh)
        largest = Exchange("send", 0, np.array([pricing.largest_sent(submesh)]), np.ones(1))
        number = self._noted(pricing, Group(pricing.cluster, ends), largest, forward + backward)
        return Seconds(np.zeros((0, len(CLASSES))), {number: forward + backward})

    def _layers(self, pricing: Pricing, submesh: Submesh, config: MeshConfig, phase: str) -> FloatArray:
        """Operators and collectives of each variant, shape (V, N)."""
        found = self._computed(pricing, config, phase)
        division, known = pricing.division(config), dict[tuple[int, ...], tuple[Sequence[Exchange], FloatArray]]()
        for n in range(len(found)):
            exchanges = division.exchanges(n, phase)
            key = tuple(map(id, exchanges))
            if key not in known:
                row = np.zeros(len(CLASSES))
                for one in exchanges:
                    each = pricing.sent_s(submesh, config, one)
                    row[self._noted(pricing, pricing.group(submesh, config, one.axis), one, each)] += each @ one.counts
                known[key] = exchanges, row  # the exchanges are kept, so that their ids stay theirs
            found[n] += known[key][1]
        return found

    def _combined(
        self, pricing: Pricing, submesh: Submesh, config: MeshConfig, phases: Sequence[str]
    ) -> dict[int, FloatArray]:
        found: dict[int, FloatArray] = {}
        for phase in phases:
            for one, seconds in pricing.combined(submesh, config, phase):
                number = self._noted(pricing, pricing.group(submesh, config, one.axis), one, seconds)
                found[number] = found[number] + seconds if number in found else seconds
        return found

    def _computed(self, pricing: Pricing, config: MeshConfig, phase: str) -> FloatArray:
        """Operators of each variant, shape (V, N)."""
        division = pricing.division(config)
        rows = [self._row(pricing, division.operators(n, phase)) for n in range(len(division.variants))]
        return np.array(rows).reshape(len(rows), len(CLASSES)) * pricing.crowding(config)

    def _row(self, pricing: Pricing, operators: Operators) -> FloatArray:
        key = id(pricing), id(operators)
        if key not in self._rows:
            latency, row = pricing.latency_of(operators), np.zeros(len(CLASSES))
            for number, product in zip(COMPUTE, (True, False), strict=True):
                chosen = operators.is_product == product
                row[number] = latency.mean_s[chosen].sum()
                of_kinds = np.bincount(self._kinds_of(operators)[0][chosen], weights=latency.mean_s[chosen])
                alone = float(np.linalg.norm(of_kinds)) / row[number] if row[number] > 0 else 0.0
                share = common_share(pricing.latency, product)
                self._note(number, row[number], _relative(latency, chosen), share, alone, said_by(pricing.latency))
            self._rows[key] = operators, row
        return self._rows[key][1]

    def _own_of(self, operators: Operators, config: MeshConfig) -> int:
        return self._own.setdefault((_mesh(config), self._kinds_of(operators)[1]), len(self._own))

    def _kinds_of(self, operators: Operators) -> tuple[NDArray[np.intp], frozenset[Hashable]]:
        """The number of each operator's kind (what it does to which shapes), and all kinds."""
        records = operators.records
        if id(records) not in self._kinds:
            numbers: dict[Hashable, int] = {}
            each = [numbers.setdefault((one.primitive, one.input_shapes), len(numbers)) for one in records]
            self._kinds[id(records)] = records, np.array(each, dtype=np.intp), frozenset(numbers)
        return self._kinds[id(records)][1:]

    def _noted(self, pricing: Pricing, group: Group, one: Exchange, seconds: FloatArray) -> int:
        """The class of an exchange, once what the model says of its spread is noted."""
        number, model = link_class(one.kind, group.hosts), pricing.communication
        sigma = 0.0
        largest = int(np.argmax(one.num_bytes)) if one.num_bytes.size else 0
        if isinstance(model, KnowsInterval) and one.num_bytes.size:
            lower, upper, _ = model.interval(one.kind, one.num_bytes.ravel()[largest : largest + 1], group)
            sigma = float(np.log(upper[0] / lower[0])) / _OF_INTERVAL if lower[0] > 0 else 0.0
        self._note(number, float(seconds.max()) if seconds.size else 0.0, sigma, 1.0, 0.0, said_by(model))
        return number

    def _note_launches(self, pricing: Pricing, figure: str, seconds: float) -> None:
        if isinstance(pricing.latency, KnowsFigures):
            sigma = pricing.latency.figure_spread(pricing.device, figure)
            self._note(LAUNCHES, seconds, sigma, 1.0, 0.0, said_by(pricing.latency))

    def _note(self, number: int, seconds: float, sigma: float, share: float, alone: float, source: str) -> None:
        if seconds * sigma > 0:
            self._said_by[source] = None
        self._alone[number] += seconds * alone
        self._seconds[number] += seconds
        self._weighted[number] += seconds * sigma
        self._shares[number] += seconds * share


def _relative(latency: Latency, chosen: NDArray[np.bool_]) -> float:
    """The mean of operators' spreads (of logarithms), by their seconds."""
    mean, spread = latency.mean_s[chosen], latency.spread_s[chosen]
    total = float(mean.sum())
    ratio = np.divide(spread, mean, out=np.zeros_like(mean), where=mean > 0)
    return float(np.log1p(ratio) @ mean) / total if total > 0 else 0.0


def _mesh(config: MeshConfig) -> tuple[int, int, bool]:
    return config.data_parallel, config.tensor_parallel, config.batch_forced
