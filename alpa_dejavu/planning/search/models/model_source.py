"""The sources of models for planning, cut into any number of layers, for a micro-batch of any size."""

from __future__ import annotations

import abc
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import ClassVar, final

from alpa_dejavu.costs.kept_prices import KeptPrices
from alpa_dejavu.costs.runtime import CostModels
from alpa_dejavu.layers.micro_batch import with_micro_batch
from alpa_dejavu.problem import Model
from alpa_dejavu.slicing import Slicer

__all__ = ["GivenModel", "ModelSource", "checked_micro_batch", "nearest_samples", "scaled_model"]


class ModelSource(abc.ABC):
    """A source of a model at any number of layers and samples in a micro-batch, by tracing, scaling or from a cache.

    Attributes:
        micro_batch: the samples of the micro-batch for which the model is given or traced first.
        traces: whether the model can be traced anew for any other micro-batch; else it can only be scaled.
        scales: whether a scaled model may be off; else it is always as exact as any.
    """

    micro_batch: int
    traces: ClassVar[bool]
    scales: ClassVar[bool] = True

    @property
    @abc.abstractmethod
    def name(self) -> str:
        """Returns the model's name."""

    @property
    @abc.abstractmethod
    def training(self) -> bool:
        """Returns whether a step of the model computes gradients."""

    @property
    def notes(self) -> tuple[str, ...]:
        """Returns sentences on the model that each of its plans has to carry."""
        return ()

    @abc.abstractmethod
    def numbers_of_layers(self, wanted: Sequence[int]) -> tuple[int, ...]:
        """Returns the wanted numbers of layers, or the nearest lower ones that the model can be cut into, each once."""

    @abc.abstractmethod
    def exact(self, num_layers: int, micro_batch: int) -> Model:
        """Returns the model cut into so many layers, made for exactly so many samples in a micro-batch.

        Raises:
            ValueError: the model can't be cut so, or isn't known for so many samples and can't be traced.
        """

    @abc.abstractmethod
    def scaled(self, num_layers: int, micro_batch: int) -> Model:
        """Returns the model for so many samples in a micro-batch, scaled from the nearest number that is known exactly.

        Operators and tensors that grow with the batch are scaled in proportion. `exact` gives a better model, at a
        higher cost.
        """

    def nearest(self, num_layers: int, micro_batch: int) -> int:
        """Returns from how many samples `scaled` scales the model to a micro-batch."""
        return self.micro_batch

    def exact_models(self, num_layers: int) -> Mapping[int, Model]:
        """Returns the models of so many layers that were made exactly so far, by the samples of their micro-batches, as
        far as they can't be made again without tracing.
        """
        return {}

    def prices(self, num_layers: int, micro_batch: int, exact: bool, models: CostModels) -> KeptPrices | None:
        """Returns what stages of the model that `exact` or `scaled` has just returned are known to cost by some cost
        models, to which more may be added; None where nothing is kept.
        """
        return None

    def remembering(self, slicer: Slicer) -> Slicer:
        """Returns a slicer that answers as the given one does, and remembers problems of this model where there is a
        cache for it.
        """
        return slicer

    def keep(self) -> None:
        """Saves what was learned of the model for other processes, where there is a cache for it."""
        return


@final
class GivenModel(ModelSource):
    """A source of models that were given: Alpa's own layers, or those kept beside a plan.

    Args:
        model: the model's layers, for a micro-batch of `micro_batch` samples.
        micro_batch: the samples of that micro-batch.
        name: the model's name.
        others: the same layers, by the samples of other micro-batches.
    """

    traces = False

    def __init__(
        self, model: Model, micro_batch: int, name: str = "model", others: Mapping[int, Model] | None = None
    ) -> None:
        self._model, self.micro_batch, self._name = model, checked_micro_batch(micro_batch), name
        self._models = {**(others or {}), micro_batch: model}

    @property
    def name(self) -> str:
        return self._name

    @property
    def training(self) -> bool:
        return self._model.training

    def numbers_of_layers(self, wanted: Sequence[int]) -> tuple[int, ...]:
        return (self._model.num_layers,)

    def exact(self, num_layers: int, micro_batch: int) -> Model:
        if micro_batch not in self._models:
            raise ValueError(
                f"micro_batch is {micro_batch}, but must be {self.micro_batch}, with which {self.name} was given; "
                "take the scaled model, or trace it"
            )
        return self.scaled(num_layers, micro_batch)

    def scaled(self, num_layers: int, micro_batch: int) -> Model:
        if num_layers != self._model.num_layers:
            raise ValueError(
                f"num_layers is {num_layers}, but must be {self._model.num_layers}, with which {self.name} was given; "
                "trace it to cut it otherwise"
            )
        samples = self.nearest(num_layers, checked_micro_batch(micro_batch))
        return scaled_model(self._models[samples], samples, micro_batch)

    def nearest(self, num_layers: int, micro_batch: int) -> int:
        return nearest_samples(self._models, micro_batch)

    def exact_models(self, num_layers: int) -> Mapping[int, Model]:
        return self._models


def scaled_model(model: Model, exact: int, micro_batch: int) -> Model:
    """Returns a model scaled from `exact` samples in a micro-batch to `micro_batch` samples."""
    return model if exact == micro_batch else with_micro_batch(model, micro_batch / exact)


def nearest_samples(exact: Iterable[int], micro_batch: int) -> int:
    """Returns the samples of a micro-batch, of those given, that is the nearest to another one by their ratio; of two
    that are as near the larger, which says more of what grows.
    """
    return min(exact, key=lambda samples: (abs(math.log(samples / micro_batch)), -samples))


def checked_micro_batch(micro_batch: int) -> int:
    """Returns the given number of samples in a micro-batch, after checking that it is at least 1."""
    if micro_batch < 1:
        raise ValueError(f"micro_batch is {micro_batch}, but must be at least 1; give the samples of a micro-batch")
    return micro_batch
