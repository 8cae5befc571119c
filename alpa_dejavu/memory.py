"""What a stage keeps in memory, for all ranges of layers at once, and how many stages may follow it."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from typing import final

import numpy as np
from numpy.typing import NDArray

from alpa_dejavu._ranges import FloatArray, range_max, touched_sum
from alpa_dejavu.problem import MeshConfig, Model, Run
from alpa_dejavu.problem._slicing import NO_LIMIT

__all__ = ["ModelMemory", "StageMemory", "stage_memory", "successors_that_fit"]

_REPLICATED_SHARE = 10 / 34
"""The share of a transformer layer's activations that tensor parallelism leaves whole on every device: Korthikanti et
al., Reducing Activation Recomputation in Large Transformer Models, MLSys 2023, equation 2, without the attention's."""


@final
@dataclasses.dataclass(frozen=True, eq=False)
class ModelMemory:
    """Bytes of the whole (unsharded) tensors for layers i..j, each of shape (L, L).

    `activations` are those of one micro-batch that wait for its backward; `temporaries` the largest layer's.
    """

    parameters: FloatArray
    gradients: FloatArray
    optimizer: FloatArray
    activations: FloatArray
    temporaries: FloatArray

    @classmethod
    def of(cls, model: Model) -> ModelMemory:
        """Counts each tensor once for each range of layers, however many of its layers use it."""
        num_layers = model.num_layers

        def held(*roles: str) -> FloatArray:
            return touched_sum(num_layers, _users(model, roles, first_position=0))

        parameters, gradients = held("parameter"), held("gradient")
        if model.training and not gradients.any():
            gradients = touched_sum(num_layers, _users(model, ("parameter",), first_position=num_layers))
        waiting = touched_sum(num_layers, _users(model, ("activation", "input"), first_position=num_layers))
        layers = model.layers
        temporaries = range_max([max(x.forward_temporary_bytes, x.backward_temporary_bytes) for x in layers])
        return cls(parameters, gradients, held("optimizer"), waiting, temporaries)


def _users(model: Model, roles: tuple[str, ...], first_position: int) -> Iterable[tuple[float, int, list[int]]]:
    """The tensors of some roles with the layers that use them from a position on, of what exists before it."""
    for tensor in model.tensors:
        if tensor.role in roles and tensor.producer < max(first_position, 1):
            users = sorted({model.layer_of(position) for position in tensor.users if position >= first_position})
            if users:
                yield tensor.num_bytes, 0, users


@final
@dataclasses.dataclass(frozen=True, eq=False)
class StageMemory:
    """Bytes on each device for layers i..j, each of shape (L, L).

    `resident` is there all the time, `per_micro_batch` for each micro-batch in flight, `temporary` while computing.
    """

    resident: FloatArray
    per_micro_batch: FloatArray
    temporary: FloatArray

    def peak(self, in_flight: int) -> FloatArray:
        """With so many micro-batches in flight."""
        return self.resident + self.temporary + self.per_micro_batch * in_flight


def stage_memory(memory: ModelMemory, config: MeshConfig, run: Run) -> StageMemory:
    """What each device of a mesh keeps: parameters and gradients divided among tensor-parallel devices, the optimizer's
    state among data-parallel ones too if it is sharded, activations among both but for what stays whole.
    """
    along, across = config.tensor_parallel, config.data_parallel
    sharing = along * (across if run.sharded_optimizer else 1)
    activation_share = (_REPLICATED_SHARE + (1 - _REPLICATED_SHARE) / along) / across
    return StageMemory(
        resident=(memory.parameters + memory.gradients) / along + memory.optimizer / sharing,
        per_micro_batch=memory.activations * activation_share,
        temporary=memory.temporaries * activation_share,
    )


def successors_that_fit(stage: StageMemory, limit_bytes: float, run: Run) -> NDArray[np.int64]:
    """How many stages may follow layers i..j before memory is full: Alpa's `max_n_succ_stages`, -1 if not even none.

    Shape (L, L). A stage of a pipeline of S that is followed by n others keeps min(n+1, B) micro-batches in 1F1B,
    min(2n+1, B) in the overlap-friendly one, B in GPipe and none in inference.
    """
    free = limit_bytes - stage.resident - stage.temporary
    with np.errstate(divide="ignore", invalid="ignore"):
        fitting = np.where(stage.per_micro_batch > 0, np.floor(free / stage.per_micro_batch), np.inf)
    fitting = np.where(free < 0, -1.0, fitting)
    if run.schedule == "inference":
        followed = np.where(fitting >= 0, NO_LIMIT, -1)
    elif run.schedule == "gpipe":
        followed = np.where(fitting >= run.num_micro_batches, NO_LIMIT, -1)
    else:
        step = 1 if run.schedule == "1f1b" else 2
        followed = np.where(fitting >= run.num_micro_batches, NO_LIMIT, np.floor((fitting - 1) / step))
    return np.clip(followed, -1, NO_LIMIT).astype(np.int64)
