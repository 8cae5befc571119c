"""Predicted and measured seconds of single kernels on a GPU that the models were not fitted to.

    python benchmarks/gpu_kernels.py --score [FILE ...] --json OUT     (without a file: all in benchmarks/measured)
    python benchmarks/gpu_kernels.py --measure FILE     (on a machine with a GPU and PyTorch)

The prediction is that of the bundled calibration h100, whose kernels are fitted to five older GPUs; nothing is fitted
to what is scored. Two ways of timing are scored: a call from Python, as the kernels of the fit were timed, and a
kernel's share of a CUDA graph, as compiled programs run it: of the prediction its launch is then taken off and the
device's own `kernel_s` put on. Kernels whose roofline is at least 30 microseconds are shown apart: of shorter ones a
call is its launch, which is the host's. Figures are fractions (0.08 is 8 %).
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

import _gpu_times
from alpa_dejavu.calibration import Calibration, bundled
from alpa_dejavu.clusters import named_cluster
from alpa_dejavu.costs.latency.learned import DataSheet, Kernels
from harness import Results, Table, options, wrong_input_told
from trials import _score
from trials._trial_set import Predicted

Array = NDArray[np.float64]

_MEASURED = Path(__file__).parent / "measured"
_LONG_S, _FEWEST = 3e-5, 20
_CALIBRATION, _SHEET = "h100", "H100-SXM-80GB"
_DIFFERS: dict[str, dict[str, float]] = {
    "NVIDIA H100 80GB HBM3": {},
    "NVIDIA H200": {"memory_bytes_per_s": 4.8e12},
}
"""What the data sheets of GPUs that may be scored have other than H100 SXM: NVIDIA's data sheet of the H200."""


@wrong_input_told
def main(arguments: Sequence[str] | None = None) -> int:
    """Measures, or scores what was measured; returns 2 where an input is wrong, with what and where on stderr."""
    parser = options(__doc__, needs_json=False)
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--measure", type=Path, metavar="FILE", help="measure the GPU at hand into a file")
    what.add_argument("--score", type=Path, nargs="*", metavar="FILE", help="score files that were measured")
    given = parser.parse_args(arguments)
    if given.measure is not None:
        return _gpu_times.main([str(given.measure)])
    calibration = bundled(_CALIBRATION)
    files = given.score or sorted(_MEASURED.glob("*_kernels.json"))
    rows = [row for file in files for row in scores(json.loads(file.read_text(encoding="utf-8")), calibration)]
    columns = {"GPU": "{gpu}", "kernels": "{kernels}", "timed": "{timed}", "n": "{n}"}
    figures = ("median_ape", "mape", "bias", "coverage_90", "spearman")
    shown = Table.of(rows, {**columns, **{name: lambda row, name=name: f"{100 * row[name]:.1f}" for name in figures}})
    return Results(given.json, rows=rows).shown(shown, "in %; bias is of the mean of predicted over measured - 1")


def scores(measured: dict[str, Any], calibration: Calibration) -> Iterator[dict[str, Any]]:
    """The figures of one file, by kinds of kernels, precision and way of timing.

    Raises:
        ValueError: the GPU's data sheet isn't known.
    """
    gpu = measured["gpu"]
    if gpu not in _DIFFERS:
        raise ValueError(f"gpu is {gpu!r}, but must be one of {', '.join(_DIFFERS)}; add its data sheet")
    sheet = dataclasses.replace(calibration.sheets[_SHEET], **_DIFFERS[gpu])
    rows = pd.DataFrame(measured["rows"])
    for mode in _gpu_times.MODES:
        of_mode = rows[rows["mode"] == mode]
        kernels, kernel_s = _kernels(of_mode, mode, sheet)
        assert calibration.kernels is not None, "the bundled calibrations have a model of kernels"
        predicted, launch = calibration.kernels.predict(kernels), calibration.kernels.floor_s(kernels)
        long = np.maximum(kernels.compute_s, kernels.traffic_s) >= _LONG_S
        ops = of_mode["op"].to_numpy()
        chosen = [(f"all, {mode}", np.ones(len(of_mode), bool)), (f"long, {mode}", long)]
        chosen += [(f"long {op}, {mode}", long & (ops == op)) for op in dict.fromkeys(ops.tolist())]
        for timed, shift in (("call_s", 0.0 * launch), ("kernel_s", kernel_s - launch)):
            ends = [np.maximum(end + shift, kernel_s) for end in (predicted.mean, predicted.lower, predicted.upper)]
            for name, which in chosen:
                if which.sum() >= _FEWEST:
                    true = of_mode[timed].to_numpy(float)[which]
                    found = Predicted(*(end[which] for end in ends))
                    yield {"gpu": gpu, "kernels": name, "timed": timed, **_figures(true, found)}


def _figures(true: Array, found: Predicted) -> dict[str, Any]:
    figures = _score.figures(true, found, pd.Series(["one"] * len(true)))
    kept = {name: figures[name] for name in ("n", "median_ape", "mape", "bias", "coverage_90", "width_90")}
    return {**kept, "spearman": _score.spearman(true, found.mean)}


def _kernels(rows: pd.DataFrame, mode: str, sheet: DataSheet) -> tuple[Kernels, float]:
    """The kernels of a precision, by the rate that the device has in it, and the seconds that a kernel starts in."""
    device = named_cluster("dgx-h100").hosts[0].device
    if mode == "float32":
        made = sheet
    else:
        # Its "float32" is what XLA does by default: TF32.
        rate = device.rate("bfloat16" if mode == "bfloat16" else "float32")
        made = dataclasses.replace(sheet, flop_per_s=rate, power_w=None)
    if mode == "bfloat16":
        # Kernels count four bytes of each number.
        made = dataclasses.replace(
            made, memory_bytes_per_s=2 * made.memory_bytes_per_s, l2_cache_bytes=2 * made.l2_cache_bytes
        )
    return Kernels.of(rows.assign(gpu="this"), {"this": made}), device.kernel_s


if __name__ == "__main__":
    raise SystemExit(main())
