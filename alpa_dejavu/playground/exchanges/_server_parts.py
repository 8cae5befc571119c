"""Parts of servers: parameters, gradients that are waited for, and the rule that makes one gradient of several."""

from __future__ import annotations

import collections
import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, final

import numpy as np

from alpa_dejavu.playground._arrays import Vector
from alpa_dejavu.playground._gradient import WorkerGradient
from alpa_dejavu.playground._queue import Message
from alpa_dejavu.playground._world import Worker, World
from alpa_dejavu.playground.exchanges._all_reduce import mean_gradient

if TYPE_CHECKING:
    from alpa_dejavu.training.robust import Rule


@final
class ServerModel:
    """The parameters that a server has. Where its worker was lost and came back they are those of the beginning, as of
    a newer version than all that it had sent, and what it had applied is undone.
    """

    def __init__(self, worker: Worker, combine: Callable[[Sequence[WorkerGradient]], Vector] = mean_gradient) -> None:
        world, self._combine = worker.world, combine
        self._worker, self._model, self._applied = worker, worker.replica(), collections.Counter[int]()
        before: ServerModel | None = world.board.get("held")
        world.board["held"] = self
        if before is not None and before.version:
            self._model.version = before.version + 1
            world.shown = self._model.params
            before._undo()

    @property
    def version(self) -> int:
        """Returns how many updates were made, and times that they were undone."""
        return self._model.version

    @property
    def params(self) -> Vector:
        return self._model.params

    def update(self, got: Mapping[int, Message]) -> None:
        """Updates by the mean, or what else makes one, of some workers' gradients, by their numbers."""
        gradients = [message.payload for _, message in sorted(got.items())]
        self._applied.update(self.version - gradient.version for gradient in gradients)
        self._model.update(self._combine(gradients), *gradients)
        self._worker.world.shown = self._model.params

    def _undo(self) -> None:
        recorder = self._worker.world.recorder
        for staleness, gradients in self._applied.items():
            recorder.undone(gradients, staleness)
        recorder.note(f"the server on worker {self._worker.number} was lost with its parameters, and began again with "
                      "those of the beginning; what it had applied is among the lost updates")  # fmt: skip

    def reply(self, message: Message) -> None:
        """Sends the parameters to whom a gradient is from."""
        if is_here(self._worker.world, message):
            params = self._model.params, self._model.version
            self._worker.send(message.sender, "params", params, self._worker.world.num_bytes)


def is_here(world: World, message: Message) -> bool:
    """Returns whether the worker that sent a message wasn't lost since, even if it came back."""
    return world.present[message.sender] and message.sent_s >= world.came_s[message.sender]


def arrived_from(world: World, got: Mapping[int, Message]) -> list[int]:
    """Returns the workers that needn't be waited for any more: those of the gradients that aren't lost."""
    return [number for number, message in got.items() if is_here(world, message)]


def replace(got: dict[int, Message], message: Message, drop: Callable[[WorkerGradient], None]) -> None:
    """Adds a gradient to others; one that its worker sent before it was lost gives way to it."""
    if message.sender in got:
        drop(got[message.sender].payload)
    got[message.sender] = message


def combiner(name: str, wrong: int) -> Callable[[Sequence[WorkerGradient]], Vector]:
    """Returns what makes one gradient of the workers' ones: a rule of `alpa_dejavu.training.robust`, or their mean."""
    if name == "mean" and not wrong:
        return mean_gradient
    chosen = _named_rule(name, wrong)
    kept: dict[str, Any] = {"state": None, "count": 0}

    def combine(gradients: Sequence[WorkerGradient]) -> Vector:
        import jax

        vectors = [gradient.values for gradient in gradients]
        if vectors[0].size == 0:  # time alone
            return vectors[0]
        if "program" not in kept:
            kept["program"] = jax.jit(chosen.aggregate)
        if kept["count"] != len(vectors):  # workers came or went
            kept.update(state=None, count=len(vectors))
        aggregated = kept["program"](np.stack(vectors), kept["state"])
        kept["state"] = aggregated.state
        return np.asarray(aggregated.gradient)

    return combine


def check_count(name: str, wrong: int, count: int) -> None:
    """Raises ValueError where a rule needs more workers than there are."""
    if name != "mean":
        import jax

        chosen = _named_rule(name, wrong)
        gradients = jax.ShapeDtypeStruct((count, 1), np.float32)
        jax.eval_shape(lambda rows: chosen.aggregate(rows).gradient, gradients)


def _named_rule(name: str, wrong: int) -> Rule:
    from alpa_dejavu.training.robust import RULES, rule

    if name in ("zeno", "zeno++"):
        raise ValueError(f"server: rule is {name!r}, but must be one without fresh samples; choose suspicion or krum")
    takes = name in RULES and "wrong" in {field.name for field in dataclasses.fields(RULES[name])}  # type: ignore[arg-type]
    if wrong and name in RULES and not takes:
        raise ValueError(f"server: wrong is {wrong}, but must be 0 for the rule {name!r}; leave it out")
    return rule(name, wrong=wrong) if takes else rule(name)
