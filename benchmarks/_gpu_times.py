"""The seconds of single kernels on the GPU at hand, by PyTorch and CUDA events. It stands alone: nothing of this
project is imported, so that it runs on a bare machine.

    python benchmarks/_gpu_times.py OUT.json [--seed 0] [--most-s 200]

The kernels are of the kinds of NeuSight's measurements, and as large; the shapes are drawn by a seed. Each is timed
twice: `call_s` is one call from Python on an idle GPU, with its launch, and `kernel_s` a call's share of a CUDA graph
of many, without one. Both are medians. Operands stay in the cache where they fit.
"""

from __future__ import annotations

import argparse
import datetime
import json
import statistics
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

COUNTS = {
    "linear": 120, "bmm": 100, "add": 25, "mul": 25, "gelu": 25, "relu": 20, "tanh": 20, "softmax": 40, "ln": 40,
}  # fmt: skip
"""How many shapes of each kind are drawn."""
PRODUCTS = ("linear", "bmm")
MODES = ("float32", "tf32", "bfloat16")
"""Single precision, the same with products by tensor cores in TF32, and bfloat16: the latter two for products alone."""
_MOST_FLOP, _MOST_BYTES = 3e12, 6e9
_WARM_UPS, _FEWEST, _MOST, _CASE_S = 3, 5, 25, 0.06


def shapes(seed: int) -> list[dict[str, Any]]:
    """Kernels with batch, m, n and k, uniform in logarithms; every other product has sizes that 64 divides."""
    import numpy as np

    rng = np.random.default_rng(seed)
    found = []
    for op, count in COUNTS.items():
        for number in range(count):
            while True:
                row = _drawn(rng, op, number % 2 == 1)
                flop = 2 * row["batch"] * row["m"] * row["n"] * row["k"]
                values = row["batch"] * (row["m"] * row["k"] + row["k"] * row["n"] + row["m"] * row["n"])
                if flop <= _MOST_FLOP and 4 * values <= _MOST_BYTES:
                    break
            found.append(row)
    return found


def _drawn(rng: Any, op: str, aligned: bool) -> dict[str, Any]:
    import numpy as np

    def size(low: float, high: float) -> int:
        value = float(np.exp(rng.uniform(np.log(low), np.log(high))))
        return max(64, 64 * round(value / 64)) if aligned and op in PRODUCTS else round(value)

    if op == "linear":
        sizes = {"batch": 1, "m": size(64, 8192), "n": size(64, 65536), "k": size(64, 65536)}
    elif op == "bmm":
        batch = round(float(np.exp(rng.uniform(np.log(8), np.log(1024)))))
        sizes = {"batch": batch, "m": size(8, 1024), "n": size(8, 1024), "k": size(8, 1024)}
    else:
        sizes = {"batch": size(64, 16384), "m": 1, "n": size(256 if op == "ln" else 64, 4096), "k": 1}
    return {"op": op, **sizes}


def _kernel(torch: Any, row: dict[str, Any], dtype: Any) -> Callable[[], Any]:
    op, batch, m, n, k = (row[name] for name in ("op", "batch", "m", "n", "k"))
    functional = torch.nn.functional

    def drawn(*sizes: int) -> Any:
        return torch.randn(*sizes, device="cuda", dtype=dtype)

    if op == "linear":
        inputs, weights, bias = drawn(m, k), drawn(n, k), drawn(n)
        return lambda: functional.linear(inputs, weights, bias)
    if op == "bmm":
        left, right = drawn(batch, m, k), drawn(batch, k, n)
        return lambda: torch.bmm(left, right)
    rows = drawn(batch, n)
    if op in ("add", "mul"):
        others, of_two = drawn(batch, n), getattr(torch, op)
        return lambda: of_two(rows, others)
    if op == "softmax":
        return lambda: torch.softmax(rows, dim=-1)
    if op == "ln":
        scale, shift = drawn(n), drawn(n)
        return lambda: functional.layer_norm(rows, (n,), scale, shift)
    of_one = {"gelu": functional.gelu, "relu": torch.relu, "tanh": torch.tanh}[op]
    return lambda: of_one(rows)


def _event_s(torch: Any, run: Callable[[], Any]) -> float:
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    torch.cuda.synchronize()
    start.record()
    run()
    end.record()
    end.synchronize()
    return float(start.elapsed_time(end)) * 1e-3


def seconds_of(torch: Any, row: dict[str, Any], dtype: Any) -> dict[str, float]:
    """The seconds of one call, and those of one of many in a graph."""
    run = _kernel(torch, row, dtype)
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        for _ in range(_WARM_UPS):
            run()
    torch.cuda.synchronize()
    first = _event_s(torch, run)
    times = max(_FEWEST, min(_MOST, int(_CASE_S / first)))
    call_s = statistics.median(_event_s(torch, run) for _ in range(times))
    in_graph = max(2, min(50, int(_CASE_S / 6 / call_s)))
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(in_graph):
            run()
    _event_s(torch, graph.replay)
    kernel_s = statistics.median(_event_s(torch, graph.replay) for _ in range(5)) / in_graph
    del graph
    return {"call_s": call_s, "kernel_s": kernel_s}


def measure(out: Path, seed: int, most_s: float) -> dict[str, Any]:
    """Measures in a random order until all kernels are measured or the time is over, and writes what there is."""
    import numpy as np
    import torch

    began = time.monotonic()
    card = torch.cuda.get_device_properties(0)
    cases = [(row, mode) for row in shapes(seed) for mode in MODES if mode == "float32" or row["op"] in PRODUCTS]
    result: dict[str, Any] = {
        "gpu": card.name,
        "num_sm": card.multi_processor_count,
        "l2_cache_bytes": card.L2_cache_size,
        "date": f"{datetime.datetime.now(datetime.timezone.utc):%Y-%m-%d}",
        "versions": {"torch": torch.__version__, "cuda": torch.version.cuda},
        "seed": seed,
        "cases": len(cases),
        "rows": [],
        "failed": [],
    }
    for number in np.random.default_rng(seed).permutation(len(cases)).tolist():
        if time.monotonic() - began > most_s:
            break
        row, mode = cases[number]
        torch.backends.cuda.matmul.allow_tf32 = mode == "tf32"
        try:
            found = seconds_of(torch, row, torch.bfloat16 if mode == "bfloat16" else torch.float32)
            result["rows"].append({**row, "mode": mode, **found})
        except RuntimeError as error:
            result["failed"].append({**row, "mode": mode, "error": str(error)[:200]})
            torch.cuda.synchronize()
        torch.cuda.empty_cache() if number % 20 == 0 else None
    result["measured_for_s"] = time.monotonic() - began
    names = ("op", "mode", "batch", "m", "n", "k", "call_s", "kernel_s")
    result["rows"] = {name: [_short(row[name]) for row in result["rows"]] for name in names}
    out.write_text(json.dumps(result) + "\n")
    return result


def _short(value: Any) -> Any:
    return float(f"{value:.4g}") if isinstance(value, float) else value


def main(arguments: Sequence[str] | None = None) -> int:
    """Measures, writes the file and says how many kernels are in it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--most-s", type=float, default=200.0)
    given = parser.parse_args(arguments)
    result = measure(given.out, given.seed, given.most_s)
    print(f"{result['gpu']}: {len(result['rows']['op'])} of {result['cases']} kernels, {len(result['failed'])} failed")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
