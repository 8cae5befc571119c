"""The links between CPU devices of this machine: measured once, kept, and the usual ones where that fails."""

import logging

import numpy as np
import pytest

from alpa_dejavu.clusters import cpu_exchange, cpu_link, local_links
from alpa_dejavu.clusters.cpu_link import cpu_links
from alpa_dejavu.problem import Device, Link

USUAL = local_links()
DEVICE = Device("cpu", 1e9, {"float32": 1e9}, 1e9, 1e9, dispatch_s=1e-3, uncached_bytes_per_s=5e8)


def forget():
    cpu_link._measured_within.cache_clear()
    cpu_link._measured_between.cache_clear()


@pytest.fixture(autouse=True)
def nothing_known(monkeypatch):
    monkeypatch.setattr(cpu_link, "usable_cores", lambda: 2)
    forget()
    yield
    forget()


def test_processes_measure_them_and_others_find_them_kept(monkeypatch):
    found = cpu_links(USUAL, DEVICE, 2, 4)
    for link, usual in zip(found, USUAL, strict=True):
        assert (link.latency_s, link.bytes_per_s) != (usual.latency_s, usual.bytes_per_s)
        assert link.latency_s > 0
        assert link.bytes_per_s > 1e6
    assert found[0].cached_bytes_per_s > 1e6
    forget()
    monkeypatch.setattr(cpu_link, "_answer", lambda *_: pytest.fail("they are kept"))
    assert cpu_links(USUAL, DEVICE, 2, 4) == found


def _ends(connection, *_):
    """A process that ends before it has measured anything."""


@pytest.mark.parametrize("error", [None, RuntimeError("nothing")])
def test_where_it_fails_the_usual_ones_are_taken_with_a_warning(monkeypatch, caplog, error):
    def fails(*_):
        raise error

    if error is None:
        for name in ("all_reduce_within", "all_reduce_between"):
            monkeypatch.setattr(cpu_link, name, _ends)
    else:
        monkeypatch.setattr(cpu_link, "_answer", fails)
    with caplog.at_level(logging.WARNING):
        found = cpu_links(USUAL, DEVICE, 2, 4)
    for link, usual in zip(found, USUAL, strict=True):
        assert link.bytes_per_s == usual.bytes_per_s / 2
    assert caplog.text.count("can't be measured") == 2


def test_processes_run_their_programs_as_often_as_each_other_whatever_their_clocks(monkeypatch):
    """One that went on to a larger message was fatal to the other, which still waited for a smaller one."""
    runs = {"small": 0, "large": 0}

    def program(name):
        def run():
            runs[name] += 1
            return 0.0

        return run

    seconds = iter(range(1000))
    monkeypatch.setattr(cpu_exchange.time, "perf_counter", lambda: float(next(seconds)))
    assert len(cpu_exchange._taken(program("small"), count=20)) == 20
    assert len(cpu_exchange._taken(program("large"))) == 3, "a slow process alone has no time for more"
    assert runs == {"small": 1 + 20, "large": 1 + 3}


LARGE = 1 << 24


def test_tensors_go_through_ray_at_a_devices_starts_and_copies():
    usual = Link(1.0, 2.0), Link(3.0, 4.0)
    within, between = cpu_links(usual, DEVICE, 1, 1)
    assert within == Link(1.0, 2.0, 1.6e-3, 5e8 / 20)
    assert between == Link(3.0, 4.0, 3.0e-3, 5e8 / 27)


def test_beside_other_hosts_devices_of_a_process_have_a_smaller_share(monkeypatch):
    monkeypatch.setattr(cpu_link, "_answer", lambda serves, of: (6e-6, 1e-3, 0.1) if len(serves) == 1 else (1e-3, 0.1))
    sizes = np.array([LARGE / 16, LARGE])
    alone, _ = cpu_links(USUAL, DEVICE, 4, 4)
    assert alone.latency_s == pytest.approx(1e-6)
    assert alone.rates(4, sizes) == pytest.approx([1.5 * LARGE / 16 / 1e-3, 1.5 * LARGE / 0.1])
    beside, between = cpu_links(USUAL, DEVICE, 4, 12)
    assert beside.latency_s == alone.latency_s
    assert beside.rates(4, sizes) == pytest.approx(alone.rates(4, sizes) / 3)
    assert (between.latency_s, between.bytes_per_s) == (0.5e-3, pytest.approx(LARGE / 0.1 / 6))
