"""Figures of the playground's benchmarks are held or missed by what was measured, or by made-up histories."""

import math

import pytest

import playground_real
import playground_scale
from alpa_dejavu.playground import Job, Until, simulate
from alpa_dejavu.testing import example_cluster


def rows(seconds, num_bytes, dearer):
    one = {"wall_s": seconds, "round_s": 1e-4, "memory_bytes": num_bytes}
    fewer = {**one, "round_s": 1e-4 / dearer}
    return [one, one, fewer, fewer]


def test_figures_are_held_up_to_their_aims():
    assert all(figure.held for figure in playground_scale._figures(rows(300.0, 2**32, 1.5)))
    slow = playground_scale._figures(rows(301.0, 2**32, 1.4))
    assert [figure.held for figure in slow] == [False, True, True, True]
    missed = playground_scale._figures(rows(301.0, 2**32 + 1, 1.6))
    assert not any(figure.held for figure in missed)


def test_a_small_run_says_what_it_took():
    row = playground_scale._gossip("small", False, 12, 3)
    assert row["workers"] == 12
    assert row["round_s"] * 12 * 3 <= 60
    assert 0 < row["virtual_s"] < 1


@pytest.fixture(scope="module")
def histories():
    """A predicted and a measured run of time alone, of which the measured one takes 25 % longer."""
    return [simulate(Job(None, seconds, num_bytes=0), example_cluster(), "all-reduce", until=Until(steps=4))
            for seconds in (1.0, 1.25)]  # fmt: skip


def rows_of(histories, losses_s):
    found = []
    for n, (predicted, measured) in enumerate(losses_s):
        row = {"policy": playground_real.SYNCHRONOUS[n % 2], "condition": "equal", **playground_real._row(*histories)}
        found.append({**row, "predicted_loss_s": predicted, "measured_loss_s": measured, "apart": 1e-8})
    return found


def test_a_row_has_the_share_by_which_a_prediction_is_off(histories):
    (row,) = rows_of(histories, [(1.0, 2.0)])
    assert row["off"] == pytest.approx(-0.2, rel=1e-3)
    assert (row["predicted_end"], row["measured_end"]) == ("steps", "steps")
    assert playground_real._row(*histories)["predicted_loss_s"] is None


def test_figures_are_the_median_and_the_ranks(histories):
    rows = rows_of(histories, [(1.0, 2.0), (2.0, 3.0), (None, None), (3.0, 4.0)])
    off, ranks, losses, ends = playground_real._figures(rows)
    assert (off.held, ranks.held, losses.held, ends.held) == (False, True, True, True)
    assert off.measured == "20.0%"
    assert ranks.measured == "1.000"
    rows[1] |= {"off": 0.1, "measured_end": "stalled"}
    rows[2] |= {"off": -0.1, "measured_loss_s": 1.0, "apart": 1e-3}
    rows[3] |= {"off": 0.05}
    off, ranks, losses, ends = playground_real._figures(rows)
    assert (off.held, ranks.held, losses.held, ends.held) == (True, False, False, False)
    assert math.isclose(float(ranks.measured), -0.2, abs_tol=1e-3)
