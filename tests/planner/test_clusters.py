"""Machine files: each figure has a source, and what is wrong with a file is said."""

import json

import pytest

from alpa_dejavu.clusters import _FOLDER, known_machines, local_links, machine_for, named_cluster


def figures(data):
    for value in data.values() if isinstance(data, dict) else ():
        if isinstance(value, dict) and "value" in value:
            yield value
        else:
            yield from figures(value)


@pytest.mark.parametrize("name", known_machines())
def test_every_figure_has_its_source(name):
    data = json.loads((_FOLDER / f"{name}.json").read_text())
    assert data["name"] == name
    found = list(figures(data))
    assert len(found) >= 4
    assert all(figure["source"] and figure["value"] > 0 for figure in found)


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


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"version": 7}, "version 7"),
        ({"device": {}}, "lacks the figure"),
        ({"devices_per_host": 2}, "has 2 devices, but 4"),
    ],
)
def test_bad_files_are_named(tmp_path, change, said):
    data = json.loads((_FOLDER / "p3.8xlarge.json").read_text())
    path = tmp_path / "mine.json"
    path.write_text(json.dumps(data | change))
    with pytest.raises(ValueError, match=said):
        named_cluster(str(path), 1, 4)


def test_unknown_machines_are_named():
    with pytest.raises(ValueError, match=r"no machine 'cray'.*p3\.16xlarge"):
        named_cluster("cray")
