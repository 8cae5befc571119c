"""Runs exported JAX programs on the GPU at hand and times them. It stands alone: nothing
of the package is imported, so that it runs on a bare machine with a JAX of its own.

    python benchmarks/_gpu_exported.py FOLDER OUT.json [--most-s 420]

FOLDER is what `gpu_steps.py --export FOLDER` wrote. A training step is run again and again on the state in which
training begins, each run queued behind the one before; its bytes are those that XLA assigned, with the new state in
place of the old.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import datetime
import json
import os
import statistics
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

_BATCHES, _BATCH_S = 5, 0.5


def _read(folder: Path, file: Mapping[str, Any]) -> Any:
    """A computation as `jax.export` holds it; its StableHLO is good for five years, unlike older releases' files."""
    import jax
    from jax import export

    def flat(listed: Sequence[Any]) -> tuple[Any, ...]:
        return tuple(jax.core.ShapedArray(tuple(shape), jax.numpy.dtype(dtype)) for shape, dtype in listed)

    given, made = flat(file["in"]), flat(file["out"])
    return export.Exported(
        fun_name=file["name"],
        in_tree=jax.tree_util.tree_structure(((0,) * len(given), {})),
        in_avals=given,
        out_tree=jax.tree_util.tree_structure([0] * len(made)),
        out_avals=made,
        _in_named_shardings=(None,) * len(given),
        _out_named_shardings=(None,) * len(made),
        in_shardings_hlo=(None,) * len(given),
        out_shardings_hlo=(None,) * len(made),
        nr_devices=1,
        platforms=tuple(file["platforms"]),
        ordered_effects=(),
        unordered_effects=(),
        disabled_safety_checks=(),
        mlir_module_serialized=(folder / file["name"]).read_bytes(),
        calling_convention_version=9,
        module_kept_var_idx=tuple(range(len(given))),
        uses_global_constants=False,
        _get_vjp=None,
    )


def _compiled(exported: Any) -> Any:
    import jax

    shapes = (jax.ShapeDtypeStruct(one.shape, one.dtype) for one in exported.in_avals)
    return jax.jit(exported.call).lower(*shapes).compile()


def _drawn(program: Any, below: int, zeros: Sequence[int] = ()) -> list[Any]:
    """Random arguments: indices below a number for integers of an axis or more; zero those of `zeros`."""
    import jax
    import jax.numpy as jnp

    shapes = jax.tree_util.tree_leaves(program.args_info)
    keys = jax.random.split(jax.random.PRNGKey(0), max(len(shapes), 1))
    found = []
    for number, (key, one) in enumerate(zip(keys, shapes, strict=False)):
        if number in zeros:
            found.append(jnp.zeros(one.shape, one.dtype))
        elif jnp.issubdtype(one.dtype, jnp.floating):
            found.append((0.02 * jax.random.normal(key, one.shape)).astype(one.dtype))
        elif one.shape and jnp.issubdtype(one.dtype, jnp.integer):
            found.append(jax.random.randint(key, one.shape, 0, below, one.dtype))
        else:
            found.append(jnp.ones(one.shape, one.dtype))
    return found


def _step(program: Any, case: Mapping[str, Any]) -> dict[str, Any]:
    """The seconds of a training step, whose first arguments are its state, and its bytes."""
    import jax

    given = _drawn(program, case["below"], case["zeros"])

    step_s = _seconds_of(program, given, _BATCH_S)
    of = program.memory_analysis()
    state_bytes = sum(one.nbytes for one in given[: case["state"]])
    kept_bytes = of.argument_size_in_bytes + of.output_size_in_bytes - state_bytes
    finite = all(
        bool(jax.numpy.isfinite(one).all())
        for one in program(*given)
        if jax.numpy.issubdtype(one.dtype, jax.numpy.floating)
    )
    return {"step_s": step_s, "peak_bytes": kept_bytes + of.temp_size_in_bytes, "finite": finite}


def measure(folder: Path, out: Path, most_s: float) -> dict[str, Any]:
    """Measures, round by round, until all is measured or the time is over; a round is compiled before any of it is
    timed, since compilers try kernels on the same GPU.
    """
    os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
    import jax

    began = time.monotonic()
    cases: list[dict[str, Any]] = json.loads((folder / "index.json").read_text())
    result: dict[str, Any] = {
        "gpu": jax.devices()[0].device_kind,
        "date": f"{datetime.datetime.now(datetime.timezone.utc):%Y-%m-%d}",
        "versions": {"jax": jax.__version__},
        "xla_flags": os.environ.get("XLA_FLAGS", ""),
        "cases": len(cases),
        "rows": [],
        "failed": [],
    }
    for number in sorted({case["round"] for case in cases}):
        if time.monotonic() - began > most_s:
            break
        some = [case for case in cases if case["round"] == number]
        with concurrent.futures.ThreadPoolExecutor(16) as pool:
            compiling = [[pool.submit(_compiled, _read(folder, file)) for file in case["files"]] for case in some]
        print(f"round {number}: {len(some)} compiled after", round(time.monotonic() - began), flush=True)
        for case, parts in zip(some, compiling, strict=True):
            try:
                result["rows"].append({"kind": case["kind"], **case["case"], **_step(parts[0].result(), case)})
            except Exception as error:
                result["failed"].append({**case["case"], "error": f"{type(error).__name__}: {error}"[:300]})
            parts.clear()
            out.write_text(json.dumps(result, indent=1))
        print(f"round {number}: timed after", round(time.monotonic() - began), flush=True)
    return result


def _seconds_of(run: Any, arguments: Sequence[Any], each_s: float) -> float:
    """The median over batches of calls, of about so many seconds each, of a call's share."""
    import jax

    def batch_s(count: int) -> float:
        began = time.perf_counter()
        for _ in range(count):
            result = run(*arguments)
        jax.block_until_ready(result)
        return (time.perf_counter() - began) / count

    batch_s(2)
    count = max(3, min(100, int(each_s / batch_s(2))))
    return statistics.median(batch_s(count) for _ in range(_BATCHES))


def main(arguments: Sequence[str] | None = None) -> int:
    """Measures, writes the file and says how much is in it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--most-s", type=float, default=420.0)
    given = parser.parse_args(arguments)
    result = measure(given.folder, given.out, given.most_s)
    print(f"{result['gpu']}: {len(result['rows'])} of {result['cases']}, {len(result['failed'])} failed")
    for one in result["failed"]:
        print(one)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
