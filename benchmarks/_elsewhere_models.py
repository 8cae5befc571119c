"""Ten models as their users write them, each a function that takes a batch size; none knows of a planner."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import optax
from flax import linen as nn
from flax.training.train_state import TrainState

TOKENS, WIDTH = 128, 256
Made = tuple[Callable[..., Any], tuple[Any, ...]]


def gpt2(batch_size: int) -> Made:
    """GPT-2 of 12 blocks, by Hugging Face's transformers."""
    from transformers import FlaxGPT2LMHeadModel, GPT2Config

    return _language(FlaxGPT2LMHeadModel, GPT2Config(n_positions=TOKENS), batch_size)


def bert(batch_size: int) -> Made:
    """BERT of 12 blocks, by Hugging Face's transformers."""
    from transformers import BertConfig, FlaxBertForMaskedLM

    return _language(FlaxBertForMaskedLM, BertConfig(), batch_size)


def llama(batch_size: int) -> Made:
    """A Llama of 8 blocks, by Hugging Face's transformers."""
    from transformers import FlaxLlamaForCausalLM, LlamaConfig

    config = LlamaConfig(hidden_size=512, intermediate_size=1376, num_hidden_layers=8, num_attention_heads=8)
    return _language(FlaxLlamaForCausalLM, config, batch_size)


def _language(kind: Any, config: Any, batch_size: int) -> Made:
    model = kind(config, input_shape=(1, TOKENS), _do_init=False)
    tokens = jax.ShapeDtypeStruct((batch_size, TOKENS), jnp.int32)
    optimizer = optax.adamw(1e-4)

    def start() -> TrainState:
        parameters = model.init_weights(jax.random.PRNGKey(0), (1, TOKENS))
        return TrainState.create(apply_fn=None, params=parameters, tx=optimizer)

    def train_step(state: TrainState, batch: dict[str, jax.Array]) -> Any:
        def loss(parameters: Any) -> jax.Array:
            logits = model(batch["tokens"], params=parameters, train=False).logits
            return optax.softmax_cross_entropy_with_integer_labels(logits, batch["labels"]).mean()

        value, gradients = jax.value_and_grad(loss)(state.params)
        return state.apply_gradients(grads=gradients), value

    return train_step, (jax.eval_shape(start), {"tokens": tokens, "labels": tokens})


class Perceptron(nn.Module):
    """Eight blocks of two products each, with a norm before."""

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        """Returns ten logits for each sample."""
        for _ in range(8):
            x = x + nn.Dense(WIDTH)(nn.gelu(nn.Dense(4 * WIDTH)(nn.LayerNorm()(x))))
        return nn.Dense(10)(x)


def flax(batch_size: int) -> Made:
    """A network of one's own in flax, trained by its `TrainState`."""
    return _classifier(Perceptron(), batch_size)


class Block(nn.Module):
    """A block for flax's scan: it takes and returns what is carried."""

    @nn.compact
    def __call__(self, x: jax.Array, _: None) -> tuple[jax.Array, None]:
        """Returns the activations, and nothing to stack."""
        return x + nn.Dense(WIDTH)(nn.gelu(nn.Dense(4 * WIDTH)(nn.LayerNorm()(x)))), None


class Scanned(nn.Module):
    """Eight blocks in `flax.linen.scan`, each rematerialised."""

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        """Returns ten logits for each sample."""
        blocks = nn.scan(nn.remat(Block), variable_axes={"params": 0}, split_rngs={"params": True}, length=8)
        x, _ = blocks()(x, None)
        return nn.Dense(10)(x)


def scan(batch_size: int) -> Made:
    """Blocks in `flax.linen.scan` over `flax.linen.remat`."""
    return _classifier(Scanned(), batch_size)


def _classifier(net: nn.Module, batch_size: int) -> Made:
    batch = _samples(batch_size)

    def start(x: jax.Array) -> TrainState:
        return TrainState.create(apply_fn=net.apply, params=net.init(jax.random.PRNGKey(0), x), tx=optax.adam(1e-3))

    def train_step(state: TrainState, batch: dict[str, jax.Array]) -> TrainState:
        def loss(parameters: Any) -> jax.Array:
            return _entropy(state.apply_fn(parameters, batch["x"]), batch)

        return state.apply_gradients(grads=jax.grad(loss)(state.params))

    return train_step, (jax.eval_shape(start, batch["x"]), batch)


def _samples(batch_size: int) -> dict[str, jax.ShapeDtypeStruct]:
    return {
        "x": jax.ShapeDtypeStruct((batch_size, WIDTH), jnp.float32),
        "label": jax.ShapeDtypeStruct((batch_size,), jnp.int32),
    }


def _entropy(logits: jax.Array, batch: dict[str, jax.Array]) -> jax.Array:
    return optax.softmax_cross_entropy_with_integer_labels(logits, batch["label"]).mean()


def _descent(apply: Callable[..., jax.Array], weights: Any, batch: dict[str, jax.ShapeDtypeStruct]) -> Made:
    """Plain gradient descent, as one writes it in jax alone."""

    def train_step(weights: Any, batch: dict[str, jax.Array]) -> Any:
        gradients = jax.grad(lambda weights: _entropy(apply(weights, batch["x"]), batch))(weights)
        return jax.tree.map(lambda weight, gradient: weight - 0.1 * gradient, weights, gradients)

    return train_step, (weights, batch)


def _matrix(*shape: int) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape, jnp.float32)


def plain_jax(batch_size: int) -> Made:
    """A list of matrices in jax alone."""

    def apply(weights: Any, x: jax.Array) -> jax.Array:
        for wide, narrow in weights["blocks"]:
            x = x + jnp.tanh(x @ wide) @ narrow
        return x @ weights["last"]

    blocks = [(_matrix(WIDTH, 4 * WIDTH), _matrix(4 * WIDTH, WIDTH))] * 8
    return _descent(apply, {"blocks": blocks, "last": _matrix(WIDTH, 10)}, _samples(batch_size))


def equinox(batch_size: int) -> Made:
    """A multi-layer perceptron of equinox, by its own filtered gradient."""
    import equinox as eqx

    made = eqx.filter_eval_shape(lambda: eqx.nn.MLP(WIDTH, 10, 4 * WIDTH, 8, key=jax.random.PRNGKey(0)))
    arrays, rest = eqx.partition(made, lambda leaf: isinstance(leaf, jax.ShapeDtypeStruct))

    def train_step(arrays: Any, batch: dict[str, jax.Array]) -> Any:
        def loss(model: Any) -> jax.Array:
            return _entropy(jax.vmap(model)(batch["x"]), batch)

        gradients = eqx.filter_grad(loss)(eqx.combine(arrays, rest))
        return jax.tree.map(lambda weight, gradient: weight - 0.1 * gradient, arrays, gradients)

    return train_step, (arrays, _samples(batch_size))


def experts(batch_size: int) -> Made:
    """Four mixtures of eight experts, weighted by a gate."""

    def apply(weights: Any, x: jax.Array) -> jax.Array:
        for block in weights["blocks"]:
            gate = jax.nn.softmax(x @ block["gate"])
            inner = jax.nn.relu(jnp.einsum("bd,edh->ebh", x, block["enter"]))
            x = x + jnp.einsum("ebh,ehd,be->bd", inner, block["leave"], gate)
        return x @ weights["last"]

    block = {"gate": _matrix(WIDTH, 8), "enter": _matrix(8, WIDTH, WIDTH), "leave": _matrix(8, WIDTH, WIDTH)}
    return _descent(apply, {"blocks": [block] * 4, "last": _matrix(WIDTH, 10)}, _samples(batch_size))


class Recurrent(nn.Module):
    """Two LSTMs of flax, one over the other."""

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        """Returns ten logits for each sample."""
        x = x.reshape(x.shape[0], 16, -1)
        for _ in range(2):
            x = nn.RNN(nn.LSTMCell(WIDTH))(x)
        return nn.Dense(10)(x[:, -1])


def rnn(batch_size: int) -> Made:
    """Two LSTMs over 16 time steps."""
    return _classifier(Recurrent(), batch_size)


def fine_tuned(batch_size: int) -> Made:
    """The perceptron of one's own, of which only the last layer is trained."""
    _, (state, batch) = flax(batch_size)
    parameters = state.params["params"]
    last = {"Dense_16": parameters["Dense_16"]}
    frozen = {name: value for name, value in parameters.items() if name not in last}

    def train_step(state: Any, batch: dict[str, jax.Array]) -> Any:
        trained, frozen = state

        def loss(trained: Any) -> jax.Array:
            return _entropy(Perceptron().apply({"params": {**frozen, **trained}}, batch["x"]), batch)

        gradients = jax.grad(loss)(trained)
        return jax.tree.map(lambda weight, gradient: weight - 0.1 * gradient, trained, gradients), frozen

    return train_step, ((last, frozen), batch)
