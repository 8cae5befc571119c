"""Alpa starts with a backend that is there, and with flags that stock jaxlib knows."""
import os

import alpa
import jax


def test_the_backend_is_the_cpu_without_a_gpu():
    assert alpa.global_config.backend == "cpu"
    assert alpa.global_config.has_cuda is False
    assert alpa.global_config.ray_accelerator_name == "GPU"


def test_flags_of_alpas_fork_are_gone_and_others_stay():
    assert "xla_gpu" not in os.environ["XLA_FLAGS"]
    assert "--xla_force_host_platform_device_count=8" in os.environ["XLA_FLAGS"]
    assert jax.device_count() == 8


def test_stock_jaxlib_is_accepted():
    assert alpa.version.check_alpa_jaxlib_version() is None
    assert alpa.api.check_alpa_jaxlib_version is alpa.version.check_alpa_jaxlib_version
