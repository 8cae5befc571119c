"""Handwritten digits of 8 x 8 pixels (1797, in scikit-learn), by small networks: plain, convolutional, residual.

References:
    He, Zhang, Ren and Sun, Deep Residual Learning for Image Recognition, CVPR 2016.
    De and Smith, Batch Normalization Biases Residual Blocks Towards the Identity Function, NeurIPS 2020 (blocks that
    begin as the identity, without normalization).
"""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np

from alpa_dejavu.playground._arrays import Batch, Data, Init, Logits, Params, Samples, Scalar
from alpa_dejavu.playground.job import Problem

if TYPE_CHECKING:
    from jaxtyping import Array, Float, Int, PRNGKeyArray

    Part: TypeAlias = Mapping[str, Float[Array, "..."]]
    Images: TypeAlias = Float[Array, "samples height width channels"]
    Hidden: TypeAlias = Float[Array, "samples length width"]

_WIDE = 32, 64


def digits_mlp(units: int = 32) -> Problem:
    """Returns digits by a network of 64 inputs, 32 hidden units and 10 classes."""

    def init(key: PRNGKeyArray) -> Params:
        first, second = jax.random.split(key)
        return {"hidden": _dense(first, 64, units), "out": _dense(second, units, 10)}

    def logits(params: Params, inputs: Samples) -> Float[Array, "samples 10"]:
        hidden = jax.nn.relu(_affine(params["hidden"], inputs.reshape(len(inputs), 64)))
        return _affine(params["out"], hidden)

    return _digit_problem("digits-mlp", init, logits, chain=("hidden", "out"),
                          narrowed=lambda widths: digits_mlp(*widths))  # fmt: skip


def digits_cnn(first: int = 8, second: int = 16) -> Problem:
    """Returns digits by two convolutions of 3 x 3 with 8 and 16 channels, each pooled, and 10 classes."""
    chain = "first", "second", "out"

    def init(key: PRNGKeyArray) -> Params:
        keys = jax.random.split(key, 3)
        return {"first": _dense(keys[0], 9, first), "second": _dense(keys[1], 9 * first, second),
                "out": _dense(keys[2], 4 * second, 10)}  # fmt: skip

    def logits(params: Params, inputs: Samples) -> Float[Array, "samples 10"]:
        images = inputs[..., None]
        for name in chain[:-1]:
            images = _pooled(jax.nn.relu(_convolved(params[name], images)))
        return _affine(params["out"], images.reshape(len(inputs), 4 * second))

    name = "digits-wide-cnn" if (first, second) == _WIDE else "digits-cnn"
    return _digit_problem(name, init, logits, chain=chain, narrowed=lambda widths: digits_cnn(*widths))


def digits_wide_cnn() -> Problem:
    """Returns digits by the convolutions of digits-cnn, with four times as many channels."""
    return digits_cnn(*_WIDE)


def _classified(name: str, init: Init, logits: Logits, data: Data, held_out: int, **more: Any) -> Problem:
    """Returns a model that puts out the logits of classes; the first samples are held out."""

    def loss(params: Params, batch: Batch) -> Scalar:
        inputs, targets = batch
        logarithms = jax.nn.log_softmax(logits(params, inputs))
        return -jnp.mean(jnp.sum(logarithms * jax.nn.one_hot(targets, logarithms.shape[-1]), axis=-1))

    def accuracy(params: Params, batch: Batch) -> Scalar:
        inputs, targets = batch
        return jnp.mean(jnp.argmax(logits(params, inputs), axis=-1) == targets)

    inputs, targets = data
    return Problem(name, init, loss, accuracy, (inputs[held_out:], targets[held_out:]),
                   (inputs[:held_out], targets[:held_out]), logits=logits, **more)  # fmt: skip


def _digit_problem(name: str, init: Init, logits: Logits, **more: Any) -> Problem:
    from sklearn.datasets import load_digits

    data = load_digits()
    order = np.random.default_rng(0).permutation(len(data.target))
    images, digits = (data.images[order] / 16).astype(np.float32), data.target[order].astype(np.int32)
    return _classified(name, init, logits, (images, digits), 360, **more)


def _dense(key: PRNGKeyArray, inputs: int, outputs: int) -> Part:
    """Returns drawn parameters of an affine layer."""
    return {"bias": jnp.zeros(outputs), "kernel": jax.random.normal(key, (inputs, outputs)) * (2 / inputs) ** 0.5}


def _affine(part: Part, inputs: Float[Array, "... inputs"]) -> Float[Array, "... outputs"]:
    return inputs @ part["kernel"] + part["bias"]


def _convolved(part: Part, images: Images) -> Images:
    """Returns a convolution of 3 x 3, as one product: many workers' parameters are quick side by side by it."""
    _, height, width, _ = images.shape
    padded = jnp.pad(images, ((0, 0), (1, 1), (1, 1), (0, 0)))
    near = [padded[:, y : y + height, x : x + width] for y in range(3) for x in range(3)]
    return _affine(part, jnp.concatenate(near, axis=-1))


def _pooled(images: Images) -> Images:
    """Returns the means of 2 x 2 pixels."""
    count, height, width, channels = images.shape
    return images.reshape(count, height // 2, 2, width // 2, 2, channels).mean(axis=(2, 4))


_CHANNELS, _PLACES = 16, 4


def digits_residual(*units: int) -> Problem:
    """Returns digits by a residual network: a convolution, three blocks of 16, 32 and 16 channels, and 10 classes."""
    units = units or (32, 32, 32)
    names = tuple((f"block {n} in", f"block {n} out") for n, count in enumerate(units, 1) if count)

    def init(key: PRNGKeyArray) -> Params:
        keys = jax.random.split(key, len(units) + 2)
        parts = {"stem": _dense(keys[0], 9, _CHANNELS), "out": _dense(keys[1], _CHANNELS * _PLACES, 10)}
        for (into, out), count, own_key in zip(names, filter(None, units), keys[2:], strict=False):
            parts |= {into: _dense(own_key, 9 * _CHANNELS, count),
                      out: {"bias": jnp.zeros(_CHANNELS), "kernel": jnp.zeros((9 * count, _CHANNELS))}}  # fmt: skip
        return parts

    def logits(params: Params, inputs: Samples) -> Float[Array, "samples 10"]:
        images = _pooled(jax.nn.relu(_convolved(params["stem"], inputs[..., None])))
        for into, out in names:
            images = images + _convolved(params[out], jax.nn.relu(_convolved(params[into], images)))
        return _affine(params["out"], _pooled(jax.nn.relu(images)).reshape(len(inputs), _CHANNELS * _PLACES))

    return _digit_problem("digits-residual", init, logits, blocks=names,
                          narrowed=lambda widths: digits_residual(*widths))  # fmt: skip


def sparse_least_squares(rows: int = 4096, columns: int = 256, non_zeros: int = 4, seed: int = 0) -> Problem:
    """Returns half the mean squared error of a linear model, whose rows have a few non-zero entries, and noise.

    An input is a row as pairs of (column, value); what it is judged by are its training rows.
    Rows are samples, columns parameters.
    """
    draw = np.random.default_rng(seed)
    chosen = np.stack([draw.choice(columns, non_zeros, replace=False) for _ in range(rows)])
    values = draw.standard_normal((rows, non_zeros)).astype(np.float32)
    truth = draw.standard_normal(columns).astype(np.float32)
    targets = (values * truth[chosen]).sum(axis=1) + 0.1 * draw.standard_normal(rows).astype(np.float32)
    inputs = np.stack([chosen.astype(np.float32), values], axis=-1)

    def loss(params: Params, batch: Batch) -> Scalar:
        pairs, wanted = batch
        outputs = jnp.sum(params[pairs[..., 0].astype(jnp.int32)] * pairs[..., 1], axis=-1)
        return 0.5 * jnp.mean(jnp.square(outputs - wanted))

    data = inputs, targets.astype(np.float32)
    return Problem("sparse-least-squares", lambda key: jnp.zeros(columns), loss, None, data, data,
                   lambda pairs: pairs[..., 0].astype(np.int64))  # fmt: skip


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
    return _classified("text-gpt", _init, _logits, (windows[:, :-1], windows[:, 1:]), len(windows) // 10)


def _text() -> Int[np.ndarray, " characters"]:
    docstrings = []
    for name in _MODULES:
        module = importlib.import_module(name)
        parts = [module, *(member for _, member in sorted(vars(module).items()) if inspect.isfunction(member) or
                           inspect.isclass(member))]  # fmt: skip
        docstrings += [inspect.getdoc(member) or "" for member in parts if inspect.getmodule(member) is module]
    codes = np.frombuffer("\n".join(docstrings).encode("ascii", "replace"), np.uint8).astype(np.int32) - 32
    return np.where((codes >= 0) & (codes < _CHARACTERS - 1), codes, _CHARACTERS - 1).astype(np.int32)


def _init(key: PRNGKeyArray) -> Params:
    keys = iter(jax.random.split(key, 3 + 4 * _BLOCKS))

    def drawn(*shape: int) -> Array:
        return jax.random.normal(next(keys), shape) * shape[0] ** -0.5

    def block() -> Part:
        return {"qkv": drawn(_WIDTH, 3 * _WIDTH), "mixed": drawn(_WIDTH, _WIDTH), "up": drawn(_WIDTH, 4 * _WIDTH),
                "down": drawn(4 * _WIDTH, _WIDTH)}  # fmt: skip

    return {"characters": drawn(_CHARACTERS, _WIDTH), "places": drawn(_LENGTH, _WIDTH),
            "blocks": [block() for _ in range(_BLOCKS)], "out": drawn(_WIDTH, _CHARACTERS)}  # fmt: skip


def _logits(params: Params, inputs: Int[Array, "samples length"]) -> Float[Array, "samples length characters"]:
    hidden = params["characters"][inputs] + params["places"]
    for part in params["blocks"]:
        hidden = hidden + _attention(part, _normal(hidden))
        hidden = hidden + jax.nn.relu(_normal(hidden) @ part["up"]) @ part["down"]
    return _normal(hidden) @ params["out"]


def _attention(part: Part, inputs: Hidden) -> Hidden:
    count, length, _ = inputs.shape
    query, key, value = jnp.split((inputs @ part["qkv"]).reshape(count, length, 3 * _HEADS, -1), 3, axis=2)
    scores = jnp.einsum("bqhd,bkhd->bhqk", query, key) * (_WIDTH // _HEADS) ** -0.5
    scores = jnp.where(jnp.tril(jnp.ones((length, length), bool)), scores, -jnp.inf)
    mixed = jnp.einsum("bhqk,bkhd->bqhd", jax.nn.softmax(scores), value)
    return mixed.reshape(count, length, _WIDTH) @ part["mixed"]


def _normal(values: Hidden) -> Hidden:
    return values * jax.lax.rsqrt(jnp.mean(jnp.square(values), axis=-1, keepdims=True) + 1e-6)
