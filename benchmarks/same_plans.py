"""Plans the same models by the jax at hand, to compare with those of Alpa's environment, jax 0.4.30.

    .venv/bin/python benchmarks/same_plans.py                # writes tests/whole/data/same-plans.json
    .venv-current/bin/python benchmarks/same_plans.py        # prints how its plans differ, and writes nothing

Plans are of given numbers of layers and of micro-batches, so that each has one pricing. What newer versions of jax
write otherwise stays: squares and tanh's derivative are fewer operations, and a backward pass keeps one array of each
GELU by tanh in place of two.
"""

from __future__ import annotations

import json
import pathlib
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import optax
from flax import linen as nn

from alpa_dejavu import plan_model

PLANS = pathlib.Path(__file__).resolve().parents[1] / "tests/whole/data/same-plans.json"
_WRITTEN_BY = "0.4.30"


class Net(nn.Module):
    """A network of a user's own."""

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        """Returns ten scores of each sample."""
        for _ in range(8):
            x = x + nn.Dense(1024)(nn.gelu(nn.Dense(4096)(x)))
        return nn.Dense(10)(x)


def own_model(batch_size: int) -> tuple[Callable[..., Any], tuple[Any, Any]]:
    """Returns a train step of the network, and its arguments."""
    net, optimizer = Net(), optax.adamw(1e-3)
    batch = {"x": jax.ShapeDtypeStruct((batch_size, 1024), jnp.float32),
             "label": jax.ShapeDtypeStruct((batch_size,), jnp.int32)}  # fmt: skip

    def start(x: jax.Array) -> tuple[Any, Any]:
        parameters = net.init(jax.random.PRNGKey(0), x)
        return parameters, optimizer.init(parameters)

    def train_step(state: tuple[Any, Any], batch: Mapping[str, jax.Array]) -> tuple[Any, Any]:
        def loss(parameters: Any) -> jax.Array:
            logits = net.apply(parameters, batch["x"])
            return optax.softmax_cross_entropy_with_integer_labels(logits, batch["label"]).mean()

        parameters, kept = state
        updates, kept = optimizer.update(jax.grad(loss)(parameters), kept, parameters)
        return optax.apply_updates(parameters, updates), kept

    return train_step, (jax.eval_shape(start, batch["x"]), batch)


ASKED: dict[str, tuple[Any, dict[str, Any]]] = {
    "gpt-1.3b": ("gpt-1.3b", {"batch": 64, "layers": 8, "micro_batches": 16}),
    "llama": ("transformer:hidden=2048,blocks=8,heads=16,vocabulary=32000,sequence=1024",
              {"batch": 32, "micro_batches": 8}),
    "wresnet-250m": ("wresnet-250m", {"batch": 256, "layers": 8, "micro_batches": 8}),
    "moe-380m": ("moe-380m", {"batch": 64, "layers": 8, "micro_batches": 8}),
    "own": (own_model, {"batch": 4096, "layers": 8, "micro_batches": 4}),
}  # fmt: skip
"""By name what is planned, and how."""

HAS_TANH = {"gpt-1.3b", "moe-380m", "own"}
"""Those with a GELU by tanh."""


def figures(name: str) -> dict[str, Any]:
    """Returns a plan's stages, its seconds and its memory, in bytes: by parts for each stage."""
    model, choices = ASKED[name]
    plan = plan_model(model, "p3.16xlarge", **choices).plan
    return {
        "step_s": plan.step_s,
        "stages": [[*stage.layers, *stage.logical_mesh, stage.remat, stage.zero] for stage in plan.stages],
        "bytes": [
            {"memory": stage.memory_bytes, "activations": stage.activation_bytes, "temporaries": stage.temporary_bytes}
            for stage in plan.stages
        ],
    }


def main() -> None:
    """Writes the plans by jax 0.4.30, or prints by how much those of another differ."""
    plans = {name: figures(name) for name in ASKED}
    if jax.__version__ == _WRITTEN_BY:
        PLANS.write_text(json.dumps({"jax": jax.__version__, "plans": plans}, indent=1) + "\n", encoding="utf-8")
        return
    for name, expected in json.loads(PLANS.read_text(encoding="utf-8"))["plans"].items():
        own = plans[name]
        stages = "the same stages" if own["stages"] == expected["stages"] else f"stages {own['stages']}"
        print(f"{name}: {own['step_s'] / expected['step_s'] - 1:+.2%} step, {stages}")
        if own["stages"] == expected["stages"]:
            for part in ("memory", "activations", "temporaries"):
                ratios = [a[part] / b[part] - 1 for a, b in zip(own["bytes"], expected["bytes"], strict=True)]
                print(f"  {part} of stages: {min(ratios):+.2%} to {max(ratios):+.2%}")


if __name__ == "__main__":
    main()
