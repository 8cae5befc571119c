"""Machine files: each figure has a source, and what is wrong with a file is said."""

import dataclasses
import json

import pytest

from alpa_dejavu._util.json_file import read_checked
from alpa_dejavu.clusters import known_machines, machine_for, named_cluster
from alpa_dejavu.clusters.changed_cluster import slowed, without
from alpa_dejavu.clusters.formats import MachineData
from alpa_dejavu.clusters.host_classes import summary_of
from alpa_dejavu.clusters.machine_file import FOLDER, read_machine
from alpa_dejavu.planning.changed._kept import cluster_data, cluster_of
from alpa_dejavu.testing import example_cluster
from unlike import islands, two_and_two


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
def test_every_machine_agrees_with_the_format(name):
    """A file of a user's is checked when it is read, ours here."""
    data = read_checked(FOLDER / f"{name}.json", MachineData, "mend it").data
    assert data == {key: value for key, value in read_machine(name).items() if key in data}


def test_accelerators_by_rays_name():
    assert read_machine(machine_for("T4"))["accelerator_type"] == "T4"
    assert machine_for("abacus") is None


def test_a_cluster_says_of_which_machine_it_is_and_goes_on_saying_so(tmp_path):
    path = tmp_path / "any.json"
    path.write_text((FOLDER / "p3.8xlarge.json").read_text().replace('"p3.8xlarge"', '"8 x mine"'))
    known, own = named_cluster("p3.8xlarge", 3), named_cluster(str(path), 3)
    assert (known.machine, known.machine_file) == ("p3.8xlarge", "")
    assert (own.machine, own.machine_file, own.name) == ("8 x mine", str(path), "3 x 8 x mine")
    for cluster in (known, own):
        left = slowed(without(cluster, [cluster.hosts[1].name]), cluster.hosts[0].name, 2.0)
        assert (left.machine, left.machine_file) == (cluster.machine, cluster.machine_file)
        assert left.name == f"2 x {cluster.machine}"
        assert cluster_of(cluster_data(left)) == left
        assert summary_of(cluster_of(cluster_data(left))) == summary_of(left)


def test_a_host_that_loses_devices_has_fewer_and_none_is_a_lost_host():
    cluster = named_cluster("p3.16xlarge", 3)
    names = [host.name for host in cluster.hosts]
    left = without(cluster, [f"{names[1]}/3", f"{names[1]}/0", f"{names[1]}/3"])
    assert [host.num_devices for host in left.hosts] == [8, 6, 8]
    assert left.name == f"3 x p3.16xlarge without {names[1]}/0, {names[1]}/3"
    assert left.links == cluster.links
    every = [f"{names[1]}/{n}" for n in range(8)]
    assert without(cluster, every) == without(cluster, [names[1]])
    with pytest.raises(ValueError, match=f"host {names[1]} has no device '8', but devices 0\\.\\.7; give one of these"):
        without(cluster, [f"{names[1]}/8"])
    with pytest.raises(ValueError, match=r"has no host 'p3\.16xlarge-7/1'"):
        without(cluster, ["p3.16xlarge-7/1"])


def test_a_name_may_have_the_number_of_hosts(tmp_path):
    two = named_cluster("p3.16xlarge", 2)
    assert named_cluster("2 x p3.16xlarge") == named_cluster("2x p3.16xlarge", 2) == two
    file = tmp_path / "a b.json"
    file.write_text((FOLDER / "p3.16xlarge.json").read_text())
    assert named_cluster(f"2 x {file}").num_devices == 16
    with pytest.raises(ValueError, match=r"cluster is '2 x p3\.16xlarge', but 3 hosts are asked for; say their number"):
        named_cluster("2 x p3.16xlarge", 3)


def test_a_cluster_of_no_machine_keeps_its_name():
    """Even one that reads like that of a machine type."""
    cluster = dataclasses.replace(example_cluster(3), name="3 x example")
    assert without(cluster, ["host-1"]).name == "3 x example"


def test_devices_of_one_cpu_that_are_left_share_it_among_fewer():
    cluster = named_cluster("local-cpu", 2)
    left = without(cluster, [f"{cluster.hosts[0].name}/0"])
    ratio = cluster.num_devices / left.num_devices
    assert left.num_devices == cluster.num_devices - 1
    was, now = cluster.hosts[1].device, left.hosts[1].device
    assert now.memory_bytes_per_s == pytest.approx(was.memory_bytes_per_s * ratio)


def test_a_summary_says_which_hosts_may_change_places():
    assert summary_of(named_cluster("p3.16xlarge", 2)).alike
    assert not summary_of(islands()).alike
    assert [host.kind for host in summary_of(two_and_two()).hosts] == [0, 0, 1, 1]
    assert summary_of(two_and_two()).text == "4 hosts of 2 made up with 16.00 GiB"
    assert summary_of(named_cluster("local-cpu")).shared
