"""The sources of models for planning, cut into any number of layers, for a micro-batch of any size."""

from __future__ import annotations

import abc
from collections.abc import Sequence
from typing import ClassVar, final

from alpa_dejavu.layers.micro_batch import with_micro_batch
from alpa_dejavu.problem import Model

__all__ = ["GivenModel", "ModelSource", "checked_micro_batch", "scaled_model"]


class ModelSource(abc.ABC):
    """A source of a model at any number of layers and samples in a micro-batch, as far as it can be had.

    Attributes:
        name: of the model.
        training: whether its step takes gradients.
        micro_batch: the samples of the micro-batch that it is known for first.
        traces: whether `exact` has any micro-batch, and not only that one.
    """

    micro_batch: int
    traces: ClassVar[bool]

    @property
    @abc.abstractmethod
    def name(self) -> str:
        """Returns the model's name."""

    @property
    @abc.abstractmethod
    def training(self) -> bool:
        """Whether the step takes gradients."""

    @abc.abstractmethod
    def numbers_of_layers(self, wanted: Sequence[int]) -> tuple[int, ...]:
        """The wanted numbers, or the nearest lower ones that the model can be cut into, each once."""

    @abc.abstractmethod
    def knows(self, num_layers: int, micro_batch: int) -> bool:
        """Returns whether `exact` has the answer at hand.

        That hangs on what was asked before, in other processes too: what is planned may not.
        """

    @abc.abstractmethod
    def exact(self, num_layers: int, micro_batch: int) -> Model:
        """The model cut into so many layers, for exactly so many samples in a micro-batch.

        Raises:
            ValueError: it can't be had so.
        """

    @abc.abstractmethod
    def scaled(self, num_layers: int, micro_batch: int) -> Model:
        """The model for a micro-batch of so many samples, scaled from the nearest one that is known exactly.

        What has a batch dimension is taken to grow by it. See `exact` for what is better, and dearer.
        """

    @abc.abstractmethod
    def keep(self) -> None:
        """Leaves what was learned for other processes, where there is a place for it."""


@final
class GivenModel(ModelSource):
    """A model that there is once: Alpa's own layers, or what was kept beside a plan.

    Args:
        model: the model for a micro-batch of so many samples.
        micro_batch: those samples.
        name: the model's.
    """

    traces = False

    def __init__(self, model: Model, micro_batch: int, name: str = "model") -> None:
        self._model, self.micro_batch, self._name = model, checked_micro_batch(micro_batch), name

    @property
    def name(self) -> str:
        """Returns the model's name as it was given."""
        return self._name

    @property
    def training(self) -> bool:
        """Returns whether its layers have backward passes."""
        return self._model.training

    def keep(self) -> None:
        """Keeps nothing: a given model was not learned."""

    def numbers_of_layers(self, wanted: Sequence[int]) -> tuple[int, ...]:
        """Returns the number that it has, whatever is wanted."""
        return (self._model.num_layers,)

    def knows(self, num_layers: int, micro_batch: int) -> bool:
        """Returns whether the given model is cut so, and for so many samples."""
        return (num_layers, micro_batch) == (self._model.num_layers, self.micro_batch)

    def exact(self, num_layers: int, micro_batch: int) -> Model:
        """Returns the model as it was given.

        Raises:
            ValueError: it was given for another number of layers or samples.
        """
        if micro_batch != self.micro_batch:
            raise ValueError(
                f"micro_batch is {micro_batch}, but must be {self.micro_batch}, with which {self.name} was given; "
                "take the scaled model, or trace it"
            )
        return self._whole(num_layers)

    def scaled(self, num_layers: int, micro_batch: int) -> Model:
        """Returns the model, scaled from the samples that it was given with.

        Raises:
            ValueError: it was given for another number of layers.
        """
        return scaled_model(self._whole(num_layers), self.micro_batch, checked_micro_batch(micro_batch))

    def _whole(self, num_layers: int) -> Model:
        if num_layers != self._model.num_layers:
            raise ValueError(
                f"num_layers is {num_layers}, but must be {self._model.num_layers}, with which {self.name} was given; "
                "trace it to cut it otherwise"
            )
        return self._model


def scaled_model(model: Model, known: int, micro_batch: int) -> Model:
    """Returns a model that is known for one number of samples for another one."""
    return model if known == micro_batch else with_micro_batch(model, micro_batch / known)


def checked_micro_batch(micro_batch: int) -> int:
    """Returns the samples of a micro-batch, of which there must be some."""
    if micro_batch < 1:
        raise ValueError(f"micro_batch is {micro_batch}, but must be at least 1; give the samples of a micro-batch")
    return micro_batch
