"""The pipeline on one device (`LocalPipelineParallel`, for debugging) runs its stages by `jax.jit`.

Alpa compiles them by XlaBuilder and calls parts of jax's dispatch that are gone. A stage is a jaxpr before that, and a
jaxpr has a runnable of its own, in which pipeline markers are identities.
"""

from __future__ import annotations

from types import ModuleType
from typing import Any

from alpa_stock_jax._patch import Patch


class JittedStage:
    """Stands in for `XlaPipelineComputation` where a stage is only run: the stage stays a jaxpr."""

    @classmethod
    def from_jax_pipeline_computation(cls, jax_pipeline_computation: Any) -> Any:
        """The stage itself: a jaxpr can be run as it is."""
        return jax_pipeline_computation


def _keep_jaxprs(module: ModuleType) -> None:
    module.XlaPipelineComputation = JittedStage  # type: ignore[attr-defined]


PATCHES: tuple[Patch, ...] = (
    Patch(
        module="alpa.pipeline_parallel.local_pipeline",
        reason="stages on one device are run by jax.jit instead of jax's old dispatch",
        apply=_keep_jaxprs,
        expects={
            "XlaPipelineComputation.from_jax_pipeline_computation": ("jax_pipeline_computation",),
            "LocalPipelineRunner.run_stage": ("self", "stage", "invals"),
        },
        uses=("jax.core.jaxpr_as_fun",),
    ),
)
