"""Training by which more parts may fail: under faults that are drawn anew each step, with averaged weights.

In: a loss, parameters and data. Out: trained parameters. Weight noise is training under noisy weights; clipped
activations are `activations.clipped`, and cost no training.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import TYPE_CHECKING, final

import jax
import jax.numpy as jnp

from alpa_dejavu.problem import checks
from alpa_dejavu.training.resilience._subject import checked_shares, struck
from alpa_dejavu.training.resilience.faults import Noisy, UnitFault
from alpa_dejavu.training.resilience.parts import Parts, drawn

if TYPE_CHECKING:
    import optax
    from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray, PyTree

    from alpa_dejavu.training.resilience._subject import Data, Judge, Model, StruckModel

__all__ = ["Drill", "hardened", "weight_noise"]


@final
@dataclasses.dataclass(frozen=True, eq=False)
class Drill:
    """A fault that a model is trained under, in other units each step: a share of the parts."""

    fault: UnitFault
    parts: Parts
    share: float

    def __post_init__(self) -> None:
        checked_shares((self.share,))


def weight_noise(parts: Parts, spread: float) -> Drill:
    """Returns training under noise of all numbers of the parts, in proportion to each.

    References:
        Murray and Edwards, Enhanced MLP Performance and Fault Tolerance Resulting from Synaptic Weight Noise During
        Training, IEEE Transactions on Neural Networks 1994.
    """
    return Drill(Noisy(spread), parts, 1.0)


def hardened(
    apply_fn: Model,
    loss: Judge,
    params: PyTree,
    data: Data,
    optimizer: optax.GradientTransformation,
    *,
    steps: int,
    batch: int = 64,
    drills: Sequence[Drill] = (),
    averaged: float = 0.0,
    seed: int = 0,
) -> PyTree:
    """Returns parameters trained under drills; without any, by plain training on the same batches.

    Args:
        apply_fn, loss, params: the model, what its outputs and targets lose in the mean, and where it begins.
        data: inputs and targets to train on; batches are drawn from them with replacement.
        drills: the faults of each step, one after the other; those of activations one at most.
        averaged: the mean of the parameters over this last share of the steps is returned; 0: the last ones are.

    Raises:
        ValueError: two drills are of activations, or a share isn't one; before anything is trained.

    References:
        Izmailov et al., Averaging Weights Leads to Wider Optima and Better Generalization, UAI 2018.
    """
    checks.count("hardened", "steps", steps)
    checks.count("hardened", "batch", batch)
    checked_shares((averaged,))
    if sum(drill.parts.kind.startswith("activations") for drill in drills) > 1:
        raise ValueError("drills has several of activations, but must have one at most; leave one out")
    inputs, targets = (jax.tree.map(jnp.asarray, part) for part in data)
    first_averaged = steps - max(1, round(averaged * steps))

    def drilled(params: PyTree, rows: Int[Array, " batch"], key: PRNGKeyArray) -> Float[Array, ""]:
        model = apply_fn
        for number, drill in enumerate(drills):
            _, of_mask, of_fault = jax.random.split(jax.random.fold_in(key, number), 3)
            hit = drawn(drill.parts, of_mask, jnp.floor(drill.share * drill.parts.count + 0.5))
            if drill.parts.kind.startswith("activations"):
                model = _with_hit(struck(apply_fn, drill.fault, drill.parts), hit, of_fault)
            else:
                params = drill.fault.faulty(params, drill.parts, hit, of_fault)
        return loss(model(params, inputs[rows]), targets[rows])

    def step(carry: tuple[PyTree, ...], number: Int[Array, ""]) -> tuple[tuple[PyTree, ...], None]:
        params, state, mean = carry
        of_rows, of_drills = jax.random.split(jax.random.fold_in(jax.random.PRNGKey(seed), number))
        rows = jax.random.randint(of_rows, (batch,), 0, len(targets))
        gradient = jax.grad(drilled)(params, rows, of_drills)
        updates, state = optimizer.update(gradient, state, params)
        params = jax.tree.map(jnp.add, params, updates)
        weight = 1 / jnp.maximum(number - first_averaged + 1, 1)
        mean = jax.tree.map(lambda old, new: old + weight * (new - old), mean, params)
        return (params, state, mean), None

    @jax.jit
    def trained(params: PyTree) -> PyTree:
        last, _ = jax.lax.scan(step, (params, optimizer.init(params), params), jnp.arange(steps))
        return last[2 if averaged else 0]

    return trained(jax.tree.map(jnp.asarray, params))


def _with_hit(model: StruckModel, hit: Bool[Array, " units"], key: PRNGKeyArray) -> Model:
    return lambda params, inputs: model(params, inputs, hit, key)
