"""`alpa-dejavu calibrate --links`: a made-up network is recovered from its probes, and what goes wrong is named."""

import contextlib
import dataclasses
import itertools
import json
import math
from collections import Counter

import numpy as np
import pytest
from click.testing import CliRunner
from hypothesis import given, settings
from hypothesis import strategies as st

from alpa_dejavu.calibration import (
    Calibration,
    Fit,
    HostLinks,
    MeasuredLink,
    calibrate,
    prices,
    read_calibration,
    write_calibration,
)
from alpa_dejavu.calibration._probe_links import PLACE, even_latencies, grouped, rounds
from alpa_dejavu.calibration.bench import BETWEEN, Flows, MeasurementError, ProbeBench
from alpa_dejavu.calibration.calibrate_links import calibrate_links, carried, links_identity
from alpa_dejavu.calibration.measurements import Measurement, Measurements
from alpa_dejavu.cli.main import main
from alpa_dejavu.clusters import local_links
from alpa_dejavu.clusters.cpu_link import cpu_links
from alpa_dejavu.clusters.cpu_probe import measured_cpu
from alpa_dejavu.costs.communication import Links
from alpa_dejavu.problem import Link, host_kinds
from alpa_dejavu.testing import example_cluster
from made_up import measured
from pages import page_data

GIGABIT = 1e9 / 8


class Network(ProbeBench):
    """Links with true figures; flows over one medium divide it, and each measurement has some noise."""

    def __init__(self, count, link_of, media=None, noise=0.02, broken=()):
        every = range(count)
        self.links = [[None if a == b else link_of(a, b) for b in every] for a in every]
        self.media, self.broken, self.noise = media or {}, set(broken), noise
        self.ran, self.now, self.rng = [], 0.0, np.random.default_rng(count)

    @contextlib.contextmanager
    def open(self, place):
        assert place == PLACE
        yield self.run

    def run(self, probe):
        over = Counter(medium for a, b in probe.pairs for medium in self.links[a][b].shares)
        took = {}
        for (a, b), name in zip(probe.pairs, probe.names, strict=True):
            if (a, b) in self.broken:
                raise MeasurementError(f"{probe.num_bytes} bytes from 'host-{a}' to 'host-{b}': no answer in 20 s")
            link = self.links[a][b]
            rate = min([link.bytes_per_s, *(self.media[medium] / over[medium] for medium in link.shares)])
            noise = np.exp(self.noise * self.rng.normal())
            took[name] = noise * (2 * link.latency_s + probe.num_bytes / rate)
        self.ran.append(probe)
        # What Ray takes to call, and as many runs as a port makes.
        longest = max(took.values())
        self.now += 0.01 + longest * (15 if probe.num_bytes == 1 else 3 if longest < 0.02 else 1)
        return took


def cluster_of(count):
    return example_cluster(count, 2)


def kept(tmp_path, cluster, resume=False):
    return Measurements(tmp_path / "c.json.links.jsonl", links_identity(cluster), resume)


def calibrated(tmp_path, network, resume=False, before=None, **more):
    cluster = cluster_of(len(network.links))
    return calibrate_links(
        cluster, network, kept(tmp_path, cluster, resume), "c", before, clock=lambda: network.now, **more
    )


def applied(found, count):
    return found.applied_to(cluster_of(count))


def test_equal_hosts_are_recognised_and_few_pairs_probed(tmp_path):
    network = Network(16, lambda a, b: Link(5e-5, 10 * GIGABIT))
    found = calibrated(tmp_path, network)
    cluster = applied(found, 16)
    assert host_kinds(cluster) == (0,) * 16
    assert cluster.links[0][9].bytes_per_s == pytest.approx(10 * GIGABIT, rel=0.03)
    assert cluster.links[0][9].latency_s == pytest.approx(5e-5, rel=0.1)
    assert not cluster.media
    probed = {pair for probe in network.ran for pair in probe.pairs}
    assert len(probed) < 16 * 15 / 2
    (sentence,) = found.missing
    assert "of 240 were probed and agree" in sentence
    assert network.now < 30
    every = Network(16, lambda a, b: Link(5e-5, 10 * GIGABIT))
    assert calibrated(tmp_path, every, every_pair=True).missing == ()
    assert {pair for probe in every.ran for pair in probe.pairs} == set(itertools.permutations(range(16), 2))


@pytest.mark.parametrize("rate", [GIGABIT / 20, 50 * GIGABIT])
def test_eight_hosts_take_under_30_seconds_in_about_as_many_rounds(tmp_path, rate):
    """Even where all pairs differ, on slow networks as on fast ones."""
    network = Network(8, lambda a, b: Link(1e-4, rate * 1.3 ** ((3 * a + 5 * b) % 7)))
    found = calibrated(tmp_path, network)
    cluster = applied(found, 8)
    for a, b in itertools.permutations(range(8), 2):
        assert cluster.links[a][b].bytes_per_s == pytest.approx(network.links[a][b].bytes_per_s, rel=0.1)
    assert network.now < 30
    firsts = [probe for probe in network.ran if probe.num_bytes == 1 and len(probe.pairs) == 4]
    # Seven rounds in two directions; what else has four pairs is one host with four others.
    disjoint = [probe for probe in firsts if len({end for pair in probe.pairs for end in pair}) == 8]
    assert len(disjoint) == 14


@pytest.mark.parametrize("count", [4, 8])
def test_two_islands_share_the_cut_between_them(tmp_path, count):
    island = [n % 2 for n in range(count)]

    def link(a, b):
        return Link(5e-5, 10 * GIGABIT) if island[a] == island[b] else Link(2e-4, GIGABIT, shares=(f"cut {island[a]}",))

    network = Network(count, link, {"cut 0": GIGABIT, "cut 1": GIGABIT})
    cluster = applied(calibrated(tmp_path, network), count)
    assert cluster.links[0][1].bytes_per_s == pytest.approx(GIGABIT, rel=0.06)
    assert cluster.links[0][2].bytes_per_s == pytest.approx(10 * GIGABIT, rel=0.06)
    cuts = [{cluster.links[a][b].shares for a in range(count) for b in range(count)
             if (island[a], island[b]) == way} for way in ((0, 1), (1, 0))]  # fmt: skip
    (one,), (other,) = cuts
    assert one
    assert one != other
    assert all(cluster.media[name] == pytest.approx(GIGABIT, rel=0.1) for name in (*one, *other))
    assert cluster.links[0][2].shares == ()
    assert host_kinds(cluster) == tuple(island)


def test_a_switch_slows_all_pairs_that_send_at_a_time(tmp_path):
    network = Network(8, lambda a, b: Link(5e-5, 10 * GIGABIT, shares=("s",)), {"s": 20 * GIGABIT})
    cluster = applied(calibrated(tmp_path, network), 8)
    assert host_kinds(cluster) == (0,) * 8
    (name,) = cluster.links[0][1].shares
    assert cluster.media[name] == pytest.approx(20 * GIGABIT, rel=0.1)
    assert cluster.links[0][1].bytes_per_s == pytest.approx(10 * GIGABIT, rel=0.1)


def test_cards_are_shared_by_what_goes_to_and_from_a_host(tmp_path):
    names = [f"out {n}" for n in range(6)] + [f"in {n}" for n in range(6)]
    network = Network(
        6, lambda a, b: Link(5e-5, GIGABIT, shares=(f"out {a}", f"in {b}")), dict.fromkeys(names, 2 * GIGABIT)
    )
    cluster = applied(calibrated(tmp_path, network), 6)
    assert host_kinds(cluster) == (0,) * 6
    assert set(cluster.links[1][2].shares) == {"to host-2", "from host-1"}
    assert all(cluster.media[name] == pytest.approx(2 * GIGABIT, rel=0.1) for name in cluster.links[1][2].shares)
    assert cluster.links[1][2].bytes_per_s == pytest.approx(GIGABIT, rel=0.05)


def test_a_run_is_resumed_where_a_host_could_not_be_reached(tmp_path):
    link = Link(5e-5, GIGABIT)
    # In the round that comes last.
    a, b = rounds(6)[np.random.default_rng(6).permutation(5)[-1]][0]
    network = Network(6, lambda *_: link, broken=[(b, a)])
    said = rf"no file is written: .*from 'host-{b}' to 'host-{a}': no answer.*--resume"
    with pytest.raises(RuntimeError, match=said):
        calibrated(tmp_path, network, every_pair=True)
    assert network.ran
    again = Network(6, lambda a, b: link)
    found = calibrated(tmp_path, again, resume=True, every_pair=True)
    assert not set(network.ran) & set(again.ran)
    assert found.host_links is not None
    third = Network(6, lambda a, b: link)
    assert calibrated(tmp_path, third, resume=True, every_pair=True).host_links == found.host_links
    assert third.ran == []
    with pytest.raises(ValueError, match=r"is of another cluster: .*names is"):
        kept(tmp_path, cluster_of(5), resume=True)


@pytest.mark.parametrize(("wrong", "said"), [(math.nan, "took nan s"), (-1.0, "took -1 s"), (0.0, "took 0 s")])
def test_impossible_seconds_are_refused_with_the_pair(tmp_path, wrong, said):
    class Broken(Network):
        def run(self, probe):
            return {name: wrong if name == "1-2" else seconds for name, seconds in super().run(probe).items()}

    with pytest.raises(RuntimeError, match=f"from 'host-1' to 'host-2' {said}"):
        calibrated(tmp_path, Broken(3, lambda a, b: Link(5e-5, GIGABIT)))


def test_rates_above_the_memorys_are_refused_with_the_pair(tmp_path):
    network = Network(3, lambda a, b: Link(5e-5, 1e13 if (a, b) == (2, 0) else GIGABIT), noise=0.0)
    with pytest.raises(ValueError, match=r"the link from 'host-2' to 'host-0' has .* but the memory"):
        calibrated(tmp_path, network)


def test_what_was_calibrated_before_is_kept(tmp_path):
    before = dataclasses.replace(measured(), missing=("links from host to host: old", "something else"))
    found = calibrated(tmp_path, Network(6, lambda a, b: Link(5e-5, GIGABIT)), before=before)
    assert found.devices == before.devices
    assert found.links == before.links
    assert found.name == before.name
    assert found.missing[0] == "something else"
    assert "links from host to host: old" not in found.missing
    again = calibrated(tmp_path, Network(6, lambda a, b: Link(5e-5, GIGABIT)), before=found)
    assert [fit.part for fit in again.fits].count("links from host to host") == 1
    # Sends were measured to start in 1 ms between hosts 0 and 1: that is the runtime's, which all pairs have.
    assert applied(found, 6).links[2][3].send_latency_s == pytest.approx(1e-3, rel=0.05)


def test_links_between_cpus_are_those_of_the_network_and_the_copies():
    known, net = Link(4e-3, 3e8, 3e-3, 1e9), Link(1e-3, 1e8)
    estimate = carried(known, net, None, copied=True)
    assert (estimate.latency_s, estimate.bytes_per_s) == pytest.approx((5e-3, 7.5e7))
    assert estimate.sending == pytest.approx((4e-3, 1 / 1.1e-8))
    same = carried(known, net, net, copied=True)
    assert same.latency_s == pytest.approx(known.latency_s)
    # What was measured was faster than the network can be: the network's rate is what can be had.
    assert same.bytes_per_s == pytest.approx(1e8)
    slower = carried(known, Link(1e-3, 1e7), Link(1e-3, 1e12), copied=True)
    assert slower.bytes_per_s == pytest.approx(1 / (1 / 3e8 + 1e-7), rel=1e-3)


def host_links(names=("host-0", "host-1"), rate=1e8):
    link = Link(1e-4, rate, shares=("wire",))
    links = tuple(tuple(None if a == b else link for b in names) for a in names)
    return HostLinks(names, links, {"wire": 2 * rate})


def links_alone(**fields):
    return Calibration("alone", "made up", "2024-05-31", host_links=host_links(**fields))


def test_the_planner_takes_them(tmp_path):
    path = tmp_path / "c.json"
    write_calibration(links_alone(), path)
    assert read_calibration(path).host_links == host_links()
    priced = prices(example_cluster(), path, "auto", "auto")
    assert priced.cluster.links[0][1] == host_links().links[0][1]
    assert priced.cluster.links[0][0] == example_cluster().links[0][0]
    assert priced.cluster.media == {"wire": 2e8}
    assert priced.cluster.hosts == example_cluster().hosts
    assert priced.models.communication == Links()
    assert prices(example_cluster(), measured(), "auto", "auto").models.communication != Links()
    assert prices(example_cluster(), measured(), "auto", "links").models.communication == Links()
    with pytest.raises(ValueError, match="both a calibration and communication='free'"):
        prices(example_cluster(), path, "auto", "free")


def test_hosts_that_were_not_measured_are_named_and_lost_ones_are_not_missed():
    three = links_alone(names=("host-0", "gone", "host-1"))
    assert three.applied_to(example_cluster()).links[1][0].bytes_per_s == 1e8
    with pytest.raises(ValueError, match=r"the host 'host-1', but the calibration alone has links of 'host-0', 'x'"):
        links_alone(names=("host-0", "x")).applied_to(example_cluster())


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda d: d["links"][0].__setitem__(1, None), "'host-0' has no link to 'host-1'"),
        (lambda d: d["links"][0].__setitem__(1, 7), "names the kind 7, but there are 1"),
        (lambda d: d["links"].pop(), "2 hosts need a row and a column each"),
        (lambda d: d["hosts"].__setitem__(1, "host-0"), "the host 'host-0' is there twice"),
        (lambda d: d["media"].update(wire=-1.0), "must be a number above 0"),
    ],
)
def test_a_broken_file_is_named(tmp_path, change, said):
    path = tmp_path / "c.json"
    write_calibration(links_alone(), path)
    data = json.loads(path.read_text())
    change(data["host_links"])
    path.write_text(json.dumps(data))
    with pytest.raises(ValueError, match=r"c\.json.*write it again with `alpa-dejavu calibrate`") as caught:
        read_calibration(path)
    assert said in str(caught.value)


@pytest.mark.parametrize("count", range(2, 20))
def test_rounds_have_each_pair_once(count):
    listed = rounds(count)
    assert len(listed) == count - 1 + count % 2
    for pairs in listed:
        ends = [end for pair in pairs for end in pair]
        assert len(set(ends)) == len(ends)
    found = sorted(tuple(sorted(pair)) for pairs in listed for pair in pairs)
    assert found == list(itertools.combinations(range(count), 2))


def command(*args):
    return CliRunner().invoke(main, list(map(str, args)))


@pytest.fixture
def made_up_ray(monkeypatch):
    from alpa_dejavu.alpa import ray_bench

    def install(cluster, bench=None):
        monkeypatch.setattr(ray_bench, "ray_bench", lambda machine: (cluster, bench))

    return install


@pytest.mark.alpa
def test_the_command_writes_what_the_planner_takes(tmp_path, made_up_ray):
    output = tmp_path / "here.json"
    made_up_ray(cluster_of(4), Network(4, lambda a, b: Link(5e-5, GIGABIT if 3 in (a, b) else 10 * GIGABIT)))
    result = command("calibrate", "--links", "--output", output)
    assert result.exit_code == 0, result.output
    assert "host-0 to host-3, and others" in result.output
    found = read_calibration(output)
    assert host_kinds(applied(found, 4)) == (0, 0, 0, 1)
    page = tmp_path / "here.html"
    shown = command("calibration", "show", output, "--html", page)
    assert shown.exit_code == 0, shown.output
    assert "link from host to host" in shown.output
    rates, latencies = page_data(page.read_text())["charts"].values()
    assert rates["data"][0]["type"] == latencies["data"][0]["type"] == "heatmap"
    assert "host-3" in rates["data"][0]["x"]
    units = {text.split()[1] for row in rates["data"][0]["text"] for text in row if text}
    assert units == {"MB/s", "GB/s"}
    # It keeps what is in the file.
    write_calibration(dataclasses.replace(measured(), host_links=None), output)
    assert command("calibrate", "--links", "--output", output).exit_code == 0
    again = read_calibration(output)
    assert again.devices
    assert again.host_links is not None


@pytest.mark.alpa
def test_the_command_writes_nothing_where_a_host_is_not_reached(tmp_path, made_up_ray):
    output = tmp_path / "here.json"
    made_up_ray(cluster_of(4), Network(4, lambda a, b: Link(5e-5, GIGABIT), broken=[(2, 1)]))
    result = command("calibrate", "--links", "--output", output)
    assert result.exit_code == 1
    assert "from 'host-2' to 'host-1': no answer" in result.stderr
    assert not output.exists()
    made_up_ray(cluster_of(4), Network(4, lambda a, b: Link(5e-5, GIGABIT)))
    assert command("calibrate", "--links", "--output", output, "--resume").exit_code == 0
    output.write_text("{}")
    result = command("calibrate", "--links", "--output", output)
    assert "lacks the key 'version'" in result.stderr
    assert output.read_text() == "{}"
    assert command("calibrate", "--every-pair", "--output", output).exit_code == 2


@pytest.mark.alpa
def test_a_plain_calibration_keeps_the_links_of_its_hosts(tmp_path, monkeypatch, made_up_ray, caplog):
    output, cluster = tmp_path / "here.json", cluster_of(2)
    fit = Fit("links from host to host", "made up", 3)
    link_file = dataclasses.replace(links_alone(), fits=(fit,), missing=("links from host to host: few", "old"))
    made_up_ray(cluster)
    monkeypatch.setattr(calibrate, "calibrate", lambda *_, **__: measured())
    write_calibration(link_file, output)
    assert command("calibrate", "--output", output).exit_code == 0
    found = read_calibration(output)
    assert found.host_links == link_file.host_links
    assert found.devices == measured().devices
    assert found.fits == (*measured().fits, fit)
    assert found.missing == (*measured().missing, "links from host to host: few")
    write_calibration(dataclasses.replace(link_file, host_links=host_links(("host-0", "x"))), output)
    result = command("calibrate", "--output", output)
    assert "those measured before are not of 'host-1' and are left out" in result.output
    assert read_calibration(output).host_links is None
    output.write_text("{}")
    assert command("calibrate", "--output", output).exit_code == 0
    assert f"what is in {output} is replaced" in caplog.text


@pytest.mark.alpa
@pytest.mark.parametrize(("links", "pair"), [(0, "'host-0' to 'host-0'"), (1, "'host-0' to 'host-1'")])
def test_measured_kinds_of_links_above_the_memorys_rate_are_refused(tmp_path, monkeypatch, made_up_ray, links, pair):
    output, before = tmp_path / "here.json", measured()
    fast = dataclasses.replace(before.links[links].link, send_bytes_per_s=1e13)
    each = list(before.links)
    each[links] = dataclasses.replace(each[links], link=fast, spread={})
    made_up_ray(cluster_of(2))
    monkeypatch.setattr(calibrate, "calibrate", lambda *_, **__: dataclasses.replace(before, links=tuple(each)))
    result = command("calibrate", "--output", output)
    assert result.exit_code == 1
    assert f"the link from {pair} has 10 TB/s, but the memory" in result.stderr
    assert not output.exists()


@pytest.mark.ray
def test_two_raylets_are_calibrated(tmp_path):
    import ray

    output = tmp_path / "here.json"
    result = command("calibrate", "--links", "--output", output, "--local", 1, "--hosts", 2)
    assert result.exit_code == 0, result.output
    assert not ray.is_initialized()
    found = read_calibration(output)
    # The network comes on top of what processes of this machine take to exchange, and Ray to carry.
    _, known = cpu_links(local_links(), measured_cpu(2), 1, 2)
    for link in (found.host_links.links[0][1], found.host_links.links[1][0]):
        assert link.latency_s > known.latency_s
        assert 0 < link.bytes_per_s < known.bytes_per_s
        assert link.sending[0] > known.sending[0]
        assert 0 < link.sending[1] < known.sending[1]
    assert {fit.part: fit.rows > 4 for fit in found.fits} == {"links from host to host": True}
    assert MeasuredLink not in map(type, found.links)


def test_a_shaper_that_lets_some_bytes_through_at_once_is_seen_through(tmp_path):
    class Shaped(Network):
        def run(self, probe):
            took = super().run(probe)
            return {name: max(seconds - 32768 / GIGABIT, 1e-4) for name, seconds in took.items()}

    found = calibrated(tmp_path, Shaped(2, lambda a, b: Link(5e-5, GIGABIT), noise=0.0))
    assert applied(found, 2).links[0][1].bytes_per_s == pytest.approx(GIGABIT, rel=0.01)
    assert (found.host_links.links[0][0], found.host_links.media) == (None, {})
    with pytest.raises(ValueError, match="has one host, and so no links between hosts"):
        calibrated(tmp_path, Network(1, None))


def test_flows_are_pairs_of_hosts(tmp_path):
    for pairs, size in (((), 1), (((0, 0),), 1), (((0, 1), (0, 1)), 1), (((0, -1),), 1), (((0, 1),), 0)):
        with pytest.raises(ValueError, match="measure anew"):
            Flows(pairs, size)
    store = kept(tmp_path, cluster_of(3))
    store.add(Measurement(PLACE, Flows(((0, 1), (2, 0)), 64), {"0-1": 1.0, "2-0": 2.0}))
    assert kept(tmp_path, cluster_of(3), resume=True).at(PLACE) == {
        Flows(((0, 1), (2, 0)), 64): {"0-1": 1.0, "2-0": 2.0}
    }
    row = {"what": "links", "where": BETWEEN, "probe": {"pairs": [[0, 1]], "num_bytes": 1}, "seconds": {"0-2": 1.0}}
    with store.path.open("a", encoding="utf-8") as file:
        file.write(json.dumps(row) + "\n")
    with pytest.raises(ValueError, match="must have 0-1"):
        kept(tmp_path, cluster_of(3), resume=True)


@pytest.mark.parametrize(
    ("count", "rate", "kinds"),
    [
        (8, lambda a, b: GIGABIT if 5 in (a, b) else 10 * GIGABIT, (0, 0, 0, 0, 0, 1, 0, 0)),
        (3, lambda a, b: GIGABIT if a < b else 4 * GIGABIT, (0, 1, 2)),
    ],
)
def test_a_slow_host_or_direction_is_a_kind_of_its_own(tmp_path, count, rate, kinds):
    cluster = applied(calibrated(tmp_path, Network(count, lambda a, b: Link(5e-5, rate(a, b)))), count)
    assert host_kinds(cluster) == kinds
    for a, b in itertools.permutations(range(count), 2):
        assert cluster.links[a][b].bytes_per_s == pytest.approx(rate(a, b), rel=0.05)


def test_links_between_accelerators_are_those_of_the_network():
    net = Link(1e-4, 1e9)
    assert carried(Link(3e-5, 3e9), net, None, copied=False) == Link(1e-4, 1e9)
    scaled = carried(Link(3e-5, 3e9), Link(2e-4, 5e8), net, copied=False)
    assert (scaled.latency_s, scaled.bytes_per_s) == (pytest.approx(1.3e-4), pytest.approx(1.5e9))


@settings(max_examples=50, deadline=None)
@given(st.lists(st.floats(1e-6, 1e6), min_size=1, max_size=40), st.sampled_from([0.01, 0.1, 0.5]), st.randoms())
def test_groups_of_values(values, tolerance, random):
    found = grouped(values, tolerance)
    assert set(found.tolist()) <= set(values)
    order = np.argsort(values, kind="stable")
    assert (np.diff(found[order]) >= 0).all()
    assert (np.abs(np.log(found / values)) <= 3 * np.log1p(tolerance) + 1e-9).all()
    # Neighbours that are far apart are of two groups, and each value's group goes with it, wherever it stands.
    apart = np.diff(np.log(np.array(values)[order])) > np.log1p(tolerance) + 1e-9
    assert (np.diff(found[order])[apart] > 0).all()
    places = list(range(len(values)))
    random.shuffle(places)
    assert grouped([values[place] for place in places], tolerance).tolist() == found[places].tolist()


def test_latencies_that_hardly_matter_are_equal_and_none_is_infinite():
    with pytest.raises(ValueError, match="must be finite and above 0"):
        grouped([1.0, math.nan], 0.1)
    assert grouped([], 0.1).tolist() == []
    assert len(set(even_latencies([17e-6, 47e-6, 87e-6]))) == 1
    assert len(set(even_latencies([17e-6, 47e-6, 87e-6, 1e-3, 1.2e-3]))) == 2
