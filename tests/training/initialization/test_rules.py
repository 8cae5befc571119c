from __future__ import annotations

import numpy as np
import pytest

from alpa_dejavu.training.initialization import LastLoss, Measure, Trend, judge
from alpa_dejavu.training.initialization._initialize import race_rungs, rungs_of
from alpa_dejavu.training.initialization._layout import layout
from alpa_dejavu.training.initialization.rules import KNOWN as RULES
from alpa_dejavu.training.initialization.rules import Halving, OptunaPruner, RaceDecision, RaceRule, Standing, rule
from alpa_dejavu.training.initialization.starts import KNOWN as STARTS
from alpa_dejavu.training.initialization.starts import Ask, LatinHypercube, Start, start
from alpa_dejavu.training.initialization.testing import check_judge, check_rule, check_start
from small_models import dense

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


# Those by shape differ in what they draw alone: one of them is enough here.
LIKE_ANOTHER = {"kaiming_normal", "kaiming_uniform", "lecun", "truncated_normal", "xavier_normal"}


@pytest.mark.parametrize("name", sorted(set(STARTS) - LIKE_ANOTHER))
def test_starts_are_sound(name):
    check_start(start(name))


@pytest.mark.parametrize("name", sorted(RULES))
def test_rules_are_sound(name):
    if name == "optuna":
        pytest.importorskip("optuna")
    check_rule(rule(name))


@pytest.mark.parametrize("name", ["last_loss", "trend"])
def test_judges_are_sound(name):
    check_judge(judge(name))


def test_what_isnt_sound_is_found():
    class Nobody(RaceRule):
        def decide(self, standing):
            return RaceDecision(())

    class Fewer(Start):
        def start(self, ask):
            return start("model").start(ask)[1:]

    with pytest.raises(AssertionError, match="keeps one at least"):
        check_rule(Nobody())
    with pytest.raises(AssertionError, match="3 starts for 4 numbers"):
        check_start(Fewer())


@pytest.fixture(scope="module")
def tensors():
    import jax

    return layout(jax.eval_shape(lambda key: dense(key, (6, 16, 4)), jax.random.PRNGKey(0))).tensors


def own(number):
    generator = np.random.default_rng(number)
    return tuple(generator.standard_normal(shape).astype(np.float32) for shape in [(16,), (6, 16), (4,), (16, 4)])


def ask(tensors, numbers=(0, 1, 2, 3), seed=5):
    return Ask(tensors, own, tuple(numbers), seed)


def test_starts_refuse_what_cant_be(tensors):
    with pytest.raises(ValueError, match="no start named 'glorot'"):
        start(["sobol", "glorot"])
    with pytest.raises(ValueError, match="must be one or more starts"):
        start([])
    with pytest.raises(ValueError, match="none of them made of several"):
        start(["model", start(["model"])])
    with pytest.raises(ValueError, match=r"scales from 2\.0 to 1\.0"):
        LatinHypercube(2.0, 1.0)
    vectors = tuple(tensor for tensor in tensors if not tensor.is_matrix)
    with pytest.raises(ValueError, match="nothing to scale"):
        start("sobol").start(ask(vectors))


def made(promised, gradient=np.nan, on_plateau=False, last=1.0):
    return Measure(50, last, promised, promised, on_plateau, gradient)


def test_judges_by_name():
    assert judge("last_loss") == LastLoss()
    assert LastLoss().order({0: made(0.1, last=2.0), 1: made(0.9, last=1.0)}) == (1, 0)
    with pytest.raises(ValueError, match="no judge named 'best'"):
        judge("best")
    with pytest.raises(ValueError, match="gradient_weight is -1"):
        Trend(-1)
