"""Hosts made of one machine: their plans, and what is left of them."""

import contextlib
import dataclasses
import itertools
import os
import pathlib
import statistics
from functools import partial

import pytest

from _measured_jobs import Job, drawn
from _measured_models import perceptron
from _measured_runs import ENVIRONMENT
from alpa_dejavu import layers, sharding
from alpa_dejavu.calibration import HostLinks
from alpa_dejavu.problem import Device, Link
from hetero import _layouts
from hetero._bench import bench
from hetero._cases import CASES, Case
from hetero._layouts import Layout, cluster_of, enumeration, label
from real_hosts import HostNetwork, NotShownError, Quotas, shape
from real_hosts._leftovers import is_leftover, own_directory, own_name

NAMES = ["a", "b", "c", "d"]


@pytest.fixture(scope="module")
def models():
    return {
        name: sharding.model_of_step(layers.trace(case.job.model, batch=128), case.job.layers)
        for name, case in CASES.items()
    }


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_an_enumeration_covers_the_layers_and_has_each_plan_once(case, models):
    every = enumeration(case, models[case.name])
    assert len({label(layout.plan(case, NAMES), NAMES) for layout in every}) == len(every) > 8
    for layout in every:
        covered = [n for first, last in layout.layers for n in range(first, last + 1)]
        hosts = list(itertools.chain(*layout.places))
        assert covered == list(range(case.job.layers))
        assert len(set(hosts)) == len(hosts)
    some = drawn(every, 12, seed=3)
    assert some == drawn(every, 12, seed=3) != drawn(every, 12, seed=4)
    assert len(some) == min(12, len(every)) == len(set(some))


def links_of(case):
    """As they would be measured."""
    rows = enumerate(case.bytes_per_s)
    links = tuple(tuple(None if a == b else Link(0.0, rate) for b, rate in enumerate(row)) for a, row in rows)
    return HostLinks(tuple(NAMES), links)


def test_the_planners_cluster_is_the_cases(monkeypatch):
    core, case = Device("core", 1e9, {"float32": 1e10}, 1e9, 1e10, kernel_s=1e-6), CASES["both"]
    asked = []
    monkeypatch.setattr(_layouts, "measured_cpu", lambda count: asked.append(count) or core)
    cluster = cluster_of(case, links_of(case))
    assert asked == [os.cpu_count()], "a device of one core, not of the machine"
    whole = cluster.hosts[0].device
    assert whole.rate("float32") == pytest.approx(case.shares[0] * 1e10)
    assert whole.kernel_s == pytest.approx(1e-6 / case.shares[0])
    assert cluster.hosts[1].device.rate("float32") == pytest.approx(whole.rate("float32") / 2)
    assert [link.sending[1] for link in cluster.links[0][1:]] == [4e6, 40e6, 4e6]


def test_rates_and_shares_that_cannot_be_are_refused(tmp_path):
    with pytest.raises(ValueError, match=r"from host 1 to host 0 has -1 B/s"):
        shape(HostNetwork(2), [[0.0, 1.0], [-1.0, 0.0]])
    with pytest.raises(ValueError, match="below the"):
        Quotas([tmp_path]).limit([float(os.cpu_count())])


@contextlib.contextmanager
def skipping_where_it_cannot_be():
    try:
        yield
    except NotShownError as error:
        pytest.skip(str(error))


@pytest.mark.ray
@pytest.mark.slow
def test_two_hosts_and_a_slow_link(monkeypatch):
    monkeypatch.setenv("JAX_PLATFORMS", "cpu")
    for name, value in ENVIRONMENT.items():
        monkeypatch.setenv(name, value)
    job = Job("small", partial(perceptron, widths=(256,) * 5), 256, 4)
    fast, slow = ((rate, rate) for rate in (4e7, 4e5))
    case = Case("small", "two hosts", job, (fast, fast), (0.4, 0.4), micro_batches=4)
    with skipping_where_it_cannot_be(), bench(2, ENVIRONMENT) as cluster:
        crossing = Layout(((0, 1), (2, 3)), ((1,), (0,))).plan(case, cluster.names)
        alone = Layout(((0, 3),), ((1,),)).plan(case, cluster.names)
        plans = {"crossing": crossing, "alone": alone}
        for plan in plans.values():
            cluster.compile(job, plan)
        found = {}
        for links in (fast, slow):
            cluster.set(dataclasses.replace(case, bytes_per_s=(links, links)))
            for name, plan in plans.items():
                cluster.steps(job, plan, 1)
                found[links[0], name] = statistics.median(cluster.steps(job, plan, 3))
        apart = dataclasses.replace(case, bytes_per_s=((4e6, 4e6),) * 2)
        measured = cluster.calibrated(apart)
    # Four micro-batches of 64 KiB, there and back: 0.16 s each way at the slow rate.
    assert found[4e5, "crossing"] - found[4e7, "crossing"] > 0.5
    assert found[4e5, "alone"] < found[4e5, "crossing"]
    assert [measured.links[a][b].sending[1] for a, b in ((0, 1), (1, 0))] == pytest.approx([4e6, 4e6], rel=0.3)
    assert list(measured.hosts) == cluster.names
    assert not any(name.startswith(own_name("")) for name in os.listdir("/run/netns"))


def test_what_a_process_that_is_gone_has_made_is_left_over():
    name = own_name("0")
    assert not is_leftover(name)
    prefix, pid, started, rest = name.split("-")
    assert is_leftover(f"{prefix}-{pid}-{int(started) - 1}-{rest}")
    assert not is_leftover("somebody's")


def test_a_directory_goes_with_its_block_and_takes_leftovers_along():
    prefix, pid, started, _ = own_name("").split("-")
    left = pathlib.Path("/tmp", f"{prefix}-{pid}-{int(started) - 1}-left")
    left.mkdir()
    with own_directory() as one, own_directory() as other:
        assert one != other
        assert one.is_dir()
        assert not left.exists()
    assert not one.exists()
