"""Devices tell how much memory is in use, and wait until all is done."""
import gc

import jax
import pytest


@pytest.fixture
def device():
    gc.collect()
    device = jax.devices()[5]
    device.clear_memory_stats()
    return device


def test_memory_is_available_and_shared_by_the_devices(device):
    assert 0 < device.available_memory() * len(jax.devices()) < 1 << 50
