"""The wrong replicas that `Suspects` names: by signs of gradients, and by descents on fresh samples, Zeno's score."""

from __future__ import annotations

import logging
import operator
import statistics
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from tqdm import tqdm

from alpa_dejavu.playground import problem
from alpa_dejavu.training.robust import Suspects, robust_value_and_grad
from alpa_dejavu.training.robust.attacks import ATTACKS, flipped_labels
from harness import Results, Table

REPLICAS, BATCH, FRESH, STEPS, RATE, WRONG = 10, 32, 100, 80, 0.2, (1, 3)
LABELS, DRIFT = "flipped labels", "a constant is added, growing (drift)"
ATTACKED: dict[str, tuple[str, tuple[float, ...]]] = {
    "none": ("", ()),
    "flipped signs": ("sign-flip", (1.0,)),
    LABELS: ("", ()),
    "the mean, backwards, half as long": ("inner-product", (0.5,)),
    "the mean, backwards, twice as long": ("inner-product", (2.0,)),
    "noise of a gradient's size": ("gaussian", (1.0,)),
    "zeros": ("zero", ()),
    "a-little-is-enough, 1.5": ("a-little-is-enough", (1.5,)),
    DRIFT: ("", ()),
    "a right one's, copied": ("mimic", ()),
    "ten steps late": ("stale", (10,)),
}
"""For each row an attack of `ATTACKS` with its settings; those without one are written out here."""


def suspects_table(results: Results, seeds: Sequence[int]) -> Table:
    """A row for each attack: how many wrong replicas are named, and after how many steps in the median."""
    # Each name is a line of the log; the table counts them.
    logging.getLogger("alpa_dejavu.training.robust").setLevel(logging.ERROR)
    rows: list[dict[str, Any]] = []
    for name in tqdm(ATTACKED, "attacks"):
        row: dict[str, Any] = {"name": name}
        for wrong in WRONG:
            key = f"{name}, {wrong}"
            runs = results.known("suspects", key, _runs, name, wrong, seeds)["seeds"]
            for sign in ("gradients", "descents"):
                row[f"{sign} {wrong}"] = _told([run[sign] for run in runs], 0 if name == "none" else wrong)
            row["loss"] = statistics.fmean(run["loss"] for run in runs)
        rows.append(row)
    columns: dict[str, Any] = {"wrong replicas": "{name}"}
    for wrong in WRONG:
        for sign in ("gradients", "descents"):
            columns[f"{wrong}: by {sign}"] = operator.itemgetter(f"{sign} {wrong}")
    return Table.of(rows, {**columns, f"loss, {WRONG[-1]}": "{loss:.3f}"}, "Who is named")


def _told(named: Sequence[Sequence[int | None]], wrong: int) -> str:
    """Names of wrong replicas, the first ones, over all seeds, with the median step; and those of right ones."""
    steps = [step for run in named for step in run[:wrong] if step is not None]
    false = sum(step is not None for run in named for step in run[wrong:])
    said = [f"{len(steps)} of {wrong * len(named)}"] if wrong else []
    said += [f"{statistics.median(steps):.0f}"] if steps else []
    return ", ".join([*said, *([f"{false} right"] if false else [])])


def _runs(name: str, wrong: int, seeds: Sequence[int]) -> dict[str, Any]:
    run = _training(name, wrong)
    found = []
    for seed in seeds:
        loss, (suspicion, agreement, descent) = jax.tree_util.tree_map(np.asarray, run(seed))
        by_gradients, by_descents = Suspects(REPLICAS), Suspects(REPLICAS)
        first: dict[str, list[int | None]] = {sign: [None] * REPLICAS for sign in ("gradients", "descents")}
        for step in range(STEPS):
            by_gradients = by_gradients.seen(*({group: values[step] for group, values in signs.items()}
                                               for signs in (suspicion, agreement)))  # fmt: skip
            by_descents = by_descents.seen({}, None, descent[step])
            for sign, log in (("gradients", by_gradients), ("descents", by_descents)):
                for replica in log.named:
                    if first[sign][replica] is None:
                        first[sign][replica] = step + 1
        found.append({"loss": float(loss), **first})
    return {"seeds": found}


def _training(name: str, wrong: int) -> Callable[[int], Any]:
    """A training of a seed: the loss on held-out samples at the end, and for each step the signs of all replicas."""
    trained = problem("digits-mlp")
    inputs, targets = map(jnp.asarray, trained.train)
    classes, mask = int(np.max(trained.train[1])) + 1, jnp.arange(REPLICAS) < wrong
    gradient = robust_value_and_grad(trained.loss, "mean", REPLICAS, "whole")
    kind, settings = ATTACKED[name]
    attack = ATTACKS[kind](*settings) if kind else None

    def sent(right: Any, number: Any, key: Any, state: Any) -> tuple[Any, Any]:
        if attack is not None:
            return attack.send(right, mask, key, state)
        if name == DRIFT:
            share = mask * number / STEPS
            size = [jnp.sqrt(jnp.mean(jnp.square(leaf))) for leaf in jax.tree_util.tree_leaves(right)]
            leaves, tree = jax.tree_util.tree_flatten(right)
            moved = [leaf + most * share.reshape(-1, *(1,) * (leaf.ndim - 1))
                     for leaf, most in zip(leaves, size, strict=True)]  # fmt: skip
            return jax.tree_util.tree_unflatten(tree, moved), ()
        return right, ()

    def step(carry: Any, given: Any) -> tuple[Any, Any]:
        (params, state, old), (number, key) = carry, given
        keys = jax.random.split(key, 3)
        rows = jax.random.randint(keys[0], (REPLICAS * BATCH,), 0, len(inputs))
        labels = targets[rows]
        if name == LABELS:
            labels = jnp.where(jnp.repeat(mask, BATCH), flipped_labels(labels, classes), labels)
        _, right = gradient.of_each(params, (inputs[rows], labels), state)
        gradients, old = sent(right, number, keys[1], old)
        fresh = jax.random.randint(keys[2], (FRESH,), 0, len(inputs))
        descent = gradient.descents(params, gradients, (inputs[fresh], targets[fresh]), RATE)
        judged, state = gradient.judge(params, gradients, state)
        params = jax.tree_util.tree_map(lambda p, g: p - RATE * g, params, judged.gradients)
        return (params, state, old), (judged.suspicion, judged.agreement, descent)

    @jax.jit
    def run(seed: Any) -> Any:
        first, rest = jax.random.split(jax.random.PRNGKey(seed))
        params = trained.init(first)
        rows = jax.tree_util.tree_map(lambda p: jnp.zeros((REPLICAS, *p.shape)), params)
        shapes = jax.eval_shape(lambda: sent(rows, 0, rest, None)[1])
        old = jax.tree_util.tree_map(lambda s: jnp.zeros(s.shape, s.dtype), shapes)
        begun = (params, gradient.init(params), old)
        given = (jnp.arange(STEPS), jax.random.split(rest, STEPS))
        (params, _, _), signs = jax.lax.scan(step, begun, given)
        return trained.loss(params, tuple(map(jnp.asarray, trained.held_out))), signs

    return run
