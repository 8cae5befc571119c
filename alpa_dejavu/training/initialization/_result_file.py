"""Writes and reads the result of a run: JSON of the candidates' curves, and beside it the chosen state as NPZ."""

from __future__ import annotations

import dataclasses
import json
import math
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from alpa_dejavu._util.json_file import read_checked, write_whole
from alpa_dejavu.training.initialization._curve import Curve, Initialized
from alpa_dejavu.training.initialization._layout import FloatArray, Parameters, layout
from alpa_dejavu.training.initialization._store import read_leaves, write_leaves

_REMEDY = "give the JSON file that parallel_initialize or write_result has written"
_BEFORE: dict[str, Any] = {"parents": [], "batch_rows": None, "first_step": 0}
"""Keys of candidates in version 1 of the format, by which releases before could say more."""


def write_result(result: Initialized, path: str | pathlib.Path) -> pathlib.Path:
    """Writes a result of `parallel_initialize` to a JSON file, and its training state to an NPZ file beside it; returns
    the JSON file's path.

    The state's file is written before the JSON that names it, each atomically: a reader always finds a matching pair.

    Raises:
        ValueError: a file can't be written.
    """
    import jax

    from alpa_dejavu.training.initialization.result_format import CandidateData, ResultData

    path = pathlib.Path(path)
    state_file = state_file_of(result, path)
    leaves = tuple(np.asarray(leaf) for leaf in jax.tree_util.tree_leaves(result.state))
    write_leaves(state_file, leaves)
    content: dict[str, Any] = {"version": 1, "state_file": state_file.name}
    content |= {key: _plain(getattr(result, key)) for key in ResultData.__annotations__ if hasattr(result, key)}
    # Weights aren't written: they may be large.
    content["candidates"] = [
        {key: _BEFORE[key] if key in _BEFORE else _plain(getattr(curve, key)) for key in CandidateData.__annotations__
         if key in _BEFORE or (hasattr(curve, key) and (key != "method" or curve.method))}
        for curve in result.curves
    ]  # fmt: skip
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
    counts: Mapping[str, Any] = data
    curves = tuple(
        Curve(candidate["number"], _floats(candidate["losses"]), _floats(candidate["relative_gradients"]),
              candidate["dropped_step"], candidate["why"], tuple(candidate["point"]),
              method=candidate.get("method", ""))
        for candidate in data["candidates"]
    )  # fmt: skip
    if data["chosen"] not in {curve.number for curve in curves}:
        raise file.problem(("chosen",), f"chosen is {data['chosen']}, which isn't among the candidates")
    shape = layout(like, parameters)
    own = {field.name: counts[field.name] for field in dataclasses.fields(Initialized) if field.name in counts}
    own |= {"rungs": tuple(data["rungs"]), "notes": tuple(data["notes"])}
    return Initialized(state=shape.state(read_leaves(path.with_name(name), shape)), curves=curves, **own)


def _plain(value: Any) -> Any:
    """Returns a value for JSON, which has lists, and null in place of NaN."""
    if isinstance(value, np.ndarray):
        return [number if math.isfinite(number) else None for number in value.tolist()]
    return list(value) if isinstance(value, tuple) else value


def _floats(values: Sequence[float | None]) -> FloatArray:
    return np.array([math.nan if value is None else value for value in values], np.float64)
