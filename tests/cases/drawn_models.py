"""Small training steps that are drawn from a seed, out of what ordinary ones are written with."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax.training.train_state import TrainState

from drawn_layers import LAYERS, Draw, Pass
from train_steps import norm_of

__all__ = ["DrawnModel", "drawn_depth", "drawn_model"]

STEPS = 2
Batch = dict[str, Any]


@dataclasses.dataclass(frozen=True, eq=False)
class DrawnModel:
    """A training step with its arguments.

    Attributes:
        seed: from which it was drawn, or the name of a model that wasn't.
        features: the names of what it is made of.
        make: takes jax or alpa, which differentiates, and gives the step: of a state, a batch and, if random numbers
            are drawn, a key, it makes the next state and what it reports. Also takes the number of micro-batches for
            each of which the step draws its own random numbers, and the activations' type in place of its own.
        state: the first one.
        batches: one for each step.
        keys: one for each step, or None.
        low: whether its activations are of 16 bits.
    """

    seed: int | str
    features: tuple[str, ...]
    make: Callable[..., Callable[..., Any]]
    state: Any
    batches: tuple[Batch, ...]
    keys: tuple[Any, ...] | None
    low: bool


def drawn_depth(seed: int) -> int:
    """Draws how many layers a model has."""
    return int(np.random.default_rng((seed, 2)).integers(2, 8))


def drawn_model(seed: int) -> DrawnModel:
    """Draws a model."""
    draw = Draw(seed)
    samples = int(draw.one_of(16, 16, 32, 24))
    read = _input(draw)
    names = [*draw.rng.choice([*LAYERS, "random numbers", "random numbers"], drawn_depth(seed))]
    draw.features.update(names)
    layers = [LAYERS[name](draw) for name in names]
    task = _task(draw)
    low = draw.feature("16 bits", 0.2)
    dtype = draw.one_of(jnp.bfloat16, jnp.float16) if low else jnp.float32
    measures = _measures(draw, low)
    loss_of = _loss(draw)
    random = any("random" in name for name in draw.features)

    def network(params: dict[str, Any], batch: Batch, count: Any, keys: Sequence[Any], dtype: Any) -> tuple[Any, Pass]:
        params = {name: weight.astype(dtype) for name, weight in params.items()}
        run = Pass(params, batch, count, keys)
        run.seen.append(read(run).astype(dtype))
        for layer in layers:
            run.seen.append(layer(run, run.seen[-1]))
        return task(run, run.seen[-1]), run

    update = _update(draw)
    frozen = frozenset(draw.rng.permutation(list(draw.params))[: len(draw.params) // 3])
    frozen = frozen if draw.feature("frozen", 0.15) else frozenset()
    trained = {name: weight for name, weight in draw.params.items() if name not in frozen}
    by_closure, split_outside = draw.one_of(False, True), draw.one_of(False, True)
    outside = draw.feature("batch outside of the loss", 0.2)
    outside_model = outside and draw.feature("accuracy of new parameters", 0.5)
    norms = draw.feature("norm of gradients", 0.25)
    state, change, parameters = update(trained)

    def make(api: Any, micro_batches: int = 1, dtype: Any = dtype) -> Callable[..., Any]:
        def step(state: Any, batch: Batch, key: Any = None) -> Any:
            kept, inner = state
            count = inner.step if isinstance(inner, TrainState) else inner["count"]
            if key is not None and split_outside:
                key = jax.random.split(key)[1]

            def loss(trained: dict[str, Any], batch: Batch) -> Any:
                keys = () if key is None else (key,)
                if micro_batches > 1:
                    keys = tuple(jax.random.fold_in(key, n) for n in range(micro_batches)) if keys else ()
                (errors, made), run = network({**kept, **trained}, batch, count, keys, dtype)
                value = loss_of(errors, made, run) + sum(run.terms)
                return value, measures(errors, made, run)

            given = parameters(inner)
            if by_closure:
                (value, aux), gradients = api.value_and_grad(lambda p: loss(p, batch), has_aux=True)(given)
            else:
                (value, aux), gradients = api.value_and_grad(loss, has_aux=True)(given, batch)
            inner = change(inner, gradients)
            said = {"loss": value, **aux}
            if norms:
                said["norm"] = norm_of(gradients)
            if outside:
                said["used"] = batch["mask"].sum()
            if outside_model:
                (errors, _), _ = network({**kept, **parameters(inner)}, batch, count, (), dtype)
                said["new"] = errors.mean()
            return (kept, inner), said

        return step

    mask = draw.one_of(np.float32, np.int32, np.bool_)
    batches = tuple(_batch(draw, samples, mask) for _ in range(STEPS))
    keys = tuple(_keys(draw)) if random else None
    kept = {name: draw.params[name] for name in sorted(frozen)}
    return DrawnModel(seed, tuple(sorted(draw.features)), make, (kept, state), batches, keys, low)


def _keys(draw: Draw) -> list[Any]:
    make = jax.random.key if draw.feature("typed keys", 0.3) else jax.random.PRNGKey
    return [make(int(draw.rng.integers(1 << 20))) for _ in range(STEPS)]


def _input(draw: Draw) -> Callable[[Pass], Any]:
    """Draws what a network reads: vectors, tokens, sequences of vectors, or images."""
    kind, width = draw.one_of("vectors", "vectors", "tokens", "tokens", "sequences", "images"), draw.width
    draw.features.add(kind)
    if kind == "vectors":
        if draw.feature("statistics of the batch", 0.1):
            return lambda run: (run.batch["x"] - run.batch["x"].mean(0)) / (run.batch["x"].std(0) + 1e-3)
        return lambda run: run.batch["x"]
    if kind == "images":
        kernel, project = draw.weight(3, 3, 3, 4, scale=0.3), draw.weight(64, width)

        def images(run: Pass) -> Any:
            image = run.batch["image"].astype(run.params[kernel].dtype) / 255
            numbers = ("NHWC", "HWIO", "NHWC")
            made = jax.lax.conv_general_dilated(image, run.params[kernel], (2, 2), "SAME", dimension_numbers=numbers)
            return jax.nn.relu(made).reshape(made.shape[0], -1) @ run.params[project]

        return images
    draw.length = int(draw.one_of(4, 8))
    if kind == "sequences":
        return lambda run: run.batch["x"]
    table, place = draw.weight(20, width, scale=1.0), draw.weight(draw.length, width, scale=0.3)
    draw.params["table"] = draw.params.pop(table)

    def tokens(run: Pass) -> Any:
        return run.params["table"][run.batch["token"]] + run.params[place]

    return tokens


def _task(draw: Draw) -> Callable[[Pass, Any], tuple[Any, Any]]:
    """Draws what a network makes, and its errors, of shape (batch,) or (batch, length)."""
    kind = draw.one_of("regression", "classes")
    draw.features.add(kind)
    if kind == "regression":
        return lambda run, h: (((h.astype(jnp.float32) - run.batch["y"]) ** 2).mean(-1), h)
    tied = "table" in draw.params and draw.feature("tied embedding", 0.6)
    head = "table" if tied else draw.weight(draw.width, 20)
    one_hot = draw.one_of(False, True)

    def classes(run: Pass, h: Any) -> tuple[Any, Any]:
        weight = run.params[head]
        logits = (h @ (weight.T if tied else weight)).astype(jnp.float32)
        scores = jax.nn.log_softmax(logits)
        if one_hot:
            return -(jax.nn.one_hot(run.batch["label"], 20) * scores).sum(-1), logits
        return -jnp.take_along_axis(scores, run.batch["label"][..., None], -1)[..., 0], logits

    return classes


_LOSSES: dict[str, Callable[[Any, Any, Any], Any]] = {
    "mean": lambda e, h, m: e.mean(),
    "sum": lambda e, h, m: e.sum() / 16,
    "mean of the unmasked": lambda e, h, m: (e * m).sum() / jnp.maximum(m.sum(), 1),
    "mean where": lambda e, h, m: jnp.mean(e, where=m > 0),
    "weighted": lambda e, h, m: (e * (0.5 + m)).mean(),
    "sum by the batch's size": lambda e, h, m: e.sum() / len(e),
    "two terms": lambda e, h, m: e.mean() + 0.1 * (h.astype(jnp.float32) ** 2).sum() / 16,
    "contrastive": lambda e, h, m: e.mean() - 0.1 * _pairs(h).mean(),
    "ratio": lambda e, h, m: e.sum() / (1 + jnp.abs(h.astype(jnp.float32)).sum()),
    "root": lambda e, h, m: jnp.sqrt(e.mean()),
    "batch normalisation": lambda e, h, m: e.mean() + (jnp.abs(h - h.mean(0)).astype(jnp.float32)).mean(),
}


def _pairs(h: Any) -> Any:
    rows = h.astype(jnp.float32).reshape(len(h), -1)
    return jax.nn.log_softmax(rows @ rows.T).diagonal()


def _loss(draw: Draw) -> Callable[[Any, Any, Pass], Any]:
    names = list(_LOSSES)
    known = draw.rng.random() < 0.88
    kind = names[draw.rng.integers(7) if known else draw.rng.integers(7, len(names))]
    draw.features.add(f"loss: {kind}")
    regularised = draw.feature("L2", 0.2)

    def loss(errors: Any, made: Any, run: Pass) -> Any:
        value = _LOSSES[kind](errors, made, run.batch["mask"].astype(jnp.float32))
        return value + 1e-2 * sum((w.astype(jnp.float32) ** 2).sum() for w in run.params.values()) * regularised

    return loss


_MEASURES: dict[str, Callable[[Any, Any, Pass], Any]] = {
    "mean error": lambda e, h, run: e.mean(),
    "values of samples": lambda e, h, run: e,
    "worst": lambda e, h, run: e.max(),
    "outputs": lambda e, h, run: h,
    "unmasked": lambda e, h, run: run.batch["mask"].sum(),
    "constant": lambda e, h, run: jnp.int32(3),
    "stacked": lambda e, h, run: jnp.stack([e.sum(), e.mean(), 1.0]),
    "layers": lambda e, h, run: [jnp.abs(h.astype(jnp.float32)).mean() for h in run.seen[1:3]],
    "count": lambda e, h, run: (e < 1).sum(),
    "any": lambda e, h, run: ((e < 0.2).any(), (e < 50).all()),
    "guesses": lambda e, h, run: h.argmax(-1),
    "accuracy": lambda e, h, run: (h.argmax(-1) == run.batch["label"]).mean(),
    "classes": lambda e, h, run: jax.nn.one_hot(run.batch["label"], 20).sum(0),
}


def _measures(draw: Draw, low: bool) -> Callable[[Any, Any, Pass], dict[str, Any]]:
    """Draws what a loss gives beside it; nothing that rounding may turn where activations have 16 bits."""
    turned = {"count", "any", "guesses", "accuracy"} if low else set()
    names = [name for name in _MEASURES if name not in turned]
    chosen = sorted(draw.rng.permutation(names)[: draw.rng.integers(0, 5)])
    draw.features.update(f"metric: {name}" for name in chosen)
    return lambda errors, made, run: {name: _MEASURES[name](errors, made, run) for name in chosen}


def _batch(draw: Draw, samples: int, mask_type: Any) -> Batch:
    rng, shape = draw.rng, (samples, draw.length) if draw.length else (samples,)
    mask = rng.random(shape) < 0.6
    mask.reshape(-1)[::3] = True
    batch: Batch = {
        "x": rng.normal(size=(*shape, draw.width)).astype(np.float32),
        "y": rng.normal(size=(*shape, draw.width)).astype(np.float32),
        "mask": mask.astype(mask_type),
        "label": rng.integers(0, 20, shape).astype(np.int32),
    }
    if "tokens" in draw.features:
        batch["token"] = rng.integers(0, 20, shape).astype(np.int32)
    if "images" in draw.features:
        batch["image"] = rng.integers(0, 256, (samples, 8, 8, 3)).astype(np.uint8)
    return batch


_OPTIMIZERS: dict[str, Callable[[], optax.GradientTransformation]] = {
    "sgd": lambda: optax.sgd(0.05),
    "momentum": lambda: optax.sgd(0.05, momentum=0.9, nesterov=True),
    "adam": lambda: optax.adam(1e-2, eps=1e-3),
    "adamw with a schedule": lambda: optax.adamw(optax.warmup_cosine_decay_schedule(0.005, 0.02, 2, 8), eps=1e-3),
    "clipped by the global norm": lambda: optax.chain(optax.clip_by_global_norm(0.1), optax.sgd(0.5)),
    "apply_if_finite": lambda: optax.apply_if_finite(optax.sgd(0.05, momentum=0.9), 3),
    "MultiSteps": lambda: optax.MultiSteps(optax.sgd(0.05), 2).gradient_transformation(),
    "rmsprop": lambda: optax.rmsprop(1e-2, eps=1e-3),
    "adafactor": lambda: optax.adafactor(1e-2),
    "lamb": lambda: optax.lamb(1e-2, eps=1e-3),
}
_WAYS = ["by hand", "by hand, if finite", *_OPTIMIZERS]
_PROBABILITIES = np.array([3, 1, 2, 3, 4, 3, 2, 1, 1, 1, 1, 1]) / 23


def _update(draw: Draw) -> Callable[[dict[str, Any]], tuple[Any, Callable[[Any, Any], Any], Callable[[Any], Any]]]:
    """Draws an optimizer: of trained parameters, the state, what changes it by gradients, what takes them from it."""
    way = str(draw.rng.choice(_WAYS, p=_PROBABILITIES))
    draw.features.add(f"update: {way}")
    tx = _OPTIMIZERS[way]() if way in _OPTIMIZERS else None
    if tx is not None and draw.feature("TrainState", 0.3):
        return lambda trained: (
            jax.tree_util.tree_map(np.asarray, TrainState.create(apply_fn=None, params=trained, tx=tx)),
            lambda state, gradients: state.apply_gradients(grads=gradients),
            lambda state: state.params,
        )

    def change(state: Any, gradients: Any) -> Any:
        params, count = state["params"], state["count"] + 1
        if tx is not None:
            updates, opt = tx.update(gradients, state["opt"], params)
            return {"params": optax.apply_updates(params, updates), "opt": opt, "count": count}

        def descended() -> Any:
            return jax.tree_util.tree_map(lambda w, g: w - 0.05 * g, params, gradients)

        if way == "by hand":
            return {**state, "params": descended(), "count": count}
        finite = jnp.isfinite(norm_of(gradients))
        return {**state, "params": jax.lax.cond(finite, descended, lambda: params), "count": count}

    def begin(trained: dict[str, Any]) -> Any:
        opt = jax.tree_util.tree_map(np.asarray, tx.init(trained)) if tx is not None else ()
        return {"params": trained, "opt": opt, "count": np.int32(0)}, change, lambda state: state["params"]

    return begin
