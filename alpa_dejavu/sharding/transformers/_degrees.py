"""The degrees in which the devices of a stage divide a transformer, and what of it each of them has."""

from __future__ import annotations

import dataclasses
from typing import final

from alpa_dejavu.layers.models import Transformer
from alpa_dejavu.problem import MeshConfig, NoShardingError

__all__ = ["ALONE", "Degrees"]


@final
@dataclasses.dataclass(frozen=True)
class Degrees:
    """The numbers of devices that divide a transformer in each way.

    Attributes:
        data: the data-parallel devices, those that share a sample's tokens among them.
        tensor, context, expert: the devices that share operators, a sample's tokens, and the experts.
        sharded: the data-parallel devices that share what ZeRO shares.
        zero: the ZeRO level.
    """

    data: int = 1
    tensor: int = 1
    context: int = 1
    expert: int = 1
    sharded: int = 1
    zero: int = 0

    @classmethod
    def of(cls, config: MeshConfig, size: Transformer) -> Degrees:
        """Returns the degrees that a config gives a transformer.

        Raises:
            NoShardingError: its heads, feed-forward layers, vocabulary, tokens or experts can't be divided so.
        """
        found = cls(
            config.data_parallel, config.tensor_parallel, config.context_parallel, config.expert_parallel,
            config.sharded or config.data_parallel, config.zero,
        )  # fmt: skip
        tensor = {"num_heads": size.num_heads, "feed_forward": size.feed_forward}
        needs = [(name, value, found.tensor, "tensor-parallel") for name, value in tensor.items()]
        needs.append(("sequence", size.sequence, found.context, "context-parallel"))
        if found.expert > 1:
            needs.append(("num_experts", size.num_experts, found.expert, "expert-parallel"))
        for name, value, ways, kind in needs:
            if value % ways or not value:
                raise NoShardingError(
                    f"{name} is {value}, but must be divisible among {ways} {kind} devices; choose another number of "
                    "them"
                )
        return found

    @property
    def expert_replicas(self) -> int:
        """Returns how many of the data-parallel devices have the same experts."""
        return self.data // self.expert

    @property
    def replicas(self) -> int:
        """Returns how many groups of devices have the whole of what ZeRO shares."""
        return self.data // self.sharded

    def expert_sharded(self) -> int:
        """Returns among how many devices ZeRO shares what it shares of experts."""
        return self.sharded if self.expert == 1 else self.expert_replicas


ALONE = Degrees()
"""One device has all of it."""
