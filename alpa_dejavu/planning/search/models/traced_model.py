"""A model for planning that is traced, or read from the cache of what was learned before."""

from __future__ import annotations

import contextlib
import copy
import dataclasses
from collections.abc import Callable, Mapping, Sequence
from functools import cache, partial
from typing import TYPE_CHECKING, Any, final

from alpa_dejavu._util.collector import collector_paused
from alpa_dejavu._util.phases import phase
from alpa_dejavu.costs.kept_prices import KeptPrices
from alpa_dejavu.costs.runtime import CostModels
from alpa_dejavu.layers.models import known_name
from alpa_dejavu.planning.search.models._sharding import entry_of, meshes_of, model_of_entry, remembering
from alpa_dejavu.planning.search.models.cached_prices import CachedPrices
from alpa_dejavu.planning.search.models.model_cache import Key, ModelCache, code_digest
from alpa_dejavu.planning.search.models.model_source import (
    ModelSource,
    checked_micro_batch,
    nearest_samples,
    scaled_model,
)
from alpa_dejavu.problem import Model
from alpa_dejavu.slicing import Slicer

if TYPE_CHECKING:
    from alpa_dejavu.layers import AttentionFound, TracedStep
    from alpa_dejavu.sharding.solved import SolvedLayers

__all__ = ["TracedModel"]


@final
class TracedModel(ModelSource):
    """A source of a model, cut into any number of layers for any micro-batch, that traces a function or reads what a
    cache has of it.

    Models by name are found in the cache by their name, without a trace; others by the content of their trace. A model
    from the cache is the same to the bit as one that is traced anew.

    Args:
        model: a function that takes a batch size and returns a train step with its arguments; or its name,
            "module:function" or one of `alpa_dejavu.layers.models`.
        micro_batch: samples in the micro-batch for which the model is traced first, and from which it is scaled unless
            another one was traced.
        cache: the cache of models; None: nothing is read from a cache or written to one.
        lap: a function that is called with the name of what has just been done: "import", "trace", "features", "cache".
        attention: how attention that is written out is computed: "plain", as XLA compiles it, or "fused".
        sequence_parallel: whether tensor-parallel devices may divide norms and residuals, by tokens.

    Raises:
        ValueError: a micro-batch without samples; and, once the model has to be traced, a function that can't be.
    """

    traces = True

    def __init__(
        self,
        model: str | Callable[..., Any],
        micro_batch: int,
        cache: ModelCache | None = None,
        lap: Callable[[str], None] = lambda name: None,
        attention: str = "plain",
        sequence_parallel: bool = False,
    ) -> None:
        self._model, self._cache, self._lap, self._attention = model, cache, lap, attention
        self._options: dict[str, Any] = {"attention": attention, "sequence_parallel": sequence_parallel}
        self.micro_batch = checked_micro_batch(micro_batch)
        self._known_name = known_name(model) if isinstance(model, str) else None
        self._steps: dict[int, TracedStep] = {}
        self._keys: dict[int, Key] = {}
        self._models: dict[tuple[int, int], Model] = {}
        self._made_before: dict[tuple[int, int], Model] = {}
        self._kept: dict[tuple[int, int], int] = {}
        self._known_facts: _ModelFacts | None = None
        self._prices = CachedPrices(cache)

    def anew(self) -> TracedModel:
        """Returns a source of the same model that needn't trace, cut or shard again what was before, and from which
        plans are the same as from a new one.
        """
        other = copy.copy(self)
        other._models = {}
        return other

    @property
    def name(self) -> str:
        return self._model if isinstance(self._model, str) else self._step(self.micro_batch).name

    @property
    def training(self) -> bool:
        return self._facts().training

    @property
    def notes(self) -> tuple[str, ...]:
        of_trace = () if self._known_name is not None else self._step(self.micro_batch).notes
        attention = self._facts().attention.note(self._attention, next(iter(self._models.values()), None))
        return of_trace if attention is None else (*of_trace, attention)

    def numbers_of_layers(self, wanted: Sequence[int]) -> tuple[int, ...]:
        most = self._facts().most_layers
        for number in wanted:
            if number not in most:
                from alpa_dejavu import layers

                most[number] = layers.most_layers(self._step(self.micro_batch), number)
        return tuple(dict.fromkeys(most[number] for number in wanted))

    def exact(self, num_layers: int, micro_batch: int) -> Model:
        place = num_layers, checked_micro_batch(micro_batch)
        if place not in self._models:
            self._models[place] = self._made_before.get(place) or self._read(*place) or self._made(*place)
            self._made_before[place] = self._models[place]
        return self._models[place]

    def scaled(self, num_layers: int, micro_batch: int) -> Model:
        # From what was traced or read in this process: other entries of the cache aren't looked at, so that a plan
        # doesn't depend on what was planned before.
        samples = self.nearest(num_layers, checked_micro_batch(micro_batch))
        return scaled_model(self.exact(num_layers, samples), samples, micro_batch)

    def nearest(self, num_layers: int, micro_batch: int) -> int:
        exact = [samples for number, samples in self._models if number == num_layers] or [self.micro_batch]
        return nearest_samples(exact, micro_batch)

    def exact_models(self, num_layers: int) -> Mapping[int, Model]:
        return {samples: model for (number, samples), model in self._models.items() if number == num_layers}

    def prices(self, num_layers: int, micro_batch: int, exact: bool, models: CostModels) -> KeptPrices | None:
        if self._cache is None:
            return None
        key = self._key(micro_batch if exact else self.nearest(num_layers, micro_batch), num_layers)
        return self._prices.of({**key, "scaled_to": micro_batch}, num_layers, models)

    def remembering(self, slicer: Slicer) -> Slicer:
        return slicer if self._cache is None else self._prices.remembering(self._key(self.micro_batch), slicer)

    def keep(self) -> None:
        if self._cache is None:
            return
        self._prices.keep()
        facts = self._known_facts
        if facts is not None and len(facts.most_layers) > facts.num_kept:
            self._cache.write(self._key(self.micro_batch), facts.data())
            facts.num_kept = len(facts.most_layers)
        for (num_layers, micro_batch), model in self._models.items():
            meshes = len(meshes_of(model))
            if meshes > self._kept.get((num_layers, micro_batch), -1):
                # What doesn't fit the format isn't kept.
                with collector_paused(), contextlib.suppress(ValueError):
                    self._cache.write(self._key(micro_batch, num_layers), entry_of(model))
                self._kept[num_layers, micro_batch] = meshes

    def _step(self, micro_batch: int) -> TracedStep:
        if micro_batch not in self._steps:
            phase("importing jax")
            from alpa_dejavu import layers

            self._lap("import")
            phase("tracing the model")
            self._steps[micro_batch] = layers.trace(self._model, batch=micro_batch)
            self._lap("trace")
        return self._steps[micro_batch]

    def _key(self, micro_batch: int, num_layers: int | None = None) -> Key:
        if micro_batch not in self._keys:
            name = self._known_name
            if not name:
                from alpa_dejavu import layers

                name = layers.step_digest(self._step(micro_batch))
            key = {"model": name, "code": code_digest(), "micro_batch": micro_batch, **self._options}
            self._keys[micro_batch] = key
        return {**self._keys[micro_batch], "num_layers": num_layers}

    def _facts(self) -> _ModelFacts:
        if self._known_facts is None and self._cache is not None:
            self._known_facts = self._cache.read(self._key(self.micro_batch), _ModelFacts.of)
            if self._known_facts is not None:
                self._lap("cache")
        if self._known_facts is None:
            from alpa_dejavu import layers

            step = self._step(self.micro_batch)
            self._known_facts = _ModelFacts(step.training, layers.attention_of(step))
        return self._known_facts

    def _read(self, num_layers: int, micro_batch: int) -> Model | None:
        if self._cache is None:
            return None

        @cache
        def solver() -> SolvedLayers:
            """For meshes that the cache doesn't know: the model is traced for it."""
            step = self._step(micro_batch)
            from alpa_dejavu import sharding

            return sharding.solver_of_step(step, num_layers, **self._options)

        make = partial(model_of_entry, num_layers=num_layers, solve=lambda *mesh: solver()(*mesh))
        model = self._cache.read(self._key(micro_batch, num_layers), make)
        if model is not None:
            self._kept[num_layers, micro_batch] = len(meshes_of(model))
            self._lap("cache")
        return model

    def _made(self, num_layers: int, micro_batch: int) -> Model:
        traced = self._step(micro_batch)
        phase(f"cutting the model into {num_layers} layers")
        from alpa_dejavu import sharding

        model = remembering(sharding.model_of_step(traced, num_layers, **self._options))
        self._lap("features")
        return model


@final
class _ModelFacts:
    """The facts on a model before it is cut: whether it trains, how much attention it has, and how many layers each
    wanted number gives.
    """

    def __init__(self, training: bool, attention: AttentionFound, most_layers: Mapping[int, int] | None = None) -> None:
        self.training, self.attention, self.most_layers = training, attention, dict(most_layers or {})
        self.num_kept = -1 if most_layers is None else len(most_layers)

    @classmethod
    def of(cls, data: Any) -> _ModelFacts:
        from alpa_dejavu.layers import AttentionFound

        most = {int(wanted): int(most) for wanted, most in data["most_layers"].items()}
        # A step with marks has as many layers as its marks make, whatever is wanted.
        if any(layers < 1 for layers in most.values()):
            raise ValueError(f"most_layers is {most}, but must be at least 1 layer for each wanted number")
        return cls(bool(data["training"]), AttentionFound(*map(int, data["attention"])), most)

    def data(self) -> dict[str, Any]:
        return {
            "training": self.training,
            "attention": list(dataclasses.astuple(self.attention)),
            "most_layers": {str(key): most for key, most in self.most_layers.items()},
        }
