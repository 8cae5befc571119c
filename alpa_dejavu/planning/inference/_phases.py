"""The costs of one pass of prefill or decoding in each stage, and of a pipeline of such stages."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import final

import numpy as np

from alpa_dejavu._util.range_sums import FloatArray
from alpa_dejavu.calibration import Prices
from alpa_dejavu.costs.stage_costs import StageCostModel
from alpa_dejavu.costs.stage_devices import StageDevices
from alpa_dejavu.planning.inference._decoder import HALF, Decoder, ServingShape
from alpa_dejavu.planning.inference.serving_plan import Phase
from alpa_dejavu.problem import Host, MeshConfig, Submesh

_DIVIDED = 1.25
"""Weights are divided among devices if each keeps no more than so many times its even share."""


@final
@dataclasses.dataclass(frozen=True, eq=False)
class PassCosts:
    """The costs of one pass of a micro-batch in each of P stages: seconds, and bytes on each of a stage's devices, all
    of shape (P,); transfers are those to the next stage. A layer of the priced model is a stage.
    """

    costs: StageCostModel
    devices: StageDevices
    config: MeshConfig
    computing_s: FloatArray
    cache_s: FloatArray
    collectives_s: FloatArray
    transfers_s: FloatArray
    hidden_s: FloatArray
    weights_s: FloatArray
    weights_bytes: FloatArray
    temporary_bytes: FloatArray

    @property
    def stage_s(self) -> FloatArray:
        """Returns the seconds of a pass in each stage, with its transfer to the next one, shape (P,)."""
        return self.computing_s + self.cache_s + self.collectives_s + self.transfers_s


@final
class Pricer:
    """A pricer of passes through the stages of a replica, each of them on the slowest kind of the cluster's devices."""

    def __init__(self, decoder: Decoder, prices: Prices) -> None:
        self._decoder, self._prices = decoder, prices
        self._stage_costs: dict[tuple[int, int, int, bool], StageCostModel] = {}

    @property
    def left(self) -> Sequence[Host]:
        """Returns the cluster's hosts with as much memory of each device as the runtime leaves."""
        return self._prices.models.runtime.hosts(self._prices.cluster.hosts)

    def by_engine(self, shape: ServingShape, tokens: int) -> bool:
        """Returns whether the engine divides the weights among a stage's devices; else operators are divided evenly."""
        if not self._decoder.engine_fits(1, tokens, shape.stages):
            return False
        for length in (tokens, 1):  # a device keeps the same weights in prefill and in decoding
            engine, even = (self.passed(shape, 1, length, by_engine) for by_engine in (True, False))
            if (engine.weights_bytes > _DIVIDED * even.weights_bytes).any():
                return False
        return True

    def passed(
        self, shape: ServingShape, sequences: int, tokens: int, by_engine: bool, context: float = 0.0
    ) -> PassCosts:
        """Returns the costs of a pass of so many tokens of sequences, with `context` tokens each in the cache."""
        by_engine = by_engine and self._decoder.engine_fits(sequences, tokens, shape.stages)
        costs = self._costs(sequences, tokens, shape.stages, by_engine)
        config = MeshConfig((1, shape.tensor_parallel), 1, shape.tensor_parallel)
        devices = costs.places.on_submesh(Submesh(1, shape.tensor_parallel))
        seconds, memory = costs.seconds(devices, config), costs.memory(config)
        device, weights = devices.kinds[0], memory.resident.diagonal()
        shares = np.array(self._decoder.cache_shares(shape.stages)) / shape.tensor_parallel
        cached = shares * self._decoder.cache_bytes_per_token * sequences * context
        return PassCosts(
            costs,
            devices,
            config,
            computing_s=seconds[0].diagonal(),
            # Attention reads each key and value, and multiplies and adds it once: whichever takes longer.
            cache_s=np.maximum(cached / device.memory_bytes_per_s, cached / device.rate(HALF)),
            collectives_s=seconds[2].diagonal(),
            transfers_s=np.array([_sent_s(costs, shape, n) for n in range(shape.stages)]),
            hidden_s=costs.hidden_s(devices, config)[0].diagonal(),
            weights_s=weights / device.memory_bytes_per_s,
            weights_bytes=weights,
            temporary_bytes=memory.temporary.diagonal(),
        )

    def _costs(self, sequences: int, tokens: int, stages: int, by_engine: bool) -> StageCostModel:
        key = sequences, tokens, stages, by_engine
        if key not in self._stage_costs:
            model = self._decoder.model(*key)
            self._stage_costs[key] = StageCostModel(model, self._prices.cluster, self._prices.models)
        return self._stage_costs[key]


def _sent_s(costs: StageCostModel, shape: ServingShape, stage: int) -> float:
    """Returns the seconds in which a stage sends a micro-batch to the next one; the last stage sends nothing."""
    if stage == shape.stages - 1:
        return 0.0
    before, after = ([shape.host_of(n)] * shape.tensor_parallel for n in (stage, stage + 1))
    return costs.interstage.between(stage + 1, before, after)[0]


def prefill_s(stage_s: FloatArray, passes: int) -> FloatArray:
    """Returns the seconds until the last of some micro-batches has passed all stages, each behind the one before;
    `stage_s` has the seconds of each stage, shape (..., P).

    >>> float(prefill_s(np.array([2.0, 3.0]), 4))
    14.0
    """
    return np.asarray(stage_s.sum(axis=-1) + (passes - 1) * stage_s.max(axis=-1))


def decoding_s(stage_s: FloatArray, micro_batches: int) -> FloatArray:
    """Returns the seconds from one token of a sequence to the next, where micro-batches go round and round: as long as
    one takes through all stages, or the slowest stage for all of them; `stage_s` has shape (..., P).

    >>> [float(decoding_s(np.array([2.0, 3.0]), n)) for n in (1, 2)]
    [5.0, 6.0]
    """
    return np.maximum(stage_s.sum(axis=-1), micro_batches * stage_s.max(axis=-1))


def phase_of(passed: PassCosts, seconds: float, interval_s: tuple[float, float]) -> Phase:
    """Returns the parts of a phase that takes so many seconds: one micro-batch's pass, and waiting for the others."""
    summed = ("computing_s", "cache_s", "collectives_s", "transfers_s", "hidden_s", "weights_s")
    parts = {name: float(getattr(passed, name).sum()) for name in summed}
    waiting_s = max(seconds - float(passed.stage_s.sum()), 0.0)
    return Phase(**parts, waiting_s=waiting_s, interval_s=interval_s)
