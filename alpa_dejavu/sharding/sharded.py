"""A model divided as the sharding engine divides it: solved on some meshes for one micro-batch, scaled to others.

Where the batch is forced onto axis 0, what the engine chooses there for a few devices holds for more: what the axis
divides shrinks as it grows. What has a batch dimension grows with the micro-batch.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterable, Sequence
from functools import cached_property
from typing import final

import numpy as np
from numpy.typing import NDArray

from alpa_dejavu._util.range_sums import FloatArray, stage_sum
from alpa_dejavu.problem import (
    AxisCollectives,
    Layer,
    MemoryPart,
    MemoryShares,
    MeshConfig,
    Operators,
    PassFlow,
)
from alpa_dejavu.sharding.layer_sharding import Collective, LayerSharding, StageLayers

__all__ = ["ModelSharding", "Solved", "solved_for"]

Solved = Callable[[int, int, bool], Sequence[StageLayers]]
"""A function from axes' lengths, and whether the batch is forced onto the first, to the layers at each of `ZERO`."""
ZERO = (0, 2, 3)
_ALONE = (1, 1, True)
_PHASES = {"forward": ("forward",), "backward": ("backward",), "step": ("gradient", "update")}


@final
@dataclasses.dataclass(frozen=True, eq=False)
class ModelSharding:
    """The shardings of a model's layers on any mesh, scaled from those that the sharding engine solved.

    `solved` solves the auto-sharding for the micro-batch that was traced; `batch_ratio` is samples in a micro-batch
    over samples in that one.
    """

    solved: Solved
    batch_ratio: float = 1.0

    def on(self, layers: Sequence[Layer], config: MeshConfig) -> ShardedDivision:
        """Returns the model's layers as the devices of one mesh divide them; `config` has its axes and ZeRO level.

        Raises:
            ValueError: devices are to divide more than the batch and the operators.
        """
        config.check_plain()
        levels, length = self.solved(*solved_for(config)), config.data_parallel
        gathered = self._scaled(levels[0], length) if config.zero >= 3 else None
        return ShardedDivision(self, tuple(layers), self._scaled(levels[ZERO.index(config.zero)], length), gathered)

    def prepare(self, configs: Iterable[MeshConfig]) -> None:
        """Solves the auto-sharding of a model's layers for some mesh configurations ahead of their use."""
        for mesh in dict.fromkeys([_ALONE, *map(solved_for, configs)]):
            self.solved(*mesh)

    def _scaled(self, solved: StageLayers, length: int) -> StageLayers:
        return solved.mapped(lambda layer: layer.on(length, self.batch_ratio))

    def with_micro_batch(self, ratio: float) -> ModelSharding:
        """Returns the same model's sharding for a micro-batch that is `ratio` times as large."""
        return dataclasses.replace(self, batch_ratio=self.batch_ratio * ratio)

    @cached_property
    def whole(self) -> FloatArray:
        """Returns the bytes of layers i..j that a device of no mesh keeps, by `MEMORY`; shape (L, L, 6)."""
        return self._scaled(self.solved(*_ALONE)[0], 1).sums(LayerSharding.memory)

    @cached_property
    def divided(self) -> dict[tuple[int, bytes, tuple[int, ...]], Operators]:
        """Returns the cache of operator records divided among devices, by the whole records and the axes that cut."""
        return {}


def solved_for(config: MeshConfig) -> tuple[int, int, bool]:
    """Returns the mesh whose auto-sharding is solved in place of that of a given mesh, and then scaled to it: the
    lengths of axes 0 and 1, and whether axis 0 must cut the batch dimension.

    If so, a few devices along it stand for more: as many as the least number that divides them, since they have to
    divide the batch, too.

    >>> [solved_for(MeshConfig((n, 4), n, 4, {"force_batch_dim_to_mesh_dim": 0}))[0] for n in (1, 2, 9, 15, 32)]
    [1, 2, 3, 3, 2]
    """
    forced, length = config.batch_forced or config.data_parallel * config.tensor_parallel == 1, config.data_parallel
    few = next((n for n in range(2, math.isqrt(length) + 1) if length % n == 0), length)
    return few if forced else length, config.tensor_parallel, forced


@final
@dataclasses.dataclass(frozen=True, eq=False)
class ShardedDivision:
    """The layers of a model as the devices of one mesh divide them: operators, collectives and memory of each device.

    Attributes:
        sharding: the model's sharding on any mesh.
        whole: the model's layers, undivided.
        layers: the layers' shardings on this mesh, several variants of a layer where it depends on the stage.
        gathered: the same with parameters as a device has them while it computes; None: as it always has them.
    """

    sharding: ModelSharding
    whole: tuple[Layer, ...]
    layers: StageLayers
    gathered: StageLayers | None = None

    @property
    def variants(self) -> Sequence[int]:
        """Returns for each variant the number of its layer: a layer has a variant for each sharding in any stage."""
        return self.layers.numbers

    @property
    def of_stages(self) -> NDArray[np.signedinteger] | None:
        """Returns the index of the variant that layer n has in the stage of layers i..j, -1 where it isn't in it; shape
        (L, L, L). None: each layer has one variant.
        """
        return self.layers.of_stages

    def operators(self, phase: str, remat: str = "none") -> Sequence[Operators]:
        """Returns a device's share of each layer variant's operators in "forward", "backward" or "step"."""
        if (phase, remat) not in self._operators:
            whole = [layer.operators(phase, remat) for layer in self.whole]
            pairs = [(whole[n], cut) for n, cut in zip(self.variants, self.layers.variants, strict=True)]
            unlike = {tuple(map(id, pair)): pair for pair in pairs}
            divided = {key: self._divided(*pair, phase) for key, pair in unlike.items()}
            self._operators[phase, remat] = [divided[tuple(map(id, pair))] for pair in pairs]
        return self._operators[phase, remat]

    @cached_property
    def _operators(self) -> dict[tuple[str, str], list[Operators]]:
        return {}

    def _divided(self, whole: Operators, cut: LayerSharding, phase: str) -> Operators:
        if not len(whole):
            return whole
        cuts, shape = cut.cuts("forward" if phase == "again" else phase), cut.mesh_shape
        key = id(whole), cuts.tobytes(), tuple(shape)
        if key not in self.sharding.divided:
            across, along = (np.where(cuts[:, axis], shape[axis], 1) for axis in (0, 1))
            ways = (1, across * along) if phase == "step" else (across, along)
            self.sharding.divided[key] = whole.split(*ways)
        return self.sharding.divided[key]

    def recomputed(self, remat: str) -> Sequence[Operators]:
        """Returns the operators of each layer variant's forward pass that its backward pass runs again: all or none."""
        return self.operators("again", remat)

    def exchanges(self, variant: int, phase: str) -> Sequence[AxisCollectives]:
        """Returns the collectives of activations of a variant in a phase, one after the other; none in "step"."""
        return () if phase == "step" else self._exchanges[id(self.layers.variants[variant]), phase]

    @cached_property
    def _exchanges(self) -> dict[tuple[int, str], list[AxisCollectives]]:
        return {
            (key, phase): _along_axes(sent for sent in layer.collectives if sent.phase == phase and sent.batched)
            for key, layer in {id(layer): layer for layer in self.layers.variants}.items()
            for phase in ("forward", "backward")
        }

    def flow(self, variant: int, phase: str) -> PassFlow | None:
        """Returns what waits for what in a pass of a layer variant; None where that isn't known."""
        layer = self.layers.variants[variant]
        if layer.flows is None:
            return None
        key = id(layer), phase
        if key not in self._flows:
            flow = layer.flows.of(phase)
            self._flows[key] = PassFlow(len(layer.cuts(phase)), tuple(_along_axes(flow.collectives)), flow.edges)
        return self._flows[key]

    @cached_property
    def _flows(self) -> dict[tuple[int, str], PassFlow]:
        return {}

    def combined(self, phase: str) -> Sequence[AxisCollectives]:
        """Returns each stage's collectives of parameters and gradients in "forward", "backward" or "step"; the runtime
        combines these. For each kind and mesh axis bytes have shape (L, L), for the stages of layers i..j.
        """
        return [
            AxisCollectives(sent.kind, sent.axis, num_bytes, np.ones_like(num_bytes))
            for sent in self.shares(phase)
            for num_bytes in (stage_sum(sent.num_bytes, self.of_stages),)
        ]

    def shares(self, phase: str) -> Sequence[AxisCollectives]:
        """Returns what each layer variant adds to `combined` in a phase; arrays of shape (number of variants,)."""

        def sent_bytes(layer: LayerSharding) -> dict[tuple[str, int], float]:
            totals: dict[tuple[str, int], float] = {}
            for sent in layer.collectives:
                if sent.phase in _PHASES[phase] and not (sent.batched and phase != "step"):
                    key = sent.kind, sent.axis
                    totals[key] = totals.get(key, 0.0) + sent.num_bytes * sent.count
            return totals

        of_variants = self.layers.by_variant(sent_bytes)
        kinds = dict.fromkeys(key for totals in of_variants for key in totals)
        every = {key: np.array([totals.get(key, 0.0) for totals in of_variants]) for key in kinds}
        return [AxisCollectives(*key, num_bytes, np.ones_like(num_bytes)) for key, num_bytes in every.items()]

    def memory(self, remat: str = "none") -> MemoryShares:
        """Returns the share of each stage's memory that one device of the mesh has, by the role of the tensors.

        It is over what a device that isn't part of any mesh would keep; each has shape (L, L), for layers i..j.
        """
        return self._memory

    @cached_property
    def _memory(self) -> MemoryShares:
        own, whole = self.layers.sums(LayerSharding.memory), self.sharding.whole
        # All of it where there is nothing to divide.
        shares = np.divide(own, whole, out=np.ones_like(own), where=whole > 0)
        parameters, optimizer, gradients, activations, inputs, temporaries = np.moveaxis(shares, -1, 0)
        gathered: FloatArray | float = 0.0
        if self.gathered is not None:
            computing = self.gathered.sums(LayerSharding.memory)[..., 0]
            gathered = np.divide(computing, whole[..., 0], out=np.zeros_like(computing), where=whole[..., 0] > 0)
            gathered = np.where(gathered > parameters, gathered, 0.0)
        return MemoryShares(parameters, gradients, optimizer, activations, inputs, temporaries, gathered)

    def parts(self, remat: str = "none") -> Sequence[MemoryPart]:
        """Returns nothing: only the kinds of bytes are known."""
        return ()


def _along_axes(collectives: Iterable[Collective]) -> list[AxisCollectives]:
    """Returns collectives by kind and mesh axis, in the order in which those are first met."""
    alike: dict[tuple[str, int], list[Collective]] = {}
    for sent in collectives:
        alike.setdefault((sent.kind, sent.axis), []).append(sent)
    return [
        AxisCollectives(*key, *np.array([(sent.num_bytes, sent.count) for sent in several], dtype=np.float64).T.copy())
        for key, several in alike.items()
    ]
