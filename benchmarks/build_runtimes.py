"""Fits the bundled runtime profiles to open measurements of whole training steps.

    python benchmarks/build_runtimes.py --train ../shared/data [--out FILE]

Each profile comes with its origin, and with its error on divisions (degrees of parallelism) that were left out.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, final

import numpy as np
import pandas as pd
from tqdm import tqdm

from alpa_dejavu.costs import runtime
from fitting import Deviation, Fitted, fit
from harness import wrong_input_told
from trials import amp, vtrain
from trials._folder import Folder
from trials._sets import SETS
from trials._step_trials import NOISE_FLOOR, taken
from trials._steps import Steps, profile
from trials._trial_set import MEASURED_S, Columns

DATE = "2026-11-23"
"""On which the models were last changed: not the day of a build, so that the same file comes out."""
VERSION = 1
_DIGITS = 3
_OWN_LAYERS = (Deviation("layers", {"layers_from": 1e-3}, 0.0, 0.4),)
"""Where layers' seconds are not the planner's kernels, what they are off by stays out of the profile."""


@final
@dataclasses.dataclass(frozen=True)
class _Source:
    """A framework's measured steps: keys of sets, how they are described, what is off, and where they are from."""

    keys: tuple[str, ...]
    described: Columns
    deviations: tuple[Deviation, ...]
    origin: str


SOURCES = {
    "megatron": _Source(
        ("vtrain-a100/single_node",), vtrain.described, (), "vTrain, MICRO 2024 (VIA-Research/vTrain): GPTs on 8 A100"
    ),
    "deepspeed": _Source(
        ("amp/homogeneous_trials", "amp/het_model_trials"),
        amp.described,
        _OWN_LAYERS,
        "AMP's trials, NeurIPS 2022 (DachengLi1/AMP): GPT-2 on 16 T4 and a TransGAN on 16 V100",
    ),
}


@wrong_input_told
def main(arguments: Sequence[str] | None = None) -> int:
    """Writes the file; returns 2 where an input is wrong, with what and where on stderr."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--train", type=Path, required=True, help="the folder whose measurements are fitted")
    parser.add_argument("--out", type=Path, default=runtime.FILE, help="the file (the package's own)")
    given = parser.parse_args(arguments)
    made = {name: entry(source, Folder(given.train)) for name, source in tqdm(SOURCES.items(), desc="runtimes")}
    content = {"version": VERSION, "units": "SI", "date": DATE, "runtimes": made}
    given.out.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
    return 0


def entry(source: _Source, folder: Folder) -> dict[str, Any]:
    """The figures of a framework's profile, its origin and its errors on divisions that were left out."""
    rows = pd.concat([SETS[key].load(folder) for key in source.keys], ignore_index=True)
    groups = pd.concat([SETS[key].group(SETS[key].load(folder)) for key in source.keys], ignore_index=True).to_numpy()
    known, seconds = source.described(rows, folder), rows[MEASURED_S].to_numpy(float)

    def fitted(chosen: Any) -> Fitted:
        return fit(Steps(source.deviations), taken(known, chosen), seconds[chosen], floor=NOISE_FLOOR)

    off = np.zeros(len(rows))
    for group in tqdm(sorted(set(groups)), leave=False):
        held = groups == group
        off[held] = np.abs(np.exp(fitted(~held).predict(taken(known, held))[0]) / seconds[held] - 1)
    found = profile("fitted", fitted(np.ones(len(rows), dtype=np.bool_)).values)
    figures = {name: float(f"{value:.{_DIGITS}g}") for name, value in vars(found).items() if name != "name"}
    errors = {"mape": round(float(off.mean()), 4), "median_ape": round(float(np.median(off)), 4)}
    return {"figures": figures, "origin": source.origin, "rows": len(rows), "left_out": "division", "held_out": errors}


if __name__ == "__main__":
    raise SystemExit(main())
