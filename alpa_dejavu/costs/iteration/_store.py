"""Fitted models as versioned JSON: coefficients with their units, origin and error, never what was measured."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from alpa_dejavu._util.json_file import read_text
from alpa_dejavu._util.json_text import strict_json
from alpa_dejavu.costs.iteration._fitted import Fitted
from alpa_dejavu.costs.iteration._hierarchical import Physics

__all__ = ["load", "save"]

VERSION = 1
_DIGITS = 9
"""Significant ones: more differ between processors, and the file is to come out the same on all."""


def save(fitted: Fitted, path: Path, origin: str, held_out: Mapping[str, float]) -> None:
    """Writes a fitted physical model to a JSON file, with its origin and its errors.

    Args:
        fitted: the fitted model.
        path: where the file is written.
        origin: which measurements it was fitted on.
        held_out: its errors on groups that were left out, by name (fractions).
    """
    content = {
        "version": VERSION,
        "physics": type(fitted.physics).__name__,
        "origin": origin,
        "rows": fitted.num_measured,
        "groups": fitted.num_groups,
        "held_out": dict(held_out),
        "parameters": {name: _rounded(value) for name, value in fitted.values.items()},
        "deviations": [kind.name for kind in fitted.physics.deviations],
        "programs": [_rounded(known) for known in fitted.programs],
        "estimate": _rounded(fitted.estimate),
        "covariance": _rounded(fitted.covariance),
        "noise": {str(source): _rounded(value) for source, value in fitted.noise.items()},
        "widening": {str(source): _rounded(value) for source, value in fitted.widening.items()},
    }
    path.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")


def load(path: Path, physics: Physics) -> Fitted:
    """Reads the fitted physical model that `save` wrote to a JSON file.

    Args:
        path: the file that is read.
        physics: the physical model that was fitted.

    Raises:
        ValueError: the file is broken, of another version, or of other physics; it says what to do.
    """
    try:
        content = strict_json(read_text(path, "fit it again"), finite=False)
        version, name = content["version"], content["physics"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ValueError(f"{path}: is no fitted model ({error!r}); fit it again") from error
    if version != VERSION:
        raise ValueError(f"{path}: is of version {version}, but this program reads {VERSION}; fit it again")
    wanted = [parameter.name for parameter in physics.parameters]
    if name != type(physics).__name__ or list(content.get("parameters", ())) != wanted:
        raise ValueError(f"{path}: is fitted for {name}, not for this {type(physics).__name__}; fit it again")
    return _fitted(path, physics, content)


def _fitted(path: Path, physics: Physics, content: Mapping[str, Any]) -> Fitted:
    try:
        estimate, covariance = np.array(content["estimate"], float), np.array(content["covariance"], float)
        programs = tuple(
            np.array(known, float).reshape(-1, len(kind.lengths))
            for known, kind in zip(content["programs"], physics.deviations, strict=True)
        )
        noise, widening = (
            {float(source): float(value) for source, value in content[name].items()} for name in ("noise", "widening")
        )
        counts = int(content["rows"]), int(content["groups"])
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(f"{path}: lacks a part of a fitted model ({error!r}); fit it again") from error
    size = len(physics.parameters) + sum(map(len, programs))
    whole = estimate.shape == (size,) and covariance.shape == (size, size) and bool(noise) and bool(widening)
    if not whole or not np.isfinite(estimate).all() or not np.isfinite(covariance).all():
        raise ValueError(f"{path}: its estimate and covariance must be {size} finite numbers each way; fit it again")
    return Fitted(physics, estimate, covariance, programs, noise, widening, *counts)


def _rounded(values: Any) -> Any:
    array = np.asarray(values, dtype=np.float64)
    return np.vectorize(lambda value: float(f"{value:.{_DIGITS}g}"))(array).tolist() if array.size else []
