"""Layers merged into a stage are calls of one primitive that stock jax has lost: it is lowered like any other call."""

from __future__ import annotations

from types import ModuleType

from jax._src.interpreters import mlir

from alpa_stock_jax._patch import Patch


def _lower_as_call(module: ModuleType) -> None:
    mlir.register_lowering(module.named_call_p, mlir.core_call_lowering)


PATCHES: tuple[Patch, ...] = (
    Patch(
        module="alpa.pipeline_parallel.computation",
        reason="the named call around a layer in a merged stage is lowered to a function call",
        apply=_lower_as_call,
        expects={"named_call_p": None},
        uses=("jax._src.interpreters.mlir.core_call_lowering",),
    ),
)
