"""jaxprs turned into HLO modules for Alpa's passes, by stock jax's lowering."""

from __future__ import annotations

from collections.abc import Sequence
from types import ModuleType
from typing import Any

from jax._src import core, source_info_util
from jax._src.interpreters import mlir
from jax._src.lib import xla_client as xc
from jax._src.sharding_impls import AxisEnv, ReplicaAxisContext

from alpa_stock_jax._patch import Patch
from alpa_stock_jax.primitives import hlo_rules

__all__ = ["lower"]


def lower(name: str, jaxpr: core.ClosedJaxpr, donated: Sequence[bool], platform: str) -> xc.XlaComputation:
    """An HLO computation with one parameter for each input and a tuple of the outputs as its result.

    Args:
        name: the module's name.
        jaxpr: what is computed; pipeline markers in it stay, as custom calls.
        donated: for each input, whether an output of the same shape may take its place in memory.
        platform: "cpu" or "cuda": the rules that are used.
    """
    lowered = mlir.lower_jaxpr_to_module(
        name,
        jaxpr,
        ordered_effects=[],
        backend_or_name=None,
        platforms=(platform,),
        axis_context=ReplicaAxisContext(AxisEnv(nreps=1, names=(), sizes=())),
        name_stack=source_info_util.NameStack(),
        donated_args=list(donated),
        lowering_parameters=mlir.LoweringParameters(override_lowering_rules=hlo_rules()),
    )
    text = mlir.module_to_bytecode(lowered.module)
    return xc._xla.mlir.mlir_module_to_xla_computation(text, use_tuple_args=False, return_tuple=True)


def _replace_jaxpr_to_hlo(module: ModuleType) -> None:
    def jaxpr_to_hlo(name: str, closed_jaxpr: Any, donated_invars: Sequence[bool], platform: str = "") -> Any:
        """Converts a jaxpr to a wrapped HLO module for the platform of Alpa's backend."""
        platform = platform or ("cuda" if module.global_config.backend == "gpu" else "cpu")
        return module.WrappedHlo(lower(name, closed_jaxpr, donated_invars, platform))

    module.jaxpr_to_hlo = jaxpr_to_hlo  # type: ignore[attr-defined]


PATCHES: tuple[Patch, ...] = (
    Patch(
        module="alpa.util",
        reason="jaxprs are lowered by today's jax, which builds MLIR",
        apply=_replace_jaxpr_to_hlo,
        expects={
            "jaxpr_to_hlo": ("name", "closed_jaxpr", "donated_invars", "platform"),
            "WrappedHlo": None,
            "global_config.backend": None,
        },
    ),
)
