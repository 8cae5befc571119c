"""The link between processes of this machine: measured once, kept, and the usual one where that fails."""

import json
import logging

import pytest

from alpa_dejavu.clusters import cpu_link, local_links
from alpa_dejavu.clusters.cpu_link import measured_cpu_link
from alpa_dejavu.problem import Link

USUAL = local_links()[1]


@pytest.fixture(autouse=True)
def nothing_known():
    measured_cpu_link.cache_clear()
    yield
    measured_cpu_link.cache_clear()


def test_two_processes_measure_it_and_others_find_it_kept(monkeypatch):
    found = measured_cpu_link(USUAL)
    assert found != USUAL
    assert found.latency_s > 0
    assert found.bytes_per_s > 1e6
    assert found.sending == USUAL.sending
    measured_cpu_link.cache_clear()
    monkeypatch.setattr(cpu_link, "_measured", lambda: pytest.fail("it is kept"))
    assert measured_cpu_link(USUAL) == found


def _ends(connection, rank, port):
    """A process that ends before it has measured anything."""


@pytest.mark.parametrize("error", [None, RuntimeError("nothing")])
def test_where_it_fails_the_usual_one_is_taken_with_a_warning(monkeypatch, caplog, error):
    def fails():
        raise error

    monkeypatch.setattr(cpu_link, *(("_all_reduce", _ends) if error is None else ("_measured", fails)))
    with caplog.at_level(logging.WARNING):
        assert measured_cpu_link(USUAL) == USUAL
    assert "can't be measured" in caplog.text


@pytest.mark.parametrize("text", ["{", "[]", json.dumps({"latency_s": 1.0})])
def test_what_is_kept_broken_is_measured_anew(monkeypatch, tmp_path, text):
    monkeypatch.setenv("ALPA_DEJAVU_CACHE", str(tmp_path))
    monkeypatch.setattr(cpu_link, "_measured", lambda: (1e-3, 1e9))
    (tmp_path / "this-machine-link.json").write_text(text)
    found = measured_cpu_link(Link(5.0, 6.0))
    assert found == Link(1e-3, 1e9, 5.0, 6.0)
    assert json.loads((tmp_path / "this-machine-link.json").read_text())["bytes_per_s"] == 1e9
