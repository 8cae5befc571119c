"""Packages that an extra installs, and the collector that is paused."""

from __future__ import annotations

import gc
import sys

import pytest

from alpa_dejavu._util.collector import collector_paused
from alpa_dejavu.playground import problem


def test_what_is_not_installed_is_named_with_a_remedy(monkeypatch):
    monkeypatch.setitem(sys.modules, "sklearn", None)
    with pytest.raises(RuntimeError, match=r'sklearn is not installed: pip install "alpa-dejavu\[playground\]"'):
        problem("digits-mlp")


@pytest.mark.parametrize("running", [True, False])
def test_the_collector_is_as_it_was(running):
    before = gc.isenabled()
    (gc.enable if running else gc.disable)()
    try:
        with collector_paused():
            assert not gc.isenabled()
            with collector_paused():
                pass
            assert not gc.isenabled()
        assert gc.isenabled() is running
        with pytest.raises(KeyError), collector_paused():
            raise KeyError
        assert gc.isenabled() is running
    finally:
        (gc.enable if before else gc.disable)()
