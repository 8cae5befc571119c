"""Accuracy against the share of parts that are faulty, over many masks."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from alpa_dejavu.problem import checks
from alpa_dejavu.training.resilience._ray_points import on_workers
from alpa_dejavu.training.resilience._result import Point, Resilience
from alpa_dejavu.training.resilience._subject import (
    Judge,
    Subject,
    accuracy,
    checked_shares,
    found_parts,
    struck,
)
from alpa_dejavu.training.resilience.faults import Fault, fault
from alpa_dejavu.training.resilience.parts import Parts, counted, drawn

__all__ = ["resilience"]

SHARES = (0.02, 0.05, 0.1, 0.2, 0.3, 0.5)
Faults = str | Fault | Sequence[str | Fault] | Mapping[str, str | Fault]


def resilience(
    apply_fn: Callable[[Any, Any], Any],
    params: Any,
    data: tuple[Any, Any],
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
        params: its parameters, a pytree of arrays.
        data: inputs and targets, arrays whose first dimension is that of the samples.
        faults: a fault or several, by their names in `alpa_dejavu.training.resilience.faults` or as objects; a mapping
            names them.
        parts: which units may fail: a kind ("neurons", "filters", "heads", "layers", "weights", or "activations", a
            product's outputs, or "values", single numbers of these), or what `find_parts` has found.
        shares: of the units, from 0 to 1.
        masks: how many are drawn for each share.
        by_layer: whether each group, such as a layer, is struck alone as well.
        judge: what is measured, by outputs and targets; the share of targets that the largest output names.
        lanes: masks that are computed side by side by `vmap`; the others follow one another. On a CPU convolutions are
            faster one by one; on accelerators more lanes are.
        seed: of the masks.
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
    given = checked_shares(shares)
    named = _named(faults)
    subject = Subject.checked(apply_fn, params, data, judge)
    units = found_parts(subject, parts)
    for one in named.values():
        _tried(subject, one, units)
    asked = [(name, group) for name in named for group in (("", *units.groups) if by_layer else ("",))]
    measure = functools.partial(measured, subject, units, shares=given, masks=masks, lanes=lanes, seed=seed)
    calls = [functools.partial(measure, name, named[name], group) for name, group in asked]
    found = [call() for call in calls] if workers is None else on_workers(calls, workers)
    base, _ = jax.jit(lambda params: subject.judged(apply_fn(params, subject.inputs)))(subject.params)
    return Resilience(units.kind, units.groups, units.count, float(base), tuple(p for each in found for p in each))


def measured(
    subject: Subject, parts: Parts, name: str, fault: Fault, group: str, *, shares: Sequence[float], masks: int,
    lanes: int, seed: int,
) -> list[Point]:  # fmt: skip
    """Returns the points of one fault in one group of parts, or in all for the group "": a point for each share."""
    lanes = min(lanes, masks)
    turns = -(-masks // lanes)
    keys = jax.random.split(jax.random.PRNGKey(seed), masks)
    keys = jnp.concatenate([keys, keys[: turns * lanes - masks]]).reshape(turns, lanes, -1)

    def one(params: Any, key: Any, count: Any) -> Any:
        of_mask, of_fault = jax.random.split(key)
        hit = drawn(parts, of_mask, count, group)
        return subject.judged(Subject.outputs(_with(subject, params), fault, parts, hit, of_fault))

    @jax.jit
    def all_masks(params: Any, count: Any) -> Any:
        return jax.lax.map(lambda some: jax.vmap(lambda key: one(params, key, count))(some), keys)

    points = []
    for share in shares:
        count = counted(parts, share, group)
        judged, not_finite = (np.asarray(each, float).ravel()[:masks] for each in all_masks(subject.params, count))
        points.append(Point(name, group, share, count, judged, not_finite))
    return points


def _with(subject: Subject, params: Any) -> Subject:
    return Subject(subject.apply_fn, params, subject.inputs, subject.targets, subject.judge)


def _named(faults: Faults) -> dict[str, Fault]:
    if isinstance(faults, Mapping):
        named = {name: fault(each) for name, each in faults.items()}
    else:
        every = [faults] if isinstance(faults, (str, Fault)) else list(faults)
        named = {each if isinstance(each, str) else str(each): fault(each) for each in every}
    if not named:
        raise ValueError("faults is empty, but must have one at least; give 'removed'")
    return named


def _tried(subject: Subject, fault: Fault, parts: Parts) -> None:
    """Raises ValueError if the model doesn't take parameters with a fault, by shapes alone."""
    hit, key = jax.ShapeDtypeStruct((parts.count,), bool), jax.random.PRNGKey(0)
    try:
        jax.eval_shape(struck(subject.apply_fn, fault, parts), subject.params, subject.inputs, hit, key)
    except ValueError:
        raise
    except Exception as error:  # whatever a model raises that checks its parameters
        said = str(error).partition("\n")[0]
        raise ValueError(f"fault is {fault}, but must leave parameters that apply_fn takes: {said}; choose "
                         "another fault or other parts") from error  # fmt: skip
