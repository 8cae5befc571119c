"""The layer option of plans: layers end where a model marks them, and only some are computed again in backward."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import inspect
from collections.abc import Callable, Iterator, Sequence
from typing import Any, final

from alpa_dejavu.layers.marks import marked_layers


@final
@dataclasses.dataclass(frozen=True)
class DejavuLayerOption:
    """An option that cuts a step into layers for Alpa, with remat in chosen ones; give it as `layer_option=` of
    `PipeshardParallel`.

    Alpa's own options have remat in all layers or in none, and don't know the marks of transformers by their sizes.

    Attributes:
        layer_num: into how many layers the step is cut, as `alpa.AutoLayerOption` does; None: it is cut where the user
            marked it by `alpa.mark_pipeline_boundary()`, and at the blocks of a transformer by its sizes.
        remat_layers: the layers, counted from 0, that keep only their inputs for backward and compute the rest again.

    Raises:
        ValueError: a number of layers below 1, or a remat layer that isn't among them.

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
            numbers = "from 0 on" if self.layer_num is None else f"0..{self.layer_num - 1}"
            raise ValueError(f"remat_layers is {list(self.remat_layers)}, but the layers are {numbers}")

    def transform(self, func: Callable[..., Any]) -> Callable[..., Any]:
        """Returns the step's function with its layers marked, and remat in the chosen ones; Alpa calls this."""
        return _with_layers(func, self.layer_num, frozenset(self.remat_layers))


_EXPECTED = {"slice_eqns_by_layer_boundary": ("closed_jaxpr",), "remat_sliced_eqns": ("origin_jaxpr", "sliced_eqns")}


def _with_layers(func: Callable[..., Any], layer_num: int | None, remat_layers: frozenset[int]) -> Callable[..., Any]:
    """Returns the function cut into layers by Alpa's layer option, with remat in these layers."""
    from alpa.pipeline_parallel.layer_construction import AutoLayerOption, ManualLayerOption

    remat = bool(remat_layers)
    if layer_num is None:
        option = ManualLayerOption(remat_layer=remat)
    else:
        option = AutoLayerOption(layer_num, remat_mode="coarse_grained_remat" if remat else "none")
    layered: Callable[..., Any] = option.transform(func)

    @functools.wraps(func)
    def called(*args: Any) -> Any:
        with _cutting(remat_layers):
            return layered(*args)

    return called


@contextlib.contextmanager
def _cutting(chosen: frozenset[int]) -> Iterator[None]:
    """Has Alpa cut a function at our marks, too, and put remat around the chosen layers, in a `with` block."""
    from alpa.pipeline_parallel import layer_construction

    originals = {name: getattr(layer_construction, name) for name in _EXPECTED}
    for name, parameters in _EXPECTED.items():
        if tuple(inspect.signature(originals[name]).parameters) != parameters:
            raise RuntimeError(f"Alpa's {name} isn't the one of Alpa 0.2.3; install that, or give Alpa's layer options")
    sliced, again = originals.values()

    @functools.wraps(sliced)
    def slice_eqns_by_layer_boundary(closed_jaxpr: Any) -> list[Any]:
        return [layer for equations in sliced(closed_jaxpr) for layer in marked_layers(equations)]

    @functools.wraps(again)
    def remat_sliced_eqns(origin_jaxpr: Any, sliced_eqns: Sequence[Any]) -> list[Any]:
        if max(chosen) >= len(sliced_eqns):
            raise ValueError(f"remat_layers is {sorted(chosen)}, but the step has {len(sliced_eqns)} layers")
        computed = again(origin_jaxpr, sliced_eqns)
        return [computed[n] if n in chosen else plain for n, plain in enumerate(sliced_eqns)]

    try:
        for ours in (slice_eqns_by_layer_boundary, remat_sliced_eqns):
            setattr(layer_construction, ours.__name__, ours)
        yield
    finally:
        for name, original in originals.items():
            setattr(layer_construction, name, original)
