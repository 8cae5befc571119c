"""Every operator divided evenly: what is reckoned with where a layer's jaxprs aren't at hand."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from functools import cached_property
from typing import final

import numpy as np

from alpa_dejavu.costs.memory import ModelMemory
from alpa_dejavu.problem import (
    AxisCollectives,
    MemoryPart,
    MemoryShares,
    Model,
    Operators,
    PassFlow,
)

REPLICATED_SHARE = 10 / 34
"""The share of a transformer layer's activations that tensor parallelism leaves whole on every device: Korthikanti et
al., Reducing Activation Recomputation in Large Transformer Models, MLSys 2023, equation 2, without the attention's."""


@final
@dataclasses.dataclass(frozen=True, eq=False)
class EvenDivision:
    """A division of layers among a stage's devices as in Megatron-LM, where the layers' jaxprs aren't at hand.

    Data-parallel devices divide the batch, tensor-parallel ones each operator. `whole` has the bytes of the model's
    unsharded tensors, and `zero` is the ZeRO level.

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
        """Returns 0..L-1: each layer is sharded in one way only."""
        return range(self.model.num_layers)

    @property
    def of_stages(self) -> None:
        """Returns None, which says that each layer is sharded in the same way in whatever stage it is."""
        return None

    def operators(self, phase: str, remat: str = "none") -> Sequence[Operators]:
        """Returns each layer's operators on one device in a phase: a pass is divided by all devices, "step" (the
        optimizer's update) by those that share the optimizer's state.
        """
        along, across = self.tensor_parallel, self.data_parallel
        ways = (1, along * (across if self.zero else 1)) if phase == "step" else (across, along)
        if (phase, remat) not in self._operators:
            whole = [layer.operators(phase, remat) for layer in self.model.layers]
            divided = {id(operators): operators.split(*ways) for operators in whole}
            self._operators[phase, remat] = [divided[id(operators)] for operators in whole]
        return self._operators[phase, remat]

    @cached_property
    def _operators(self) -> dict[tuple[str, str], list[Operators]]:
        return {}

    def recomputed(self, remat: str) -> Sequence[Operators]:
        """Returns the operators of each layer's forward pass that its backward pass runs again: all or none."""
        return self.operators("again", remat)

    def exchanges(self, variant: int, phase: str) -> Sequence[AxisCollectives]:
        """Returns one layer's all-reduces among tensor-parallel devices in a phase: half of those of a micro-batch in
        "forward", half in "backward" (of a training step), none in "step".
        """
        whole = np.array(self.model.layers[variant].exchanged_bytes, dtype=np.float64)
        if phase == "step" or not len(whole) or (phase == "backward" and not self.model.training):
            return ()
        return (AxisCollectives("all_reduce", 1, whole / self.data_parallel, np.full(len(whole), 0.5)),)

    def flow(self, variant: int, phase: str) -> PassFlow | None:
        """Returns None: tensor parallelism as in Megatron-LM has all collectives on the critical path."""
        return None

    def combined(self, phase: str) -> Sequence[AxisCollectives]:
        """Returns the collectives among data-parallel devices in a phase for each stage of layers i..j, with the
        bytes of each.

        Gradients are all-reduced once a step, or with ZeRO-2 reduce-scattered, and as many bytes all-gathered. With
        ZeRO-3 parameters are all-gathered forward and backward, and gradients reduce-scattered backward.
        """
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
        collectives = kinds.get((phase, self.zero), [])
        return [AxisCollectives(kind, 0, num_bytes, np.ones_like(num_bytes)) for kind, num_bytes in collectives]

    def shares(self, phase: str) -> Sequence[AxisCollectives]:
        """Returns what each layer adds to `combined` in a phase, which is what it sends as a stage of its own."""
        return [
            AxisCollectives(collective.kind, collective.axis, np.diag(collective.num_bytes), np.diag(collective.counts))
            for collective in self.combined(phase)
        ]

    def memory(self, remat: str = "none") -> MemoryShares:
        """Returns the shares of a stage's tensors that each device keeps: tensor parallelism divides all but some
        activations; data parallelism divides the activations, and what the ZeRO level says of the rest.
        """
        along, across = self.tensor_parallel, self.data_parallel
        keeping = 1 / (along * (across if self.zero == 3 else 1))
        sharing = 1 / (along * (across if self.zero >= 2 else 1))
        activations = (REPLICATED_SHARE + (1 - REPLICATED_SHARE) / along) / across
        gathered = 1 / along if self.zero == 3 and across > 1 else 0.0
        return MemoryShares(keeping, keeping, sharing, activations, activations, activations, gathered)

    def parts(self, remat: str = "none") -> Sequence[MemoryPart]:
        """Returns nothing: only the kinds of bytes are known."""
        return ()
