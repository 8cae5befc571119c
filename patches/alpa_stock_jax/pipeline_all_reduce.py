"""The all-reduce of a number between meshes: what the optimizer needs of all stages, such as the gradients' global
norm.
"""

from __future__ import annotations

from collections.abc import Sequence
from types import ModuleType
from typing import Any

from jax._src.interpreters import mlir
from jax._src.lib.mlir import ir
from jax._src.lib.mlir.dialects import hlo

from alpa_stock_jax._mesh_all_reduce import TARGET, opaque, register_target
from alpa_stock_jax._patch import Patch
from alpa_stock_jax.pipeline_reductions import OPERATORS

_STATUS_RETURNING_UNIFIED = 3


def _lower_as_custom_call(module: ModuleType) -> None:
    register_target()

    def rule(ctx: mlir.LoweringRuleContext, *args: ir.Value, **params: Any) -> Sequence[ir.Value]:
        # What follows the number is the result of the call before this one, which it so waits for.
        meshes = module.mesh_ids_hash(params["group_meshes"]).decode()
        written = opaque(OPERATORS[params["type"]], meshes, params["number"], ctx.avals_in[0].dtype)
        with ir.Location.name("all_reduce_between_meshes"):
            call = hlo.CustomCallOp(
                [args[0].type],
                list(args),
                call_target_name=ir.StringAttr.get(TARGET),
                has_side_effect=ir.BoolAttr.get(True),
                backend_config=ir.StringAttr.get(written),
                api_version=mlir.i32_attr(_STATUS_RETURNING_UNIFIED),
            )
        call.attributes["mhlo.sharding"] = ir.StringAttr.get("{replicated}")
        return call.results

    mlir.register_lowering(module.cross_mesh_allreduce_p, rule)


PATCHES: tuple[Patch, ...] = (
    Patch(
        module="alpa.pipeline_parallel.apply_grad",
        reason="the all-reduce between meshes is lowered by an MLIR rule, and runs on CPU by Ray",
        apply=_lower_as_custom_call,
        expects={"cross_mesh_allreduce_p": None, "mesh_ids_hash": ("mesh_ids",)},
        uses=("jaxlib.xla_client.register_custom_call_partitioner",),
    ),
)
