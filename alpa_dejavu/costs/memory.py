"""The memory that a stage keeps, for all ranges of layers at once, and how many stages may follow it."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable
from typing import final

import numpy as np
from numpy.typing import NDArray

from alpa_dejavu._util.range_sums import FloatArray, range_max, touched_sum
from alpa_dejavu.problem import MemoryShares, Model, Run
from alpa_dejavu.problem.slicing_problem import NO_LIMIT

__all__ = ["ModelMemory", "StageMemory", "stage_memory", "successors_that_fit"]

@final
@dataclasses.dataclass(frozen=True, eq=False)
class ModelMemory:
    """The bytes of a model's whole (unsharded) tensors for each range of layers i..j, each of shape (L, L).

    `activations` are those of one micro-batch that wait for its backward pass; `layer_inputs` what its layers take in
    from other layers or from outside, which is all that remat keeps; `temporaries` the largest layer's while it
    computes, `remat_temporaries` the same where its backward pass computes its activations again.
    """

    parameters: FloatArray
    gradients: FloatArray
    optimizer: FloatArray
    activations: FloatArray
    layer_inputs: FloatArray
    temporaries: FloatArray
    remat_temporaries: FloatArray

    @classmethod
    def of(cls, model: Model) -> ModelMemory:
        """Returns the bytes of a model's unsharded tensors (parameters, activations ...) for each range of layers i..j.

        Each tensor counts once in a range, however many of its layers use it.
        """
        num_layers = model.num_layers

        def held(*roles: str) -> FloatArray:
            return touched_sum(num_layers, _users(model, roles, first_position=0))

        parameters, gradients = held("parameter"), held("gradient")
        if model.training and not gradients.any():
            gradients = touched_sum(num_layers, _users(model, ("parameter",), first_position=num_layers))
        waiting = touched_sum(num_layers, _users(model, ("activation", "input"), first_position=num_layers))
        layers = model.layers
        temporaries = [max(layer.forward_temporary_bytes, layer.backward_temporary_bytes) for layer in layers]
        again = [both + own for both, own in zip(temporaries, np.diag(waiting).tolist(), strict=True)]
        return cls(
            parameters,
            gradients,
            held("optimizer"),
            waiting,
            touched_sum(num_layers, _inputs(model)),
            range_max(temporaries),
            range_max(again),
        )


def _inputs(model: Model) -> Iterable[tuple[float, int, list[int]]]:
    """Yields the tensors that layers take in forward from other layers and from outside, where a backward follows."""
    for tensor in model.tensors if model.training else ():
        if tensor.role in ("activation", "input") and tensor.producer < model.num_layers:
            users = [user for user in tensor.users if tensor.producer < user < model.num_layers]
            if users:
                yield tensor.num_bytes, 0, users


def _users(model: Model, roles: tuple[str, ...], first_position: int) -> Iterable[tuple[float, int, list[int]]]:
    """Yields the tensors of some roles with the layers that use them from a position on, of what exists before it."""
    last = 2 * model.num_layers - 1
    for tensor in model.tensors:
        if tensor.role in roles and tensor.producer < max(first_position, 1):
            users = sorted({min(position, last - position) for position in tensor.users if position >= first_position})
            if users:
                yield tensor.num_bytes, 0, users


@final
@dataclasses.dataclass(frozen=True, eq=False)
class StageMemory:
    """The bytes that a stage takes on each of its devices, for each range of layers i..j, each of shape (L, L).

    `resident` is there all the time, `per_micro_batch` for each micro-batch in flight, `temporary` while computing.
    """

    resident: FloatArray
    per_micro_batch: FloatArray
    temporary: FloatArray

    def peak(self, in_flight: int) -> FloatArray:
        """Returns the peak bytes on each device of a stage with so many micro-batches in flight, for each range of
        layers.
        """
        return self.resident + self.temporary + self.per_micro_batch * in_flight


def stage_memory(memory: ModelMemory, shares: MemoryShares, remat: bool = False) -> StageMemory:
    """Returns the bytes that each device keeps of a stage of layers i..j, given its shares of the unsharded tensors.

    With `remat` a layer keeps only its inputs, and computes the rest again before its backward pass.
    """
    kept = memory.layer_inputs * shares.layer_inputs if remat else memory.activations * shares.activations
    computing = memory.remat_temporaries if remat else memory.temporaries
    return StageMemory(
        resident=memory.parameters * shares.parameters
        + memory.gradients * shares.gradients
        + memory.optimizer * shares.optimizer,
        per_micro_batch=kept,
        temporary=computing * shares.temporaries,
    )


def successors_that_fit(stage: StageMemory, limit_bytes: float, run: Run) -> NDArray[np.int64]:
    """Returns for each stage of layers i..j how many stages may follow it so that it fits in a memory limit: Alpa's
    `max_n_succ_stages`, or -1 if it doesn't fit even as the last stage.

    Shape (L, L). A stage that is followed by n others keeps the activations of as many micro-batches as
    `Run.in_flight` says: of min(n+1, B) of B in 1F1B, of B in GPipe, of none in inference.
    """
    free = limit_bytes - stage.resident - stage.temporary
    with np.errstate(divide="ignore", invalid="ignore"):
        fitting = np.where(stage.per_micro_batch > 0, np.floor(free / stage.per_micro_batch), np.inf)
    fitting = np.where(free < 0, -1.0, fitting)
    first, each = run.form.first, run.form.each
    if each > 0 and math.isfinite(first):
        followed = np.ceil((fitting + 1 - first) / each - 1e-9) - 1
    else:
        followed = np.full(fitting.shape, -1.0)
    followed = np.where(fitting >= (run.num_micro_batches if each > 0 else 0), NO_LIMIT, followed)
    return np.clip(followed, -1, NO_LIMIT).astype(np.int64)
