"""All passes on a partitioned module's collectives, in the order in which they help each other."""

from __future__ import annotations

from alpa_dejavu.sharding.hlo._schema import HloModuleProto
from alpa_dejavu.sharding.hlo.combine import combine_all_gathers, combine_all_reduces, combine_reduce_scatters
from alpa_dejavu.sharding.hlo.scatter import all_reduce_to_reduce_scatter


def optimize_collectives(
    module: HloModuleProto, num_partitions: int, all_reduce_threshold_bytes: int, all_gather_threshold_bytes: int
) -> HloModuleProto:
    """A copy of a partitioned module with reduce-scatters where pieces are enough, and collectives done together.

    Args:
        module: one partition, without calls.
        num_partitions: of how many.
        all_reduce_threshold_bytes: the most bytes of a combined all-reduce or reduce-scatter.
        all_gather_threshold_bytes: the most bytes of a combined all-gather.
    """
    module = all_reduce_to_reduce_scatter(module, num_partitions)
    module = combine_all_reduces(module, all_reduce_threshold_bytes)
    module = combine_reduce_scatters(module, all_reduce_threshold_bytes)
    return combine_all_gathers(module, all_gather_threshold_bytes)
