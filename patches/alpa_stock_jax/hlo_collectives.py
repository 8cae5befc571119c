"""The parts that all passes on the collectives of HLO modules share: their groups, their channels, and gradients."""

from __future__ import annotations

from collections.abc import Iterable

from alpa_dejavu.sharding.hlo.schema import HloInstructionProto, HloModuleProto

COLLECTIVES = frozenset({
    "all-reduce", "all-gather", "reduce-scatter", "all-to-all", "collective-permute", "collective-broadcast",
})  # fmt: skip
# What the all-reduce of a gradient's sum is called, so that it is known wherever the module goes.
GRADIENT_NAME = "gradient_sum"

Groups = tuple[tuple[int, ...], ...]


def groups_of(node: HloInstructionProto) -> Groups:
    """Returns the groups of partitions among which a collective HLO instruction communicates, each in its order."""
    return tuple(tuple(group.replica_ids) for group in node.replica_groups)


def set_groups(node: HloInstructionProto, groups: Iterable[Iterable[int]]) -> None:
    """Replaces the groups of partitions among which a collective HLO instruction communicates."""
    node.ClearField("replica_groups")
    for group in groups:
        node.replica_groups.add(replica_ids=list(group))


def is_gradient(node: HloInstructionProto) -> bool:
    """Returns whether a collective is marked as the all-reduce of a sum of gradients over micro-batches.

    It is needed after the last micro-batch only.
    """
    return node.metadata.op_name == GRADIENT_NAME


def next_channel(module: HloModuleProto) -> int:
    """Returns a channel number that no collective of an HLO module uses."""
    return 1 + max((node.channel_id for part in module.computations for node in part.instructions), default=0)
