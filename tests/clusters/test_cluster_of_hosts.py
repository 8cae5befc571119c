"""Files of whole clusters, and which of their hosts are interchangeable."""

import copy
import dataclasses
import json
import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from alpa_dejavu.clusters import named_cluster, read_cluster, write_cluster
from alpa_dejavu.clusters.changed_cluster import faster_devices, slowed, without
from alpa_dejavu.planning.changed._kept import cluster_data, cluster_of
from alpa_dejavu.problem import (
    Cluster,
    Device,
    Host,
    HostMemory,
    Link,
    Nvme,
    ReductionServer,
    SmallProducts,
    StridedReads,
    host_kinds,
)
from alpa_dejavu.testing import example_cluster


def figure(value, unit):
    return {"value": value, "unit": unit, "source": "made up"}


def rule(source, target, rate, **more):
    return {
        "from": source, "to": target, "latency_s": figure(30, "us"), "bytes_per_s": figure(rate, "GB/s"), **more
    }  # fmt: skip


INSIDE = {"latency_s": figure(10, "us"), "bytes_per_s": figure(10, "GB/s")}
CARD = {
    "name": "card",
    "memory_bytes": figure(24, "GiB"),
    "flop_per_s": {"float32": figure(20, "TFLOP/s")},
    "vector_flop_per_s": figure(20, "TFLOP/s"),
    "memory_bytes_per_s": figure(600, "GB/s"),
}
RIGHT = {
    "version": 1,
    "name": "mixed",
    "hosts": [
        {"name": "a", "machine": "p3.8xlarge"},
        {"name": "b", "machine": "p3.8xlarge", "price_per_hour": figure(9, "USD/hour")},
        {"name": "c", "machine": "g4dn.12xlarge", "devices": 2, "memory_margin": figure(10, "%")},
        {"name": "d", "devices": 1, "device": CARD, "within": INSIDE},
    ],
    "links": [
        rule("*", "*", 1.25, shares=["{from} sends", "{to} receives"]),
        rule(["a", "b"], "c", 6.25),
        rule("d", "p3.8xlarge", 0.1, both_ways=True, shares="uplink"),
    ],
    "media": {"uplink": figure(200, "MB/s")},
    "reduction_servers": [{"name": "s", "bytes_per_s": figure(10, "Gbit/s")}],
}  # fmt: skip


def written(tmp_path, data):
    path = tmp_path / "mine.json"
    path.write_text(json.dumps(data, indent=1), encoding="utf-8")
    return path


def changed(tmp_path, change):
    data = copy.deepcopy(RIGHT)
    change(data)
    return written(tmp_path, data)


def test_rules_expand_to_all_pairs_and_the_last_counts(tmp_path):
    cluster = named_cluster(str(written(tmp_path, RIGHT)))
    assert [host.name for host in cluster.hosts] == ["a", "b", "c", "d"]
    assert [host.num_devices for host in cluster.hosts] == [4, 4, 2, 1]
    assert [host.price_per_hour for host in cluster.hosts] == [12.24, 9.0, 3.912, None]
    assert [host.memory_margin for host in cluster.hosts] == [None, None, 0.1, None]
    assert cluster.links[0][1] == Link(30 * 1e-6, 1.25e9, shares=("a sends", "b receives"))
    assert cluster.links[0][2] == Link(30 * 1e-6, 6.25e9)
    assert cluster.links[2][0] == Link(30 * 1e-6, 1.25e9, shares=("c sends", "a receives"))
    assert cluster.links[3][0] == cluster.links[1][3] == Link(30 * 1e-6, 1e8, shares=("uplink",))
    assert cluster.links[0][0] == named_cluster("p3.8xlarge").links[0][0]
    assert cluster.links[3][3].bytes_per_s == 1e10
    assert cluster.media == {"uplink": 2e8}
    assert cluster.reduction_servers == (ReductionServer("s", 1.25e9),)
    assert cluster.hosts[3].device.memory_bytes == 24 * 2**30
    assert cluster.cores is None


def test_a_cluster_file_says_how_many_hosts_there_are(tmp_path):
    path = str(written(tmp_path, RIGHT))
    assert named_cluster(path, 4) == named_cluster(path)
    with pytest.raises(ValueError, match="describes 4 hosts with 11 devices, but 3 hosts are asked for"):
        named_cluster(path, 3)
    with pytest.raises(ValueError, match="but 4 hosts of 4 devices are asked for"):
        named_cluster(path, 4, 4)


def machine(name):
    from alpa_dejavu.clusters.machine_file import FOLDER

    return json.loads((FOLDER / f"{name}.json").read_text())


def set_to(*where, value):
    def change(data):
        for key in where[:-1]:
            data = data[key]
        data[where[-1]] = value

    return change


@pytest.mark.parametrize(
    ("change", "marker", "said"),
    [
        (lambda d: d["links"].pop(0), '"links"', "links has none from 'a' to 'b'; add it, or a first one from"),
        (set_to("hosts", 1, "name", value="a"), None, "the host 'a' is there twice"),
        (set_to("links", 1, "to", value="x"), '"to": "x"', "links[1].to names 'x', which is no host (known are"),
        (set_to("links", 1, "to", value="p3.8xlrge"), '"to": "p3.8xlrge"', "did you mean 'p3.8xlarge'?"),
        (set_to("links", 2, "to", value="d"), None, "links[2] goes from 'd' to itself; the link within a host"),
        (set_to("links", 2, "bytes_per_s", "unit", value="Gb/s"), '"Gb/s"', "must be one of the units bytes/s, MB/s"),
        (set_to("links", 2, "bytes_per_s", "value", value=-1), '"value": -1', "links[2].bytes_per_s.value is -1, but"),
        (set_to("links", 2, "bytes_per_s", "value", value=0), '"value": 0,', "must be a number above 0"),
        (set_to("links", 2, "latency_s", "value", value=-1), '"value": -1', "must be a number of at least 0"),
        (set_to("links", 2, "cached_bytes", value=figure(1, "kB")), None, "links[2]: link: cached_bytes_per_s and cac"),
        (set_to("links", 1, "bytes_per_s", "unit", value="TB/s"), False, "from 'a' to 'c' has 6.25 TB/s, but"),
        (set_to("links", 1, "share", value="x"), '"share"', "links[1].share is an unknown key; did you mean 'shares'"),
        (set_to("media", "uplnk", value=figure(1, "GB/s")), '"uplnk"', "the medium 'uplnk' is shared by no link; did"),
        (set_to("media", "uplink", "value", value=-1), '"value": -1', "media.uplink.value is -1, but must be"),
        (set_to("hosts", 0, "machine", value="p3"), '"machine": "p3"', "there is no machine 'p3'"),
        (set_to("hosts", 0, "devices", value=8), '"devices": 8', "'a' has 8 devices, but a p3.8xlarge has 4"),
        (set_to("hosts", 0, "device", value=CARD), None, "the host 'a' has both a machine and a device"),
        (lambda d: d["hosts"][3].pop("within"), None, "the host 'd' has neither a machine nor within of its own"),
        (set_to("hosts", 3, "device", "memory_bytes_per_s", "value", value=-1), None, "above 0"),
        (set_to("hosts", 3, "device", "flop_per_s", value={}), None, "the host 'd': device card: flop_per_s has []"),
        (set_to("hosts", 2, "memory_margin", "value", value=120), None, "host c: memory_margin is 1.2, but must be at"),
        (set_to("reduction_servers", 0, "name", value="b"), None, "the host 'b' is there twice; give each its"),
        (set_to("reduction_servers", 0, "bytes_per_s", "value", value=0), None, "[0].bytes_per_s.value is 0, but"),
        (set_to("reduction_servers", 0, "devices", value=7), '"devices": 7', "reduction_servers[0].devices is an"),
        (set_to("reduction_servers", value=2), '"reduction_servers": 2', "must be a list of hosts without accel"),
        (set_to("hosts", 3, "host_memory", value={}), '"host_memory"', "host_memory lacks the key 'num_bytes'"),
        (set_to("version", value=2), '"version"', "version is 2, but must be 1"),
        (set_to("hosts", value=[]), '"hosts"', "hosts is [], but must be a list of hosts"),
    ],
)
def test_what_is_wrong_is_named(tmp_path, change, marker, said):
    path = changed(tmp_path, change)
    with pytest.raises(ValueError, match=r"mine\.json.*cluster-1\.json") as caught:
        named_cluster(str(path))
    assert said in str(caught.value)
    assert ("mine.json, line" in str(caught.value)) == (marker is not False)
    if marker:
        (line,) = [n for n, line in enumerate(path.read_text().splitlines(), 1) if marker in line]
        assert f"mine.json, line {line}:" in str(caught.value)


def test_a_cluster_has_each_host_once_and_no_impossible_medium():
    cluster = example_cluster(2)
    with pytest.raises(ValueError, match="the host 'host-0' is there twice"):
        Cluster("c", (cluster.hosts[0],) * 2, cluster.links)
    with pytest.raises(ValueError, match=r"media\['x'\] is nan"):
        dataclasses.replace(cluster, media={"x": math.nan})
    with pytest.raises(ValueError, match="must be different names"):
        Link(0.0, 1.0, shares=("x", "x"))


RATES, SECONDS = st.floats(1.0, 1e9), st.floats(0.0, 1e3)
LINKS = st.builds(
    Link, SECONDS, RATES, st.none() | SECONDS, st.none() | RATES, st.none() | RATES,
    st.lists(st.sampled_from(["x", "y", "ä"]), max_size=2, unique=True).map(tuple),
) | st.builds(Link, SECONDS, RATES, cached_bytes_per_s=RATES, cached_bytes=RATES)  # fmt: skip
DEVICES = st.builds(
    Device, st.text(min_size=1, max_size=3), RATES, st.fixed_dictionaries({"float32": RATES, "int8": RATES}), RATES,
    st.just(1e12), SECONDS, SECONDS, SECONDS,
    st.none() | st.builds(SmallProducts, RATES, RATES, st.none() | SECONDS), RATES, st.none() | RATES,
    st.none() | RATES, st.none() | st.builds(StridedReads, RATES, RATES, RATES, st.none() | RATES), st.none() | RATES,
    RATES, st.text(max_size=3),
)  # fmt: skip
MEMORIES = st.none() | st.builds(
    HostMemory, RATES, RATES, RATES, RATES, st.none() | st.builds(Nvme, RATES, RATES, RATES)
)


@settings(max_examples=15, deadline=None)
@given(st.data())
def test_any_cluster_goes_through_a_file_unchanged(tmp_path_factory, data):
    count = data.draw(st.integers(1, 3))
    figures = st.integers(1, 9), st.none() | SECONDS, st.none() | st.floats(0.0, 0.99)
    hosts = tuple(
        Host(f"h{n}", data.draw(DEVICES), *map(data.draw, figures), data.draw(MEMORIES)) for n in range(count)
    )
    links = tuple(tuple(data.draw(LINKS) for _ in range(count)) for _ in range(count))
    used = sorted({name for row in links for link in row for name in link.shares})
    media = {name: data.draw(RATES) for name in used if data.draw(st.booleans())}
    servers = tuple(ReductionServer(f"s{n}", data.draw(RATES)) for n in range(data.draw(st.integers(0, 2))))
    waiting = data.draw(st.floats(0.0, 0.99))
    cluster = Cluster("c", hosts, links, data.draw(st.none() | st.integers(1, 64)), media, servers, waiting)
    path = tmp_path_factory.mktemp("clusters") / "c.json"
    write_cluster(cluster, path)
    assert read_cluster(path) == cluster


def test_what_two_racks_share_tells_their_hosts_apart():
    base = example_cluster(4)

    def shared(names):
        every = range(4)
        link = base.links[0][1]
        outer = [dataclasses.replace(link, shares=(name,)) for name in names]
        links = [[outer[a] if a != b else base.links[0][0] for b in every] for a in every]
        return dataclasses.replace(base, links=tuple(map(tuple, links)))

    # Alike figures, but what goes out of the first two hosts goes over one medium: no two hosts of unlike racks can
    # change places alone.
    assert host_kinds(shared(["left", "left", "right", "right"])) == (0, 0, 1, 1)
    assert host_kinds(shared(["0", "1", "2", "3"])) == (0, 0, 0, 0)
    assert host_kinds(shared(["all"] * 4)) == (0, 0, 0, 0)


MEMORY = {
    "num_bytes": figure(100, "GiB"), "bytes_per_s": figure(50, "GB/s"), "device_bytes_per_s": figure(10, "GB/s"),
    "shared_bytes_per_s": figure(15, "GB/s"),
}  # fmt: skip
DRIVES = {
    "num_bytes": figure(1, "TB"), "read_bytes_per_s": figure(3, "GB/s"), "write_bytes_per_s": figure(800, "MB/s")
}  # fmt: skip


def test_a_host_has_the_memory_of_its_machine_type_or_its_own(tmp_path):
    data = copy.deepcopy(RIGHT)
    data["hosts"][1]["host_memory"] = MEMORY | {"nvme": DRIVES}
    data["hosts"][3]["host_memory"] = MEMORY
    a, b, c, d = (host.memory for host in read_cluster(written(tmp_path, data)).hosts)
    assert a == named_cluster("p3.8xlarge").hosts[0].memory
    assert b == HostMemory(100 * 2**30, 5e10, 1e10, 1.5e10, Nvme(1e12, 3e9, 8e8))
    assert c == named_cluster("g4dn.12xlarge").hosts[0].memory
    assert d == HostMemory(100 * 2**30, 5e10, 1e10, 1.5e10)
    # Two devices of c copy at their own rate, as of all of its four.
    assert c.share(2).copied_bytes_per_s == c.device_bytes_per_s


def test_a_machine_file_beside_the_clusters_is_found(tmp_path):
    (tmp_path / "own.json").write_text(json.dumps(machine("p3.8xlarge") | {"name": "own"}), encoding="utf-8")
    data = {"version": 1, "name": "one", "hosts": [{"name": "a", "machine": "own.json"}], "links": []}
    assert named_cluster(str(written(tmp_path, data))).hosts[0].device.name == "V100-SXM2-16GB"


def test_parts_of_one_cpu_may_use_each_others_share_of_the_memory():
    cluster = example_cluster(2, 1)
    fast = tuple(tuple(Link(1e-5, 1.5e11) for _ in range(2)) for _ in range(2))
    with pytest.raises(ValueError, match=r"from 'host-0' to 'host-0' has 150 GB/s"):
        dataclasses.replace(cluster, links=fast).check_rates()
    dataclasses.replace(cluster, links=fast, cores=2).check_rates()


def test_hosts_with_cards_of_their_own_are_interchangeable(tmp_path):
    data = copy.deepcopy(RIGHT)
    data["hosts"][1].pop("price_per_hour")
    cluster = read_cluster(written(tmp_path, data))
    assert host_kinds(cluster) == (0, 0, 1, 2)
    wide = dataclasses.replace(cluster, media={"uplink": 2e8, "a sends": 5e9})
    assert host_kinds(wide) == (0, 1, 2, 3)
    both = dataclasses.replace(cluster, media={"uplink": 2e8, "a sends": 5e9, "b sends": 5e9})
    assert host_kinds(both) == (0, 0, 1, 2)


def test_changed_clusters_keep_the_memory_of_their_hosts():
    cluster = named_cluster("p4d.24xlarge", 3)
    left = slowed(without(cluster, [cluster.hosts[1].name]), cluster.hosts[0].name, 2.0)
    faster, _ = faster_devices(left, cluster.hosts[0].device.name, 2.0)
    assert [host.memory for host in faster.hosts] == [cluster.hosts[0].memory] * 2
    assert cluster_of(cluster_data(faster)) == faster


def test_what_was_kept_of_a_cluster_before_it_had_memory_is_read():
    cluster = named_cluster("p3.8xlarge", 2)
    data = json.loads(json.dumps(cluster_data(cluster)))
    assert cluster_of(data) == cluster
    for host in data["hosts"]:
        del host["memory"]
    assert [host.memory for host in cluster_of(data).hosts] == [None, None]


def test_a_host_of_another_memory_is_of_another_kind():
    cluster = named_cluster("p3.8xlarge", 3)
    more = dataclasses.replace(cluster.hosts[1], memory=named_cluster("p3.16xlarge").hosts[0].memory)
    assert host_kinds(cluster) == (0, 0, 0)
    assert host_kinds(dataclasses.replace(cluster, hosts=(cluster.hosts[0], more, cluster.hosts[2]))) == (0, 1, 0)


@pytest.mark.parametrize("more", [{}, {"links": []}, {"links": [rule("*", "*", 1.25)]}])
def test_one_host_needs_no_links(tmp_path, more):
    path = tmp_path / "one.json"
    path.write_text(json.dumps({"version": 1, "name": "one", "hosts": RIGHT["hosts"][:1], **more}))
    assert read_cluster(path).hosts == named_cluster(str(path)).hosts
    path.write_text(json.dumps({"version": 1, "name": "two", "hosts": RIGHT["hosts"][:2]}))
    with pytest.raises(ValueError, match="links has none from 'a' to 'b'"):
        read_cluster(path)
