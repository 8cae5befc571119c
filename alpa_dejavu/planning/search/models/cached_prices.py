"""The cache of what stages of a model cost and how it was sliced, beside that of the models themselves."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from typing import Any, TypeVar, final

from alpa_dejavu._util.content import content_digest
from alpa_dejavu.costs import kept_prices
from alpa_dejavu.costs.kept_prices import KeptPrices
from alpa_dejavu.costs.runtime import CostModels
from alpa_dejavu.planning.search.models.model_cache import Key, ModelCache, code_digest
from alpa_dejavu.slicing import Dynamic, Slicer
from alpa_dejavu.slicing.kept_slicings import KeptSlicings

__all__ = ["CachedPrices"]

T = TypeVar("T", KeptPrices, KeptSlicings)


@final
class CachedPrices:
    """A store of prices of stages by the key of their model and the content of the cost models, and of slicings; what
    it learns is written to a cache. None for the cache: nothing is kept.
    """

    def __init__(self, cache: ModelCache | None) -> None:
        self._cache = cache
        self._digests: dict[int, tuple[CostModels, str | None]] = {}
        self._entries: dict[str, tuple[Key, KeptPrices | KeptSlicings]] = {}

    def of(self, model: Key, num_layers: int, models: CostModels) -> KeptPrices | None:
        """Returns the prices of stages of a model cut into so many layers, in which those from before are; None where
        they can't be kept: there is no cache, or the content of the cost models isn't known.
        """
        digest = None if self._cache is None else self._digest(models)
        if self._cache is None or digest is None:
            return None
        key = {**model, "num_layers": num_layers, "prices": digest}
        read = functools.partial(KeptPrices.of, num_layers=num_layers)
        return self._entry(self._cache, key, read, lambda: KeptPrices(num_layers))

    def remembering(self, model: Key, slicer: Slicer) -> Slicer:
        """Returns a slicer that remembers what it answered before, by the content of a problem; the given one if it
        can't, or where there is no cache. The answers of each model have a file of their own.
        """
        if self._cache is None or not isinstance(slicer, Dynamic):
            return slicer
        key = {
            **model,
            "slicings": content_digest(code_digest("_util", "schedules", "simulation", "slicing"), slicer.effort),
        }
        kept = self._entry(self._cache, key, KeptSlicings.from_data, KeptSlicings)
        return dataclasses.replace(slicer, kept=kept)

    def _entry(self, cache: ModelCache, key: Key, read: Callable[[Any], T], make: Callable[[], T]) -> T:
        name = content_digest(key)
        if name not in self._entries:
            self._entries[name] = key, cache.read(key, read) or make()
        return self._entries[name][1]  # type: ignore[return-value]

    def keep(self) -> None:
        """Writes the stores to which something was added; of two processes that do so the last one's are kept."""
        for key, store in self._entries.values():
            if self._cache is not None and store.changed:
                self._cache.write(key, store.data())
                store.changed = False

    def _digest(self, models: CostModels) -> str | None:
        """Returns a digest of cost models and their code; None where one isn't of this package, or has a content that
        isn't known.
        """
        if id(models) not in self._digests:
            ours = all(type(m).__module__.startswith(_PACKAGE) for m in (models.latency, models.communication))
            try:
                digest = content_digest(code_digest(*_MADE_BY), models) if ours else None
            except TypeError:
                digest = None
            self._digests[id(models)] = models, digest  # they are kept, so that their id stays theirs
        return self._digests[id(models)][1]


_PACKAGE = kept_prices.__name__.rpartition(".")[0]
_MADE_BY = "_util", "clusters", "costs"
