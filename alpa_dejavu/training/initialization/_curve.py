"""The result of a run: each candidate's curve, and the state that was chosen; with its files, JSON of the curves and
beside it the state as NPZ.
"""

from __future__ import annotations

import dataclasses
import json
import math
import pathlib
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, final

import numpy as np

from alpa_dejavu._util.json_file import read_checked, write_whole
from alpa_dejavu.training.initialization._judge import Measure, measured
from alpa_dejavu.training.initialization._layout import layout
from alpa_dejavu.training.initialization._store import read_leaves, write_leaves

if TYPE_CHECKING:
    from jaxtyping import Float, PyTree

    from alpa_dejavu.training.initialization._layout import Parameters


@final
@dataclasses.dataclass(eq=False)
class RacingCandidate:
    """One of the initializations that are trained side by side, in its present state, with the attributes of a
    `Curve`; `reached` has its measures at the rungs (steps of judging) that it has reached.
    """

    number: int
    method: str = ""
    point: tuple[float, ...] = ()
    losses: list[float] = dataclasses.field(default_factory=list)
    relative_gradients: list[float] = dataclasses.field(default_factory=list)
    reached: list[Measure] = dataclasses.field(default_factory=list)
    dropped_step: int | None = None
    why: str = ""
    started: Float[np.ndarray, " D"] | None = None
    ended: Float[np.ndarray, " D"] | None = None

    @property
    def is_living(self) -> bool:
        return self.dropped_step is None

    @property
    def step(self) -> int:
        return len(self.losses)

    def measure(self, horizon: int) -> Measure:
        """Returns the measure of its curve, whose trend is followed to a step."""
        return measured(np.array(self.losses), np.array(self.relative_gradients), 0, horizon)

    def curve(self) -> Curve:
        values = {field.name: vars(self)[field.name] for field in dataclasses.fields(Curve)}
        return Curve(**values | {name: np.array(values[name]) for name in ("losses", "relative_gradients")})


@final
@dataclasses.dataclass(frozen=True, eq=False)
class Curve:
    """The course of one candidate, a training from one initialization: its losses, and why it was dropped or chosen.

    Attributes:
        number: its number, from 0.
        losses: the loss of each of its T steps; if it diverged, of those before that.
        relative_gradients: the gradient's norm over the weights'; NaN where the training step doesn't say.
        dropped_step: how many steps it had when it was dropped; None: it is the chosen one, or the run was interrupted
            before it was decided whether it is.
        why: a sentence on why it was dropped, or chosen, or neither yet.
        point: the coordinates that its first weights were made from, such as scales of tensors; (): none.
        started, ended: its first and its last weights, if they were to be kept.
        method: the name of the start that gave it its first weights.
    """

    number: int
    losses: Float[np.ndarray, " T"]
    relative_gradients: Float[np.ndarray, " T"]
    dropped_step: int | None
    why: str
    point: tuple[float, ...] = ()
    started: Float[np.ndarray, " D"] | None = None
    ended: Float[np.ndarray, " D"] | None = None
    method: str = ""


@final
@dataclasses.dataclass(frozen=True, eq=False)
class Initialized:
    """The result of `parallel_initialize`: the chosen state, and the curves of all candidates.

    Attributes:
        state: the chosen candidate's state after its steps, as init_fn made it, of numpy arrays.
        chosen: the number of the chosen candidate.
        steps: how many steps that state has been trained; as many as asked for, unless the run was interrupted.
        curves: those of all candidates, by number.
        rungs: the steps at which candidates were judged.
        total_steps: steps of all candidates together: the compute.
        padded_steps: steps that programs took in lanes without a candidate: compute that isn't in `total_steps`.
        diverged: how many candidates were dropped since their loss or weights were no number.
        lost: how many candidates were dropped since their worker died again and again.
        restarts: how many tasks began again because a worker died; their steps count once.
        seconds: how long the whole run took, with compiling.
        seed: the seed of all random numbers.
        interrupted: whether the run was stopped before its end.
        notes: what else there is to know, in sentences.
    """

    state: PyTree
    chosen: int
    steps: int
    curves: tuple[Curve, ...]
    rungs: tuple[int, ...]
    total_steps: int
    padded_steps: int
    diverged: int
    lost: int
    restarts: int
    seconds: float
    seed: int
    interrupted: bool = False
    notes: tuple[str, ...] = ()

    @property
    def losses(self) -> Float[np.ndarray, " steps"]:
        """Returns the chosen candidate's losses."""
        return next(curve for curve in self.curves if curve.number == self.chosen).losses[: self.steps]


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
    leaves = tuple(np.asarray(leaf) for leaf in jax.tree.leaves(result.state))
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


def read_result(path: str | pathlib.Path, like: PyTree, parameters: Parameters | None = None) -> Initialized:
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


def _plain(value: object) -> object:
    """Returns a value for JSON, which has lists, and null in place of NaN."""
    if isinstance(value, np.ndarray):
        return [number if math.isfinite(number) else None for number in value.tolist()]
    return list(value) if isinstance(value, tuple) else value


def _floats(values: Sequence[float | None]) -> Float[np.ndarray, " T"]:
    return np.array([math.nan if value is None else value for value in values], np.float64)
