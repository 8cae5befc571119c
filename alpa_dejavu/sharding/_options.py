"""The options that the user may give the sharding engine."""

import dataclasses

INFINITY_COST = 1e13
"""The cost of what is not wanted: it may be chosen only where nothing else is possible."""
SOLVERS = ("ilp", "relaxed")
"""The names of the solvers: the exact one, and a relaxation with its gradient."""


@dataclasses.dataclass(frozen=True)
class ShardingOptions:
    """The options of the sharding solver; the names are those that Alpa sets for its auto-sharding pass.

    Attributes:
        enable: False leaves every choice to the module's own sharding annotations, which XLA propagates.
        memory_budget_per_device: bytes of live tensors allowed on a device; 0 or less is no limit.
        all_gather_cost: replaces the cost of every all-gather (INFINITY_COST forbids it).
        all_to_all_cost: replaces the cost of every all-to-all.
        allow_replicated_parameters: whether a parameter may be kept whole on each device.
        prefer_reduce_scatter: shard what follows an all-reduce where that lets it become a reduce-scatter.
        reduce_scatter_grad_acc_friendly: keep the all-reduce of a gradient that is accumulated.
        reduce_scatter_aggressive_partition: shard the parameters too, at the price of gathering them (ZeRO-3).
        batch_matmul_always_split_batch: on a 2D mesh, cut a batched matrix product along its batch dimensions only.
        allow_recompute_heavy_op: allow a product to be computed several times to save communication.
        allow_mixed_mesh_shape: on a 2D mesh, allow tensors cut over all devices along one dimension.
        grad_acc_num_micro_batches: the all-reduce of gradients is paid once in so many micro-batches.
        force_batch_dim_to_mesh_dim: the mesh axis that must cut the batch dimension; -1 for none.
        force_simple_heuristic: "" to solve; "shard-largest", "shard-first" or "shard-last" to cut by that rule.
        sequence_parallel: whether partial sums of activations may be reduce-scattered along tokens, so that what is
            between products is divided, too, and counts as work. Alpa's own pass has nothing like it.
        solver: "ilp" or "relaxed", the solver of the part of the problem that can't be eliminated exactly; Alpa has no
            such option. "relaxed" is experimental: no better than "ilp" in docs/results/slicers.md.

    References:
        `run_auto_sharding_pass` in `alpa.shard_parallel.auto_sharding`.
    """

    enable: bool = True
    memory_budget_per_device: float = -1.0
    all_gather_cost: float | None = None
    all_to_all_cost: float | None = None
    allow_replicated_parameters: bool = True
    prefer_reduce_scatter: bool = False
    reduce_scatter_grad_acc_friendly: bool = False
    reduce_scatter_aggressive_partition: bool = False
    batch_matmul_always_split_batch: bool = True
    allow_recompute_heavy_op: bool = False
    allow_mixed_mesh_shape: bool = False
    grad_acc_num_micro_batches: int = 1
    force_batch_dim_to_mesh_dim: int = -1
    force_simple_heuristic: str = ""
    sequence_parallel: bool = False
    solver: str = "ilp"

    def __post_init__(self) -> None:
        if self.grad_acc_num_micro_batches < 1:
            raise ValueError(f"grad_acc_num_micro_batches must be 1 or more, not {self.grad_acc_num_micro_batches}")
        if self.solver not in SOLVERS:
            raise ValueError(f"the solver is {self.solver!r}, but must be one of {', '.join(map(repr, SOLVERS))}")
