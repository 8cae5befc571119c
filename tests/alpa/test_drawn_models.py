"""Drawn training steps give under Alpa what they give on one device, or are refused in words that say what to do."""

import pytest

from alpa_dejavu.alpa.local_cluster import local_cluster
from drawn_runs import NAMES, configurations, model_of, outcome

WIDE = (54, 62, 173, 56, 92, 15, 102, 155, 17, 33)
"""Seeds of ten models that have 72 of the 77 features of all."""


def check(seed, configuration):
    found = outcome(model_of(seed), configuration)
    assert found.verdict != "wrong", f"{configuration.name}: {found.said}\n{found.where}"


@pytest.fixture(scope="module")
def cluster():
    with local_cluster(devices=4):
        yield


def cases(piped, quick):
    """All models on meshes or in pipelines, of which these seeds aren't slow."""
    chosen = [
        (seed, configuration)
        for seed in (*range(200), *NAMES)
        for configuration in configurations(seed)
        if bool(configuration.stages) == piped
    ]
    return [
        pytest.param(*case, id=f"{case[0]}: {case[1].name}", marks=[pytest.mark.slow] * (case[0] not in quick))
        for case in chosen
    ]


@pytest.mark.parametrize(("seed", "configuration"), cases(False, WIDE))
def test_on_a_mesh(seed, configuration):
    check(seed, configuration)


@pytest.mark.ray
@pytest.mark.parametrize(("seed", "configuration"), cases(True, (2, 48)))
def test_in_a_pipeline(seed, configuration, cluster):
    check(seed, configuration)
