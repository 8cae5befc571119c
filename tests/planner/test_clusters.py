"""Machine files: each figure has a source, and what is wrong with a file is said."""

import json

import pytest

from alpa_dejavu._json_file import read_checked
from alpa_dejavu.clusters import known_machines, local_links, machine_for, named_cluster
from alpa_dejavu.clusters._machine_file import FOLDER, read_machine


def figures(data):
    for value in data.values() if isinstance(data, dict) else ():
        if isinstance(value, dict) and "value" in value:
            yield value
        else:
            yield from figures(value)


@pytest.mark.parametrize("name", known_machines())
def test_every_figure_has_its_source(name):
    data = json.loads((FOLDER / f"{name}.json").read_text())
    assert data["name"] == name
    found = list(figures(data))
    assert len(found) >= 4
    assert all(figure["source"] and figure["value"] > 0 for figure in found)


@pytest.mark.parametrize("name", known_machines())
def test_every_machine_agrees_with_the_schema(name):
    """A file of a user's is checked when it is read, ours here."""
    assert read_checked(FOLDER / f"{name}.json", "machine-1", "mend it") == read_machine(name)


@pytest.mark.parametrize("name", known_machines())
def test_every_machine_makes_a_cluster(name):
    cluster = named_cluster(name, num_hosts=2)
    assert len(cluster.hosts) == 2
    assert cluster.slowest_link((0, 1)).bytes_per_s <= cluster.slowest_link((0, 0)).bytes_per_s


def test_accelerators_by_rays_name():
    assert machine_for("T4") == "g4dn.12xlarge"
    assert machine_for("abacus") is None


def test_links_of_a_cpu_cluster_are_known():
    within, between = local_links()
    assert within.sending[1] > 0
    assert between.latency_s >= within.latency_s
