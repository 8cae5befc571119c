"""Where the planner gets a model from: traced at the micro-batch that is asked for, or given for one of them."""

from __future__ import annotations

import abc
from collections.abc import Callable, Sequence
from typing import Any, final

from alpa_dejavu.micro_batch import with_micro_batch
from alpa_dejavu.problem import Model

__all__ = ["GivenModel", "ModelSource", "TracedModel"]


class ModelSource(abc.ABC):
    """A model at any number of layers and micro-batch."""

    name: str
    training: bool
    traces: bool
    """Whether `exact` has any micro-batch."""

    @abc.abstractmethod
    def numbers_of_layers(self, wanted: Sequence[int]) -> tuple[int, ...]:
        """The wanted numbers, or the nearest lower ones that the model can be cut into, each once."""

    @abc.abstractmethod
    def knows(self, num_layers: int, micro_batch: int) -> bool:
        """Whether `exact` would cost nothing."""

    @abc.abstractmethod
    def exact(self, num_layers: int, micro_batch: int) -> Model:
        """The layers as they are with just so many samples in a micro-batch."""

    @abc.abstractmethod
    def scaled(self, num_layers: int, micro_batch: int) -> Model:
        """The layers, scaled from the nearest micro-batch that is known."""

    def keep(self) -> None:
        """Writes what was learned to the cache, if there is one."""


@final
class GivenModel(ModelSource):
    """Layers that are given for one micro-batch."""

    traces = False

    def __init__(self, model: Model, micro_batch: int, name: str = "") -> None:
        self.model, self.micro_batch, self.name, self.training = model, micro_batch, name, model.training

    def numbers_of_layers(self, wanted: Sequence[int]) -> tuple[int, ...]:
        return (self.model.num_layers,)

    def knows(self, num_layers: int, micro_batch: int) -> bool:
        return micro_batch == self.micro_batch

    def exact(self, num_layers: int, micro_batch: int) -> Model:
        if not self.knows(num_layers, micro_batch):
            raise ValueError(f"micro_batch is {micro_batch}, but must be {self.micro_batch}")
        return self.model

    def scaled(self, num_layers: int, micro_batch: int) -> Model:
        if micro_batch == self.micro_batch:
            return self.model
        return with_micro_batch(self.model, micro_batch / self.micro_batch)


@final
class TracedModel(ModelSource):
    """A model function, traced at each micro-batch that is asked for."""

    traces = True

    def __init__(self, function: str | Callable[..., Any], first: int, cache: object = None) -> None:
        self._function, self._traced, self._models = function, dict[int, Any](), dict[tuple[int, int], Model]()
        self._first = first

    def _step(self, micro_batch: int) -> Any:
        from alpa_dejavu import layers

        if micro_batch not in self._traced:
            self._traced[micro_batch] = layers.trace(self._function, batch=micro_batch)
        return self._traced[micro_batch]

    @property
    def _any(self) -> Any:
        return self._step(self._first)

    @property
    def name(self) -> str:  # type: ignore[override]
        return self._any.name

    @property
    def training(self) -> bool:  # type: ignore[override]
        return self._any.training

    def numbers_of_layers(self, wanted: Sequence[int]) -> tuple[int, ...]:
        from alpa_dejavu import layers

        return tuple(dict.fromkeys(layers.most_layers(self._any, number) for number in wanted))

    def knows(self, num_layers: int, micro_batch: int) -> bool:
        return (num_layers, micro_batch) in self._models

    def exact(self, num_layers: int, micro_batch: int) -> Model:
        from alpa_dejavu import layers

        key = num_layers, micro_batch
        if key not in self._models:
            self._models[key] = layers.model_of_step(self._step(micro_batch), num_layers)
        return self._models[key]

    def scaled(self, num_layers: int, micro_batch: int) -> Model:
        known = [size for number, size in self._models if number == num_layers] or [*self._traced] or [micro_batch]
        nearest = min(known, key=lambda size: (max(size, micro_batch) / min(size, micro_batch), size))
        return with_micro_batch(self.exact(num_layers, nearest), micro_batch / nearest)
