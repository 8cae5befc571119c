"""Fits the figures of kernel models to open measurements.

    python benchmarks/build_kernels.py [--operators ../shared/data/gpu-operators] [--train ../shared/data] [--out FILE]

Each generation of GPUs has figures of its own, drawn to those that generations with such tensor cores have in common.
The errors in the file are those on GPUs, and on a quarter of the shapes of measured GPUs, that were left out of a fit.
It takes three minutes; with one thread (OMP_NUM_THREADS=1) the same file comes out each time, to the last digit.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from alpa_dejavu.costs.kernels import FILE, Fitted, KernelFigures
from harness import wrong_input_told
from published._operators import fitted, training

DATE = "2026-11-29"
"""On which the models were last changed: not the day of a build, so that the same file comes out."""
_OPERATORS = "ai-dynamo/aiconfigurator (Apache-2.0), snapshot of August 2026"
_GPUS = "A100, H100, B200 and L40S"
_NEUSIGHT = "NeuSight, ASPLOS'25 (sitar-lab/NeuSight, MIT): P4, P100, V100, T4 and A100 in single precision"
ORIGIN = {
    "products": f"{_OPERATORS}: {_GPUS}; float32: {_NEUSIGHT}; volta in half precision: Alpa's profile of p3.16xlarge "
    "(explcre/pipeDejavu, MIT), square products alone",
    "attention": f"{_OPERATORS}: {_GPUS}; forward passes alone",
    "grouped": f"{_OPERATORS}: A100, H100 and L40S; both grouped products of gated feed-forward layers",
    "streams": _NEUSIGHT,
}
_DIGITS = 4


@wrong_input_told
def main(arguments: Sequence[str] | None = None) -> int:
    """Writes the file; returns 2 where an input is wrong, with what and where on stderr."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    shared = Path(__file__).resolve().parents[2] / "shared" / "data"
    parser.add_argument("--operators", type=Path, default=shared / "gpu-operators", help="with gemm.csv and others")
    parser.add_argument("--train", type=Path, default=shared, help="the folder of other measurements")
    parser.add_argument("--out", type=Path, default=FILE, help="the file (the package's own)")
    given = parser.parse_args(arguments)
    figures = fitted(training(given.operators, given.train))
    given.out.write_text(json.dumps(document(figures), indent=1) + "\n", encoding="utf-8")
    return 0


def document(figures: KernelFigures) -> dict[str, Any]:
    """The data of the file."""
    data = {
        "products": {name: data_of(each) for name, each in figures.products.items()},
        "attention": data_of(figures.attention),
        "grouped": {name: data_of(each) for name, each in figures.grouped.items()},
        "streams": data_of(figures.streams),
    }
    rounded: dict[str, Any] = _rounded(data)
    return {
        "version": 1,
        "date": DATE,
        "units": json.loads(FILE.read_text(encoding="utf-8"))["units"],
        "errors": "of what was left out of a fit: the median of absolute relative errors, and standard deviations of "
        "the logarithm: what kernels of a GPU have in common, and a kernel's own; sheets: the median by data sheets",
        "origin": ORIGIN,
        **rounded,
    }


def data_of(fitted: Fitted[Any]) -> dict[str, Any]:
    """Fitted figures of one kind as the data of the file."""
    return {
        "figures": {name: dataclasses.asdict(each) for name, each in fitted.figures.items()},
        "gpus": list(fitted.gpus),
        "left_out": {"gpu": dataclasses.asdict(fitted.gpu), "shapes": dataclasses.asdict(fitted.shapes)},
    }


def _rounded(data: Any) -> Any:
    if isinstance(data, dict):
        return {name: _rounded(each) for name, each in data.items()}
    return float(f"{data:.{_DIGITS}g}") if isinstance(data, float) else data


if __name__ == "__main__":
    raise SystemExit(main())
