"""The baselines of choices made while training: successive halving by hand, and which figures are held."""

import dataclasses

import pytest

import playground_choices


def losses(reached_at, looks=playground_choices.LOOKS):
    """One that falls to 0 at a look, evenly from 1; the earlier, the lower."""
    return [max(1 - n / reached_at, 0.0) for n in range(looks + 1)]


@pytest.fixture
def network():
    return dataclasses.replace(playground_choices.NETWORKS[0], loss=0.0, seconds=float(playground_choices.LOOKS))


def test_halving_by_hand(network):
    # A look is a second. Four runs have 3 s each; the best two 6 s more; the best one goes on alone from its 9 s.
    four = [losses(250), losses(100), losses(200), losses(299)]
    assert network.halved(four, 0.01) == 4 * 3 + 2 * 6 + (100 - 9)
    assert network.seconds_to(four[1]) == 100


def test_halving_ends_where_any_run_reaches_the_loss(network):
    # The second run is at the loss after 7 s of its own, of which 3 were in the first round.
    assert network.halved([losses(250), losses(7), losses(200), losses(299)], 0.01) == 4 * 3 + (7 - 3)
    assert network.halved([losses(2), losses(7)], 0.01) == 2


def test_what_never_reaches_the_loss_counts_with_all_seconds(network):
    never = [1.0] * (playground_choices.LOOKS + 1)
    assert network.seconds_to(never) == network.seconds
    assert network.halved([never, never], 0.01) == network.seconds


def test_figures_need_three_networks_near_the_best_and_all_ahead_of_chance():
    def row(near, chance):
        return {"ratios": {playground_choices.JUDGED: {"mean": near}}, "to_chance": {"mean": chance}}

    near, ahead = playground_choices.figures([row(1.0, 0.5), row(1.05, 0.9), row(0.9, 1.1), row(1.2, 0.5)])
    assert (near.held, ahead.held) == (True, False)
    near, ahead = playground_choices.figures([row(1.0, 0.5), row(1.06, 0.9), row(0.9, 0.9), row(1.2, 0.5)])
    assert (near.held, ahead.held) == (False, True)
