"""The reason why a problem has no slicing: one of its constraints, several, or the choices themselves."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np

from alpa_dejavu.problem import SlicingProblem
from alpa_dejavu.slicing._dynamic import Dynamic

__all__ = ["why_none"]


def why_none(problem: SlicingProblem) -> str:
    """Returns in words why a slicing problem has no slicing (cut of layers into stages): a constraint without which
    there is one, or a lack of choices.

    It is empty if there is a slicing.

    >>> why_none(SlicingProblem(np.ones((2, 2, 1, 1)), np.array([2]), num_devices=3, num_micro_batches=4))
    'no slicing takes exactly 3 devices; with devices="at most" there is one'
    """
    problem = dataclasses.replace(problem, objective="training")
    if _solved(problem):
        return ""
    constraints = _constraints(problem)
    alone = [text for text, change in constraints if _solved(dataclasses.replace(problem, **change))]
    if alone:
        return "; or: ".join(alone)
    every: dict[str, Any] = {}
    for _, change in constraints:
        every |= change
    if every and _solved(dataclasses.replace(problem, **every)):
        return "several constraints together forbid every slicing: " + "; and: ".join(text for text, _ in constraints)
    return _not_offered(problem)


def _solved(problem: SlicingProblem) -> bool:
    return Dynamic().slice(problem).found


def _constraints(problem: SlicingProblem) -> list[tuple[str, dict[str, Any]]]:
    """Returns the constraints that may forbid slicings, in words, each with the change that lifts it."""
    constraints: list[tuple[str, dict[str, Any]]] = []
    if problem.num_stages is not None:
        text = f"no slicing has num_stages={problem.num_stages}; with any number of stages there is one"
        constraints.append((text, {"num_stages": None}))
    if problem.max_n_succ_stages is not None:
        text = "no slicing fits into memory (max_n_succ_stages); without that limit there is one"
        constraints.append((text, {"max_n_succ_stages": None}))
    if problem.devices == "exactly":
        text = f'no slicing takes exactly {problem.num_devices} devices; with devices="at most" there is one'
        constraints.append((text, {"devices": "at most"}))
    if problem.sites is not None:
        available = problem.sites.available.tolist()
        text = f"no slicing suits the {available} devices of each kind; without sites there is one"
        constraints.append((text, {"sites": None}))
    return constraints


def _not_offered(problem: SlicingProblem) -> str:
    """Returns in words what is missing among the choices themselves."""
    fits = problem.submesh_sizes <= problem.num_devices
    if not fits.any():
        return f"the smallest submesh has {problem.submesh_sizes.min()} devices, but there are {problem.num_devices}"
    seconds = np.asarray(problem.costs_s) + np.asarray(problem.once_s)
    offered = np.isfinite(seconds[:, :, fits]).any(axis=(2, 3))
    layers = np.arange(problem.num_layers)
    covered = [offered[: layer + 1, layer:].any() for layer in layers]
    if not all(covered):
        return f"layer {covered.index(False)} is in no stage that is offered at a finite cost"
    return "the stages that are offered at a finite cost don't join to all layers with the devices that there are"
