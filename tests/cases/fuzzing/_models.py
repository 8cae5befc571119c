"""Small models that examples name as `fuzzing._models:mlp`; some of them are none."""

from __future__ import annotations

import functools
from typing import Any


def mlp(batch_size: int, layers: int = 4, size: int = 16, dtype: str = "float32") -> Any:
    """A chain of products, which is traced in a tenth of a second."""
    import jax
    import jax.numpy as jnp

    def step(weights: Any, x: Any) -> Any:
        def loss(weights: Any) -> Any:
            out = x
            for weight in weights:
                out = jnp.tanh(out @ weight)
            return (out.astype(jnp.float32) ** 2).mean()

        return jax.tree.map(lambda w, g: w - 0.1 * g, weights, jax.grad(loss)(weights))

    weights = [jax.ShapeDtypeStruct((size, size), dtype) for _ in range(layers)]
    return step, (weights, jax.ShapeDtypeStruct((batch_size, size), dtype))


def __getattr__(name: str) -> Any:
    """Models by their layers, size and kind of numbers: `mlp_3_8_bfloat16`."""
    kind, *words = name.split("_")
    if kind != "mlp" or len(words) != 3:
        raise AttributeError(name)
    return functools.partial(mlp, layers=int(words[0]), size=int(words[1]), dtype=words[2])


def inference(batch_size: int) -> Any:
    """A step that trains nothing."""
    import jax

    weight, x = (jax.ShapeDtypeStruct((rows, 16), "float32") for rows in (16, batch_size))
    return (lambda weight, x: x @ weight), (weight, x)


def constant(batch_size: int) -> Any:
    """A step that computes nothing."""
    return (lambda x: x), (1.0,)


def no_step(batch_size: int) -> Any:
    """Neither a step nor arguments."""
    return 5


def no_arguments(batch_size: int) -> Any:
    """A step without its arguments."""
    return (lambda x: x), None


def no_batch() -> Any:
    """Takes no batch size."""
    return mlp(8)


def failing(batch_size: int) -> Any:
    """An error of a user's code: it is shown as Python shows it."""
    raise KeyError("the model's own")


table = {"a": 1}
