"""A module of PyTorch and its inputs as a train step in jax, with abstract arguments."""

from __future__ import annotations

import collections
import dataclasses
import sys
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, final

import jax
import jax.numpy as jnp

from alpa_dejavu.layers.models._training import Group, TrainedGroups, abstract_state, adamw, train_step_of

if TYPE_CHECKING:
    from alpa_dejavu.layers.torch_modules._exported import ExportedModule, Weight
    from alpa_dejavu.layers.torch_modules._program import Program


def is_module(value: Any) -> bool:
    """Returns whether a value is a module of PyTorch, which isn't imported for that."""
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(value, torch.nn.Module)


def is_pair(value: Any) -> bool:
    """Returns whether a value is a module of PyTorch with its inputs."""
    return isinstance(value, tuple) and len(value) == 2 and is_module(value[0])


def of_any_batch(module: Any, inputs: Any) -> Callable[..., tuple[Any, Any]]:
    """Returns a function from a batch size to a module and inputs for it: where the first dimension of an example's
    tensor is the one that most of them have, it becomes the batch size.
    """
    import torch

    usual = _samples(inputs)

    def model(batch_size: int) -> tuple[Any, Any]:
        def sized(leaf: Any) -> Any:
            if not (isinstance(leaf, torch.Tensor) and leaf.ndim and leaf.shape[0] == usual):
                return leaf
            return torch.empty((batch_size, *leaf.shape[1:]), dtype=leaf.dtype, device="meta")

        return module, jax.tree.map(sized, inputs)

    model.__qualname__ = type(module).__name__
    return model


def _samples(inputs: Any) -> int:
    """The first dimension that most of the inputs' tensors have."""
    firsts = [leaf.shape[0] for leaf in jax.tree.leaves(inputs) if getattr(leaf, "shape", ())]
    return max(firsts, key=collections.Counter(firsts).__getitem__, default=0)


@final
@dataclasses.dataclass(frozen=True, eq=False)
class NotedStep:
    """A step with sentences on what a reader of its plan may not expect."""

    step: Callable[..., Any]
    notes: tuple[str, ...]

    def __call__(self, state: Any, batch: Any) -> Any:
        return self.step(state, batch)


def module_step(module: Any, inputs: Any, num_micro_batches: int = 1) -> tuple[NotedStep, tuple[Any, Group]]:
    """Returns the train step of a module by AdamW, and its abstract arguments: state and batch. Weights of 16 bits have
    copies in single precision. A module of which nothing is trained has a step without gradients.

    Args:
        module: a `torch.nn.Module`, which stays as it is; its weights may be on the meta device.
        inputs: the inputs of a batch by position or by name: a tensor, a tuple or a list of them, or a mapping.
        num_micro_batches: how many equal parts of the batch there are; the step is for one of them.

    Raises:
        ValueError: the module can't be exported for these inputs, or an operator has no translation.
    """
    from alpa_dejavu.layers.torch_modules._exported import exported
    from alpa_dejavu.layers.torch_modules._program import Program

    _, part = of_any_batch(module, inputs)(max(_samples(inputs) // num_micro_batches, 1))
    options = dict(part) if isinstance(part, Mapping) else {}
    arguments = () if options else tuple(part) if isinstance(part, (list, tuple)) else (part,)
    forward = exported(module, arguments, options)
    tensors = (leaf for leaf in jax.tree.leaves(inputs) if getattr(leaf, "shape", None) is not None)
    batch = {
        place: jax.ShapeDtypeStruct(tuple(tensor.shape), like.dtype)
        for (place, like), tensor in zip(forward.inputs.items(), tensors, strict=True)
    }
    step, state = _step(type(module).__name__, forward, Program(forward))
    return step, (state, batch)


def _step(name: str, forward: ExportedModule, program: Program) -> tuple[NotedStep, Any]:
    """The step and its abstract state."""
    frozen = {weight.name: weight for weight in forward.weights if not weight.trained}
    groups = _groups(forward)

    def computed(kept: Group, parameters: list[Group], batch: Group) -> jax.Array:
        arrays = dict(batch)
        for weights, values in ((frozen, kept), *zip(groups, parameters, strict=True)):
            arrays.update((place, values[own]) for own, weight in weights.items() for place in weight.places)
        return program(arrays)

    def train_step(state: tuple[Group, TrainedGroups], batch: Group) -> tuple[Group, TrainedGroups]:
        kept, trained = state
        step = train_step_of(lambda parameters, batch: _scalar(computed(kept, parameters, batch)), adamw())
        return kept, step(trained, batch)

    kept, notes = {own: weight.like for own, weight in frozen.items()}, program.notes
    if not groups:
        return NotedStep(lambda kept, batch: computed(kept, [], batch), notes), kept
    if forward.shape != ():
        notes = (
            f"{name} returns no loss, so the mean square of its first output is planned in its place; give it labels, "
            "or a module around it that returns the loss",
            *notes,
        )
    return NotedStep(train_step, notes), (kept, _state(groups))


def _groups(forward: ExportedModule) -> list[dict[str, Weight]]:
    """The trained weights of each block in each type, by their names in it; those of no block are a group, too."""
    groups: dict[tuple[str, Any], dict[str, Weight]] = collections.defaultdict(dict)
    for weight in forward.weights:
        if weight.trained:
            groups[weight.block, weight.like.dtype][weight.name.removeprefix(f"{weight.block}.")] = weight
    return list(groups.values())


def _state(groups: list[dict[str, Weight]]) -> TrainedGroups:
    states = []
    for weights in groups:
        (dtype,) = {weight.like.dtype for weight in weights.values()}
        shapes = {own: weight.like.shape for own, weight in weights.items()}
        states.append(abstract_state([shapes], dtype, adamw(), master=dtype.itemsize < 4))
    return TrainedGroups(
        [state.parameters[0] for state in states],
        [None if state.master is None else state.master[0] for state in states],
        [state.optimizer[0] for state in states],
    )


def _scalar(result: jax.Array) -> jax.Array:
    """A loss as it is, and of anything else the mean square."""
    return result.astype(jnp.float32) if result.ndim == 0 else (result.astype(jnp.float32) ** 2).mean()
