"""Settings that all tests share: host devices, where models are kept, and which tests run one after the other."""

import atexit
import itertools
import os
import shutil
import tempfile

import hypothesis
import pytest

# Read when jax makes its backend, so set before anything imports it.
os.environ["JAX_PLATFORMS"] = "cpu"
os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=8"

# Tests run beside each other, on as many cores: threads of one's sums would only wait for the other's. Read by NumPy.
os.environ["OMP_NUM_THREADS"] = os.environ["OPENBLAS_NUM_THREADS"] = "1"

# Ray would end workers where other programs have the machine's memory: tests don't hang on what else runs.
os.environ["RAY_memory_monitor_refresh_ms"] = "0"  # noqa: SIM112 (Ray has it so)

# Ray ends workers that haven't started within a minute, which they need on a full machine.
os.environ["RAY_worker_register_timeout_seconds"] = "600"  # noqa: SIM112 (Ray has it so)

# How long an example takes says what else the machine does.
hypothesis.settings.register_profile("here", deadline=None)
hypothesis.settings.load_profile("here")

_NUMBERS = itertools.count()
# What is planned here is kept nowhere, and nothing that was is found. Below, each test has a folder of its own, too.
os.environ["ALPA_DEJAVU_CACHE"] = tempfile.mkdtemp(prefix="alpa-dejavu-cache-")
atexit.register(shutil.rmtree, os.environ["ALPA_DEJAVU_CACHE"], ignore_errors=True)


@pytest.fixture(autouse=True)
def own_cache(monkeypatch, tmp_path_factory):
    """Models are kept in a folder that no other test has."""
    monkeypatch.setenv("ALPA_DEJAVU_CACHE", str(tmp_path_factory.getbasetemp() / f"cache-{next(_NUMBERS)}"))


@pytest.fixture(autouse=True)
def no_columns(monkeypatch):
    """Commands print as where no terminal is: pytest-xdist says how wide the one is that the tests were started in."""
    monkeypatch.delenv("COLUMNS", raising=False)


def pytest_itemcollected(item):
    """With `pytest --dist loadgroup`, tests of a file run in one process, and all that start Ray in one. Slow
    ones run where they are asked for.
    """
    if item.get_closest_marker("slow") and not os.environ.get("ALPA_DEJAVU_SLOW"):
        item.add_marker(pytest.mark.skip("slow: `make test-all` runs it, or ALPA_DEJAVU_SLOW=1"))
    # Here, since pytest-xdist reads groups before a `pytest_collection_modifyitems` of this file is called.
    item.add_marker(pytest.mark.xdist_group("ray" if item.get_closest_marker("ray") else item.path.name))
