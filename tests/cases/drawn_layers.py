"""Layers of small drawn networks: each draws its weights, and gives a function of a network's values."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

__all__ = ["LAYERS", "Draw", "Pass"]

_ACTIVATIONS: tuple[Callable[[Any], Any], ...] = (jnp.tanh, jax.nn.relu, jax.nn.gelu, jax.nn.silu, jax.nn.sigmoid)


class Draw:
    """What a seed gives: choices, weights, and the names of what was chosen.

    Attributes:
        width, length: of activations: (batch, width), or (batch, length, width) where the length isn't 0.
        params: the weights, in float32.
        matrices: the names of square ones, which other layers may share.
    """

    def __init__(self, seed: int) -> None:
        self.rng = np.random.default_rng(seed)
        self.features: set[str] = set()
        self.params: dict[str, np.ndarray] = {}
        self.matrices: list[str] = []
        self.width = int(self.one_of(8, 12, 16, 32))
        self.length = 0

    def one_of(self, *options: Any) -> Any:
        """Draws one of some options."""
        return options[self.rng.integers(len(options))]

    def feature(self, name: str, probability: float) -> bool:
        """Draws whether a feature is there, and notes its name."""
        return bool(self.rng.random() < probability) and not self.features.add(name)  # type: ignore[func-returns-value]

    def weight(self, *shape: int, scale: float | None = None) -> str:
        """Draws a weight, and returns its name."""
        name = f"w{len(self.params):02d}"
        scale = shape[-2] ** -0.5 if scale is None else scale
        self.params[name] = (scale * self.rng.normal(size=shape)).astype(np.float32)
        return name

    def matrix(self) -> str:
        """Draws a square weight that other layers may share."""
        self.matrices.append(self.weight(self.width, self.width))
        return self.matrices[-1]

    def activation(self) -> Callable[[Any], Any]:
        """Draws an activation."""
        made: Callable[[Any], Any] = self.one_of(*_ACTIVATIONS)
        return made


@dataclasses.dataclass
class Pass:
    """One pass through a network.

    Attributes:
        params: by name, in the activations' type.
        batch: by name.
        count: the step's number.
        keys: of random numbers: one for each micro-batch, of which each draws its samples' own; none: none are drawn.
        seen: the activations so far.
        terms: of the loss, beside the last layer's.
    """

    params: dict[str, Any]
    batch: dict[str, Any]
    count: Any
    keys: Sequence[Any] = ()
    seen: list[Any] = dataclasses.field(default_factory=list)
    terms: list[Any] = dataclasses.field(default_factory=list)

    def drawn(
        self, draw: Callable[[Any, tuple[int, ...]], Any], own: Callable[[Any], Any], shape: Sequence[int]
    ) -> Any:
        """Random numbers for all samples; `own` makes a layer's key of a micro-batch's."""
        part = (shape[0] // len(self.keys), *shape[1:])
        return jnp.concatenate([draw(own(key), part) for key in self.keys])


Layer = Callable[[Pass, Any], Any]


def _dense(draw: Draw) -> Layer:
    weight, bias, act = draw.matrix(), draw.weight(1, draw.width, scale=0.1), draw.activation()
    return lambda run, h: act(h @ run.params[weight] + run.params[bias][0])


def _residual(draw: Draw) -> Layer:
    weight, act = draw.matrix(), draw.activation()
    return lambda run, h: h + act(h @ run.params[weight])


def _bottleneck(draw: Draw) -> Layer:
    wide, narrow, act = (
        draw.weight(draw.width, 2 * draw.width),
        draw.weight(2 * draw.width, draw.width),
        draw.activation(),
    )
    return lambda run, h: h + act(h @ run.params[wide]) @ run.params[narrow]


def _branches(draw: Draw) -> Layer:
    names, act = [draw.matrix() for _ in range(3)], draw.activation()

    def layer(run: Pass, h: Any) -> Any:
        q, k, v = (h @ run.params[name] for name in names)
        return act(q * k) + v

    return layer


def _attention(draw: Draw) -> Layer:
    if not draw.length:
        return _branches(draw)
    draw.features.add("attention")
    names, heads, causal = [draw.matrix() for _ in range(4)], draw.one_of(1, 2, 4), draw.one_of(False, True)

    def layer(run: Pass, h: Any) -> Any:
        q, k, v = ((h @ run.params[name]).reshape(*h.shape[:2], heads, -1) for name in names[:3])
        scores = jnp.einsum("bqhd,bkhd->bhqk", q, k) / q.shape[-1] ** 0.5
        if causal:
            scores = jnp.where(jnp.tril(jnp.ones(scores.shape[2:], bool)), scores, -1e4)
        mixed = jnp.einsum("bhqk,bkhd->bqhd", jax.nn.softmax(scores), v)
        return h + mixed.reshape(h.shape) @ run.params[names[3]]

    return layer


def _norm(draw: Draw) -> Layer:
    scale, weight = draw.weight(1, draw.width, scale=1.0), draw.matrix()

    def layer(run: Pass, h: Any) -> Any:
        centred = h - h.mean(-1, keepdims=True)
        return (centred * jax.lax.rsqrt(centred.var(-1, keepdims=True) + 1e-3) * run.params[scale][0]) @ run.params[
            weight
        ]

    return layer


def _experts(draw: Draw) -> Layer:
    count = draw.one_of(2, 4)
    gate, experts = draw.weight(draw.width, count), draw.weight(count, draw.width, draw.width)

    def layer(run: Pass, h: Any) -> Any:
        made = jnp.tanh(jnp.einsum("...d,edf->...ef", h, run.params[experts]))
        return h + jnp.einsum("...ef,...e->...f", made, jax.nn.softmax(h @ run.params[gate]))

    return layer


def _shared(draw: Draw) -> Layer:
    weight, act = draw.one_of(*draw.matrices) if draw.matrices else draw.matrix(), draw.activation()
    turned = draw.one_of(False, True)
    return lambda run, h: act(h @ (run.params[weight].T if turned else run.params[weight]))


def _skip(draw: Draw) -> Layer:
    weight, back = draw.matrix(), draw.one_of(2, 3, 4)
    return lambda run, h: run.seen[-min(back, len(run.seen))] + jnp.tanh(h @ run.params[weight])


def _scan(draw: Draw) -> Layer:
    stacked = draw.weight(draw.one_of(2, 3), draw.width, draw.width)
    return lambda run, h: jax.lax.scan(lambda h, w: (jnp.tanh(h @ w), None), h, run.params[stacked])[0]


def _recurrent(draw: Draw) -> Layer:
    if not draw.length:
        return _scan(draw)
    draw.features.add("recurrent")
    weight = draw.matrix()

    def layer(run: Pass, h: Any) -> Any:
        def turn(state: Any, x: Any) -> tuple[Any, Any]:
            state = jnp.tanh(x + state @ run.params[weight])
            return state, state

        return jnp.swapaxes(jax.lax.scan(turn, jnp.zeros_like(h[:, 0]), jnp.swapaxes(h, 0, 1))[1], 0, 1)

    return layer


def _conditional(draw: Draw) -> Layer:
    weight, by_count = draw.matrix(), draw.one_of(False, True)

    def layer(run: Pass, h: Any) -> Any:
        turn = run.count % 2 == 0 if by_count else run.params[weight].sum() > 0
        return jax.lax.cond(turn, lambda h, w: jnp.tanh(h @ w), lambda h, w: h + h @ w, h, run.params[weight])

    return layer


def _where(draw: Draw) -> Layer:
    weight = draw.matrix()
    return lambda run, h: jnp.where(h > 0, h @ run.params[weight], 0.5 * h)


def _random(draw: Draw) -> Layer:
    kind, way, number = (
        draw.one_of("dropout", "noise", "depth"),
        draw.one_of("split", "fold_in", "same"),
        len(draw.params),
    )
    own = {
        "split": lambda key: jax.random.split(key, 64)[number],
        "fold_in": lambda key: jax.random.fold_in(key, number),
        "same": lambda key: key,
    }[way]
    weight = draw.matrix()

    def layer(run: Pass, h: Any) -> Any:
        made = jnp.tanh(h @ run.params[weight])
        if not run.keys:
            return made
        if kind == "noise":
            noise = run.drawn(lambda key, shape: jax.random.normal(key, shape, made.dtype), own, made.shape)
            return made + jnp.asarray(0.1, made.dtype) * noise
        shape = made.shape if kind == "dropout" else (made.shape[0],) + (1,) * (made.ndim - 1)
        kept = run.drawn(lambda key, shape: jax.random.bernoulli(key, 0.75, shape), own, shape)
        return jnp.where(kept, made / 0.75, 0.0).astype(made.dtype)

    return layer


def _stopped(draw: Draw) -> Layer:
    weight, other = draw.matrix(), draw.matrix()
    return lambda run, h: jnp.tanh(h @ run.params[weight]) + jax.lax.stop_gradient(jnp.tanh(h @ run.params[other]))


def _exit(draw: Draw) -> Layer:
    weight, after = draw.matrix(), _dense(draw)

    def layer(run: Pass, h: Any) -> Any:
        run.terms.append(0.3 * jnp.mean(((h @ run.params[weight]).astype(jnp.float32) - 0.1) ** 2))
        return after(run, h)

    return layer


def _auxiliary(draw: Draw) -> Layer:
    after, how = _dense(draw), draw.one_of("mean", "sum")

    def layer(run: Pass, h: Any) -> Any:
        run.terms.append(0.01 * getattr(jnp.abs(h.astype(jnp.float32)), how)())
        return after(run, h)

    return layer


def _halves(draw: Draw) -> Layer:
    weight = draw.matrix()

    def layer(run: Pass, h: Any) -> Any:
        first, second = jnp.split(h, 2, -1)
        return jnp.concatenate([jnp.tanh(first) * second, second - first], -1) @ run.params[weight]

    return layer


def _checkpointed(draw: Draw) -> Layer:
    kind = draw.one_of("bottleneck", "branches", "attention", "random numbers", "random numbers", "scan")
    draw.features.add(f"{kind} under checkpoint")
    inside, after = LAYERS[kind](draw), draw.matrix()

    def layer(run: Pass, h: Any) -> Any:
        def rematerialised(params: dict[str, Any], h: Any) -> Any:
            return inside(dataclasses.replace(run, params=params), h)

        return jax.checkpoint(rematerialised)(run.params, h) @ run.params[after]

    return layer


def _mapped(draw: Draw) -> Layer:
    weight = draw.matrix()
    return lambda run, h: jax.vmap(lambda row: jnp.tanh(row @ run.params[weight]))(h)


LAYERS: dict[str, Callable[[Draw], Layer]] = {
    "dense": _dense,
    "residual": _residual,
    "bottleneck": _bottleneck,
    "branches": _branches,
    "attention": _attention,
    "layer norm": _norm,
    "experts": _experts,
    "shared weights": _shared,
    "skip": _skip,
    "scan": _scan,
    "recurrent": _recurrent,
    "conditional": _conditional,
    "where": _where,
    "random numbers": _random,
    "stop_gradient": _stopped,
    "early exit": _exit,
    "auxiliary term": _auxiliary,
    "halves": _halves,
    "checkpoint": _checkpointed,
    "vmap": _mapped,
}
