"""The result of a run: each candidate's curve, and the state that was chosen; with its files, version 1: JSON of the
curves, as the dataclasses here have them, and beside it the state as NPZ.
"""

from __future__ import annotations

import dataclasses
import functools
import json
import math
import pathlib
from collections.abc import Iterable
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeAlias, final

import numpy as np
from numpy.typing import NDArray
from typing_extensions import NotRequired

from alpa_dejavu._util.dataclass_format import Elsewhere, Key, Needed, Rare, Stored, data_of, object_of, typed_dict_of
from alpa_dejavu._util.format_fields import WHOLE, Index, Text, Words, listed, stated, whole
from alpa_dejavu._util.json_file import read_checked, write_whole
from alpa_dejavu.training.initialization._layout import layout
from alpa_dejavu.training.initialization._store import read_leaves, write_leaves

if TYPE_CHECKING:
    from jaxtyping import PyTree

    from alpa_dejavu.training.initialization._layout import Parameters

__all__ = ["Curve", "Initialized", "ResultData", "read_result", "state_file_of", "write_result"]


def _with_nulls(values: NDArray[np.float64]) -> list[float | None]:
    return [number if math.isfinite(number) else None for number in values.tolist()]


_floats = functools.partial(np.array, dtype=np.float64)
_Number: TypeAlias = Annotated[float, stated("a number")]
_NUMBERS = Stored(list[_Number], _with_nulls, _floats)
_NUMBERS_OR_NULLS = Stored(list[Annotated[float | None, stated("a number, or null")]], _with_nulls, _floats)


@final
@dataclasses.dataclass(frozen=True, eq=False, kw_only=True)
class Curve:
    """The course of one candidate, a training from one initialization: its losses, and why it was dropped or chosen.

    Attributes:
        dropped_step: how many steps it had when it was dropped; None: it is the chosen one, or the run was interrupted
            before it was decided whether it is.
        why: a sentence on why it was dropped, or chosen, or neither yet.
        method: the name of the start that gave it its first weights.
        point: the coordinates that its first weights were made from, such as scales of tensors; (): none.
        losses: the loss of each of its T steps; if it diverged, of those before that.
        relative_gradients: the gradient's norm over the weights', shape (T,); NaN where the training step doesn't say.
        started, ended: its first and its last weights, if they were to be kept; files don't have them.
    """

    number: Index
    dropped_step: Annotated[Index | None, stated("a number of steps, or null")]
    why: Words
    method: Rare[Annotated[Words, stated("text: the name of a start")]] = ""
    point: Needed[Annotated[tuple[_Number, ...], listed("a list of numbers")]] = ()
    losses: Annotated[NDArray[np.float64], _NUMBERS, listed("a list of numbers")]
    relative_gradients: Annotated[NDArray[np.float64], _NUMBERS_OR_NULLS, listed("a list of numbers or nulls")]
    started: Elsewhere[NDArray[np.float64] | None] = None
    ended: Elsewhere[NDArray[np.float64] | None] = None


_BEFORE: dict[str, Any] = {"parents": [], "batch_rows": None, "first_step": 0}
"""Keys of candidates in version 1 of the format, by which releases before could say more."""
_CANDIDATE: Any = typed_dict_of(
    Curve,
    {
        "number": Index,
        "parents": Annotated[list[Index], listed("a list of numbers")],
        "batch_rows": Annotated[Annotated[int, whole("", 1), WHOLE] | None, stated("a number of rows, or null")],
        "first_step": Index,
    },
    rate=NotRequired[Annotated[float, stated("a learning rate", gt=0)]],
    began_at=NotRequired[Annotated[float, stated("a number of steps", ge=0)]],
)


def _candidates(curves: Iterable[Curve]) -> list[dict[str, Any]]:
    return [{"number": curve.number, **_BEFORE, **data_of(curve)} for curve in curves]


def _curves(candidates: Iterable[dict[str, Any]]) -> tuple[Curve, ...]:
    return tuple(object_of(Curve, candidate) for candidate in candidates)


@final
@dataclasses.dataclass(frozen=True, eq=False, kw_only=True)
class Initialized:
    """The result of `parallel_initialize`: the chosen state, and the curves of all candidates.

    Attributes:
        state: the chosen candidate's state after its steps, as init_fn made it, of numpy arrays.
        steps: how many steps that state has been trained; as many as asked for, unless the run was interrupted.
        total_steps: steps of all candidates together: the compute.
        padded_steps: steps that programs took in lanes without a candidate: compute that isn't in `total_steps`.
        diverged: how many candidates were dropped since their loss or weights were no number.
        lost: how many candidates were dropped since their worker died again and again.
        restarts: how many tasks began again because a worker died; their steps count once.
        seconds: how long the whole run took, with compiling.
        rungs: the steps at which candidates were judged.
        notes: what else there is to know, in sentences.
    """

    state: Elsewhere[Any]
    chosen: Index
    steps: Index
    total_steps: Index
    padded_steps: Index
    diverged: Index
    lost: Index
    restarts: Index
    seconds: Annotated[float, stated("a number of seconds", ge=0)]
    seed: Index
    interrupted: Needed[Annotated[bool, stated("true or false")]] = False
    rungs: Annotated[tuple[Index, ...], listed("a list of steps")]
    notes: Needed[Annotated[tuple[Words, ...], listed("a list of sentences")]] = ()
    curves: Annotated[
        tuple[Curve, ...],
        Key("candidates"),
        Stored(list[Annotated[_CANDIDATE, stated("a candidate")]], _candidates, _curves),
        listed("a list of candidates", min_length=1),
    ]

    @property
    def losses(self) -> NDArray[np.float64]:
        """Returns the chosen candidate's losses."""
        return next(curve for curve in self.curves if curve.number == self.chosen).losses[: self.steps]


ResultData: Any = typed_dict_of(
    Initialized,
    {
        "version": Annotated[Literal[1], stated("1, the version of results that this release reads"), WHOLE],
        "state_file": Annotated[Text, stated("the name of an NPZ file beside this one")],
    },
)
_REMEDY = "give the JSON file that parallel_initialize or write_result has written"


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
    write_leaves(state_file, tuple(np.asarray(leaf) for leaf in jax.tree.leaves(result.state)))
    content = {"version": 1, "state_file": state_file.name, **data_of(result)}
    write_whole(path, json.dumps(content, indent=1, allow_nan=False) + "\n")
    return path


def state_file_of(result: Initialized, path: pathlib.Path) -> pathlib.Path:
    """Returns the path of the NPZ file for a result's training state, given the path of the result's JSON file."""
    return path.with_name(f"{path.stem}.step-{result.steps}.candidate-{result.chosen}.npz")


def read_result(path: str | pathlib.Path, like: PyTree, parameters: Parameters | None = None) -> Initialized:
    """Reads the result of `parallel_initialize` that `write_result` wrote.

    Args:
        like: a state of the model, or its shapes, as `jax.eval_shape(init_fn, key)` gives them.
        parameters: picks the parameters out of a state; None: what is in `.params` or `["params"]`, else the state.

    Raises:
        ValueError: a file is missing, isn't one of a result, or holds another model's state.
    """
    path = pathlib.Path(path)
    file = read_checked(path, ResultData, _REMEDY)
    name, chosen = file.data["state_file"], file.data["chosen"]
    if pathlib.PurePath(name).name != name:
        raise file.problem(("state_file",), f"state_file is {name!r}, but must be a file beside it")
    if all(candidate["number"] != chosen for candidate in file.data["candidates"]):
        raise file.problem(("chosen",), f"chosen is {chosen}, which isn't among the candidates")
    shape = layout(like, parameters)
    return object_of(Initialized, file.data, state=shape.state(read_leaves(path.with_name(name), shape)))
