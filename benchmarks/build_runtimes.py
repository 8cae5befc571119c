"""Fits the figures of training frameworks to published training steps.

    python benchmarks/build_runtimes.py [--train ../shared/data]

It writes the package's runtimes.json and in_steps.json, and the benchmarks' left_out.json with the figures that are
fitted without each source. It takes about ten minutes on two cores.
"""

from __future__ import annotations

import argparse
import csv
import dataclasses
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from tqdm import tqdm

from alpa_dejavu.costs import runtime
from alpa_dejavu.costs.communication import Nccl
from alpa_dejavu.costs.kernels import IN_STEPS_FILE
from harness import wrong_input_told
from published._jobs import Job, measured_job, published_job
from published._step_figures import (
    FIGURES,
    LEFT_OUT,
    Values,
    figures_of_runtime,
    fitted,
    kernels_in_steps,
    latency_of,
    overlap_text,
    profile_of,
    values_of,
)
from published._steps import estimated

DATE = "2026-11-29"
"""On which the models were last changed: not the day of a build, so that the same file comes out."""
VERSION, _DIGITS = 2, 4
RUNTIMES = ("jax", "megatron", "nemo", "torchtitan", "fsdp", "deepspeed", "maxtext")
OWN_BYTES = 1.6e9
"""The bytes of a device for CUDA's context, NCCL's buffers and the allocator's fragments: an estimate."""


@wrong_input_told
def main(arguments: Sequence[str] | None = None) -> int:
    """Writes the files; returns 2 where an input is wrong, with what and where on stderr."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    shared = Path(__file__).resolve().parents[2] / "shared" / "data"
    parser.add_argument("--train", type=Path, default=shared, help="the folder of measurements")
    given = parser.parse_args(arguments)
    jobs = [published_job(row) for row in _rows(given.train / "published-training" / "steps.csv")]
    jobs += [measured_job(row) for row in _rows(given.train / "megatron-b200" / "steps.csv")]
    fit = fitted(jobs, lambda values: predicted_s(jobs, values))
    names = list(dict.fromkeys(job.source for job in jobs))
    places = {name: values_of(fit.without(n)) for n, name in enumerate(names)}
    off = np.zeros(len(jobs))
    for name, values in tqdm(places.items(), desc="left out"):
        own = [n for n, job in enumerate(jobs) if job.source == name]
        off[own] = np.log(predicted_s([jobs[n] for n in own], values)) - fit.measured[own]
    spreads, values = spreads_of(off, fit.sources), values_of(fit.place)
    write(values, places, spreads, off)
    return 0


def predicted_s(jobs: Sequence[Job], values: Values) -> NDArray[np.float64]:
    """The seconds of each job's step by the product with other figures, shape (jobs,)."""
    models = latency_of(values), Nccl()
    return np.array([estimated(job, models, profile_of(job.runtime, values)).step_s for job in jobs])


def spreads_of(off: NDArray[np.float64], sources: NDArray[np.intp]) -> tuple[float, float]:
    """How far steps of sources that were left out are off: in common in a source, and a step's own; of the logarithm.

    Both are from medians, since a few sources measured something else than they say.
    """
    middles = np.array([np.median(off[sources == n]) for n in range(sources.max() + 1)])
    common = float(np.median(np.abs(middles)) / 0.6745)
    return common, float(np.median(np.abs(off - middles[sources])) / 0.6745)


def write(
    values: Values, without: dict[str, dict[str, float]], spreads: tuple[float, float], off: NDArray[np.float64]
) -> None:
    """Writes the three files."""
    errors = np.abs(np.expm1(off))
    said = {
        "median_error": float(np.median(errors)), "bias": float(np.median(np.expm1(off))),
        "within_20": float((errors <= 0.2).mean()), "rows": len(off), "sources": len(without),
        "spread_of_sources": spreads[0], "spread_of_steps": spreads[1],
    }  # fmt: skip
    spread = float(np.hypot(*spreads))
    runtimes = {
        name: {
            "compiled": False, "overlap": overlap_text(name, values),
            "figures": {**figures_of_runtime(name, values), "sends": 1.0, "own_bytes": OWN_BYTES, "spread": spread},
        }
        for name in RUNTIMES
    }  # fmt: skip
    origin = "published training steps: see docs/results/predictions.md"
    meanings = {one.name: one.meaning for one in FIGURES}
    head = {"version": VERSION, "units": "SI", "date": DATE, "origin": origin}
    _write(runtime.FILE, {**head, "meanings": meanings, "left_out": said, "runtimes": runtimes})
    _write(IN_STEPS_FILE, {**head, "version": 1, "figures": dataclasses.asdict(kernels_in_steps(values))})
    _write(LEFT_OUT, {**head, "version": 1, "sources": without})


def _write(file: Path, content: dict[str, Any]) -> None:
    file.write_text(json.dumps(_short(content), indent=1) + "\n", encoding="utf-8")


def _short(data: Any) -> Any:
    """The data with numbers of four digits at most."""
    if isinstance(data, dict):
        return {name: _short(each) for name, each in data.items()}
    return float(f"{data:.{_DIGITS}g}") if isinstance(data, float) else data


def _rows(file: Path) -> list[dict[str, str]]:
    with file.open(encoding="utf-8", newline="") as lines:
        return list(csv.DictReader(lines))


if __name__ == "__main__":
    raise SystemExit(main())
