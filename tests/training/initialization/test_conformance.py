import pytest

from alpa_dejavu.training.initialization import judge
from alpa_dejavu.training.initialization.rules import KNOWN as RULES
from alpa_dejavu.training.initialization.rules import RaceDecision, RaceRule, rule
from alpa_dejavu.training.initialization.starts import KNOWN as STARTS
from alpa_dejavu.training.initialization.starts import Start, start
from alpa_dejavu.training.initialization.testing import check_judge, check_rule, check_start

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
