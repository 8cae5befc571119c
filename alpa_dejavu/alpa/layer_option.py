"""The layer option for a plan with remat in some stages: only some layers are computed again in backward."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any, final

__all__ = ["DejavuLayerOption"]


@final
@dataclasses.dataclass(frozen=True)
class DejavuLayerOption:
    """An option that has remat in the named ones of Alpa's layers; give it as `layer_option=` of `PipeshardParallel`.

    Alpa's own options have remat in all layers or in none.

    Attributes:
        layer_num: into how many layers the step is cut, as `alpa.AutoLayerOption` does; None: where the user marked
            it by `alpa.mark_pipeline_boundary()`.
        remat_layers: the layers, from 0, that keep their inputs alone for backward and compute the rest again.

    Raises:
        ValueError: a number of layers below 1, or a layer that there isn't.

    References:
        Chen et al., Training Deep Nets with Sublinear Memory Cost, 2016.
    """

    layer_num: int | None = None
    remat_layers: Sequence[int] = ()

    def __post_init__(self) -> None:
        if self.layer_num is not None and self.layer_num < 1:
            raise ValueError(f"layer_num is {self.layer_num}, but must be at least 1, or None for marked layers")
        last = max(self.remat_layers, default=0)
        if min(self.remat_layers, default=0) < 0 or (self.layer_num is not None and last >= self.layer_num):
            there = "from 0 on" if self.layer_num is None else f"0..{self.layer_num - 1}"
            raise ValueError(f"remat_layers is {list(self.remat_layers)}, but the layers are {there}")

    def transform(self, func: Callable[..., Any]) -> Callable[..., Any]:
        """Returns the function with its layers marked; Alpa calls this."""
        from alpa_dejavu.alpa._remat import with_layers

        return with_layers(func, self.layer_num, frozenset(self.remat_layers))
