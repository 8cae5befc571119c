"""The memory that a stage keeps, for all ranges of layers at once, and how many stages may follow it."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, final

import numpy as np
from numpy.typing import NDArray

from alpa_dejavu._util.range_sums import FloatArray, range_max, touched_sum
from alpa_dejavu.problem import NO_OFFLOAD, MemoryShares, Model, Offload, Run
from alpa_dejavu.problem.slicing_problem import NO_LIMIT

if TYPE_CHECKING:
    from jaxtyping import Bool, Float, Int

_WITH_COPIES = 5.0
"""An optimizer's state of more bytes than so many times the parameters' has float32 copies of these: beside parameters
of 16 bits Adam's moments take 4 times their bytes, with the copies 6 times."""


@final
@dataclasses.dataclass(frozen=True, eq=False)
class ModelMemory:
    """The bytes of a model's whole (unsharded) tensors for each range of layers i..j.

    `activations` are those of one micro-batch that wait for its backward pass; `layer_inputs` what its layers take in
    from other layers or from outside, which is all that remat keeps; `temporaries` the largest layer's while it
    computes, `remat_temporaries` the same where its backward pass computes its activations again; `largest_parameter`
    those of one parameter and, in training, of its gradient.
    """

    parameters: Float[FloatArray, "L L"]
    gradients: Float[FloatArray, "L L"]
    optimizer: Float[FloatArray, "L L"]
    activations: Float[FloatArray, "L L"]
    layer_inputs: Float[FloatArray, "L L"]
    temporaries: Float[FloatArray, "L L"]
    remat_temporaries: Float[FloatArray, "L L"]
    largest_parameter: Float[FloatArray, "L L"]

    @classmethod
    def of(cls, model: Model) -> ModelMemory:
        """Returns these bytes of a model; each tensor counts once in a range, however many of its layers use it."""
        num_layers = model.num_layers

        def bytes_of(*roles: str) -> FloatArray:
            return touched_sum(num_layers, _users(model, roles, first_position=0))

        parameters, gradients = bytes_of("parameter"), bytes_of("gradient")
        if model.training and not gradients.any():
            gradients = touched_sum(num_layers, _users(model, ("parameter",), first_position=num_layers))
        waiting = touched_sum(num_layers, _users(model, ("activation", "input"), first_position=num_layers))
        layers = model.layers
        temporaries = [max(layer.forward_temporary_bytes, layer.backward_temporary_bytes) for layer in layers]
        again = [
            both + own if layer.recomputing is None else layer.recomputing.temporary_bytes
            for layer, both, own in zip(layers, temporaries, np.diag(waiting).tolist(), strict=True)
        ]
        return cls(
            parameters,
            gradients,
            bytes_of("optimizer"),
            waiting,
            touched_sum(num_layers, _inputs(model)),
            range_max(temporaries),
            range_max(again),
            range_max(_largest_parameters(model)),
        )


def _largest_parameters(model: Model) -> list[float]:
    """Returns for each layer the bytes of its largest parameter, with its gradient where the model is trained."""
    largest = [0.0] * model.num_layers
    for tensor in model.tensors:
        if tensor.role == "parameter":
            for position in tensor.users:
                layer = min(position, 2 * model.num_layers - 1 - position)
                largest[layer] = max(largest[layer], tensor.num_bytes * (2 if model.training else 1))
    return largest


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
@dataclasses.dataclass(frozen=True)
class MemoryLimits:
    """The bytes that a stage may take of each of its devices, and for each of them of its hosts' memory and drives."""

    device_bytes: float
    host_bytes: float = 0.0
    nvme_bytes: float = 0.0

    def hold(self, stage: StageMemory, in_flight: int) -> Bool[NDArray[np.bool_], "L L"]:
        """Returns whether a stage of layers i..j with so many micro-batches in flight fits in the limits."""
        fits = stage.peak(in_flight) <= self.device_bytes
        offloaded = stage.elsewhere
        if offloaded is None:
            return np.asarray(fits)
        return np.asarray(fits & (offloaded.peak(in_flight) <= self.host_bytes) & (offloaded.nvme <= self.nvme_bytes))


@final
@dataclasses.dataclass(frozen=True, eq=False)
class OffloadedMemory:
    """The bytes of a stage that its hosts keep for each of its devices, for each range of layers i..j: in memory all
    the time, and for each micro-batch in flight, and on drives.
    """

    resident: Float[FloatArray, "L L"]
    per_micro_batch: Float[FloatArray, "L L"]
    nvme: Float[FloatArray, "L L"]

    def peak(self, in_flight: int) -> FloatArray:
        """Returns the peak bytes in the hosts' memory for each device with so many micro-batches in flight."""
        return self.resident + self.per_micro_batch * in_flight


@final
@dataclasses.dataclass(frozen=True, eq=False)
class StageMemory:
    """The bytes that a stage takes on each of its devices, for each range of layers i..j.

    `resident` is there all the time, `per_micro_batch` for each micro-batch in flight, `temporary` while computing.
    `elsewhere` has what is offloaded; None: nothing is.
    """

    resident: Float[FloatArray, "L L"]
    per_micro_batch: Float[FloatArray, "L L"]
    temporary: Float[FloatArray, "L L"]
    elsewhere: OffloadedMemory | None = None

    @property
    def figures(self) -> Sequence[Float[FloatArray, "L L"]]:
        """Returns the arrays of bytes, of which `of` makes them again."""
        own, other = (self.resident, self.per_micro_batch, self.temporary), self.elsewhere
        return own if other is None else (*own, other.resident, other.per_micro_batch, other.nvme)

    @classmethod
    def of(cls, figures: Iterable[FloatArray]) -> StageMemory:
        """Returns the bytes that `figures` is the array of."""
        resident, per_micro_batch, temporary, *other = figures
        return cls(resident, per_micro_batch, temporary, OffloadedMemory(*other) if other else None)

    def mapped(self, change: Callable[[Any], Any]) -> StageMemory:
        """Returns the bytes with each array changed by a function."""
        return StageMemory.of(map(change, self.figures))

    def peak(self, in_flight: int) -> FloatArray:
        """Returns the peak bytes on each device with so many micro-batches in flight, for each range of layers."""
        return self.resident + self.temporary + self.per_micro_batch * in_flight


def stage_memory(
    memory: ModelMemory, shares: MemoryShares, remat: bool = False, offload: Offload = NO_OFFLOAD
) -> StageMemory:
    """Returns the bytes that each device keeps of a stage of layers i..j, given its shares of the unsharded tensors.

    With `remat` a layer keeps only its inputs, and computes the rest again before its backward pass. What ZeRO-3
    divides is whole while it is needed, one parameter with its gradient at a time. What is offloaded is on the device
    while it is copied: parameters of the layer that computes and of the next one, gradients and activations of one
    layer. Beside its part of the optimizer's state a host keeps the gradients of what it updates, and the parameters
    that it sends, or that it updates without a float32 copy in the state.
    """
    kept = memory.layer_inputs * shares.layer_inputs if remat else memory.activations * shares.activations
    computing = memory.remat_temporaries if remat else memory.temporaries
    parameters, gradients = memory.parameters * shares.parameters, memory.gradients * shares.gradients
    optimizer = memory.optimizer * shares.optimizer
    temporary = computing * shares.temporaries + memory.largest_parameter * shares.gathered
    if not offload.any:
        return StageMemory(parameters + gradients + optimizer, kept, temporary)
    copied = (
        np.minimum(_largest(parameters) * 2, parameters) * offload.parameters
        + _largest(gradients) * offload.gradients
        + _largest(kept) * offload.activations
    )
    updated, on_drives = UpdatedBytes.of(memory, shares), offload.place == "nvme"
    states, sums = optimizer * offload.optimizer, updated.gradients * offload.optimizer
    sent = np.maximum(parameters * offload.parameters, updated.uncopied * offload.optimizer)
    return StageMemory(
        resident=parameters * (1 - offload.parameters)
        + gradients * (1 - offload.gradients)
        + optimizer * (1 - offload.optimizer),
        per_micro_batch=kept * (1 - offload.activations),
        temporary=temporary + copied,
        elsewhere=OffloadedMemory(
            resident=sums if on_drives else sums + states + sent,
            per_micro_batch=kept * offload.activations,
            nvme=states + sent if on_drives else np.zeros_like(states),
        ),
    )


@final
@dataclasses.dataclass(frozen=True, eq=False)
class UpdatedBytes:
    """The bytes of what each device of a stage of layers i..j updates once a step, or its host for it: of trained
    parameters and gradients, and of those parameters that have no float32 copy in the optimizer's state and are updated
    themselves.
    """

    parameters: Float[FloatArray, "L L"]
    gradients: Float[FloatArray, "L L"]
    uncopied: Float[FloatArray, "L L"]

    @classmethod
    def of(cls, memory: ModelMemory, shares: MemoryShares) -> UpdatedBytes:
        """Returns these bytes of a model: who has a part of the optimizer's state updates by it, and where there is no
        state, who has a part of the gradients.
        """
        share = np.where(memory.optimizer > 0, shares.optimizer, shares.gradients)
        whole = memory.parameters
        trained = np.divide(memory.gradients, whole, out=np.zeros_like(whole), where=whole > 0).clip(max=1.0)
        parameters = whole * trained * share
        uncopied = np.where(memory.optimizer > _WITH_COPIES * whole, 0.0, parameters)
        return cls(parameters, memory.gradients * share, uncopied)


def _largest(num_bytes: FloatArray) -> FloatArray:
    """Returns the bytes of the largest layer of each range of layers."""
    return range_max(np.diag(num_bytes).tolist())


def successors_that_fit(stage: StageMemory, limits: MemoryLimits, run: Run) -> Int[NDArray[np.int64], "L L"]:
    """Returns for each stage of layers i..j how many stages may follow it so that it fits in its limits: Alpa's
    `max_n_succ_stages`, or -1 if it doesn't fit even as the last stage. `Run.in_flight` says of how many micro-batches
    it keeps the activations.
    """
    on_device = _successors(limits.device_bytes - stage.resident - stage.temporary, stage.per_micro_batch, run)
    if stage.elsewhere is None:
        return on_device
    on_host = _successors(limits.host_bytes - stage.elsewhere.resident, stage.elsewhere.per_micro_batch, run)
    return np.where(stage.elsewhere.nvme <= limits.nvme_bytes, np.minimum(on_device, on_host), -1)


def _successors(free: FloatArray, per_micro_batch: FloatArray, run: Run) -> NDArray[np.int64]:
    """Returns how many stages may follow if so many bytes are free for what each micro-batch in flight takes."""
    with np.errstate(divide="ignore", invalid="ignore"):
        fitting = np.where(per_micro_batch > 0, np.floor(free / per_micro_batch), np.inf)
    fitting = np.where(free < 0, -1.0, fitting)
    first, per_stage = run.form.first, run.form.per_submesh
    if per_stage > 0 and math.isfinite(first):
        followed = np.ceil((fitting + 1 - first) / per_stage - 1e-9) - 1
    else:
        followed = np.full(fitting.shape, -1.0)
    followed = np.where(fitting >= (run.num_micro_batches if per_stage > 0 else 0), NO_LIMIT, followed)
    return np.clip(followed, -1, NO_LIMIT).astype(np.int64)
