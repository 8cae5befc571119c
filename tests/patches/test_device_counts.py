"""Counting devices by Alpa's name for them."""
import jax
import pytest

from alpa_stock_jax import device_counts


@pytest.mark.parametrize("count", [jax.device_count, jax.local_device_count])
def test_gpu_stands_for_the_devices_that_are_there(count):
    assert count("gpu") == count("cpu") == count() == 8


def test_a_real_gpu_is_asked_for_by_its_name(monkeypatch):
    monkeypatch.setattr(device_counts, "_has_gpu", lambda: True)
    assert device_counts._counting(lambda backend=None: backend)("gpu") == "gpu"
