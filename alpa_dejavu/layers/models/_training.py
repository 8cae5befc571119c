"""Training by groups of parameters, each with its optimizer's state: groups that are alike are updated by one traced
function.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

HALF = jnp.float16
Shapes = Mapping[str, tuple[int, ...]]
Group = dict[str, Any]


class TrainedGroups(NamedTuple):
    """The state of training, by groups of parameters: the parameters, their master copies and optimizer state.

    `master` are the single-precision copies that half-precision training updates, or None, also of one group.
    """

    parameters: list[Group]
    master: Sequence[Group | None] | None
    optimizer: list[Any]


def abstract_state(
    groups: Sequence[Shapes], dtype: Any, optimizer: optax.GradientTransformation, master: bool
) -> TrainedGroups:
    """Returns the state before the first step without numbers; with `master` there are single-precision copies."""
    updated = [_abstract(tuple(shapes.items()), jnp.dtype(jnp.float32 if master else dtype).name) for shapes in groups]
    states = {id(group): jax.eval_shape(optimizer.init, group) for group in {id(g): g for g in updated}.values()}
    return TrainedGroups(abstract(groups, dtype), updated if master else None, [states[id(group)] for group in updated])


def abstract(groups: Sequence[Shapes], dtype: Any) -> list[Group]:
    """Returns groups of parameters of one element type as arrays without numbers."""
    return [_abstract(tuple(shapes.items()), jnp.dtype(dtype).name) for shapes in groups]


@functools.lru_cache(maxsize=256)
def _abstract(shapes: tuple[tuple[str, tuple[int, ...]], ...], dtype: str) -> Group:
    return {name: jax.ShapeDtypeStruct(shape, jnp.dtype(dtype)) for name, shape in shapes}


def abstract_tokens(size: Any, batch_size: int, *names: str) -> Group:
    """Returns a batch of sequences of a model's length by their names, as arrays without numbers."""
    return dict.fromkeys(names, jax.ShapeDtypeStruct((batch_size, size.sequence), jnp.int32))


def train_step_of(loss: Callable[[list[Group], Group], jax.Array], optimizer: optax.GradientTransformation) -> Any:
    """Returns the step from a `TrainedGroups` and a batch to the state after one update by the gradients of a loss."""
    update = updating(optimizer)

    def train_step(state: TrainedGroups, batch: Group) -> TrainedGroups:
        gradients = jax.grad(lambda parameters: loss(parameters, batch))(state.parameters)
        return apply_gradients(state, gradients, update)

    return train_step


def step_in_half(
    loss: Callable[[list[Group], Group], jax.Array],
    shapes: Sequence[Shapes],
    batch: Group,
    optimizer: optax.GradientTransformation | None = None,
) -> Any:
    """Returns the train step of a loss in half precision with single-precision master copies, and its abstract
    arguments: state, of parameters of such shapes, and batch. The optimizer is AdamW if it is None.
    """
    chosen = optimizer or adamw()
    return train_step_of(loss, chosen), (abstract_state(shapes, HALF, chosen, master=True), batch)


def log_likelihood(logits: jax.Array, labels: jax.Array) -> jax.Array:
    """Returns the logarithm of each label's probability, computed in single precision; shape (batch, sequence)."""
    log_p = jax.nn.log_softmax(logits.astype(jnp.float32), axis=-1)
    return (jax.nn.one_hot(labels, logits.shape[-1]) * log_p).sum(-1)


def apply_gradients(state: TrainedGroups, gradients: Sequence[Group], update: Any) -> TrainedGroups:
    """Returns the state after one step, given the gradients of each group and a function as `updating` returns it."""
    masters: Sequence[Group | None] = state.master or [None] * len(state.parameters)
    groups = zip(state.parameters, masters, state.optimizer, gradients, strict=True)
    new = [update(*group) for group in groups]
    return TrainedGroups([n[0] for n in new], [n[1] for n in new] if state.master else None, [n[2] for n in new])


@functools.lru_cache(maxsize=16)
def updating(optimizer: optax.GradientTransformation) -> Any:
    """Returns a jitted function that updates one group: it takes parameters, their single-precision master copies or
    None, optimizer state and gradients, and returns the first three, updated.
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


@functools.cache
def adamw(decays: Callable[[Any, Any], bool] = _is_matrix) -> optax.GradientTransformation:
    """Returns AdamW with weight decay of matrices only, as in Alpa's benchmarks, or of parameters that a function
    picks.
    """
    return optax.adamw(1e-2, mask=lambda tree: jax.tree_util.tree_map_with_path(decays, tree))


@functools.cache
def adafactor() -> optax.GradientTransformation:
    """Returns Adafactor, which keeps very little state, as in Alpa's benchmarks of mixtures of experts.

    References:
        Shazeer and Stern, Adafactor: Adaptive Learning Rates with Sublinear Memory Cost, ICML 2018.
    """
    return optax.adafactor(1e-2, weight_decay_mask=lambda tree: jax.tree.map(lambda leaf: leaf.ndim > 1, tree))


@functools.cache
def momentum() -> optax.GradientTransformation:
    """Returns SGD with Nesterov's momentum, warm-up and cosine decay, as in Alpa's benchmarks of Wide-ResNet."""
    steps_per_epoch, warm_up, epochs = 10000, 5, 100
    rise = optax.linear_schedule(0.0, 0.1, warm_up * steps_per_epoch)
    fall = optax.cosine_decay_schedule(0.1, (epochs - warm_up) * steps_per_epoch)
    return optax.sgd(optax.join_schedules([rise, fall], [warm_up * steps_per_epoch]), momentum=0.9, nesterov=True)
