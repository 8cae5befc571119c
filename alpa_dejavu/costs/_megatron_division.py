"""Every operator divided evenly: what is reckoned with where a layer's jaxprs aren't at hand."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from functools import cached_property
from typing import final

import numpy as np

from alpa_dejavu.costs.memory import ModelMemory
from alpa_dejavu.problem import AxisCollectives, Layer, MemoryShares, Model, Operators

REPLICATED_SHARE = 10 / 34
"""The share of a transformer layer's activations that tensor parallelism leaves whole on every device: Korthikanti et
al., Reducing Activation Recomputation in Large Transformer Models, MLSys 2023, equation 2, without the attention's."""


@final
@dataclasses.dataclass(frozen=True, eq=False)
class EvenDivision:
    """Data-parallel devices divide the batch, tensor-parallel ones each operator, as Megatron-LM does.

    References:
        Shoeybi et al., Megatron-LM: Training Multi-Billion Parameter Language Models Using Model Parallelism, 2019.
    """

    model: Model
    whole: ModelMemory
    data_parallel: int
    tensor_parallel: int
    zero: int

    @property
    def variants(self) -> Sequence[int]:
        """One of each layer."""
        return range(self.model.num_layers)

    @property
    def of_stages(self) -> None:
        """A layer does the same in all stages."""
        return None

    def operators(self, phase: str) -> Sequence[Operators]:
        """Each layer's, divided by all devices; the update by those that share the optimizer's state."""
        return self._operators[phase]

    @cached_property
    def _operators(self) -> dict[str, list[Operators]]:
        along, across = self.tensor_parallel, self.data_parallel
        ways = {"forward": (across, along), "backward": (across, along)}
        ways["step"] = 1, along * (across if self.zero else 1)
        return {phase: _divided(self.model.layers, phase, way) for phase, way in ways.items()}

    def exchanges(self, variant: int, phase: str) -> Sequence[AxisCollectives]:
        """Half of a layer's all-reduces among tensor-parallel devices forward, half backward."""
        whole = np.array(self.model.layers[variant].exchanged_bytes, dtype=np.float64)
        if phase == "step" or not len(whole) or (phase == "backward" and not self.model.training):
            return ()
        return (AxisCollectives("all_reduce", 1, whole / self.data_parallel, np.full(len(whole), 0.5)),)

    def combined(self, phase: str) -> Sequence[AxisCollectives]:
        """Gradients are summed once a step; with ZeRO-3 parameters are gathered for each pass, gradients scattered."""
        if not self.model.training and (phase != "forward" or self.zero < 3):
            return ()
        parameters = self.whole.parameters / self.tensor_parallel
        gradients = self.whole.gradients / self.tensor_parallel
        kinds = {
            ("step", 0): [("all_reduce", gradients)],
            ("step", 2): [("reduce_scatter", gradients), ("all_gather", gradients)],
            ("forward", 3): [("all_gather", parameters)],
            ("backward", 3): [("all_gather", parameters), ("reduce_scatter", gradients)],
        }
        found = kinds.get((phase, self.zero), [])
        return [AxisCollectives(kind, 0, num_bytes, np.ones_like(num_bytes)) for kind, num_bytes in found]

    def memory(self) -> MemoryShares:
        """Parameters and gradients are divided among tensor-parallel devices, activations all but for what stays whole,
        and among data-parallel devices what the ZeRO level says.
        """
        along, across = self.tensor_parallel, self.data_parallel
        keeping = 1 / (along * (across if self.zero == 3 else 1))
        sharing = 1 / (along * (across if self.zero >= 2 else 1))
        activations = (REPLICATED_SHARE + (1 - REPLICATED_SHARE) / along) / across
        return MemoryShares(keeping, keeping, sharing, activations, activations, activations)


def _divided(layers: Sequence[Layer], phase: str, ways: tuple[int, int]) -> list[Operators]:
    """Returns each layer's operators of a phase on one device; those of alike layers are divided once."""
    whole = [layer.operators(phase) for layer in layers]
    divided = {id(one): one.split(*ways) for one in {id(one): one for one in whole}.values()}
    return [divided[id(one)] for one in whole]
