"""Training for resilience, each method by itself, and outages.

In: a model of `resilience.py`, and seeds. Out: rows of its tables.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from numpy.typing import NDArray

from alpa_dejavu._util.interval import Interval
from alpa_dejavu.playground import problem
from alpa_dejavu.training.resilience import Axis, Parts, cross_entropy, parts_of_axes
from alpa_dejavu.training.resilience.faults import Removed
from alpa_dejavu.training.resilience.hardening import Drill, weight_noise
from alpa_dejavu.training.resilience.outages import Outage, disturbed, stage_parts

FIRST, LOST, STEPS = 60, 60, 240
"""An outage begins after so many steps, takes so many, of so many in all."""
NOISE = 0.3
"""The spread of a weight's factor in training under noise, chosen on the seed that isn't judged."""
EXPERTS, WIDTH, HIDDEN = 4, 32, 16
Row = dict[str, Any]


def methods(parts: Parts, weights: Parts, share: float, averaged: float) -> dict[str, tuple[list[Drill], float]]:
    """Returns for each way of training its drills, and over which last share of the steps weights are averaged."""
    removed = Drill(Removed(), parts, share)
    return {
        "plain": ([], 0.0),
        "averaged weights": ([], averaged),
        "weight noise": ([weight_noise(weights, NOISE)], 0.0),
        "removed": ([removed], 0.0),
        "removed, averaged": ([removed], averaged),
    }


def outages(seeds: Sequence[int]) -> list[Row]:
    """Returns how far the transformer and the mixture fall behind where a block, a replica or an expert doesn't answer.

    Each seed is a training of its own, with and without the outage on the same batches.
    """
    gpt, experts = problem("text-gpt"), problem("digits-mlp")
    assert gpt.logits is not None, "the text has classes"
    blocks = {f"stage {n}": [f"blocks/{n}"] for n in range(2)}
    models: Mapping[str, tuple[Any, ...]] = {
        "text-gpt": (gpt.logits, gpt.init, lambda params: stage_parts(params, blocks), gpt.train, gpt.held_out),
        "mixture of experts": (_mixture, _init, _experts, experts.train, experts.held_out),
    }
    asked = {
        "text-gpt": {"block 0": Outage(0, FIRST, LOST), "block 1": Outage(1, FIRST, LOST),
                     "one replica of 4": Outage(None, FIRST, LOST, 0)},
        "mixture of experts": {"one expert of 4": Outage(0, FIRST, LOST)},
    }  # fmt: skip
    rows = []
    for name, (model, init, parts, train, held_out) in models.items():
        begins = [init(jax.random.PRNGKey(seed)) for seed in seeds]
        runs = [
            functools.partial(
                disturbed, model, cross_entropy, params, train, held_out, optax.adam(3e-3), parts(params), steps=STEPS,
                batch=32, replicas=4, looks=24, seed=seed,
            )
            for seed, params in zip(seeds, begins, strict=True)
        ]  # fmt: skip
        plain = [run() for run in runs]
        rows += [_behind(f"{name}, {who}", [run(outage) for run in runs], plain) for who, outage in asked[name].items()]
    return rows


def _behind(name: str, found: Sequence[Any], plain: Sequence[Any]) -> Row:
    pairs = list(zip(found, plain, strict=True))

    def mean(each: Callable[[Any, Any], float]) -> list[float]:
        interval = Interval.of([each(one, other) for one, other in pairs])
        return [interval.mean, interval.low, interval.high]

    def worst(one: Any, other: Any) -> float:
        during = (one.steps > FIRST) & (one.steps <= FIRST + LOST)
        return float(one.answered[during].max() - other.loss[during].max())

    return {"name": name, "worst": mean(worst), "end": mean(lambda one, other: float(one.loss[-1] - other.loss[-1])),
            "behind": mean(lambda one, other: one.behind(other))}  # fmt: skip


def _init(key: Any) -> Any:
    shapes = {"in": (64, WIDTH), "gate": (WIDTH, EXPERTS), "up": (EXPERTS, WIDTH, HIDDEN),
              "down": (EXPERTS, HIDDEN, WIDTH), "out": (WIDTH, 10)}  # fmt: skip
    drawn = zip(jax.random.split(key, len(shapes)), shapes.items(), strict=True)
    return {name: jax.random.normal(one, shape) / shape[-2] ** 0.5 for one, (name, shape) in drawn}


def _mixture(params: Any, inputs: Any) -> Any:
    """A residual layer of experts, whose answers its gate weighs for each sample."""
    made = inputs.reshape(len(inputs), 64) @ params["in"]
    gates = jax.nn.softmax(made @ params["gate"])
    hidden = jax.nn.relu(jnp.einsum("nd,edh->neh", made, params["up"]))
    return (made + jnp.einsum("neh,ehd,ne->nd", hidden, params["down"], gates)) @ params["out"]


def _experts(params: Any) -> Parts:
    return parts_of_axes(params, "experts", {"experts": [Axis("up", 0), Axis("down", 0)]})


def answers(rows: Sequence[Row]) -> list[Row]:
    """Returns rows for a table: each mean with its interval."""
    return [{"name": row["name"], **{key: "{:.3f} ({:.3f} to {:.3f})".format(*row[key]) for key in ("worst", "end")},
             "behind": "{:.0f} ({:.0f} to {:.0f})".format(*row["behind"])} for row in rows]  # fmt: skip


def mean_of(found: Sequence[Mapping[str, float]], key: str) -> float:
    """Returns the mean over seeds."""
    return float(np.mean([one[key] for one in found]))


def bound_of_counts(
    kernels: Sequence[NDArray[np.floating]], failing: Sequence[int], deviation: float, lipschitz: float = 1.0
) -> float:
    """Returns a bound for any neurons that fail, so many in each hidden layer, by each layer's largest weight.

    A failing neuron of layer l is off by at most the deviation; each of the n - f others of layer m by at most the
    Lipschitz constant times its largest weight, w_m, times the sum of errors before it. With L hidden layers the output
    is off by at most

        deviation * w_{L+1} * sum over l of f_l * K^(L-l) * product over m = l+1..L of (n_m - f_m) * w_m

    Args:
        kernels: the weights of each layer, the linear output's last, shapes (inputs, outputs).
        failing: how many neurons fail in each hidden layer.
        deviation: by how much a failing neuron's output is off at most: for one that puts out 0 the largest magnitude
            of its activation, such as 1 for tanh.
        lipschitz: the Lipschitz constant of the activation.
    """
    largest = [float(np.abs(kernel).max()) for kernel in kernels]
    reached = 0.0
    for kernel, weight, count in zip(kernels[:-1], largest[:-1], failing, strict=True):
        reached = count * deviation + (kernel.shape[1] - count) * lipschitz * weight * reached
    return largest[-1] * reached
