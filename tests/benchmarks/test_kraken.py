"""Kraken beside standard transformers: the sizes that are compared, and what is judged."""

import pytest

import kraken
from alpa_dejavu.layers.models import Kraken


def layer_parameters(size):
    """Matrices of a layer: four of attention, and two of the feed-forward layer, in each way."""
    return size.ways * size.hidden**2 * (4 + 2 * size.expansion)


def test_the_published_cases_have_layers_of_equal_parameters():
    cases = kraken._published()
    assert len(cases) == 20
    for _, devices, prompt, standard, ways in cases:
        assert (standard.ways, ways.ways) == (1, devices)
        assert standard.sequence == ways.sequence == prompt
        assert layer_parameters(ways) == pytest.approx(layer_parameters(standard), rel=0.03)


def test_a_case_tells_what_is_fewer_from_what_is_hidden():
    small, ways = Kraken(128, 2, 8, 1, 4, 512), Kraken(64, 2, 8, 4, vocabulary=512)
    row = kraken._compared("small", 4, 64, small, ways)
    assert row["gain"] == pytest.approx(row["standard_s"] / row["kraken_s"] - 1)
    assert row["gain"] == pytest.approx(row["fewer"] + row["hidden"])
    assert row["fewer"] > 0
    assert row["hidden"] > 0
