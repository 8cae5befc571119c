"""Slicings that are kept: the same answer to the same problem, which is solved once."""

import dataclasses
import json

import numpy as np
import pytest

from alpa_dejavu.problem import SlicingProblem
from alpa_dejavu.slicing import Dynamic, kept_slicings
from alpa_dejavu.slicing.kept_slicings import KeptSlicings


def drawn(seed=0, **changes):
    costs = np.random.default_rng(seed).uniform(1.0, 2.0, (6, 6, 3, 2))
    problem = SlicingProblem(costs, np.array([1, 2, 4]), num_devices=4, num_micro_batches=8)
    return dataclasses.replace(problem, **changes)


class Counted:
    """The exact slicer, which counts how many problems it solves."""

    solved = 0

    def __call__(self, problem):
        self.solved += 1
        return Dynamic().slice(problem)


def again(kept):
    """The store as another process reads it."""
    return KeptSlicings.from_data(json.loads(json.dumps(kept.data())))


def test_a_problem_is_solved_once():
    kept, slicer = KeptSlicings(), Counted()
    first = kept.of(drawn(), slicer)
    read = again(kept)
    assert kept.of(drawn(), slicer) == read.of(drawn(), slicer) == first
    assert slicer.solved == 1
    assert kept.changed
    assert not read.changed


@pytest.mark.parametrize(
    "changes",
    [{"seed": 1}, {"num_micro_batches": 9}, {"num_devices": 3}, {"num_stages": 2}, {"devices": "at most"}],
    ids=lambda changes: next(iter(changes)),
)
def test_another_problem_is_solved_anew(changes):
    kept = KeptSlicings()
    kept.of(drawn(), Dynamic().slice)
    assert kept.of(drawn(**changes), Dynamic().slice).stages == Dynamic().slice(drawn(**changes)).stages
    assert len(kept.data()) == 2


def test_the_exact_slicer_answers_the_same_with_a_store():
    remembering = dataclasses.replace(Dynamic(), kept=KeptSlicings())
    assert remembering == Dynamic()
    for problem in (drawn(), drawn(num_devices=25), drawn()):
        with_store, without = remembering.slice(problem), Dynamic().slice(problem)
        assert (with_store.stages, with_store.cost_s, with_store.lower_bound_s) == (
            without.stages, without.cost_s, without.lower_bound_s,
        )  # fmt: skip
    assert len(remembering.kept.data()) == 2
    assert again(remembering.kept).of(drawn(num_devices=25), Counted()).cost_s == np.inf


def test_answers_within_unlike_limits_and_steps_are_told_apart():
    slicer = dataclasses.replace(Dynamic(), kept=KeptSlicings())
    for other in (slicer, slicer.within(99.0), slicer.within(99.0, 0.5), slicer.within(98.0, 0.5)) * 2:
        assert other.slice(drawn()).stages == Dynamic().slice(drawn()).stages
    assert [slicer.kept.step_s(lambda seconds=seconds: seconds, "a", content) for seconds, content in
            ((1.0, 1), (2.0, 2), (3.0, 1))] == [1.0, 2.0, 1.0]  # fmt: skip
    assert again(slicer.kept).step_s(lambda: 4.0, "a", 2) == 2.0
    assert len(slicer.kept.data()) == 6


def test_of_many_answers_the_last_asked_for_are_kept(monkeypatch):
    monkeypatch.setattr(kept_slicings, "_MOST", 2)
    kept, slicer = KeptSlicings(), Counted()
    for seed in (0, 1, 0, 2):
        kept.of(drawn(seed), slicer)
    read = again(kept)
    read.of(drawn(0), slicer), read.of(drawn(2), slicer)
    assert slicer.solved == 3


@pytest.mark.parametrize(
    "data", [{"a": 1}, {"a": [1.0, [[0, 1]], 1.0, 1, 1.0]}, {"a": ["x", [], 1.0, 1, 1.0]}, {"a": ["x"]}, [1]]
)
def test_broken_answers_are_refused(data):
    with pytest.raises((AttributeError, TypeError, ValueError), match=r".+"):
        KeptSlicings.from_data(data)
