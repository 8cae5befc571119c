"""Has Alpa's construction of layers put remat around some of them alone."""

from __future__ import annotations

import contextlib
import functools
import inspect
from collections.abc import Callable, Iterator, Sequence
from typing import Any

PARAMETERS = ("origin_jaxpr", "sliced_eqns")


def with_layers(func: Callable[..., Any], layer_num: int | None, remat_layers: frozenset[int]) -> Callable[..., Any]:
    """Returns the function cut into layers by Alpa's layer option, with remat in these layers."""
    from alpa.pipeline_parallel.layer_construction import AutoLayerOption, ManualLayerOption

    remat = bool(remat_layers)
    if layer_num is None:
        option = ManualLayerOption(remat_layer=remat)
    else:
        option = AutoLayerOption(layer_num, remat_mode="coarse_grained_remat" if remat else "none")
    layered: Callable[..., Any] = option.transform(func)
    if not remat:
        return layered

    @functools.wraps(func)
    def called(*args: Any) -> Any:
        with _remat_only(remat_layers):
            return layered(*args)

    return called


@contextlib.contextmanager
def _remat_only(chosen: frozenset[int]) -> Iterator[None]:
    """Has remat put around these layers alone while Alpa cuts a function in a `with` block."""
    from alpa.pipeline_parallel import layer_construction

    original = layer_construction.remat_sliced_eqns
    if tuple(inspect.signature(original).parameters) != PARAMETERS:
        raise RuntimeError("Alpa's remat_sliced_eqns isn't the one of Alpa 0.2.3; use remat in all layers or in none")

    @functools.wraps(original)
    def remat_sliced_eqns(origin_jaxpr: Any, sliced_eqns: Sequence[Any]) -> list[Any]:
        if max(chosen) >= len(sliced_eqns):
            raise ValueError(f"remat_layers is {sorted(chosen)}, but the step has {len(sliced_eqns)} layers")
        again = original(origin_jaxpr, sliced_eqns)
        return [again[n] if n in chosen else plain for n, plain in enumerate(sliced_eqns)]

    layer_construction.remat_sliced_eqns = remat_sliced_eqns
    try:
        yield
    finally:
        layer_construction.remat_sliced_eqns = original
