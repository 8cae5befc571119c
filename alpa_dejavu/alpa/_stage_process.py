"""A process that compiles partitioned modules for CPU devices of its own, and runs each alone, to tell what it takes.

It reads requests from standard input: a line of JSON, then the bytes of several modules. It compiles these side by
side, runs them one after the other, and answers with a line of JSON. The seconds are those of all its threads on the
CPU.
"""

from __future__ import annotations

import concurrent.futures
import json
import os
import statistics
import sys
import time
from typing import Any

Answer = dict[str, float | str]
"""The seconds "cpu_s" of a run on all devices together and the "peak_bytes" of one device, or else the "error"."""
_BLOCK_S = 0.02
"""A block has runs for so many seconds, since a thread may still run when a run is done."""
_ENOUGH_S, _FEWEST, _MOST = 0.15, 3, 20
"""Blocks go on for so many seconds on the CPU; so many there are at least, and at most, and so many runs in one."""


def _main() -> None:
    import jax

    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # whoever prints doesn't print into an answer
    devices = jax.devices()  # what takes long is done before the first request comes
    for line in sys.stdin.buffer:
        asked = json.loads(line)
        modules = [sys.stdin.buffer.read(size) for size in asked["sizes"]]
        with concurrent.futures.ThreadPoolExecutor(len(modules)) as pool:
            compiling = [pool.submit(_compiled, module, devices[: asked["num_devices"]]) for module in modules]
        programs = []
        for thread in compiling:
            try:
                programs.append(_taken(thread.result(), devices[: asked["num_devices"]], asked["at_once"]))
            except Exception as error:  # whatever it fails by, the next module may run
                programs.append({"error": f"{type(error).__name__}: {str(error).strip().partition(chr(10))[0]}"})
        answers.write(json.dumps(programs).encode() + b"\n")
        answers.flush()


def _compiled(serialized: bytes, devices: list[Any]) -> Any:
    """Returns one partition's module, compiled as for all micro-batches but the last."""
    from alpa_dejavu.sharding.hlo import HloModuleProto, inline_calls
    from alpa_stock_jax.executable import MeshExecutable
    from alpa_stock_jax.hlo_gradients import gradient_channels, without_all_reduces
    from alpa_stock_jax.hlo_markers import remove_markers
    from alpa_stock_jax.sharding_pass import without_shardings

    module = remove_markers(inline_calls(HloModuleProto.FromString(serialized)))
    module = without_all_reduces(module, gradient_channels(module))
    if len(devices) == 1:
        module = without_shardings(module)
    return MeshExecutable(devices[0].client, module, devices, len(devices))


def _taken(executable: Any, devices: list[Any], at_once: int) -> Answer:
    """Returns what a run takes while so many run at the same time: a core may be slower while the others compute."""
    client = devices[0].client
    arrays = [_stand_in(shape) for shape in executable.hlo_modules()[0].parameter_shapes()]

    def run(number: int) -> None:
        for _ in range(number):
            results = executable.execute_sharded_on_local_devices(ready.pop())
            for piece in (piece for result in results for piece in result):
                piece.block_until_ready()

    def block(number: int) -> tuple[float, float]:
        """Returns the seconds on the CPU and on the wall of a run, of so many one after the other."""
        # What they read is made before them, since a run may give back its arguments' memory.
        for _ in range(number * at_once):
            ready.append([[client.buffer_from_pyval(value, device) for device in devices] for value in arrays])
        began, before = time.perf_counter(), time.process_time()
        list(pool.map(run, [number] * at_once))
        return (time.process_time() - before) / (number * at_once), (time.perf_counter() - began) / number

    ready: list[list[list[Any]]] = []
    seconds: list[float] = []
    with concurrent.futures.ThreadPoolExecutor(at_once) as pool:
        block(1)  # warms up
        number = min(max(round(_BLOCK_S / max(block(1)[1], 1e-6)), 1), _MOST)
        while len(seconds) < _FEWEST or (sum(seconds) * number * at_once < _ENOUGH_S and len(seconds) < _MOST):
            seconds.append(block(number)[0])
    # The least may miss a thread that still runs, others have threads that spin.
    low = statistics.quantiles(seconds, n=4)[0]
    return {"cpu_s": max(low, 1e-9), "peak_bytes": float(executable.total_allocation_size())}


def _stand_in(shape: Any) -> Any:
    """Returns an array for a parameter of this shape: small numbers, and zeros where it is an index."""
    import numpy as np

    dtype = shape.numpy_dtype()
    return np.full(shape.dimensions(), 0.01 if np.issubdtype(dtype, np.inexact) else 0, dtype)


if __name__ == "__main__":
    _main()
