"""Alpa starts with a backend that is there, and with flags that stock jaxlib knows."""

import pytest

from alpa_stock_jax import environment


@pytest.mark.parametrize(
    ("platforms", "has_driver", "installed", "usable"),
    [
        ("", True, True, True),
        ("cuda,cpu", True, True, True),
        ("cpu", True, True, False),
        ("", False, True, False),
        ("", True, False, False),
    ],
)
def test_a_gpu_needs_a_driver_a_plugin_and_permission(monkeypatch, platforms, has_driver, installed, usable):
    monkeypatch.setenv("JAX_PLATFORMS", platforms)
    monkeypatch.setattr(environment, "_is_installed", lambda name: installed)
    assert environment._can_use_gpu(has_driver) is usable
