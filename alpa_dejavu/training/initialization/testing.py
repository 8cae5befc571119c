"""Conformance suites: run any start, rule or judge, ours or your own, through them.

Each function raises AssertionError with what is wrong, and returns nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from alpa_dejavu.training.initialization._judge import Judge, LastLoss, Measure
from alpa_dejavu.training.initialization._layout import TensorLayout
from alpa_dejavu.training.initialization.rules import RaceRule, Standing
from alpa_dejavu.training.initialization.starts import Ask, Start, Started

if TYPE_CHECKING:
    from alpa_dejavu.training.initialization._layout import Leaves

__all__ = ["check_judge", "check_rule", "check_start"]

_SHAPES = {"bias": (5,), "kernel": (4, 5), "window": (3, 3, 2, 4)}


def check_start(start: Start) -> None:
    """Checks that a start gives each candidate finite weights of the asked shapes and dtypes, the same each time."""
    tensors = tuple(TensorLayout(name, shape, np.dtype(np.float32), True) for name, shape in _SHAPES.items())
    tensors += (TensorLayout("count", (), np.dtype(np.int32), False),)

    def own(number: int) -> Leaves:
        generator = np.random.default_rng(number)
        drawn = [generator.standard_normal(shape).astype(np.float32) for shape in _SHAPES.values()]
        return (*drawn, np.array(number, np.int32))

    ask = Ask(tensors, own, (0, 1, 2, 3), 7)
    started, again = start.start(ask), start.start(ask)
    assert len(started) == len(ask.numbers), f"{len(started)} starts for {len(ask.numbers)} numbers"
    for first, second in zip(started, again, strict=True):
        _check_started(first, second, tensors)


def check_rule(rule: RaceRule) -> None:
    """Checks that a rule keeps only waiting candidates, and decides the same of the same standing."""
    assert rule.eta >= 2, f"eta is {rule.eta}: candidates don't become fewer"
    for seed in range(5):
        standing = _standing(seed)
        decision = rule.decide(standing)
        assert decision == rule.decide(standing), "the same standing gets another decision"
        assert len(set(decision.kept)) == len(decision.kept), f"{decision.kept} has one twice"
        assert set(decision.kept) <= set(standing.waiting), f"{decision.kept} aren't all of {standing.waiting}"
        assert decision.kept, "a rule keeps one at least"


def check_judge(judge: Judge) -> None:
    """Checks that a judge orders all candidates, the same each time, and prefers one that is better in everything."""
    assert judge.order({}) == (), "nobody is in no order"
    measures = _standing(3).reached
    first = {number: reached[0] for number, reached in measures.items()}
    order = judge.order(first)
    assert sorted(order) == sorted(first), f"{order} isn't an order of {sorted(first)}"
    assert judge.order(dict(reversed(first.items()))) == order, "the order depends on who is named first"
    better, worse = Measure(9, 1.0, 1.0, 0.5, False, 0.9), Measure(9, 2.0, 2.0, 1.5, False, 0.1)
    assert judge.order({0: worse, 1: better}) == (1, 0), "what is better in everything comes first"


def _check_started(first: Started, second: Started, tensors: tuple[TensorLayout, ...]) -> None:
    assert len(first.weights) == len(tensors), f"{len(first.weights)} arrays for {len(tensors)} tensors"
    for tensor, weight, same in zip(tensors, first.weights, second.weights, strict=True):
        shown = f"{tensor.name}: {weight.dtype}{list(weight.shape)}"
        assert (weight.shape, weight.dtype) == (tensor.shape, tensor.dtype), shown
        assert np.isfinite(weight).all(), f"{tensor.name} isn't finite"
        assert (weight == same).all(), f"{tensor.name} is another one the second time"
    assert first.point == second.point, "the point is another one the second time"


def _standing(seed: int) -> Standing:
    """Eight candidates at one rung, of whom two have been dropped."""
    generator = np.random.default_rng(seed)
    reached = {}
    for number in range(8):
        loss, gradient = generator.random(2).tolist()
        reached[number] = (Measure(10, 1 + loss, 1 + loss, 0.5 + loss, False, gradient),)
    waiting = tuple(sorted(generator.permutation(8)[:6].tolist()))
    return Standing((10, 20, 40), reached, waiting, LastLoss(), seed)
