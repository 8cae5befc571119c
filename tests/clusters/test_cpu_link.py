"""The links between CPU devices of this machine: measured once, kept, and the usual ones where that fails."""

import logging

import pytest

from alpa_dejavu.clusters import cpu_exchange, cpu_link, local_links
from alpa_dejavu.clusters.cpu_link import cpu_links
from alpa_dejavu.problem import Device

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
