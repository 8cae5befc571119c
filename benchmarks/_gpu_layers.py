"""The seconds of whole transformer layers and of a ResNet-50's training step on the GPU at hand, by JAX. It stands
alone: nothing of this project is imported, so that it runs on a bare machine.

    python benchmarks/_gpu_layers.py OUT.json [--most-s 240]

A layer is timed forward, and forward and backward, as the share of one of many calls that are queued on the GPU.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import datetime
import itertools
import json
import os
import statistics
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

HIDDEN, SEQUENCE, MICRO_BATCH = (1024, 2048, 4096), (1024, 2048), (1, 2, 4, 8)
MODES = {"bfloat16": ("bfloat16", None), "tf32": ("float32", "tensorfloat32"), "float32": ("float32", "float32")}
"""The dtype of values, and the precision of products."""
IMAGES = (64, 256)
_HEAD, _BATCHES, _BATCH_S = 64, 5, 0.05


def layer_shapes(hidden: int) -> dict[str, tuple[int, ...]]:
    """The parameters of a transformer layer."""
    return {
        "norm1": (2, hidden),
        "qkv": (hidden, 3 * hidden),
        "qkv_bias": (3 * hidden,),
        "out": (hidden, hidden),
        "out_bias": (hidden,),
        "norm2": (2, hidden),
        "up": (hidden, 4 * hidden),
        "up_bias": (4 * hidden,),
        "down": (4 * hidden, hidden),
        "down_bias": (hidden,),
    }


def layer(parameters: Any, x: Any) -> Any:
    """A transformer layer of GPT: normalisation before, causal attention with heads of 64, four times wider inside."""
    import jax
    import jax.numpy as jnp

    batch, sequence, hidden = x.shape

    def normed(values: Any, scale_and_shift: Any) -> Any:
        wide = values.astype(jnp.float32)
        wide = (wide - wide.mean(-1, keepdims=True)) * jax.lax.rsqrt(wide.var(-1, keepdims=True) + 1e-5)
        return (wide * scale_and_shift[0] + scale_and_shift[1]).astype(values.dtype)

    p = parameters
    qkv = normed(x, p["norm1"]) @ p["qkv"] + p["qkv_bias"]
    q, k, v = jnp.split(qkv.reshape(batch, sequence, 3 * hidden // _HEAD, _HEAD), 3, axis=2)
    scores = jnp.einsum("bqhd,bkhd->bhqk", q, k).astype(jnp.float32) * _HEAD**-0.5
    causal = jnp.tril(jnp.ones((sequence, sequence), bool))
    weights = jax.nn.softmax(jnp.where(causal, scores, -1e9), axis=-1).astype(x.dtype)
    mixed = jnp.einsum("bhqk,bkhd->bqhd", weights, v).reshape(batch, sequence, hidden)
    x = x + mixed @ p["out"] + p["out_bias"]
    inner = jax.nn.gelu(normed(x, p["norm2"]) @ p["up"] + p["up_bias"])
    return x + inner @ p["down"] + p["down_bias"]


def forward_and_backward(parameters: Any, x: Any, of_output: Any) -> Any:
    """The gradients of a layer's parameters and of its input."""
    import jax

    return jax.vjp(layer, parameters, x)[1](of_output)


_BLOCKS = ((3, 64, 1), (4, 128, 2), (6, 256, 2), (3, 512, 2))


def resnet_shapes() -> dict[str, tuple[int, ...]]:
    """The parameters of a ResNet-50."""
    found: dict[str, tuple[int, ...]] = {"stem": (7, 7, 3, 64), "stem_bn": (2, 64)}
    inputs = 64
    for group, (count, width, _) in enumerate(_BLOCKS):
        for block in range(count):
            sizes = ((1, 1, inputs, width), (3, 3, width, width), (1, 1, width, 4 * width))
            for number, size in enumerate(sizes):
                found |= {f"{group}.{block}.{number}": size, f"{group}.{block}.{number}_bn": (2, size[-1])}
            if block == 0:
                found |= {f"{group}.0.skip": (1, 1, inputs, 4 * width), f"{group}.0.skip_bn": (2, 4 * width)}
            inputs = 4 * width
    return {**found, "head": (2048, 1000), "head_bias": (1000,)}


def resnet_loss(parameters: Any, images: Any, classes: Any) -> Any:
    """The cross entropy of a ResNet-50 with batch normalisation over the batch."""
    import jax
    import jax.numpy as jnp

    p = parameters

    def convolved(name: str, x: Any, stride: int = 1) -> Any:
        numbers = ("NHWC", "HWIO", "NHWC")
        x = jax.lax.conv_general_dilated(x, p[name], (stride, stride), "SAME", dimension_numbers=numbers)
        wide = x.astype(jnp.float32)
        mean, variance = wide.mean((0, 1, 2)), wide.var((0, 1, 2))
        scale = p[f"{name}_bn"][0] * jax.lax.rsqrt(variance + 1e-5)
        return ((wide - mean) * scale + p[f"{name}_bn"][1]).astype(x.dtype)

    x = jax.nn.relu(convolved("stem", images, 2))
    x = jax.lax.reduce_window(x, -jnp.inf, jax.lax.max, (1, 3, 3, 1), (1, 2, 2, 1), "SAME")
    for group, (count, _, stride) in enumerate(_BLOCKS):
        for block in range(count):
            step, name = (stride if block == 0 else 1), f"{group}.{block}"
            skip = convolved(f"{name}.skip", x, step) if block == 0 else x
            inner = jax.nn.relu(convolved(f"{name}.0", x))
            inner = jax.nn.relu(convolved(f"{name}.1", inner, step))
            x = jax.nn.relu(skip + convolved(f"{name}.2", inner))
    logits = (x.astype(jnp.float32).mean((1, 2)).astype(x.dtype) @ p["head"] + p["head_bias"]).astype(jnp.float32)
    return -jnp.take_along_axis(jax.nn.log_softmax(logits), classes[:, None], axis=1).mean()


def resnet_step(parameters: Any, momenta: Any, images: Any, classes: Any) -> Any:
    """A training step by stochastic gradient descent with momentum."""
    import jax

    gradients = jax.grad(resnet_loss)(parameters, images, classes)
    momenta = jax.tree_util.tree_map(lambda m, g: 0.9 * m + g, momenta, gradients)
    return jax.tree_util.tree_map(lambda p, m: p - 0.1 * m, parameters, momenta), momenta


def _drawn(shapes: dict[str, tuple[int, ...]], dtype: str) -> dict[str, Any]:
    import jax

    keys = jax.random.split(jax.random.PRNGKey(0), len(shapes))
    return {
        name: (1.0 if name.endswith("bn") or name.startswith("norm") else 0.02) * jax.random.normal(key, shape, dtype)
        for key, (name, shape) in zip(keys, shapes.items(), strict=True)
    }


def cases() -> list[list[dict[str, Any]]]:
    """Which layers and steps are timed, in rounds, in the order of their worth."""
    rounds: list[list[dict[str, Any]]] = [
        [
            {"run": run, "mode": mode, "hidden": hidden, "sequence": sequence, "micro_batch": micro_batch}
            for hidden, sequence, micro_batch in itertools.product(HIDDEN, SEQUENCE, MICRO_BATCH)
            for run in ("forward", "forward_and_backward")
        ]
        for mode in MODES
    ]
    steps = [{"run": "resnet50_step", "mode": mode, "images": count} for mode in MODES for count in IMAGES]
    return [rounds[0], rounds[1], steps[:4], rounds[2], steps[4:]]


def _function(case: dict[str, Any]) -> Callable[..., Any]:
    functions: dict[str, Callable[..., Any]] = {
        "resnet50_step": resnet_step,
        "forward": layer,
        "forward_and_backward": forward_and_backward,
    }
    return functions[case["run"]]


def _arguments(case: dict[str, Any]) -> tuple[Any, ...]:
    import jax
    import jax.numpy as jnp

    dtype = MODES[case["mode"]][0]
    if case["run"] == "resnet50_step":
        parameters = _drawn(resnet_shapes(), dtype)
        images = jax.random.normal(jax.random.PRNGKey(1), (case["images"], 224, 224, 3), dtype)
        momenta = jax.tree_util.tree_map(jnp.zeros_like, parameters)
        return parameters, momenta, images, jnp.arange(case["images"]) % 1000
    parameters = _drawn(layer_shapes(case["hidden"]), dtype)
    x = jax.random.normal(jax.random.PRNGKey(1), (case["micro_batch"], case["sequence"], case["hidden"]), dtype)
    return (parameters, x) if case["run"] == "forward" else (parameters, x, 0.01 * x)


def _compiled(case: dict[str, Any]) -> Any:
    import jax

    with jax.default_matmul_precision(MODES[case["mode"]][1]):
        return jax.jit(_function(case)).lower(*jax.eval_shape(lambda: _arguments(case))).compile()


def seconds_of(run: Any, arguments: Sequence[Any], each_s: float = _BATCH_S) -> float:
    """The median over batches of calls, of about so many seconds each, of a call's share."""
    import jax

    def batch_s(count: int) -> float:
        began = time.perf_counter()
        for _ in range(count):
            found = run(*arguments)
        jax.block_until_ready(found)
        return (time.perf_counter() - began) / count

    batch_s(2)
    count = max(3, min(100, int(each_s / batch_s(2))))
    return statistics.median(batch_s(count) for _ in range(_BATCHES))


def measure(out: Path, most_s: float) -> dict[str, Any]:
    """Compiles in threads and measures one after the other until all is measured or the time is over."""
    os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
    import jax

    began = time.monotonic()
    result: dict[str, Any] = {
        "gpu": jax.devices()[0].device_kind,
        "date": f"{datetime.datetime.now(datetime.timezone.utc):%Y-%m-%d}",
        "versions": {"jax": jax.__version__},
        "xla_flags": os.environ.get("XLA_FLAGS", ""),
        "cases": sum(map(len, cases())),
        "rows": [],
        "failed": [],
    }
    for number, some in enumerate(cases()):
        if time.monotonic() - began > most_s:
            break
        # A round is compiled before any of it is timed: compilers try kernels on the same GPU.
        with concurrent.futures.ThreadPoolExecutor(16) as pool:
            compiled = [pool.submit(_compiled, case) for case in some]
        compiled_s = time.monotonic() - began
        for case, program in zip(some, compiled, strict=True):
            try:
                result["rows"].append({**case, "seconds": seconds_of(program.result(), _arguments(case))})
            except Exception as error:
                result["failed"].append({**case, "error": f"{type(error).__name__}: {error}"[:300]})
        print(f"round {number}: compiled after", round(compiled_s), "and timed after", round(time.monotonic() - began))
        out.write_text(json.dumps(result, indent=1))
    return result


def main(arguments: Sequence[str] | None = None) -> int:
    """Measures, writes the file and says how much is in it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--most-s", type=float, default=240.0)
    given = parser.parse_args(arguments)
    result = measure(given.out, given.most_s)
    print(f"{result['gpu']}: {len(result['rows'])} of {result['cases']}, {len(result['failed'])} failed")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
