"""Settings that all tests share: four host devices, and Ray clusters that are gone when their test is."""

import os

# Read when jax makes its backend, so set before anything imports it.
os.environ["JAX_PLATFORMS"] = "cpu"
os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=8"
