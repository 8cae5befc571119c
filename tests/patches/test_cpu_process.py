"""Processes on CPU start with as many devices as they need, without flags for GPUs, and keep the memory they have."""
from alpa_stock_jax.cpu_process import cpu_environment

KEPT = {"MALLOC_MMAP_THRESHOLD_": str(1 << 32), "MALLOC_TRIM_THRESHOLD_": str(1 << 32)}


def test_a_process_has_the_devices_of_its_mesh_and_no_flags_for_gpus():
    flags = "--xla_gpu_autotune_level=0 --xla_force_host_platform_device_count=2 --xla_dump_to=/dev/null"
    assert cpu_environment(8, {"XLA_FLAGS": flags, "HOME": "/"}) == {
        "JAX_PLATFORMS": "cpu",
        "XLA_FLAGS": "--xla_dump_to=/dev/null --xla_force_host_platform_device_count=8",
        **KEPT,
    }


def test_settings_of_the_allocator_that_are_there_stay():
    found = cpu_environment(1, {"MALLOC_TRIM_THRESHOLD_": "5"})
    assert (found["MALLOC_MMAP_THRESHOLD_"], found["MALLOC_TRIM_THRESHOLD_"]) == (str(1 << 32), "5")
