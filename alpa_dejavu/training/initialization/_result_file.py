"""Writes and reads the result of a run: JSON of the candidates' curves, and beside it the chosen state as NPZ."""

from __future__ import annotations

import json
import math
import pathlib
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from alpa_dejavu._util.json_file import read_checked, write_whole
from alpa_dejavu.training.initialization._curve import Curve, Initialized
from alpa_dejavu.training.initialization._layout import FloatArray, Parameters, layout
from alpa_dejavu.training.initialization._npz import read_leaves, write_leaves

if TYPE_CHECKING:
    from alpa_dejavu.training.initialization.result_format import CandidateData

_REMEDY = "give the JSON file that parallel_initialize or write_result has written"
_COUNTS = (
    "chosen", "steps", "total_steps", "padded_steps", "diverged", "lost", "restarts", "seconds", "seed", "interrupted",
)  # fmt: skip
_CARRIED = ("method", "rate", "began_at")
"""These aren't written where a candidate has none."""


def write_result(result: Initialized, path: str | pathlib.Path) -> pathlib.Path:
    """Writes a result of `parallel_initialize` to a JSON file, and its training state to an NPZ file beside it; returns
    the JSON file's path.

    The state's file is written before the JSON that names it, each atomically: a reader always finds a matching pair.

    Raises:
        ValueError: a file can't be written.
    """
    import jax

    path = pathlib.Path(path)
    state_file = state_file_of(result, path)
    leaves = tuple(np.asarray(leaf) for leaf in jax.tree_util.tree_leaves(result.state))
    write_leaves(state_file, leaves)
    content = {
        "version": 1,
        "state_file": state_file.name,
        **{name: getattr(result, name) for name in _COUNTS},
        "rungs": list(result.rungs),
        "notes": list(result.notes),
        "candidates": [_as_json(curve) for curve in result.curves],
    }
    write_whole(path, json.dumps(content, indent=1, allow_nan=False) + "\n")
    return path


def state_file_of(result: Initialized, path: pathlib.Path) -> pathlib.Path:
    """Returns the path of the NPZ file for a result's training state, given the path of the result's JSON file."""
    return path.with_name(f"{path.stem}.step-{result.steps}.candidate-{result.chosen}.npz")


def read_result(path: str | pathlib.Path, like: Any, parameters: Parameters | None = None) -> Initialized:
    """Reads the result of `parallel_initialize` that `write_result` wrote.

    Args:
        path: the path of the JSON file.
        like: a state of the model, or its shapes, as `jax.eval_shape(init_fn, key)` gives them.
        parameters: picks the parameters out of a state; None: what is in `.params` or `["params"]`, else the state.

    Raises:
        ValueError: a file is missing, isn't one of a result, or holds another model's state.
    """
    from alpa_dejavu.training.initialization.result_format import ResultData

    path = pathlib.Path(path)
    file = read_checked(path, ResultData, _REMEDY)
    data = file.data
    name = data["state_file"]
    if pathlib.PurePath(name).name != name:
        raise file.problem(("state_file",), f"state_file is {name!r}, but must be a file beside it")
    curves = tuple(_curve(each) for each in data["candidates"])
    if data["chosen"] not in {curve.number for curve in curves}:
        raise file.problem(("chosen",), f"chosen is {data['chosen']}, which isn't among the candidates")
    shape = layout(like, parameters)
    counts: Mapping[str, Any] = data
    return Initialized(
        state=shape.state(read_leaves(path.with_name(name), shape)),
        curves=curves,
        rungs=tuple(data["rungs"]),
        notes=tuple(data["notes"]),
        **{count: counts[count] for count in _COUNTS},
    )


def _as_json(curve: Curve) -> dict[str, Any]:
    """Returns a curve for the file, without weights: they may be large."""
    return {
        "number": curve.number,
        "parents": list(curve.parents),
        "batch_rows": curve.batch_rows,
        "first_step": curve.first_step,
        "dropped_step": curve.dropped_step,
        "why": curve.why,
        **{name: getattr(curve, name) for name in _CARRIED if getattr(curve, name)},
        "point": list(curve.point),
        "losses": curve.losses.tolist(),
        "relative_gradients": [value if math.isfinite(value) else None for value in curve.relative_gradients.tolist()],
    }


def _curve(data: CandidateData) -> Curve:
    return Curve(
        data["number"],
        tuple(data["parents"]),
        data["batch_rows"],
        data["first_step"],
        _floats(data["losses"]),
        _floats(data["relative_gradients"]),
        data["dropped_step"],
        data["why"],
        tuple(data["point"]),
        method=data.get("method", ""),
        rate=data.get("rate"),
        began_at=data.get("began_at", 0.0),
    )


def _floats(values: Sequence[float | None]) -> FloatArray:
    return np.array([math.nan if value is None else value for value in values], np.float64)
