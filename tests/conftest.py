"""Settings that all tests share: host devices, and, with several processes, which tests run one after the other."""

import os

import pytest

# Read when jax makes its backend, so set before anything imports it.
os.environ["JAX_PLATFORMS"] = "cpu"
os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=8"


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items):
    """With `pytest --dist loadgroup`, tests of a file run in one process, and those that start Ray in one, too."""
    for item in items:
        group = "ray" if item.get_closest_marker("ray") else item.path.name
        item.add_marker(pytest.mark.xdist_group(group))
