"""Lowering rules for Alpa's primitives, by MLIR as stock jax lowers.

A pipeline marker is an identity in whatever jax itself compiles. Only in a module made for Alpa's passes
(`lowering.py`) does it stay as a custom call, in the form that Alpa's own XlaBuilder rule makes: one tuple in, the
same tuple out, the target `pipeline_marker`, and `name$mark_type` as the operator's name in its metadata. Markers that
only matter in jaxprs (`grad`, `boundary`) are identities there as well.

There random bits are plain operations too, on every platform: where each bit is computed from its place alone
(`jax_threefry_partitionable`), one after the other, so that they are cut as what they are drawn for; else in a loop,
which is compiled faster, and which each device runs for all bits.
"""

from __future__ import annotations

from collections.abc import Sequence
from types import ModuleType
from typing import Any

from jax._src import config, core, prng
from jax._src.interpreters import mlir
from jax._src.lib.mlir import ir
from jax._src.lib.mlir.dialects import hlo

from alpa_stock_jax._patch import Patch

__all__ = ["hlo_rules"]

MARKER_TARGET = "pipeline_marker"
_BOUNDARIES = frozenset({"start", "end"})
_hlo_rules: dict[core.Primitive, Any] = {}


def hlo_rules() -> tuple[tuple[core.Primitive, Any], ...]:
    """The rules that replace the normal ones in a module made for Alpa's passes."""
    return tuple(_hlo_rules.items())


def _identity(ctx: mlir.LoweringRuleContext, *args: ir.Value, **params: Any) -> Sequence[ir.Value]:
    return args


def _marker(ctx: mlir.LoweringRuleContext, *args: ir.Value, name: str, mark_type: str) -> Sequence[ir.Value]:
    if name == "hook":
        with ir.Location.name(f"{name}${mark_type}"):
            return hlo.OptimizationBarrierOp(args).results if args else ()
    if mark_type not in _BOUNDARIES:
        return args
    with ir.Location.name(f"{name}${mark_type}"):
        types = [arg.type for arg in args]
        tuple_type = ir.TupleType.get_tuple(types)
        marker = hlo.CustomCallOp(
            [tuple_type],
            [hlo.TupleOp(list(args)).result],
            call_target_name=ir.StringAttr.get(MARKER_TARGET),
            has_side_effect=ir.BoolAttr.get(True),
            backend_config=ir.StringAttr.get(""),
            api_version=mlir.i32_attr(1),
        )
        if not args:
            marker.attributes["mhlo.sharding"] = ir.StringAttr.get("{replicated}")
        return [hlo.GetTupleElementOp(marker.result, mlir.i32_attr(index)).result for index in range(len(args))]


def _threefry(ctx: mlir.LoweringRuleContext, *args: ir.Value) -> Sequence[ir.Value]:
    unrolled, loop = prng._threefry2x32_lowering_rule, prng._threefry2x32_cpu_lowering_rule
    rule = unrolled if config.threefry_partitionable.value else loop
    found: Sequence[ir.Value] = rule(ctx, *args)
    return found


def _lower_marker(module: ModuleType) -> None:
    mlir.register_lowering(module.pipeline_p, _identity)
    _hlo_rules[module.pipeline_p] = _marker


_hlo_rules[prng.threefry2x32_p] = _threefry

PATCHES: tuple[Patch, ...] = (
    Patch(
        module="alpa.pipeline_parallel.primitive_def",
        reason="pipeline markers are lowered by MLIR rules: an identity in jax, a custom call for Alpa's passes",
        apply=_lower_marker,
        expects={"pipeline_p": None},
    ),
)
