"""Accuracy against the share of parts that are faulty, over many masks."""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, final

import jax
import jax.numpy as jnp
import numpy as np

from alpa_dejavu.problem import checks
from alpa_dejavu.training._ray import on_workers
from alpa_dejavu.training.resilience._subject import Subject, accuracy, checked_shares, found_parts, struck
from alpa_dejavu.training.resilience.faults import UnitFault, fault
from alpa_dejavu.training.resilience.parts import Parts, counted, drawn

if TYPE_CHECKING:
    from jaxtyping import Array, Float, Int, PRNGKeyArray, PyTree

    from alpa_dejavu.training.resilience._subject import Data, Judge, Model

_REACH_90 = 1.6448536269514722


@final
@dataclasses.dataclass(frozen=True, eq=False)
class Point:
    """A model judged with a share of its parts faulty, under many masks.

    Attributes:
        group: the group of parts that was struck; empty: all.
        not_finite: the share of samples with an output that is NaN or infinite, under each mask.
    """

    fault: str
    group: str
    share: float
    count: int
    judged: Float[np.ndarray, " masks"]
    not_finite: Float[np.ndarray, " masks"]

    @property
    def mean(self) -> float:
        """Returns the mean over masks."""
        return float(np.mean(self.judged))

    @property
    def low(self) -> float:
        """Returns the 5th percentile over masks."""
        return float(np.percentile(self.judged, 5))

    @property
    def interval(self) -> tuple[float, float]:
        """Returns the 90 % interval of the mean, as if means were normally distributed."""
        if len(self.judged) < 2:
            return -math.inf, math.inf
        reach = _REACH_90 * float(np.std(self.judged, ddof=1)) / math.sqrt(len(self.judged))
        return self.mean - reach, self.mean + reach


@final
@dataclasses.dataclass(frozen=True, eq=False)
class Resilience:
    """The figures that `resilience` has measured.

    Attributes:
        kind: the word for the parts.
        base: what the judge says of the model without faults.
    """

    kind: str
    groups: tuple[str, ...]
    units: int
    base: float
    points: tuple[Point, ...]

    @property
    def faults(self) -> tuple[str, ...]:
        """Returns the names of the faults."""
        return tuple(dict.fromkeys(point.fault for point in self.points))

    def curve(self, fault: str, group: str = "") -> tuple[Point, ...]:
        """Returns the points of a fault in one group, or in all parts, by ascending share."""
        return tuple(point for point in self.points if (point.fault, point.group) == (fault, group))

    def data(self) -> dict[str, Any]:
        """Returns all figures as plain data for JSON."""
        points = [
            {"fault": p.fault, "group": p.group, "share": p.share, "count": p.count, "mean": p.mean, "low": p.low,
             "interval": [end if math.isfinite(end) else None for end in p.interval],
             "not_finite": float(np.mean(p.not_finite)), "judged": p.judged.tolist()}
            for p in self.points
        ]  # fmt: skip
        return {"version": 1, "parts": self.kind, "units": self.units, "base": self.base, "points": points}


SHARES = (0.02, 0.05, 0.1, 0.2, 0.3, 0.5)
Faults = str | UnitFault | Sequence[str | UnitFault] | Mapping[str, str | UnitFault]


def resilience(
    apply_fn: Model,
    params: PyTree,
    data: Data,
    faults: Faults = "removed",
    *,
    parts: str | Parts = "neurons",
    shares: Sequence[float] = SHARES,
    masks: int = 50,
    by_layer: bool = False,
    judge: Judge = accuracy,
    lanes: int = 1,
    seed: int = 0,
    workers: int | None = None,
) -> Resilience:
    """Returns how accurate a model is with a share of its parts faulty, for each fault and share, over many masks.

    A mask hits a share of the units, each set of them as likely. The masks of a seed are the same for all faults, and
    those of a smaller share are contained in those of a larger one.

    Args:
        apply_fn: the model: takes parameters and inputs, and returns outputs.
        data: inputs and targets, arrays whose first dimension is that of the samples.
        faults: a fault or several, by their names in `alpa_dejavu.training.resilience.faults` or as objects; a mapping
            names them.
        parts: which units may fail: a kind ("neurons", "filters", "heads", "layers", "weights", or "activations", a
            product's outputs, or "values", single numbers of these), or what `find_parts` has found.
        shares: of the units, from 0 to 1.
        by_layer: whether each group, such as a layer, is struck alone as well.
        judge: what is measured, by outputs and targets; the share of targets that the largest output names.
        lanes: masks that are computed side by side by `vmap`; the others follow one another. On a CPU convolutions are
            faster one by one; on accelerators more lanes are.
        workers: tasks of the connected Ray cluster that the points are divided among; None: this process.

    Raises:
        ValueError: the model has no such parts, a share isn't one, or the data don't fit; before anything runs.
        RuntimeError: `workers` is given, but this process isn't connected to Ray.

    >>> import numpy as np
    >>> data = np.eye(4, dtype=np.float32), np.arange(4)
    >>> found = resilience(lambda params, inputs: inputs @ params, np.eye(4), data, shares=(0, 0.5), masks=8)
    >>> [(point.share, point.mean == 1) for point in found.points]
    [(0.0, True), (0.5, False)]
    """
    checks.count("resilience", "masks", masks)
    checks.count("resilience", "lanes", lanes)
    ascending = checked_shares(shares)
    named = _faults_by_name(faults)
    subject = Subject.checked(apply_fn, params, data, judge)
    units = found_parts(subject, parts)
    for asked_fault in named.values():
        _check_fault(subject, asked_fault, units)
    asked = [(name, group) for name in named for group in (("", *units.groups) if by_layer else ("",))]
    measure = functools.partial(measured, subject, units, shares=ascending, masks=masks, lanes=lanes, seed=seed)
    calls = [functools.partial(measure, name, named[name], group) for name, group in asked]
    points_of = [call() for call in calls] if workers is None else on_workers(calls, workers)
    base, _ = jax.jit(lambda params: subject.judged(apply_fn(params, subject.inputs)))(subject.params)
    return Resilience(
        units.kind, units.groups, units.count, float(base), tuple(p for of_fault in points_of for p in of_fault)
    )


def measured(
    subject: Subject, parts: Parts, name: str, fault: UnitFault, group: str, *, shares: Sequence[float], masks: int,
    lanes: int, seed: int,
) -> list[Point]:  # fmt: skip
    """Returns the points of one fault in one group of parts, or in all for the group "": a point for each share."""
    lanes, model = min(lanes, masks), struck(subject.apply_fn, fault, parts)
    turns = -(-masks // lanes)
    keys = jax.random.split(jax.random.PRNGKey(seed), masks)
    keys = jnp.concatenate([keys, keys[: turns * lanes - masks]]).reshape(turns, lanes, -1)

    def under_mask(params: PyTree, key: PRNGKeyArray, count: Int[Array, ""]) -> PyTree:
        of_mask, of_fault = jax.random.split(key)
        hit = drawn(parts, of_mask, count, group)
        return subject.judged(model(params, subject.inputs, hit, of_fault))

    @jax.jit
    def all_masks(params: PyTree, count: Int[Array, ""]) -> PyTree:
        return jax.lax.map(lambda some: jax.vmap(lambda key: under_mask(params, key, count))(some), keys)

    points = []
    for share in shares:
        count = counted(parts, share, group)
        judged, not_finite = (
            np.asarray(figures, float).ravel()[:masks] for figures in all_masks(subject.params, count)
        )
        points.append(Point(name, group, share, count, judged, not_finite))
    return points


def _faults_by_name(faults: Faults) -> dict[str, UnitFault]:
    if isinstance(faults, Mapping):
        named = {name: fault(choice) for name, choice in faults.items()}
    else:
        every = [faults] if isinstance(faults, (str, UnitFault)) else list(faults)
        named = {choice if isinstance(choice, str) else str(choice): fault(choice) for choice in every}
    if not named:
        raise ValueError("faults is empty, but must have one at least; give 'removed'")
    return named


def _check_fault(subject: Subject, fault: UnitFault, parts: Parts) -> None:
    """Raises ValueError if the model doesn't take parameters with a fault, by shapes alone."""
    hit, key = jax.ShapeDtypeStruct((parts.count,), bool), jax.random.PRNGKey(0)
    try:
        jax.eval_shape(struck(subject.apply_fn, fault, parts), subject.params, subject.inputs, hit, key)
    except ValueError:
        raise
    except Exception as error:  # whatever a model raises that checks its parameters
        message = str(error).partition("\n")[0]
        raise ValueError(f"fault is {fault}, but must leave parameters that apply_fn takes: {message}; choose "
                         "another fault or other parts") from error  # fmt: skip
