"""Builds the bundled calibrations from open measurements.

    python benchmarks/build_calibrations.py --train ../shared/data [--out DIR]

`make calibrations` runs it with the versions of requirements.txt, one thread and one set of processor instructions, so
that the files come out the same; another SciPy or scikit-learn gives slightly other ones.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from pathlib import Path

from tqdm import tqdm

from alpa_dejavu.calibration import Calibration, Fit, write_calibration
from alpa_dejavu.calibration._bundled import FOLDER
from bundles._devices import BUNDLES, Bundle, sheets_of
from bundles._parts import Part, parts
from bundles._peaks import Peaks
from bundles._products import with_products
from harness import wrong_input_told
from trials._folder import Folder

DATE = "2026-11-23"
"""On which the models were last changed: not the day of a build, so that the same files come out."""

_FP32 = "kernels were measured in single precision; products of other dtypes go by their rate on the device"

_NO_KERNELS = (
    "kernels: none was measured on it; they go by its data sheet and a model of five other GPUs, whose errors on a GPU "
    "that was left out stand here"
)


@wrong_input_told
def main(arguments: Sequence[str] | None = None) -> int:
    """Writes the files; returns 2 where an input is wrong, with what and where on stderr."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--train", type=Path, required=True, help="the folder whose measurements models are fitted on")
    parser.add_argument("--out", type=Path, default=FOLDER, help="the folder for the files (the package's own)")
    given = parser.parse_args(arguments)
    build(Folder(given.train), given.out)
    return 0


def build(folder: Folder, out: Path) -> None:
    """Fits all parts to a folder of measurements and writes a file for each bundle.

    Raises:
        AbsentError: measurements aren't there.
        UnreadableError: or are broken.
        ValueError: a file can't be written.
    """
    fitted = parts(folder)
    table = folder.document("neusight-kernels/gpus.json")
    for bundle in tqdm(BUNDLES, desc="files"):
        made = calibration(bundle, fitted, table)
        if bundle.products is not None:
            made = with_products(made, bundle.products, folder)
        write_calibration(made, out / f"{bundle.name}.json")


def calibration(bundle: Bundle, fitted: Mapping[str, Part], table: Mapping[str, Mapping[str, float]]) -> Calibration:
    """A bundle with its parts: the model of kernels always, the others where they were measured on its devices."""
    fits = _fits(bundle, fitted)
    measured = [fit for fit in fits if fit.rows]
    origins = list(dict.fromkeys(fit.origin for fit in measured)) or ["no measurement of its own"]
    if bundle.kernels is None:
        origins.append("kernels by data sheet")
    return Calibration(
        name=bundle.name,
        origin=f"{bundle.title}: {'; '.join(origins)}; devices' figures: {bundle.source}",
        date=DATE,
        sheets=sheets_of(bundle, table),
        kernels=fitted["kernels"].model,
        layers=fitted["layers"].model if bundle.layers else None,
        within=fitted[bundle.within].model if bundle.within else None,
        across=fitted[bundle.across].model if bundle.across else None,
        fits=fits,
        missing=tuple(_missing(bundle, fitted)),
        memory=next((peaks.residuals(origin) for origin, _, peaks in _peaks(bundle, fitted)), None),
    )


def _fits(bundle: Bundle, fitted: Mapping[str, Part]) -> tuple[Fit, ...]:
    fits = [fitted["kernels"].fit_of([bundle.kernels or ""])]
    if bundle.layers:
        fits.append(fitted["layers"].fit_of(bundle.layers))
    named = [name for name in (bundle.within, bundle.across) if name is not None]
    fits += [fitted[name].fit_of(fitted[name].device.tolist()) for name in named]
    return (*fits, *(peaks.fit_of(origin, left_out) for origin, left_out, peaks in _peaks(bundle, fitted)))


def _peaks(bundle: Bundle, fitted: Mapping[str, Part]) -> list[tuple[str, str, Peaks]]:
    """Of memory: the measurements, what was left out in turn, and the peaks, where there are any.

    Peaks of Alpa's cost model are none: they reproduce a model, and no device was there.
    """
    parts_of = [] if bundle.peaks is None else [fitted[bundle.peaks]]
    return [(part.origin, part.left_out, part.peaks) for part in parts_of if part.peaks is not None]


def _missing(bundle: Bundle, fitted: Mapping[str, Part]) -> list[str]:
    found = [_FP32 if bundle.kernels else _NO_KERNELS]
    if not bundle.layers:
        found.append("layers: none was measured on it")
    if bundle.within is None:
        found.append("collectives: none was measured; all go by the alpha-beta model and the cluster's links")
    elif bundle.across is None:
        found.append("collectives across hosts: none was measured; they go by the alpha-beta model")
    for _, _, peaks in _peaks(bundle, fitted):
        found.append(peaks.note)
    return [*found, bundle.note] if bundle.note else found


if __name__ == "__main__":
    raise SystemExit(main())
