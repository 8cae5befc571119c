"""Published and measured training steps, their memory, and the operators and collectives that they are made of, beside
what is predicted of them.

    python benchmarks/published_training.py --steps STEPS.csv [--operators FOLDER] [--memory PEAKS.csv] [--json FILE]

Each row of `--steps` is a step that somebody published: the model, the GPUs and their network, the precision, the
degrees of parallelism, the batch and what is computed again are the published ones. Its seconds are predicted as
`alpa_dejavu.planning.estimate` does it for anybody, by default and by data sheets; "40 % of peak" is the model's
operations over two fifths of what the GPUs' data sheets promise. The figures of training frameworks were fitted to
published steps. A row whose source was among them is predicted by figures that were fitted without that source.

`--memory` has steps with their measured peaks, `--operators` a folder with measured products (`gemm.csv`), attention
(`attention.csv`), grouped products of experts (`moe.csv`) and collectives (`nccl.csv`). They are compared with the
package's figures, which know the GPUs that they were fitted to. What was found with a whole GPU, or with a quarter of
the shapes, left out of the fit is in the package's own files, and is shown beside.

The JSON file has under `steps`, `memory`, `products`, `attention`, `experts` and `collectives` the median of absolute
errors, the median of errors (`bias`), the share within 20 %, the share inside of the 90 % intervals, the median factor
between their ends, and what share is said to fit, in all and by source.
"""

from __future__ import annotations

import csv
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, TypeAlias, TypeVar

import numpy as np
from tqdm import tqdm

from alpa_dejavu.problem import NoPlanError
from harness import Figure, Results, Table, options, wrong_input_told
from published._collectives import shipped
from published._jobs import Job, measured_job, published_job
from published._operators import judged_operators
from published._pairs import orders_of_pairs
from published._scores import by_source, shipped_errors
from published._steps import Estimated, by_default, by_sheets

PEAK_SHARE = 0.4
Predicted = TypeVar("Predicted")
Refused: TypeAlias = dict[str, str]
_ASKED = {
    "steps": (
        ("median_error", 0.08, "at most"), ("within_20", 0.9, "at least"), ("inside", 0.8, "at least"),
        ("sources_nearer_than_sheets", 0.75, "at least"), ("fits", 1.0, "at least"),
    ),
    "memory": (("median_error", 0.02, "at most"), ("worst", 0.06, "at most"), ("fits", 1.0, "at least")),
    "memory_steps": (("median_error", 0.06, "at most"),),
}  # fmt: skip
"""The aims by what they are of: a figure, and the value that it shall have at most, or at least."""
_ASKED_LEFT_OUT = {"products": (0.10, 0.05), "attention": (0.12, 0.06), "experts": (0.18, 0.10), "nccl": (0.10, 0.06)}
"""The median error that kernels and collectives shall have at most: with a GPU left out, and with shapes left out."""


@wrong_input_told
def main(arguments: Sequence[str] | None = None) -> int:
    """Prints the tables; exit status 1 if an aim is missed, 2 where a file can't be used."""
    parser = options(__doc__)
    parser.add_argument("--steps", type=Path, metavar="CSV", help="published steps")
    parser.add_argument("--operators", type=Path, metavar="FOLDER", help="measured operators and collectives")
    parser.add_argument("--memory", type=Path, metavar="CSV", help="steps with measured peaks of memory")
    given = parser.parse_args(arguments)
    results = Results(given.json)
    tables: list[Table | str] = []
    if given.steps is not None:
        tables += _steps(results, *_predicted(given.steps, published_job, _compared))
    if given.memory is not None:
        tables += _memory(results, *_predicted(given.memory, measured_job, by_default))
    if given.operators is not None:
        results |= judged_operators(given.operators)
        results["collectives"] = shipped(given.operators)
        results["left_out"] = shipped_errors()
        tables += _parts(results)
    if given.steps is not None:
        tables.append(Table.of(results["steps"]["orders_of_pairs"], _PAIRS, "pairs of steps on unlike GPUs"))
    return results.shown(*tables, figures=list(_figures(results)))


def _predicted(
    file: Path, job: Callable[[dict[str, str]], Job], of: Callable[[Job], Predicted]
) -> tuple[list[Job], list[Predicted], list[Refused]]:
    """The predictions of a file's rows, and the rows that have none, with the reason."""
    try:
        with file.open(encoding="utf-8", newline="") as lines:
            rows = list(csv.DictReader(lines))
    except OSError as error:
        raise ValueError(f"{file} can't be read: {error.strerror}; give a CSV file of measured steps") from None
    jobs: list[Job] = []
    found: list[Predicted] = []
    refused: list[Refused] = []
    for number, row in enumerate(tqdm(rows, unit="step"), 2):
        try:
            one = job(row)
            found.append(of(one))
            jobs.append(one)
        except KeyError as error:
            raise ValueError(f"{file}, line {number}: has no column {error}") from error
        except (ValueError, NoPlanError) as error:
            refused.append({"row": f"{file.name}, line {number}", "why": str(error)})
    if not found:
        why = refused[0]["why"] if refused else "there are no rows"
        raise ValueError(f"{file}: nothing in it can be predicted; {why}")
    return jobs, found, refused


def _steps(results: Results, jobs: list[Job], rows: list[dict[str, Any]], refused: list[Refused]) -> list[Table | str]:
    columns = {name: np.array([row[name] for row in rows]) for name in ("ours", "sheets", "peak", "measured_s")}
    sources, ends = [job.source for job in jobs], ([row["lower"] for row in rows], [row["upper"] for row in rows])
    results["steps"] = by_source(
        sources, columns["ours"], columns["measured_s"], ends, [row["fits"] for row in rows]
    ) | {name: by_source(sources, columns[name], columns["measured_s"]) for name in ("sheets", "peak")}
    results["steps"]["sources_nearer_than_sheets"] = _nearer(results["steps"])
    results["steps"]["regret"] = _regret(jobs, columns["ours"])
    results["steps"] |= {"rows_of": rows, "refused": refused, "orders_of_pairs": orders_of_pairs(jobs, rows)}
    return [
        Table.of(list(_by(rows, "gpu", "runtime")), _COLUMNS, "published steps"),
        Table.of(list(_by(rows, "source")), _COLUMNS, "by source"),
        *_said(refused),
    ]


def _said(refused: list[Refused]) -> list[Table | str]:
    return [Table.of(refused, _REFUSED, "rows that can't be predicted, and aren't judged")] if refused else []


def _compared(job: Job) -> dict[str, Any]:
    ours, sheets = by_default(job), by_sheets(job)
    rate = job.gpu.flop_per_s.get(job.size.precision, job.gpu.flop_per_s["bfloat16"])
    return {
        "name": job.name, "source": job.source, "gpu": job.gpu.name,
        "runtime": job.runtime.name.partition("+")[0],
        "measured_s": job.measured_s, "ours": ours.step_s, "lower": ours.lower_s, "upper": ours.upper_s,
        "sheets": sheets.step_s, "sheets_lower": sheets.lower_s, "sheets_upper": sheets.upper_s,
        "peak": job.model_flop / job.cluster.num_devices / rate / PEAK_SHARE,
        "peak_bytes": ours.peak_bytes, "fits": ours.fits,
    }  # fmt: skip


def _memory(results: Results, jobs: list[Job], found: list[Estimated], refused: list[Refused]) -> list[Table | str]:
    models = [job.name.split()[0] for job in jobs]
    measured = [job.measured_bytes or 0.0 for job in jobs]
    peaks, seconds = [one.peak_bytes for one in found], [one.step_s for one in found]
    results["memory"] = by_source(models, peaks, measured, fits=[one.fits for one in found])
    ends = [one.lower_s for one in found], [one.upper_s for one in found]
    results["memory_steps"] = by_source(models, seconds, [job.measured_s for job in jobs], ends)
    results["memory_steps"]["regret"] = _regret(jobs, np.array(seconds))
    rows = [
        {
            "name": job.name, "predicted": one.peak_bytes / 2**30, "measured": peak / 2**30,
            "off": one.peak_bytes / peak - 1, "step_s": one.step_s, "measured_s": job.measured_s,
            "step_off": one.step_s / job.measured_s - 1,
        }
        for job, one, peak in zip(jobs, found, measured, strict=True)
    ]  # fmt: skip
    results["memory"]["refused"] = refused
    return [Table.of(rows, _PEAKS, "measured peaks of memory, and steps"), *_said(refused)]


def _by(rows: Sequence[dict[str, Any]], *keys: str) -> Iterable[dict[str, Any]]:
    groups: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for row in rows:
        groups[", ".join(row[key] for key in keys)].append(row)
    groups["all"] = list(rows)
    for name_of_group, some in groups.items():
        off = {
            name: np.array([row[name] / row["measured_s"] - 1 for row in some]) for name in ("ours", "sheets", "peak")
        }
        yield {
            "of": name_of_group,
            "rows": len(some),
            **{name: float(np.median(np.abs(each))) for name, each in off.items()},
            "bias": float(np.median(off["ours"])),
            "inside": np.mean([row["lower"] <= row["measured_s"] <= row["upper"] for row in some]),
            "factor": np.median([row["upper"] / row["lower"] for row in some]),
        }


def _nearer(steps: dict[str, Any]) -> float:
    """The share of sources on which the median error is no larger than by data sheets."""
    ours, sheets = steps["by_source"], steps["sheets"]["by_source"]
    return float(np.mean([ours[name]["median_error"] <= sheets[name]["median_error"] for name in ours]))


def _regret(jobs: Sequence[Job], predicted_s: np.ndarray[Any, np.dtype[np.float64]]) -> dict[str, Any]:
    """How much longer a sample takes by the predicted-fastest configuration than by the one measured so."""
    groups: dict[tuple[object, ...], list[int]] = defaultdict(list)
    for n, job in enumerate(jobs):
        groups[job.source, job.size, job.gpu.name, job.cluster.num_devices].append(n)
    found = []
    for numbers in groups.values():
        measured = [jobs[n].measured_s / jobs[n].batch for n in numbers]
        predicted = [predicted_s[n] / jobs[n].batch for n in numbers]
        if len({(jobs[n].configs, jobs[n].run, jobs[n].runtime.name, jobs[n].batch) for n in numbers}) > 1:
            found.append(measured[int(np.argmin(predicted))] / min(measured) - 1)
    return {"groups": len(found), "median": float(np.median(found)) if found else None, "all": found}


def _parts(results: Results) -> list[Table | str]:
    rows = [{"of": kind, **results[kind]} for kind in ("products", "attention", "experts", "collectives")]
    return [
        Table.of(rows, _OPERATORS, "operators and collectives, by the package's figures"),
        Table.of(results["left_out"], _LEFT_OUT, "median errors of fits without what is predicted"),
    ]


def _figures(results: Results) -> Iterable[Figure]:
    for kind, aims in _ASKED.items():
        for name, wanted, how in aims:
            value = results.get(kind, {}).get(name)
            if value is not None:
                held = value <= wanted if how == "at most" else value >= wanted
                yield Figure(kind, name, f"{how} {wanted:.0%}", f"{value:.1%}", held)
    for row in results.get("left_out", ()):
        for name, aim in zip(("gpu", "shapes"), _ASKED_LEFT_OUT[row["kind"]], strict=True):
            yield Figure(row["of"], f"{name} left out", f"at most {aim:.0%}", f"{row[name]:.1%}", row[name] <= aim)


_COLUMNS = {
    "of": "{of}", "steps": "{rows}", "by default": "{ours:.1%}", "bias": "{bias:+.1%}",
    "by data sheets": "{sheets:.1%}", "by 40 % of peak": "{peak:.1%}", "inside of 90 %": "{inside:.0%}",
    "interval's factor": "{factor:.2f}",
}  # fmt: skip
_PAIRS = {
    "of": "{of}", "pairs": "{pairs}", "order is right": "{holds:.0%}", "told": "{told}",
    "told rightly": "{told_holds:.0%}",
}  # fmt: skip
_PEAKS = {
    "step": "{name}", "GiB predicted": "{predicted:.1f}", "measured": "{measured:.1f}", "off": "{off:+.1%}",
    "seconds predicted": "{step_s:.3f}", "measured seconds": "{measured_s:.3f}", "seconds off": "{step_off:+.1%}",
}  # fmt: skip
_OPERATORS = {
    "of": "{of}", "rows": "{rows}", "median error": "{median_error:.1%}", "bias": "{bias:+.1%}",
    "within 20 %": "{within_20:.0%}", "inside of 90 %": "{inside:.0%}", "interval's factor": "{interval_factor:.2f}",
    "data sheets": "{sheets:.1%}",
}  # fmt: skip

_REFUSED = {"row": "{row}", "why": "{why}"}
_LEFT_OUT = {
    "of": "{of}", "a GPU left out": "{gpu:.1%}", "shapes left out": "{shapes:.1%}", "data sheets": "{sheets:.1%}",
}  # fmt: skip


if __name__ == "__main__":
    raise SystemExit(main())
