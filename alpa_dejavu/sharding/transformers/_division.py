"""A transformer divided among the devices of a logical mesh as training frameworks divide it."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Sequence
from functools import cached_property, partial
from typing import TypeVar, final

import numpy as np

from alpa_dejavu._util.range_sums import FloatArray, range_max, range_sum
from alpa_dejavu.layers.models import Transformer
from alpa_dejavu.problem import AxisCollectives, Layer, MemoryPart, MemoryShares, MeshConfig, Operators, PassFlow
from alpa_dejavu.sharding.transformers._block import LayerWork
from alpa_dejavu.sharding.transformers._degrees import ALONE, Degrees
from alpa_dejavu.sharding.transformers._exchanges import activation_exchanges, parameter_exchanges
from alpa_dejavu.sharding.transformers._execution import Execution
from alpa_dejavu.sharding.transformers._kept import KeptBytes, kept

__all__ = ["TransformerDivision", "TransformerSharding", "temporary_bytes"]

_Of = TypeVar("_Of")
_NOTHING = Operators.of([])


@final
@dataclasses.dataclass(frozen=True)
class TransformerSharding:
    """The rule by which a training framework divides a transformer among devices.

    Attributes:
        size: the transformer.
        execution: how the framework runs it.
        samples: the samples of a micro-batch, over all data-parallel replicas together.
    """

    size: Transformer
    execution: Execution
    samples: float

    def on(self, layers: Sequence[Layer], config: MeshConfig) -> TransformerDivision:
        """Returns the transformer as the devices of one logical mesh divide it, at the config's ZeRO level.

        Raises:
            NoShardingError: its heads, feed-forward layers, tokens or experts can't be divided so.
        """
        return self.divided(Degrees.of(config, self.size))

    def divided(self, degrees: Degrees = ALONE) -> TransformerDivision:
        """Returns the transformer as devices in given degrees divide it; by default one device has all of it."""
        return TransformerDivision(LayerWork(self.size, self.execution, degrees, self.samples))

    def prepare(self, configs: Iterable[MeshConfig]) -> None:
        """Checks that the transformer can be divided so: nothing has to be solved in advance.

        Raises:
            NoShardingError: its heads, feed-forward layers, tokens or experts can't be divided so.
        """
        for config in configs:
            Degrees.of(config, self.size)

    def with_micro_batch(self, ratio: float) -> TransformerSharding:
        """Returns the same rule for a micro-batch that is `ratio` times as large."""
        return dataclasses.replace(self, samples=self.samples * ratio)


@final
@dataclasses.dataclass(frozen=True, eq=False)
class TransformerDivision:
    """The layers of a transformer as the devices of one logical mesh divide them.

    Attributes:
        work: what a device has of each layer.
    """

    work: LayerWork

    @property
    def variants(self) -> Sequence[int]:
        """Returns the number of each layer: each is divided in one way, whatever stage it is in."""
        return range(self.work.size.num_layers)

    @property
    def of_stages(self) -> None:
        """Returns None: each layer is divided in one way, whatever stage it is in."""
        return None

    def operators(self, phase: str) -> Sequence[Operators]:
        """Returns for each layer what a device computes in a phase: "forward", "backward", or "step"."""
        return self._operators[phase]

    @cached_property
    def _operators(self) -> dict[str, list[Operators]]:
        return {
            phase: self._of_layers(partial(self.work.operators, phase=phase))
            for phase in ("forward", "backward", "step")
        }

    def recomputed(self, remat: str) -> Sequence[Operators]:
        """Returns the operators of each block's forward pass that its backward pass runs again."""
        return self._of_layers(lambda layer: self.work.recomputed(layer, remat))

    def exchanges(self, variant: int, phase: str) -> Sequence[AxisCollectives]:
        """Returns the collectives of activations of a layer in a phase; there are none in "step"."""
        return self._exchanges[phase][variant]

    @cached_property
    def _exchanges(self) -> dict[str, list[Sequence[AxisCollectives]]]:
        return {
            phase: self._of_layers(partial(activation_exchanges, self.work, phase=phase))
            for phase in ("forward", "backward", "step")
        }

    def flow(self, variant: int, phase: str) -> PassFlow | None:
        """Returns None: each of the collectives of activations is on the critical path."""
        return None

    def combined(self, phase: str) -> Sequence[AxisCollectives]:
        """Returns the collectives of parameters and gradients of a stage of layers i..j in a phase, shape (L, L)."""
        experts, others = self._parameters
        return parameter_exchanges(self.work, phase, (range_sum(experts), self._with_table(others)))

    def shares(self, phase: str) -> Sequence[AxisCollectives]:
        """Returns what each layer adds to `combined` in a phase; arrays of shape (L,)."""
        experts, others = self._parameters
        return parameter_exchanges(self.work, phase, (experts, others))

    @cached_property
    def _parameters(self) -> FloatArray:
        """The parameters of each layer that a device computes with, of experts and all others; shape (2, L)."""
        return np.array([self.work.own_parameters(layer) for layer in self.variants]).T

    def _with_table(self, values: Sequence[float] | FloatArray) -> FloatArray:
        """Returns sums over ranges of layers, where a head that is tied to the table of embeddings has its own copy of
        it in a stage without the embeddings.
        """
        found = range_sum(values)
        if self.work.size.tied:
            found[1:, -1] += values[0]
        return found

    def memory(self, remat: str = "none") -> MemoryShares:
        """Returns the shares of a device in what one device alone would keep, for stages of layers i..j; (L, L) each.

        What is kept by each layer is added up, and of what lives only while a layer is computed the largest counts.
        """
        own, alone = self._kept(self.work, remat), self._kept(self._alone, "none")

        def share(mine: FloatArray, of: Callable[[KeptBytes], float], summed: bool = True) -> FloatArray:
            values = [of(one) for one in alone]
            whole = range_sum(values) if summed else range_max(values)
            return np.divide(mine, whole, out=np.zeros_like(mine), where=whole > 0)

        def kept_share(of: Callable[[KeptBytes], float]) -> FloatArray:
            return share(self._with_table([of(one) for one in own]), of)

        def waiting(one: KeptBytes) -> float:
            return one.activations + one.entering

        def computing(one: KeptBytes) -> float:
            return temporary_bytes(one) + (waiting(one) if remat == "layer" else 0.0)

        return MemoryShares(
            parameters=kept_share(lambda one: one.weights),
            gradients=kept_share(lambda one: one.gradients),
            optimizer=kept_share(lambda one: one.states),
            activations=share(range_sum([waiting(one) for one in own]), waiting),
            layer_inputs=share(range_sum([one.entering for one in own]), lambda one: one.entering),
            temporaries=share(range_max([temporary_bytes(one) for one in own]), computing, summed=False),
            gathered=share(range_max([one.gathered for one in own]), lambda one: 2 * one.weights, summed=False),
        )

    def parts(self, remat: str = "none") -> Sequence[MemoryPart]:
        """Returns what a device keeps of stages of layers i..j, part by part: they add up to the stage's bytes."""
        own = self._kept(self.work, remat)
        summed: dict[str, Callable[[KeptBytes], float]] = {
            "weights": lambda one: one.weights,
            "gradients": lambda one: one.gradients,
            "optimizer's states": lambda one: one.states,
        }
        waiting: dict[str, Callable[[KeptBytes], float]] = {
            "what layers take in": lambda one: one.entering,
            "other activations": lambda one: 0.0 if remat == "layer" else one.activations,
        }
        largest: dict[str, Callable[[KeptBytes], float]] = {
            "loss, or a layer going backward": temporary_bytes,
            "whole parameters at hand": lambda one: one.gathered,
        }
        return [
            *(MemoryPart(name, "resident", self._with_table([of(one) for one in own])) for name, of in summed.items()),
            *(MemoryPart(name, "per_micro_batch", range_sum([of(one) for one in own])) for name, of in waiting.items()),
            *(MemoryPart(name, "temporary", range_max([of(one) for one in own])) for name, of in largest.items()),
        ]

    @cached_property
    def _alone(self) -> LayerWork:
        return dataclasses.replace(self.work, degrees=ALONE)

    def _kept(self, work: LayerWork, remat: str) -> list[KeptBytes]:
        return self._of_layers(lambda layer: kept(work, layer, remat))

    def _of_layers(self, of: Callable[[int], _Of]) -> list[_Of]:
        """Calls a function once for layers that are alike, which share its result."""
        first = self.work.size.alike_layers
        results = {layer: of(layer) for layer in dict.fromkeys(first)}
        return [results[layer] for layer in first]


def temporary_bytes(layer: KeptBytes) -> float:
    """Returns the bytes that live only while a layer is computed."""
    return max(layer.logits, layer.working)
