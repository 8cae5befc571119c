import dataclasses

import numpy as np
import pytest

from alpa_dejavu.training.initialization import LastLoss, Measure
from alpa_dejavu.training.initialization._setting import race_rungs, rungs_of
from alpa_dejavu.training.initialization.rules import Halving, OptunaPruner, Standing, rule

RUNGS = (10, 20, 40)


def at(loss):
    return Measure(10, loss, loss, loss, False, np.nan)


def standing(losses, waiting=None):
    reached = {number: tuple(map(at, row)) for number, row in losses.items()}
    waiting = tuple(losses) if waiting is None else waiting
    return Standing(RUNGS, reached, waiting, LastLoss(), 0)


def test_halving_keeps_the_better_half_of_those_waiting():
    asked = standing({0: [4], 1: [1], 2: [3], 3: [2], 4: [0]}, waiting=(0, 1, 2, 3))
    assert Halving().decide(asked).kept == (1, 3)
    assert Halving(eta=4).decide(asked).kept == (1,)


def test_optunas_pruners_drive_the_race():
    optuna = pytest.importorskip("optuna")
    asked = standing({0: [4], 1: [1], 2: [3], 3: [2], 4: [5]})
    median = OptunaPruner().decide(asked)
    assert set(median.kept) < set(range(5))
    assert median.kept[0] == 1
    assert 4 not in median.kept
    halving = OptunaPruner(optuna.pruners.SuccessiveHalvingPruner(min_resource=10, reduction_factor=2))
    assert 4 not in halving.decide(asked).kept
    assert OptunaPruner(optuna.pruners.ThresholdPruner(upper=0.5)).decide(asked).kept == (1,)
    assert OptunaPruner(optuna.pruners.NopPruner()).decide(asked).kept == (1, 3, 2, 0, 4)


def test_a_pruner_that_draws_by_the_studys_name_draws_by_the_seed():
    optuna = pytest.importorskip("optuna")
    many = standing({n: [n, 8 - n] for n in range(8)})
    hyperband = OptunaPruner(optuna.pruners.HyperbandPruner(min_resource=10, max_resource=40, reduction_factor=2))
    assert len({hyperband.decide(many).kept for _ in range(5)}) == 1
    seeds = {hyperband.decide(dataclasses.replace(many, seed=seed)).kept for seed in range(8)}
    assert len(seeds) > 1


def test_rules_by_name_and_what_they_refuse():
    assert rule(Halving(3)).eta == 3
    with pytest.raises(ValueError, match="there is no rule named 'hyperband'"):
        rule("hyperband")
    for made in (Halving, OptunaPruner):
        with pytest.raises(ValueError, match="eta is 1"):
            made(eta=1)


@pytest.mark.parametrize("candidates", [2, 3, 8, 13, 16])
@pytest.mark.parametrize("eta", [2, 3, 4])
def test_a_small_budget_is_a_quarter_more_at_most(candidates, eta):
    rungs = rungs_of(candidates, 1000, eta, "small")
    alive, before, extra = candidates, 0, 0
    for rung in rungs:
        extra += (alive - 1) * (rung - before)
        alive, before = -(-alive // eta), rung
    assert alive == 1
    assert 100 < extra <= 250


def test_budgets_that_are_too_small_say_what_would_do():
    with pytest.raises(ValueError, match="give 1280 budget_steps") as raised:
        rungs_of(32, 400, 2, "small")
    assert "fewer candidates" in str(raised.value)
    assert rungs_of(32, 1280, 2, "small")
    with pytest.raises(ValueError, match="needs 16 at least"):
        rungs_of(4, 15, 2, "full")
    assert rungs_of(16, 16, 2, "full") == (4,)
    for wrong in ((), (0, 5), (5, 5), (5, 101)):
        with pytest.raises(ValueError, match="must be ascending steps"):
            race_rungs(wrong, 2, 100, 2, "full")
