"""Workers that only compile start with as many CPU devices as their mesh, and without flags for GPUs."""

from alpa_stock_jax.pipeline_profile_workers import compiler_environment


def test_a_compiling_process_has_the_devices_of_its_mesh(monkeypatch):
    monkeypatch.setenv(
        "XLA_FLAGS", "--xla_gpu_autotune_level=0 --xla_force_host_platform_device_count=2 --xla_dump_to=/dev/null"
    )
    assert compiler_environment(8) == {
        "JAX_PLATFORMS": "cpu",
        "XLA_FLAGS": "--xla_dump_to=/dev/null --xla_force_host_platform_device_count=8",
    }
