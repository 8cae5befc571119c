"""Parameters in groups, each with its optimizer's state: groups that are alike are updated by one traced function."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

Shapes = Mapping[str, tuple[int, ...]]
Group = dict[str, Any]


class Trained(NamedTuple):
    """The state of training, by groups of parameters: the parameters, their master copies and optimizer state.

    `master` are the single-precision copies that half-precision training updates, or None.
    """

    parameters: list[Group]
    master: list[Group] | None
    optimizer: list[Any]


def abstract_state(
    groups: Sequence[Shapes], dtype: Any, optimizer: optax.GradientTransformation, master: bool
) -> Trained:
    """Returns the training state before the first step, as shapes and element types without numbers.

    Args:
        groups: the shapes of the parameters, by name, in each group.
        dtype: the element type of the parameters.
        optimizer: the optimizer whose state is made.
        master: whether there are single-precision master copies, which the optimizer updates.
    """
    single = [_abstract(tuple(shapes.items()), jnp.dtype(jnp.float32 if master else dtype).name) for shapes in groups]
    parameters = [_abstract(tuple(shapes.items()), jnp.dtype(dtype).name) for shapes in groups]
    known: dict[int, Any] = {}
    for group in single:
        if id(group) not in known:
            known[id(group)] = jax.eval_shape(optimizer.init, group)
    return Trained(parameters, single if master else None, [known[id(group)] for group in single])


def apply_gradients(state: Trained, gradients: Sequence[Group], update: Any) -> Trained:
    """Returns the training state after one optimizer step.

    Args:
        state: the state before it: groups of parameters, with their master copies and optimizer state.
        gradients: the gradients of each group of parameters.
        update: a function that updates one group, as `updating` returns it.
    """
    masters: Sequence[Group | None] = state.master or [None] * len(state.parameters)
    new = [
        update(parameters, master, inner, gradient)
        for parameters, master, inner, gradient in zip(
            state.parameters, masters, state.optimizer, gradients, strict=True
        )
    ]
    return Trained([n[0] for n in new], [n[1] for n in new] if state.master else None, [n[2] for n in new])


def updating(optimizer: optax.GradientTransformation) -> Any:
    """Returns a jitted function that updates one group of parameters, and its optimizer state, by its gradients.

    It takes parameters, their single-precision master copies or None, optimizer state and gradients; it returns the
    first three, updated.
    """

    @jax.jit
    def update(parameters: Group, master: Group | None, inner: Any, gradients: Group) -> tuple[Any, Any, Any]:
        precise = parameters if master is None else master
        updates, inner = optimizer.update(gradients, inner, precise)
        precise = optax.apply_updates(precise, updates)
        if master is None:
            return precise, None, inner
        return jax.tree.map(lambda new, old: new.astype(old.dtype), precise, parameters), precise, inner

    return update


def _is_matrix(path: Any, leaf: Any) -> bool:
    return bool(leaf.ndim > 1)


def adamw(decays: Callable[[Any, Any], bool] = _is_matrix) -> optax.GradientTransformation:
    """Returns an AdamW optimizer whose weight decay applies to matrices only, as in Alpa's benchmarks.

    Args:
        decays: a function that says whether a parameter decays, given its path in a group of parameters and itself;
            by default those with more than one dimension do.
    """
    return optax.adamw(1e-2, mask=lambda tree: jax.tree_util.tree_map_with_path(decays, tree))


def adafactor() -> optax.GradientTransformation:
    """Returns an Adafactor optimizer, which keeps very little state, as in Alpa's benchmarks of mixtures of experts.

    References:
        Shazeer and Stern, Adafactor: Adaptive Learning Rates with Sublinear Memory Cost, ICML 2018.
    """
    return optax.adafactor(1e-2, weight_decay_mask=lambda tree: jax.tree.map(lambda leaf: leaf.ndim > 1, tree))


def momentum() -> optax.GradientTransformation:
    """Returns SGD with Nesterov's momentum, warm-up and cosine decay, as in Alpa's benchmarks of Wide-ResNet."""
    steps_per_epoch, warm_up, epochs = 10000, 5, 100
    rise = optax.linear_schedule(0.0, 0.1, warm_up * steps_per_epoch)
    fall = optax.cosine_decay_schedule(0.1, (epochs - warm_up) * steps_per_epoch)
    return optax.sgd(optax.join_schedules([rise, fall], [warm_up * steps_per_epoch]), momentum=0.9, nesterov=True)


@functools.lru_cache(maxsize=256)
def _abstract(shapes: tuple[tuple[str, tuple[int, ...]], ...], dtype: str) -> Group:
    return {name: jax.ShapeDtypeStruct(shape, jnp.dtype(dtype)) for name, shape in shapes}
