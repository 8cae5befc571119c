"""The estimate's cost beside a gradient, and steps on real workers beside plain ones."""

from __future__ import annotations

import functools
import statistics
import time
from collections.abc import Callable
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.flatten_util import ravel_pytree

from alpa_dejavu.training.optex import optex
from alpa_dejavu.training.optex.evaluators import Evaluated
from races._data import digits

ROWS, HISTORY, PARALLEL = 256, 50, 4
SETTINGS: dict[str, dict[str, Any]] = {
    "float32, all coordinates": {},
    "bfloat16, 1 % of the coordinates": {"dtype": "bfloat16", "share": 0.01},
}
CHOLESKY_UPDATES = 200


class Wide(nn.Module):
    """Three convolutions and two dense layers: a million parameters."""

    @nn.compact
    def __call__(self, images: Any) -> Any:
        """Logits, shape (B, 10)."""
        x = images
        for channels in (64, 128, 160):
            x = nn.relu(nn.Conv(channels, (3, 3))(x))
        x = nn.max_pool(x, (2, 2), (2, 2))
        x = nn.relu(nn.Dense(285)(x.reshape(x.shape[0], -1)))
        return nn.Dense(10)(x)


def wide_loss(params: Any, batch: Any) -> Any:
    """The mean cross entropy of digits."""
    logits = Wide().apply({"params": params}, batch[0])
    return optax.softmax_cross_entropy_with_integer_labels(logits, batch[1]).mean()


def wide_params() -> Any:
    """Returns the parameters of the beginning."""
    return Wide().init(jax.random.PRNGKey(0), jnp.zeros((1, 8, 8, 1)))["params"]


def rows_of(seed: int) -> Any:
    """Returns a batch of digits."""
    data = digits()
    rows = np.random.default_rng(seed).integers(len(data.inputs), size=ROWS)
    return jnp.asarray(data.inputs[rows]), jnp.asarray(data.labels[rows])


def overhead(settings: dict[str, Any], rounds: int) -> dict[str, Any]:
    """Returns the seconds of what a step does beside its N true gradients, next to those of one gradient, in turns.

    Applying gradients is what the plain optimizer does N times, too: it is measured apart, and taken off.
    """
    params, inside = wide_params(), optax.sgd(0.01)
    side_by_side = optex(inside, PARALLEL, HISTORY, trust=float("inf"), in_place=True, **settings)
    ask, tell = jax.jit(side_by_side.ask), jax.jit(side_by_side.tell, donate_argnums=1)
    gradient = jax.jit(jax.value_and_grad(wide_loss))
    batch = rows_of(0)
    one = gradient(params, batch)[1]
    flat, back = ravel_pytree(one)
    stacked = jax.vmap(back)(jnp.stack([flat * (1 + 0.1 * n) for n in range(PARALLEL)]))
    found = Evaluated(jnp.ones(PARALLEL), stacked)
    state = side_by_side.init(params)
    seconds: dict[str, list[float]] = {"gradient": [], "estimate": [], "updates": []}

    @jax.jit
    def update(params: Any) -> Any:
        return optax.apply_updates(params, inside.update(one, inside.init(params), params)[0])

    for turn in range(rounds + -(-HISTORY // PARALLEL) + 1):
        is_full = turn > HISTORY // PARALLEL
        start_s = time.perf_counter()
        walk = jax.block_until_ready(ask(params, state))
        params, state, _ = jax.block_until_ready(tell(params, state, walk, found))
        taken_s = time.perf_counter() - start_s
        if not is_full:
            continue
        seconds["estimate"].append(taken_s)
        seconds["gradient"].append(_seconds(functools.partial(gradient, params, batch)))
        seconds["updates"].append(_seconds(functools.partial(update, params)))
    ratios = [(e - PARALLEL * u) / g for e, u, g in zip(*(seconds[k] for k in ("estimate", "updates", "gradient")),
                                                        strict=True)]  # fmt: skip
    return {"dimension": int(flat.size), "history_bytes": side_by_side.history_bytes(params),
            **{f"{name}_s": statistics.median(each) for name, each in seconds.items()},
            "ratio": statistics.median(ratios)}  # fmt: skip


def cholesky() -> dict[str, Any]:
    """Returns the seconds of a Cholesky factor made anew, and of one that is updated for N new points, by rank one."""
    size = HISTORY
    draw = np.random.default_rng(0)
    matrix = draw.standard_normal((size, size))
    matrix = jnp.asarray(matrix @ matrix.T + size * np.eye(size), jnp.float32)

    def updated(factor: Any, vector: Any) -> Any:
        def column(k: Any, carry: Any) -> Any:
            factor, vector = carry
            pivot = jnp.sqrt(factor[k, k] ** 2 + vector[k] ** 2)
            cos, sin = pivot / factor[k, k], vector[k] / factor[k, k]
            below = jnp.arange(size) > k
            own = jnp.where(below, (factor[:, k] + sin * vector) / cos, factor[:, k]).at[k].set(pivot)
            return factor.at[:, k].set(own), jnp.where(below, cos * vector - sin * own, vector)

        return jax.lax.fori_loop(0, size, column, (factor, vector))[0]

    def repeated(call: Callable[[Any], Any]) -> Callable[[], Any]:
        def some(given: Any) -> Any:
            return jax.lax.fori_loop(0, CHOLESKY_UPDATES, lambda _, x: call(x), given)

        program = jax.jit(some)
        return lambda: program(matrix)

    anew = repeated(lambda x: matrix + 1e-6 * jax.scipy.linalg.cholesky(x, lower=True))
    rank_one = repeated(lambda x: updated(x, jnp.ones(size)))
    both = {name: _seconds(call, 5) / CHOLESKY_UPDATES for name, call in (("anew", anew), ("update", rank_one))}
    return {"anew_s": both["anew"], "updated_s": PARALLEL * both["update"]}


def on_workers(rounds: int) -> dict[str, Any]:
    """Returns the seconds of a step of two points on two Ray workers, next to a plain step on one, in turns."""
    from alpa_dejavu.alpa.local_cluster import local_cluster
    from alpa_dejavu.training.optex.evaluators import RayWorkers

    inside = optax.sgd(0.01, momentum=0.9)
    seconds: dict[int, list[float]] = {1: [], 2: []}
    with local_cluster(devices=2), RayWorkers(wide_loss, 2) as workers:
        trainings = {}
        for parallel in (1, 2):
            side_by_side = optex(inside, parallel, HISTORY, trust=float("inf"), in_place=True)
            params = wide_params()
            trainings[parallel] = [side_by_side, params, side_by_side.init(params)]
        for turn in range(rounds + 3):
            for parallel, training in trainings.items():
                batches = jax.tree_util.tree_map(lambda *x: jnp.stack(x), *(rows_of(turn) for _ in range(parallel)))
                start_s = time.perf_counter()
                side_by_side, params, state = training
                params, state, _ = side_by_side.step(params, state, workers, batches)
                jax.block_until_ready(params)
                training[1:] = params, state
                if turn > 2:
                    seconds[parallel].append(time.perf_counter() - start_s)
    ratio = statistics.median(np.divide(seconds[2], seconds[1]).tolist())
    return {"plain_s": statistics.median(seconds[1]), "optex_s": statistics.median(seconds[2]), "ratio": ratio}


def _seconds(call: Callable[[], Any], repeats: int = 2) -> float:
    taken = []
    for _ in range(repeats):
        start_s = time.perf_counter()
        jax.block_until_ready(call())
        taken.append(time.perf_counter() - start_s)
    return min(taken)
