"""The all-reduce of a number between meshes: what the optimizer needs of all stages, such as the gradients' global
norm.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from types import ModuleType
from typing import Any

from jax._src.interpreters import mlir
from jax._src.lib.mlir import ir
from jax._src.lib.mlir.dialects import hlo

from alpa_stock_jax._mesh_all_reduce import TARGET, opaque, register_target
from alpa_stock_jax._patch import Patch

_STATUS_RETURNING_UNIFIED = 3


def _lower_as_custom_call(module: ModuleType) -> None:
    register_target()

    def rule(ctx: mlir.LoweringRuleContext, arg: ir.Value, **params: Any) -> Sequence[ir.Value]:
        # Calls are numbered within their module: the meshes' modules have the same calls in the same order.
        numbers = ctx.module_context.cached_primitive_lowerings.setdefault(TARGET, itertools.count())
        operator = module._primitive_to_str[params["type"]].decode()
        meshes = module.mesh_ids_hash(params["group_meshes"]).decode()
        written = opaque(operator, meshes, next(numbers), ctx.avals_in[0].dtype)
        with ir.Location.name("all_reduce_between_meshes"):
            call = hlo.CustomCallOp(
                [arg.type],
                [arg],
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
        expects={"cross_mesh_allreduce_p": None, "_primitive_to_str": None, "mesh_ids_hash": ("mesh_ids",)},
        uses=("jaxlib.xla_client.register_custom_call_partitioner",),
    ),
)
