"""The text of docstrings of Python's own library, character by character, by a small transformer."""

from __future__ import annotations

import importlib
import inspect
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray

from alpa_dejavu.playground.job import Problem

__all__ = ["text_gpt"]

_MODULES = ("argparse", "collections", "datetime", "difflib", "functools", "inspect", "logging", "os", "random",
            "statistics", "string", "subprocess", "textwrap", "unittest")  # fmt: skip
_WIDTH, _BLOCKS, _HEADS, _LENGTH, _CHARACTERS = 32, 2, 4, 32, 96
"""Characters are those of ASCII that can be printed, and one for all others, such as the end of a line."""


def text_gpt() -> Problem:
    """Returns the next of each 32 characters by a transformer of two blocks, 32 wide, with four heads.

    The text is that of the Python that runs: another version has another.
    """
    text = _text()
    starts = np.arange(0, len(text) - _LENGTH - 1, _LENGTH)
    windows = np.stack([text[start : start + _LENGTH + 1] for start in starts])
    windows = np.random.default_rng(0).permutation(windows)
    inputs, targets = windows[:, :-1], windows[:, 1:]
    held_out = len(windows) // 10

    def loss(params: Any, batch: Any) -> Any:
        wanted = jax.nn.one_hot(batch[1], _CHARACTERS)
        return -jnp.mean(jnp.sum(jax.nn.log_softmax(_logits(params, batch[0])) * wanted, axis=-1))

    def accuracy(params: Any, batch: Any) -> Any:
        return jnp.mean(jnp.argmax(_logits(params, batch[0]), axis=-1) == batch[1])

    return Problem("text-gpt", _init, loss, accuracy, (inputs[held_out:], targets[held_out:]),
                   (inputs[:held_out], targets[:held_out]), logits=_logits)  # fmt: skip


def _text() -> NDArray[np.int32]:
    docstrings = []
    for name in _MODULES:
        module = importlib.import_module(name)
        parts = [module, *(member for _, member in sorted(vars(module).items()) if inspect.isfunction(member) or
                           inspect.isclass(member))]  # fmt: skip
        docstrings += [inspect.getdoc(member) or "" for member in parts if inspect.getmodule(member) is module]
    codes = np.frombuffer("\n".join(docstrings).encode("ascii", "replace"), np.uint8).astype(np.int32) - 32
    return np.where((codes >= 0) & (codes < _CHARACTERS - 1), codes, _CHARACTERS - 1).astype(np.int32)


def _init(key: Any) -> Any:
    keys = iter(jax.random.split(key, 3 + 4 * _BLOCKS))

    def drawn(*shape: int) -> Any:
        return jax.random.normal(next(keys), shape) * shape[0] ** -0.5

    def block() -> Any:
        return {"qkv": drawn(_WIDTH, 3 * _WIDTH), "mixed": drawn(_WIDTH, _WIDTH), "up": drawn(_WIDTH, 4 * _WIDTH),
                "down": drawn(4 * _WIDTH, _WIDTH)}  # fmt: skip

    return {"characters": drawn(_CHARACTERS, _WIDTH), "places": drawn(_LENGTH, _WIDTH),
            "blocks": [block() for _ in range(_BLOCKS)], "out": drawn(_WIDTH, _CHARACTERS)}  # fmt: skip


def _logits(params: Any, inputs: Any) -> Any:
    hidden = params["characters"][inputs] + params["places"]
    for part in params["blocks"]:
        hidden = hidden + _attention(part, _normal(hidden))
        hidden = hidden + jax.nn.relu(_normal(hidden) @ part["up"]) @ part["down"]
    return _normal(hidden) @ params["out"]


def _attention(part: Any, inputs: Any) -> Any:
    count, length, _ = inputs.shape
    query, key, value = jnp.split((inputs @ part["qkv"]).reshape(count, length, 3 * _HEADS, -1), 3, axis=2)
    scores = jnp.einsum("bqhd,bkhd->bhqk", query, key) * (_WIDTH // _HEADS) ** -0.5
    scores = jnp.where(jnp.tril(jnp.ones((length, length), bool)), scores, -jnp.inf)
    mixed = jnp.einsum("bhqk,bkhd->bqhd", jax.nn.softmax(scores), value)
    return mixed.reshape(count, length, _WIDTH) @ part["mixed"]


def _normal(values: Any) -> Any:
    return values * jax.lax.rsqrt(jnp.mean(jnp.square(values), axis=-1, keepdims=True) + 1e-6)
