"""Predicted against measured runs: what the figures of the benchmark say of made-up histories."""

import math

import pytest

import playground_real
from alpa_dejavu.playground import Job, Until, simulate
from alpa_dejavu.testing import example_cluster


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
