"""Parts of a cluster: which hosts a plan may leave out."""

import dataclasses
import itertools

import pytest

import unlike
from alpa_dejavu.planning.search._searched import fewer_hosts, numbers_of_hosts
from alpa_dejavu.testing import example_cluster


def names(cluster):
    return "".join(host.name for host in cluster.hosts)


@pytest.mark.parametrize("hosts", range(1, 9))
def test_of_few_alike_hosts_each_smaller_number_is_a_part(hosts):
    assert [len(part.hosts) for part in fewer_hosts(example_cluster(hosts))] == list(range(hosts - 1, 0, -1))


def test_of_many_alike_hosts_one_less_and_numbers_about_powers_of_two_are():
    assert [len(part.hosts) for part in fewer_hosts(example_cluster(25))] == [24, 16, 12, 8, 6, 4, 3, 2, 1]
    assert len(fewer_hosts(example_cluster(27))[0].hosts) == 26


def test_a_part_has_its_hosts_and_their_links():
    whole = unlike.islands()
    for part in fewer_hosts(whole):
        places = ["abcd".index(name) for name in names(part)]
        assert part.hosts == tuple(whole.hosts[n] for n in places)
        assert part.links == tuple(tuple(whole.links[a][b] for b in places) for a in places)
        assert part.name == whole.name


def test_of_unlike_hosts_one_less_of_each_kind_and_whole_kinds_are_parts():
    parts = fewer_hosts(unlike.two_and_two())
    assert {names(part) for part in parts} == {"abc", "acd", "ab", "cd"}
    sizes = [part.num_devices for part in parts]
    assert sizes == sorted(sizes, reverse=True), "the largest first"


def test_of_many_kinds_each_alone_is_a_part():
    hosts = [unlike.host(f"{kind}{n}", 1e12 * (kind + 1)) for kind in range(4) for n in range(2)]
    found = [{host.name[0] for host in part.hosts} for part in fewer_hosts(unlike.cluster(hosts))]
    assert sum(len(kinds) == 4 for kinds in found) == 4, "one less of each kind"
    assert sorted(kinds for kinds in map("".join, found) if len(kinds) == 1) == ["0", "1", "2", "3"]


def test_every_choice_is_there_where_that_is_asked():
    found = [names(part) for part in fewer_hosts(unlike.two_and_two(), every=True)]
    assert sorted(found) == sorted(["a", "ab", "c", "ac", "abc", "cd", "acd"])


def test_devices_that_share_a_cpu_are_never_left_out():
    assert fewer_hosts(dataclasses.replace(example_cluster(4), cores=4)) == []


def test_a_single_host_has_no_part():
    assert fewer_hosts(example_cluster(1)) == []


def test_numbers_of_hosts_are_tried_all_where_there_are_few():
    assert numbers_of_hosts(unlike.two_and_two()) == [
        counts for counts in itertools.product(range(3), range(3)) if any(counts) and counts != (2, 2)
    ]


def test_of_many_hosts_the_slow_and_dear_ones_are_left_out_one_by_one():
    many = [unlike.host(f"{kind}{n}", 1e12 * (kind + 1), price=1.0) for kind in range(4) for n in range(4)]
    found = numbers_of_hosts(unlike.cluster(many))
    assert len(found) == len(set(found)) <= 32
    assert (3, 4, 4, 4) in found, "a slow and dear host less"
    assert (0, 0, 0, 1) in found
