"""Devices tell how much memory is in use, and wait until all is done."""

import gc

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from alpa_stock_jax._registry import apply_before
from alpa_stock_jax.devices import note_execution

apply_before()
KIB = 1024


@pytest.fixture
def device():
    gc.collect()
    device = jax.devices()[5]
    device.clear_memory_stats()
    return device


def test_memory_in_use_is_that_of_the_live_arrays_of_the_device(device):
    before = device.memory_allocated()
    array = jax.device_put(np.zeros(16 * KIB, np.float32), device)
    elsewhere = jax.device_put(np.zeros(16 * KIB, np.float32), jax.devices()[6])
    assert device.memory_allocated() - before == 64 * KIB
    array.delete()
    assert device.memory_allocated() == before
    assert elsewhere.shape == (16 * KIB,)


def test_the_peak_stays_until_it_is_cleared(device):
    array = jax.device_put(np.zeros(16 * KIB, np.float32), device)
    peak = device.max_memory_allocated()
    assert peak >= 64 * KIB
    array.delete()
    assert device.max_memory_allocated() == peak
    device.clear_memory_stats()
    assert device.max_memory_allocated() == device.memory_allocated() <= peak - 64 * KIB


def test_what_an_execution_allocates_counts_in_the_peak(device):
    note_execution(device, 1 << 20)
    assert device.max_memory_allocated() >= 1 << 20


def test_after_the_barrier_everything_is_ready(device):
    array = jax.jit(lambda x: x @ x)(jax.device_put(jnp.ones((200, 200)), device))
    device.synchronize_all_activity()
    assert array.is_ready()
